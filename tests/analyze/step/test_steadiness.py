"""Warm-up, drift, spikes and throughput of series whose truth is known; step periods; variables that slow a job."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run, true_ns
from tests.analyze.step_logs import log_lines
from tests.not_none import not_none

from stepscope.analyze.account import account_of
from stepscope.analyze.phases import StepPeriods, step_periods
from stepscope.analyze.steadiness import Series, steadiness, steadiness_of
from stepscope.run.load import Run
from stepscope.run.side_files import StepLog, step_log_of
from stepscope.units import NS_PER_MS, ms


def series(ms: Any) -> Series:
    ns = np.round(np.asarray(ms, float) * NS_PER_MS).astype(np.int64)
    return Series("step logs", np.arange(len(ns)), ns, ())


def noise(n: int, sigma: float = 0.5) -> Any:
    return np.random.default_rng(3).normal(0, sigma, n)


def log(rank: int, ms: Any, *, profiled: range = range(0)) -> StepLog:
    return step_log_of(log_lines(ms, window=profiled), rank=rank)


def test_warm_up_is_found_and_left_out() -> None:
    times_ms = 100 + noise(200)
    times_ms[:4] += [3000, 200, 80, 60]
    found = steadiness_of(series(times_ms))
    assert found.warm_up_steps == 4
    assert ms(found.warm_up_ns) == pytest.approx(3340, rel=0.01)
    assert ms(found.mean_ns) == pytest.approx(100, rel=0.01)
    assert found.spread_pct == pytest.approx(0.5, rel=0.3)
    assert found.num_spikes == 0
    assert found.drift is not None and not found.drift.significant


def test_drift_is_significant_and_sized() -> None:
    ms = 100 + noise(500) + np.linspace(0, 10, 500)
    found = steadiness_of(series(ms)).drift
    assert found is not None and found.significant
    assert found.low_pct <= found.change_pct <= found.high_pct
    assert found.change_pct == pytest.approx(100 * 10 / 105, rel=0.1)


def test_regular_spikes_are_found_with_their_interval_and_cost() -> None:
    times_ms = 100 + noise(400)
    times_ms[49::50] += 80
    found = steadiness_of(series(times_ms))
    assert found.num_spikes == 8
    assert found.spike_every == 50
    assert found.spikes[0].step == 49
    assert ms(found.spikes[0].extra_ns) == pytest.approx(80, rel=0.05)
    assert ms(found.spikes_ns_per_step) == pytest.approx(80 / 50, rel=0.05)
    assert found.drift is not None and not found.drift.significant


def two_rank_run(tmp_path: Path) -> Run:
    ranks = []
    for rank in (0, 1):
        r = RankTrace(rank, world_size=2, clock_offset_us=rank * 1e6)
        for n in range(3):
            r.step(n, n * 1000, n * 1000 + 990)
        ranks.append(r)
    return built_run(tmp_path, ranks)


def test_step_logs_speak_before_recorded_steps_and_profiled_ones_do_not_count(tmp_path: Path) -> None:
    run = two_rank_run(tmp_path)
    times_ms = np.full(30, 100.0)
    times_ms[10:15] = 250
    logs = [log(rank, times_ms + 2 * rank, profiled=range(10, 15)) for rank in range(2)]
    found = not_none(steadiness(run, logs=logs))
    assert found.source == "step logs"
    assert found.num_steps == 24  # the window and the step after it are left out
    assert ms(found.median_ns) == pytest.approx(101)
    assert found.over_ranks_ns is not None
    assert (found.over_ranks_ns.min, found.over_ranks_ns.max) == (100 * NS_PER_MS, 102 * NS_PER_MS)


def periods(tmp_path: Path, trace: RankTrace) -> StepPeriods:
    return not_none(step_periods(built_run(tmp_path, [trace]).ranks[0]))


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


def test_it_is_a_warning_of_the_report(tmp_path: Path) -> None:
    r = RankTrace(0)
    for n in range(3):
        r.step(n, 1000.0 * n, 1000.0 * (n + 1))
        r.ran("aten::mm", 1000.0 * n + 10, 1000.0 * n + 900)
    run = replace(built_run(tmp_path, [r]), description={"environment": {"CUDA_LAUNCH_BLOCKING": "1"}})
    assert any(line.startswith("CUDA_LAUNCH_BLOCKING=1") for line in account_of(run).warnings)
