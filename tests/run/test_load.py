"""Files into a run: ranks known, missing, doubled, unreadable; everything lost is said."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace

from stepscope.contract.run_folder import trace_file
from stepscope.errors import InputError
from stepscope.run.load import load


def small(rank: int, *, world_size: int = 4, shift: float = 0) -> RankTrace:
    trace = RankTrace(rank, world_size=world_size)
    trace.step(0, 0, 1000)
    trace.kernel("gemm", at=10, start=20 + shift, end=90)
    return trace


def test_ranks_come_in_their_order_with_how_they_are_known(tmp_path: Path) -> None:
    for rank in (2, 0, 1, 3):
        small(rank).write(tmp_path)
    run = load(tmp_path, cache=False)
    assert [(r.rank, r.rank_source) for r in run.ranks] == [(r, "distributedInfo") for r in range(4)]
    assert (run.name, run.world_size, run.unreadable, run.warnings) == (tmp_path.name, 4, (), ())


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 4):
        small(rank, world_size=8).write(tmp_path)
    run = load(tmp_path, cache=False)
    doubt = "what they did is unknown, and waiting for them looks like transfer"
    assert run.warnings == (f"ranks missing: 1-3, 5-7 of 8; {doubt}",)


def test_two_different_traces_of_a_rank_are_refused(tmp_path: Path) -> None:
    small(1).write(tmp_path)
    (tmp_path / "again.json.gz").write_bytes(gzip.compress(json.dumps(small(1, shift=3).document()).encode()))
    with pytest.raises(InputError, match="two traces are of rank 1") as error:
        load(tmp_path, cache=False)
    assert "\n" not in str(error.value)


def test_copy_of_a_trace_counts_once_and_is_named(tmp_path: Path) -> None:
    path = small(0, world_size=1).write(tmp_path)
    shutil.copy(path, tmp_path / "copy.json.gz")
    (tmp_path / "plain.json").write_bytes(gzip.decompress(path.read_bytes()))
    run = load(tmp_path, cache=False)
    assert len(run.ranks) == 1
    assert [line for line in run.warnings if "same trace; it counts once" in line] == list(run.warnings)
    assert len(run.warnings) == 2


def test_two_runs_of_all_ranks_in_one_folder_are_refused(tmp_path: Path) -> None:
    for attempt in range(2):
        for rank in range(2):
            document = json.dumps(small(rank, world_size=2, shift=attempt).document())
            (tmp_path / f"attempt{attempt}-rank{rank}.json").write_text(document)
    with pytest.raises(InputError, match="two runs or two windows lie together"):
        load(tmp_path, cache=False)


def test_unreadable_rank_is_named_and_the_rest_is_used(tmp_path: Path) -> None:
    small(0, world_size=2).write(tmp_path)
    (tmp_path / trace_file(1)).write_bytes(b"not gzip at all")
    run = load(tmp_path, cache=False)
    assert [r.rank for r in run.ranks] == [0]
    assert len(run.unreadable) == 1
    assert any(line.startswith("rank lost: ") for line in run.warnings)
    assert any(line.startswith("ranks missing: 1 of 2") for line in run.warnings)
    assert run.world_size == 2


def test_file_that_claims_no_rank_is_left_out_and_named(tmp_path: Path) -> None:
    small(0, world_size=1).write(tmp_path)
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    run = load(tmp_path, cache=False)
    assert run.unreadable == ()
    assert len(run.warnings) == 1
    assert run.warnings[0].startswith("left out, not a trace of a rank: ")


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, "\xff"])
def test_damaged_run_json_is_said_and_not_fatal(tmp_path: Path, text: str) -> None:
    small(0, world_size=1).write(tmp_path)
    (tmp_path / "run.json").write_text(text)
    run = load(tmp_path, cache=False)
    assert run.description == {}
    assert any(line.startswith("run.json is damaged") for line in run.warnings)
