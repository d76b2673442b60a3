"""The profiler's cost taken out of budgets whose truth is known."""

from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.budget import (
    PART_OF_CAUSE,
    RankBudget,
    StepBudget,
    step_budget,
    unprofiled_step_ns,
)
from stepscope.analyze.idle import Cause, Idle
from stepscope.analyze.layers import PART_CODE, PARTS
from stepscope.analyze.step_periods import StepPeriods
from stepscope.units import NS_PER_MS, ns_of_ms


def budget(*, causes: dict[Cause, float] | None = None, unmatched: float = 0, **parts: float) -> RankBudget:
    """A rank with two equal steps of these parts and idle causes, in ms."""
    part_ns = np.zeros((2, len(PARTS)), np.int64)
    cause_ns = np.zeros((2, len(Cause)), np.int64)
    for part, value in parts.items():
        part_ns[:, PART_CODE[part]] += round(value * 1e6)
    for cause, value in (causes or {}).items():
        cause_ns[:, cause] = round(value * 1e6)
        part_ns[:, PART_CODE[PART_OF_CAUSE[cause]]] += round(value * 1e6)
    part_ns[:, PART_CODE["unknown"]] += round(unmatched * 1e6)
    length = part_ns[0].sum()
    periods = StepPeriods(np.arange(2), np.array([0, length]), np.array([length, 2 * length]), np.ones(2, bool))
    idle: Idle = None if causes is None else object()  # type: ignore[assignment]  # only its presence is asked for
    return RankBudget(periods, part_ns, cause_ns, np.full(2, round(unmatched * 1e6)), idle, None)


def ms_of(whole: StepBudget | None) -> dict[str, float]:
    assert whole is not None
    return {p.part: round(p.ns_per_step / 1e6, 6) for p in whole.parts if p.ns_per_step}


def test_launching_shrinks_first_and_the_devices_turnaround_does_not() -> None:
    causes = {Cause.LAUNCH: 4.0, Cause.TURNAROUND: 1.0, Cause.SYNC: 2.0, Cause.PROFILER: 0.5}
    whole = step_budget([budget(forward=6, wait=2.5, causes=causes)], unprofiled_ns=13 * NS_PER_MS)
    assert ms_of(whole) == {"forward": 6, "wait": 2.5, "launch_gap": 2.5, "host_sync": 2}
    assert whole is not None
    assert whole.overhead_pct == pytest.approx(100 * 3 / 13)
    assert {p.part: p.correction_ns / 1e6 for p in whole.parts if p.correction_ns} == pytest.approx(
        {"launch_gap": -2.5, "unknown": -0.5}
    )
    assert whole.idle_ns == pytest.approx({"launch": 1.5e6, "device_turnaround": 1e6, "host_sync": 2e6})
    assert not whole.warnings


def test_then_blocks_then_waiting_then_work() -> None:
    causes = {Cause.LAUNCH: 4.0, Cause.SYNC: 3.0, Cause.DATA: 1.0}
    rank = budget(forward=6, exposed_transfer=2, wait=4, causes=causes)
    assert ms_of(step_budget([rank], unprofiled_ns=14 * NS_PER_MS)) == {
        "forward": 6, "exposed_transfer": 2, "wait": 4, "host_sync": 1.5, "data_loading": 0.5,
    }  # fmt: skip
    assert ms_of(step_budget([rank], unprofiled_ns=9 * NS_PER_MS)) == {"forward": 6, "exposed_transfer": 2, "wait": 1}
    slower = step_budget([rank], unprofiled_ns=4 * NS_PER_MS)
    assert ms_of(slower) == {"forward": 3, "exposed_transfer": 1}
    assert slower is not None and any("taken from work itself" in line for line in slower.warnings)


def test_step_that_is_longer_without_the_profiler_leaves_the_difference_unknown() -> None:
    whole = step_budget([budget(forward=6, causes={Cause.SYNC: 4})], unprofiled_ns=12 * NS_PER_MS)
    assert ms_of(whole) == {"forward": 6, "host_sync": 4, "unknown": 2}
    assert whole is not None and whole.overhead_pct == 0
    assert any("counts as 0" in line for line in whole.warnings)


def test_steps_out_of_the_ordinary_do_not_count() -> None:
    rank = budget(forward=6, causes={Cause.STALL: 0.0})
    part_ns = np.repeat(rank.part_ns[:1], 5, axis=0)
    part_ns[3, PART_CODE["host_stall"]] += 500_000_000  # a checkpoint
    cause_ns = np.repeat(rank.cause_ns[:1], 5, axis=0)
    cause_ns[3, Cause.STALL] += 500_000_000
    end = np.cumsum(part_ns.sum(axis=1))
    periods = StepPeriods(np.arange(5), end - part_ns.sum(axis=1), end, np.ones(5, bool))
    odd = RankBudget(periods, part_ns, cause_ns, np.zeros(5, np.int64), rank.idle, None)
    assert ms_of(step_budget([odd])) == {"forward": 6}


@pytest.mark.parametrize(
    ("given", "described", "known"),
    [(5.5, 4.0, 5.5), (None, 4.0, 4.0), (None, None, None), (None, "fast", None), (None, True, None), (None, -1, None)],
)
def test_unprofiled_time_is_as_given_else_as_described(
    tmp_path: Path, given: float | None, described: object, known: float | None
) -> None:
    r = RankTrace()
    r.step(0, 0, 10)
    r.kernel("k", at=1, start=2, end=3)
    run = built_run(tmp_path, [r], description={"unprofiled_step_ms": described})
    assert unprofiled_step_ns(run, ns_of_ms(given)) == ns_of_ms(known)
