"""Every loss becomes a line, with its count and where it is largest."""

import json
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.run.traces import event, rank_of

from stepscope.run.load import load
from stepscope.run.rank import quality_warnings, rank_ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 3, 7], "0-3, 7"), ([5, 1, 0], "0-1, 5"), ([2, 4, 6], "2, 4, 6")],
)
def test_ranks_in_short(numbers: list[int], text: str) -> None:
    assert rank_ranges(numbers) == text


def test_clean_rank_has_no_lines(tmp_path: Path) -> None:
    trace = RankTrace(0)
    trace.step(0, 0, 100)
    trace.kernel("gemm", at=10, start=20, end=30)
    assert quality_warnings(built_run(tmp_path, [trace]).ranks) == []


def test_unjoined_work_is_counted(tmp_path: Path) -> None:
    events = [
        event("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=3),
        event("kernel", "gemm", 9, 1, correlation=1),
        event("kernel", "gemm", 11, 1, correlation=8),
    ]
    lines = "\n".join(quality_warnings([rank_of(tmp_path, events)]))
    assert "1 device operations without a launch" in lines
    assert "launches without device work" in lines
    assert "1 launches that share a correlation id" in lines


def test_ranks_with_the_largest_counts_are_named(tmp_path: Path) -> None:
    traces = []
    for rank in range(6):
        trace = RankTrace(rank, world_size=6)
        trace.step(0, 0, 100)
        for k in range(rank):
            trace.kernel("old", at=None, start=-50 + k, end=-49 + k)
        traces.append(trace)
    (line,) = built_run(tmp_path, traces).warnings
    assert line.startswith("15 device operations without a launch")
    assert line.endswith("(rank 5: 5, rank 4: 4, rank 3: 3, rank 2: 2, ...)")


def test_cut_and_damaged_traces_are_said_first(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, [event("cpu_op", "aten::mm", k) for k in range(9)], cut=True)
    lines = quality_warnings([rank])
    assert lines[0] == "cut off: the trace of rank 0; what was readable is used, its last recorded step is left out"


def test_notes_of_reading_name_the_rank(tmp_path: Path) -> None:
    path = tmp_path / "rank3.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"traceEvents": [event("kernel", "gemm")]}).encode())
    assert "rank 3: byte-order mark" in load(path, cache=False).warnings
