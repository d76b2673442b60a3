"""A busy machine and a changed job, told apart by the waits of the training thread for a core."""

import numpy as np
import pytest

from stepscope.compare.document import headline, verdict_of
from stepscope.compare.runs import StepDifference, step_difference
from stepscope.compare.samples import StepSamples, StepTimes

STEPS = 120


def run(own_ms: float, wait_ms: float, *, one_thread: bool = True, in_step: float = 1.0, seed: int = 0) -> StepSamples:
    """Return steps that take `own_ms` and, with slow moments, waits of which a share is in the step."""
    rng = np.random.default_rng([seed, round(own_ms * 10), round(wait_ms * 10)])
    slow = np.repeat(rng.uniform(0.5, 1.5, STEPS // 10), 10)
    waits = wait_ms * slow
    times = own_ms * (1 + 0.03 * rng.standard_normal(STEPS)) + in_step * waits
    series = StepTimes(
        (times * 1e6).astype(np.int64), 0, "step logs", waits * 1e6, None, np.full(STEPS, own_ms * 1e6), one_thread
    )
    return StepSamples("r", series, None, None, None, None)


def compared(a: StepSamples, b: StepSamples) -> StepDifference:
    return step_difference([a], [b])


@pytest.mark.parametrize("one_thread", [True, False])
@pytest.mark.parametrize(("before", "after"), [(5.0, 90.0), (90.0, 5.0), (200.0, 60.0)])
def test_another_load_is_not_called_a_change_of_the_code(before: float, after: float, one_thread: bool) -> None:
    found = compared(run(50, before, one_thread=one_thread), run(50, after, one_thread=one_thread))
    assert found.difference.significant and found.code is not None
    assert verdict_of(found.code) == "no difference found"
    assert headline(found).startswith("The machine, not the code, may explain the difference")


@pytest.mark.parametrize(("before", "after"), [(30.0, 30.0), (20.0, 60.0), (60.0, 20.0)])
def test_a_fix_is_found_whatever_the_load(before: float, after: float) -> None:
    found = compared(run(50, before), run(30, after))
    assert found.code is not None and verdict_of(found.code) == "faster"
    assert found.code.low <= -20 <= found.code.high
    assert headline(found).startswith("B is faster")


def test_waits_that_other_work_hides_are_not_subtracted() -> None:
    a, b = (run(50, wait, one_thread=False, in_step=0.0) for wait in (10.0, 40.0))
    found = compared(a, b).code
    assert found is not None and found.a == pytest.approx(50, rel=0.02) and not found.significant


def test_waits_that_were_not_recorded_leave_the_step_as_it_is() -> None:
    series = StepTimes(np.full(STEPS, 50_000_000) + np.arange(STEPS), 0, "step logs")
    unknown = StepSamples("r", series, None, None, None, None)
    found = compared(unknown, run(30, 5))
    assert found.code is None and headline(found).startswith("B is faster: 50.0 → 35.0 ms per step")


def test_where_one_step_in_four_waits_for_all_the_step_is_their_mean() -> None:
    def loading(ms: float, seed: int) -> StepSamples:
        steps = 3 + np.where(np.arange(STEPS) % 4, 0.0, ms) + 0.1 * np.random.default_rng(seed).standard_normal(STEPS)
        return StepSamples("r", StepTimes((steps * 1e6).astype(np.int64), 0, "step logs"), None, None, None, None)

    found = compared(run(70, 0), loading(56, 1))
    assert found.of_all and found.difference.low <= 3 + 56 / 4 - 70 <= found.difference.high
    slower = compared(loading(56, 2), loading(116, 3)).difference
    assert slower.significant and slower.low <= 60 / 4 <= slower.high
