"""A planted missing rank, wrong shape, wrong order and call left out are named from the dumps alone."""

from pathlib import Path

import pytest
from tests.analyze.hang.dumps import Recorder, world

from stepscope.analyze.hang import Hang, hang_of
from stepscope.document.hang import conclusions, hang_json
from stepscope.run.dumps import read_dumps


def read(folder: Path, recorders: list[Recorder]) -> Hang:
    for recorder in recorders:
        recorder.write(folder)
    dumps = read_dumps([str(folder)])
    found = hang_of(dumps.by_rank)
    assert hang_json(found, dumps)["conclusions"] == conclusions(found)
    return found


def test_missing_rank_is_named_with_what_it_did_last(tmp_path: Path) -> None:
    ranks = world()
    for r in ranks:
        r.call("all_reduce", line=10).call("broadcast", line=11)
        if r.rank != 2:
            r.call("all_reduce", line=12, state="started")
    found = read(tmp_path, ranks)
    (group,) = found.groups
    assert group.verdict == "missing-rank" and group.missing == (2,) and found.suspects == (2,)
    assert group.last_common is not None and (group.last_common.seq, group.last_common.op) == (2, "broadcast")
    (line,) = conclusions(found)
    assert "rank 2 did not arrive at nccl:all_reduce number 3 of group default_pg" in line
    assert "rank 0-1, 3 issued at train.py:12 (step)" in line
    assert "rank 2 last issued nccl:broadcast number 2 of group default_pg at train.py:11 (step)" in line


@pytest.mark.parametrize("state", ["completed", "started"])
def test_wrong_shape_is_named_with_both_lines(tmp_path: Path, state: str) -> None:
    ranks = world()
    for r in ranks:
        r.call("all_reduce", line=10)
        r.call("all_reduce", line=13 if r.rank == 1 else 12, sizes=((9 if r.rank == 1 else 8,),), state=state)
    found = read(tmp_path, ranks)
    mismatch = found.groups[0].mismatch
    assert mismatch is not None and (mismatch.kind, mismatch.seq, mismatch.odd_ranks) == ("wrong-shape", 2, (1,))
    assert found.suspects == (1,)
    assert conclusions(found)[0] == (
        "at number 2 of group default_pg rank 1 gives another size: rank 0, 2-3 nccl:all_reduce [[8]] Float "
        "at train.py:12 (step); rank 1 nccl:all_reduce [[9]] Float at train.py:13 (step)"
    )


def test_wrong_type_is_named(tmp_path: Path) -> None:
    ranks = [r.call("all_reduce", line=4, dtype="Half" if r.rank == 3 else "Float", state="started") for r in world()]
    mismatch = read(tmp_path, ranks).groups[0].mismatch
    assert mismatch is not None and (mismatch.kind, mismatch.odd_ranks) == ("wrong-type", (3,))


def test_other_shape_of_as_many_elements_is_no_mismatch(tmp_path: Path) -> None:
    ranks = [r.call("all_reduce", line=4, sizes=((2, 4),) if r.rank else ((8,),)) for r in world()]
    assert not read(tmp_path, ranks).found


def test_uneven_all_to_all_is_no_mismatch(tmp_path: Path) -> None:
    ranks = [r.call("all_to_all", line=4, sizes=((8 + r.rank,),)) for r in world()]
    assert not read(tmp_path, ranks).found


def test_wrong_order_names_both_sides(tmp_path: Path) -> None:
    ranks = world(2)
    for r in ranks:
        r.call("all_reduce", line=10)
        r.call("broadcast" if r.rank else "all_gather", line=20 + r.rank, state="scheduled")
    found = read(tmp_path, ranks)
    mismatch = found.groups[0].mismatch
    assert mismatch is not None and (mismatch.kind, mismatch.seq) == ("wrong-order", 2)
    line = conclusions(found)[0]
    assert "rank 0 nccl:all_gather at train.py:20" in line and "rank 1 nccl:broadcast at train.py:21" in line
    assert "which of them is right cannot be told" in line and found.suspects == ()
    last = found.groups[0].last_common
    assert last is not None and last.seq == 1


