"""Ranks that take turns at having more work are no stragglers, and cost time in every step all the same."""

from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.analyze.stragglers import uneven_compute
from stepscope.diagnose.findings import diagnose
from stepscope.run.load import Run

SHORT, LONG, TRANSFER = 2000, 4000, 200
PERIOD = LONG + TRANSFER + 100


def in_turns(folder: Path, *, more_threads: bool = True, uneven: bool = True, transfers: int = TRANSFER) -> Run:
    """Return two ranks of which one computes 4 ms and the other 2 ms, in turns, before they meet in each step."""
    built = []
    for rank in range(2):
        r = RankTrace(rank, world_size=2)
        for n in range(8):
            at = n * PERIOD
            heavy = uneven and n % 2 == rank
            took = LONG if heavy or not uneven else SHORT
            r.step(n, at, at + PERIOD)
            grid = [200 if heavy and more_threads else 100, 1, 1]
            with r.op("aten::mm", at + 5, at + 30):
                r.kernel("gemm", at=at + 10, start=at + 20, end=at + 20 + took, grid=grid, block=[128, 1, 1])
            r.call("cudaStreamWaitEvent", at + 34, at + 36)
            start = at + 20 + took
            r.collective("allreduce", at=at + 40, start=start, end=at + 20 + LONG + transfers, elements=1 << 20)
            r.call("cudaDeviceSynchronize", at + 60, at + 30 + LONG + transfers)
        built.append(r)
    folder.mkdir(exist_ok=True)
    return built_run(folder, built)


def test_work_in_turns_is_an_imbalance_of_no_rank(tmp_path: Path) -> None:
    found = uneven_compute(in_turns(tmp_path).ranks)
    assert found is not None and found.heaviest == ()
    assert found.imbalance_ns == pytest.approx((LONG - SHORT) / 2 * 1000)


def test_the_same_threads_in_more_time_are_a_slow_device_not_a_load(tmp_path: Path) -> None:
    assert uneven_compute(in_turns(tmp_path, more_threads=False).ranks) is None


def test_equal_ranks_are_even(tmp_path: Path) -> None:
    assert uneven_compute(in_turns(tmp_path, uneven=False).ranks) is None


def test_the_saving_is_that_of_the_mean_in_every_step(tmp_path: Path) -> None:
    account = account_of(in_turns(tmp_path))
    (found,) = [f for f in diagnose(account).findings if f.id == "load-imbalance"]
    assert "take turns" in found.title and found.ranks == ()
    assert found.alone_ns == pytest.approx((LONG - SHORT) / 2 * 1000, rel=0.1)
