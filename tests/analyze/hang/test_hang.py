"""Planted hangs are named from the dumps alone: constructed ones, and those of real two-rank gloo jobs."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.analyze.hang.dumps import Recorder, world
from tests.limits import HANG_S
from tests.made_once import made_once

from stepscope.analyze.hang import hang_of
from stepscope.document.hang import conclusions, hang_json
from stepscope.records import Row
from stepscope.run.dumps import read_dumps


def read(folder: Path, recorders: list[Recorder]) -> Row:
    for recorder in recorders:
        recorder.write(folder)
    dumps = read_dumps([str(folder)])
    found = hang_of(dumps.by_rank)
    assert hang_json(found, dumps)["conclusions"] == conclusions(found)
    return found


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


JOB = Path(__file__).with_name("planted_job.py")
LINES = JOB.read_text().splitlines()


def line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(LINES) if text in line)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of dumps per fault."""
    return made_once(tmp_path_factory, "hangs", plant_hangs)


def plant_hangs(folder: Path) -> None:
    command = [sys.executable, str(JOB), str(folder), "missing", "shape", "order"]
    subprocess.run(command, stderr=subprocess.DEVNULL, timeout=HANG_S, check=True)


def dumped(folder: Path) -> Row:
    return hang_of(read_dumps([str(folder)]).by_rank)


@pytest.mark.job
def test_planted_missing_rank(jobs: Path) -> None:
    found = dumped(jobs / "missing")
    assert found.suspects == (1,) and found.groups[0].missing == (1,)
    assert f"planted_job.py:{line_of('# REDUCE')} (main)" in conclusions(found)[0]
    assert {g.desc: g.verdict for g in found.groups} == {"default_pg": "missing-rank", "tp": "finished"}


@pytest.mark.job
def test_planted_wrong_shape(jobs: Path) -> None:
    found = dumped(jobs / "shape")
    mismatch = found.groups[0].mismatch
    assert mismatch is not None and mismatch.kind == "wrong-shape"
    assert {rank: call.input_sizes for rank, call in mismatch.calls.items()} == {0: ((64,),), 1: ((96,),)}
    assert f"planted_job.py:{line_of('# SHAPE')} (main)" in conclusions(found)[0]


@pytest.mark.job
def test_planted_wrong_order(jobs: Path) -> None:
    found = dumped(jobs / "order")
    mismatch = found.groups[0].mismatch
    assert mismatch is not None and mismatch.kind == "wrong-order"
    said = conclusions(found)[0]
    assert f"rank 0 gloo:all_reduce at {JOB}:{line_of('# REDUCE')} (main)" in said
    assert f"rank 1 gloo:broadcast at {JOB}:{line_of('# ORDER')} (main)" in said
