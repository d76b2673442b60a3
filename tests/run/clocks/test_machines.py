"""Ranks of one machine share a clock."""

from pathlib import Path

import numpy as np
from tests.analyze.build import RankTrace, built_run

from stepscope.run.aligned import aligned
from stepscope.run.load import Run


def four_ranks(tmp_path: Path, description: dict | None = None) -> Run:
    """Ranks 0 and 1 on one machine, 2 and 3 on another whose clock is 5 ms ahead; ends differ by jitter."""
    traces = []
    for rank in range(4):
        r = RankTrace(rank, world_size=4, clock_offset_us=5000 if rank > 1 else 0)
        r.step(0, 0, 20_000)
        for k in range(8):
            start = 100 + 2000 * k
            r.collective("allreduce", at=start, start=start + 10, end=start + 500 + 30 * rank, elements=4096)
        traces.append(r)
    return built_run(tmp_path, traces, description=description)


def test_ranks_of_the_first_machine_need_no_estimate(tmp_path: Path) -> None:
    run = four_ranks(tmp_path, {"ranks": {str(r): {"boot_id": "a" if r < 2 else "b"} for r in range(4)}})
    clocks = aligned(run).clocks
    assert clocks.offset_ns[1] == 0
    assert clocks.uncertainty_ns[1] == 1000
    assert clocks.offset_ns[2] == clocks.offset_ns[3]
    assert abs(clocks.offset_ns[2] + 5_000_000) <= clocks.uncertainty_ns[2]


def test_without_boot_ids_each_rank_is_estimated(tmp_path: Path) -> None:
    clocks = aligned(four_ranks(tmp_path)).clocks
    assert len(np.unique(clocks.offset_ns)) == 4


def test_shifted_file_is_aligned_although_its_machine_has_one_clock(tmp_path: Path) -> None:
    traces = []
    for rank in range(4):
        r = RankTrace(rank, world_size=4, clock_offset_us=20_000 if rank == 1 else 0)
        r.step(0, 0, 20_000)
        for k in range(8):
            start = 100 + 2000 * k
            r.collective("allreduce", at=start, start=start + 10, end=start + 500, elements=4096)
        traces.append(r)
    run = built_run(tmp_path, traces, description={"ranks": {str(r): {"boot_id": "a"} for r in range(4)}})
    assert aligned(run).clocks.offset_ns.tolist() == [0, -20_000_000, 0, 0]
