"""Folders as other tools leave them: HTA, TensorBoard, a folder per rank."""

import gzip
import json
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace

from stepscope.run.load import load
from stepscope.run.sources import runs_in


def write(path: Path, rank: int, *, header: bool = False) -> None:
    """Write a trace of a rank; without `header` it does not say which rank that is."""
    trace = RankTrace(rank, world_size=4)
    trace.step(0, 0, 1000)
    trace.kernel("gemm", at=10, start=20 + rank, end=90)
    document = trace.document()
    if not header:
        del document["distributedInfo"]
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)


def starts(folder: Path | list[Path] | str) -> list[tuple[int, str, int]]:
    """Return rank, how it is known, and which trace it is."""
    run = load(folder, cache=False)
    return [(r.rank, r.rank_source, int(r.work.start_ns[0] % 1_000_000) // 1000 - 20) for r in run.ranks]


@pytest.mark.parametrize("named", ["rank_{}", "rank{}", "rank-{}", "worker{}", "node0_rank{}", "Rank {}"])
def test_folder_per_rank(tmp_path: Path, named: str) -> None:
    for rank in (0, 2, 10):
        write(tmp_path / named.format(rank) / "trace.json", rank)
    assert starts(tmp_path) == [(rank, "file name", rank) for rank in (0, 2, 10)]


def test_traces_deeper_in_the_folder_of_a_rank(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank_{rank}" / "profile" / "step_10" / "host_123.456.pt.trace.json.gz", rank)
    assert starts(tmp_path) == [(0, "file name", 0), (1, "file name", 1)]


def test_glob_and_list_of_rank_folders(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank_{rank}" / "trace.json", rank)
    expected = [(0, "file name", 0), (1, "file name", 1)]
    assert starts(f"{tmp_path}/rank_*") == expected
    assert starts([tmp_path / "rank_1", tmp_path / "rank_0"]) == expected


def test_folders_of_ranks_are_one_run_not_a_set_of_runs(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank_{rank}" / "trace.json", rank)
    assert runs_in(str(tmp_path)) == [tmp_path]
