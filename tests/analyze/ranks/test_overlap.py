from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.rank_windows import overlap_efficiency, rank_overlap


def overlapping(rank: int, *, comm: tuple[float, float]) -> RankTrace:
    """Two steps of 1000 with 400 of compute from 0 and a copy from 700 to 800."""
    r = RankTrace(rank, world_size=2)
    r.kernel("older", at=None, start=-60, end=0)
    for k in range(2):
        t = 1000 * k
        r.step(k, t - 50, t + 950)
        r.kernel("compute", at=t - 40, start=t, end=t + 400)
        r.copy(at=t - 39, start=t + 700, end=t + 800)
        r.collective("allreduce", at=t - 30, start=t + comm[0], end=t + comm[1])
        r.kernel("last", at=t - 20, start=t + 990, end=t + 1000)
    return r


def test_compute_comm_together_hidden_and_exposed_per_step(tmp_path: Path) -> None:
    ranks = built_run(tmp_path, [overlapping(0, comm=(300, 900)), overlapping(1, comm=(500, 600))]).ranks
    first, second = (rank_overlap(r) for r in ranks)
    assert first is not None and second is not None
    assert (first.compute_ns // 1000).tolist() == [410, 410]
    assert (first.comm_ns // 1000).tolist() == [600, 600]
    assert (first.together_ns // 1000).tolist() == [100, 100]
    assert (first.exposed_ns // 1000).tolist() == [400, 400]
    assert (first.hidden_ns // 1000).tolist() == [200, 200]
    assert first.efficiency == pytest.approx(100 / 410)
    assert second.efficiency == 0
    assert overlap_efficiency([first, second, None]) == pytest.approx(100 / (410 + 100))


def test_efficiency_is_one_where_the_smaller_hides_completely(tmp_path: Path) -> None:
    (rank,) = built_run(tmp_path, [overlapping(0, comm=(50, 350))]).ranks
    found = rank_overlap(rank)
    assert found is not None and found.efficiency == 1


def test_no_communication_no_efficiency(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 100)
    r.kernel("compute", at=10, start=20, end=60)
    found = rank_overlap(built_run(tmp_path, [r]).ranks[0])
    assert found is not None and found.efficiency is None and found.comm_ns.tolist() == [0]


def test_cpu_rank_overlaps_operators_with_gloo(tmp_path: Path) -> None:
    r = RankTrace(backend="gloo")
    r.step(0, 0, 1000)
    r.ran("aten::mm", 0, 100)
    r.gloo("allreduce", at=100, start=300, end=700)
    r.ran("aten::mm", 150, 500)
    found = rank_overlap(built_run(tmp_path, [r]).ranks[0])
    assert found is not None
    assert (found.compute_ns[0], found.comm_ns[0], found.together_ns[0], found.exposed_ns[0]) == (
        450_000, 400_000, 200_000, 200_000,
    )  # fmt: skip