def test_call_left_out_is_told_from_a_wrong_order(tmp_path: Path) -> None:
    ranks = world()
    for r in ranks:
        r.call("all_reduce", line=10)
        if r.rank != 1:
            r.call("broadcast", line=11)
        r.call("all_gather", line=12).call("all_reduce", line=13, state="started")
    found = read(tmp_path, ranks)
    mismatch = found.groups[0].mismatch
    assert mismatch is not None and (mismatch.kind, mismatch.shift, mismatch.odd_ranks) == ("left-out", 1, (1,))
    assert conclusions(found)[0].startswith(
        "rank 1 left out, from number 2 of group default_pg on: nccl:broadcast [[8]] Float at train.py:11 (step)"
    )


def test_extra_call_is_named(tmp_path: Path) -> None:
    ranks = world()
    for r in ranks:
        if r.rank == 3:
            r.call("barrier", line=9)
        r.call("all_gather", line=12).call("all_reduce", line=13)
    mismatch = read(tmp_path, ranks).groups[0].mismatch
    assert mismatch is not None and (mismatch.kind, mismatch.odd_ranks) == ("extra-call", (3,))
    assert [c.op for c in mismatch.missed] == ["barrier"]


def test_waiting_rank_is_not_blamed_for_what_another_group_holds_up(tmp_path: Path) -> None:
    """Rank 3 sleeps; rank 2 waits for it in tp, and ranks 0 and 1 for rank 2 and 3 in the world."""
    groups = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("tp", [0, 1]), "2": ("tp", [2, 3])}
    ranks = [Recorder(rank, groups) for rank in range(4)]
    for r in ranks:
        own = "1" if r.rank < 2 else "2"
        r.call("all_reduce", line=5, group=own)
        if r.rank < 2:
            r.call("all_reduce", line=6, state="started")
        elif r.rank == 2:
            r.call("all_gather", line=7, group=own, state="started")
    found = read(tmp_path, ranks)
    assert found.suspects == (3,)
    assert {g.name: g.missing for g in found.groups} == {"0": (2, 3), "1": (), "2": (3,)}


def test_ranks_that_wait_for_each_other_are_a_circle(tmp_path: Path) -> None:
    groups = {"0": ("a", [0, 1]), "1": ("b", [0, 1])}
    ranks = [
        Recorder(rank, groups).call("all_reduce", line=5 + rank, group=str(rank), state="started") for rank in (0, 1)
    ]
    found = read(tmp_path, ranks)
    assert set(found.circle) == {0, 1} and found.suspects == ()
    assert "wait for each other" in conclusions(found)[-1]


def test_rank_without_dump_is_named(tmp_path: Path) -> None:
    ranks = [r.call("all_reduce", line=5, state="started") for r in world() if r.rank != 1]
    found = read(tmp_path, ranks)
    assert found.without_dump == (1,) and found.suspects == (1,) and found.world_size == 4
    assert "rank 1 of this group left no dump" in conclusions(found)[0]
    assert conclusions(found)[-1].startswith("no dump of rank 1:")


def test_all_arrived_and_nobody_finished(tmp_path: Path) -> None:
    found = read(tmp_path, [r.call("all_reduce", line=5, state="started") for r in world()])
    assert found.groups[0].verdict == "not-finished" and found.suspects == ()
    assert "look at the device and the network" in conclusions(found)[0]


def test_receive_without_send_is_named(tmp_path: Path) -> None:
    ranks = world(2)
    ranks[1].call("recv 1<-0", line=8, state="started", p2p=True)
    ranks[0].call("all_reduce", line=3)
    ranks[1].call("all_reduce", line=3)
    found = read(tmp_path, ranks)
    assert [(u.rank, u.peer) for u in found.unpaired] == [(1, 0)] and found.suspects == (0,)


def test_dump_that_is_older_is_no_hang(tmp_path: Path) -> None:
    ranks = [r.call("all_reduce", line=3) for r in world(2)]
    ranks[0].call("all_reduce", line=3)
    found = read(tmp_path, ranks)
    assert not found.found and found.groups[0].verdict == "behind"


def test_overwritten_entries_are_not_compared(tmp_path: Path) -> None:
    ranks = world(2)
    for r in ranks:
        for line in range(6):
            r.call("all_reduce", line=line)
        r.entries = r.entries[3 * r.rank :]
    assert not read(tmp_path, ranks).found
