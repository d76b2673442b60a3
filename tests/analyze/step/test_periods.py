from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run, true_ns

from stepscope.analyze.step_periods import StepPeriods, profiled_step_ns, step_periods


def periods(tmp_path: Path, trace: RankTrace) -> StepPeriods:
    found = step_periods(built_run(tmp_path, [trace]).ranks[0])
    assert found is not None
    return found


def lagging(*, older: bool) -> RankTrace:
    """Three steps of 100 on the host, whose device work ends at 250, 460 and 650."""
    r = RankTrace()
    if older:
        r.kernel("older", at=None, start=-50, end=40)
    for k, (start, end) in enumerate([(60, 250), (250, 460), (460, 650)]):
        r.step(k + 7, k * 100, k * 100 + 99)
        r.kernel("k", at=k * 100 + 10, start=start, end=end)
    return r


def test_period_is_from_device_end_to_device_end(tmp_path: Path) -> None:
    p = periods(tmp_path, lagging(older=True))
    assert p.start_ns.tolist() == [true_ns(t) for t in (40, 250, 460)]
    assert p.end_ns.tolist() == [true_ns(t) for t in (250, 460, 650)]
    assert p.complete.all()
    assert p.median_ns == 210_000


def test_first_period_without_older_work_is_incomplete_and_left_out(tmp_path: Path) -> None:
    p = periods(tmp_path, lagging(older=False))
    assert p.start_ns[0] == true_ns(0)
    assert p.complete.tolist() == [False, True, True]
    assert p.median_ns == 200_000
    assert p.typical.tolist() == [1, 2]


def test_only_step_counts_although_incomplete(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 100)
    r.kernel("k", at=10, start=20, end=90)
    p = periods(tmp_path, r)
    assert p.median_ns == 90_000 and p.typical.tolist() == [0]


def test_work_of_the_next_step_on_another_stream_does_not_end_a_step(tmp_path: Path) -> None:
    r = lagging(older=True)
    r.copy(start=200, end=300, at=110, stream=9)  # step 1's prefetch, while step 0 still runs
    assert periods(tmp_path, r).end_ns.tolist() == [true_ns(t) for t in (250, 460, 650)]


def test_step_without_device_work_joins_the_next_and_is_incomplete(tmp_path: Path) -> None:
    r = RankTrace()
    r.kernel("older", at=None, start=-50, end=-10)
    for k in range(3):
        r.step(k, k * 100, k * 100 + 99)
    r.kernel("k", at=10, start=20, end=90)
    r.kernel("k", at=210, start=220, end=290)
    p = periods(tmp_path, r)
    assert p.step.tolist() == [0, 2]
    assert p.complete.tolist() == [True, False]


def test_without_steps_the_work_is_one_period(tmp_path: Path) -> None:
    r = RankTrace()
    r.kernel("k", at=10, start=20, end=90)
    r.kernel("k", at=20, start=190, end=300)
    p = periods(tmp_path, r)
    assert p.dur_ns.tolist() == [280_000] and p.step.tolist() == [-1]


def test_cpu_rank_has_the_hosts_spans(tmp_path: Path) -> None:
    r = RankTrace(backend="gloo")
    for k in range(3):
        r.step(k, k * 100, k * 100 + 90)
        r.ran("aten::mm", k * 100 + 10, k * 100 + 80)
    p = periods(tmp_path, r)
    assert p.dur_ns.tolist() == [100_000, 100_000, 90_000]


@pytest.mark.parametrize("lengths", [[10, 10, 10, 400, 11, 10, 9, 10], [10, 12], [7]])
def test_typical_steps_are_near_the_median(lengths: list[int]) -> None:
    end = np.cumsum(lengths, dtype=np.int64)
    p = StepPeriods(np.arange(len(end)), end - lengths, end, np.ones(len(end), bool))
    assert len(p.typical) >= len(lengths) / 2
    assert abs(p.dur_ns[p.typical] - p.median_ns).max() <= 1


def test_long_steps_that_recur_are_typical_too() -> None:
    lengths = np.array([10, 10, 40, 10, 10, 40])
    end = np.cumsum(lengths, dtype=np.int64)
    p = StepPeriods(np.arange(6), end - lengths, end, np.ones(6, bool))
    assert p.uneven and p.typical.tolist() == list(range(6))
    assert (p.median_ns, p.mean_ns) == (10, 20)


def test_profiled_step_is_the_mean_of_the_ranks_medians() -> None:
    ones = np.ones(3, bool)
    a = StepPeriods(np.arange(3), np.array([0, 10, 20]), np.array([10, 20, 99]), ones)
    b = StepPeriods(np.arange(3), np.array([0, 20, 40]), np.array([20, 40, 45]), ones)
    assert profiled_step_ns([a, None, b]) == 15
    assert profiled_step_ns([None]) is None
