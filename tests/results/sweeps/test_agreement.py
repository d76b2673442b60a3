"""Agreement of results whose distance is known."""

import pytest
from tests.results.sweeps.test_verdict import check

from stepscope.results.sweeps import Agreement, agreement

EXACT = {"gradient": 0.0, "loss": 0.0, "why": "the same samples"}
REORDERED = {"gradient": 1e-2, "loss": 1e-2, "why": "another order"}


def agreed(offs: list[float], own: list[float], *, other: float = 0.0, wide: bool = True) -> Agreement:
    """Return the agreement of runs that are off by so much with a reference whose own runs are."""
    return agreement(
        [check(off) for off in offs], check(other), repeats=[check(off) for off in own], name="first",
        tolerance=EXACT, reordered=REORDERED if wide else None,
    )  # fmt: skip


def test_distances_are_relative_and_the_largest_of_all_runs() -> None:
    found = agreed([0.0, 0.3, 0.1], [0.0, 0.0])
    assert found.gradient_error == pytest.approx(0.3) and found.loss_error == pytest.approx(0.3)
    assert found.agrees is False


def test_equal_results_agree_however_the_reference_varies() -> None:
    assert agreed([0.0], [0.0, 5.0]) == Agreement(0.0, 0.0, True, "the same samples")


def test_reference_that_differs_from_itself_asks_for_rounding_and_the_why_says_how_far() -> None:
    found = agreed([6e-4, 1e-3], [0.0, 5e-4])
    assert found.agrees is True
    assert "first differs from itself between runs by 5.0e-04 in the gradient" in found.why
    assert "another order (gradient 1.0e-02, loss 1.0e-02)" in found.why


@pytest.mark.parametrize(("off", "agrees"), [(0.0, True), (5e-4, None), (0.02, False)])
def test_one_run_cannot_tell_what_is_within_rounding(off: float, agrees: bool | None) -> None:
    found = agreed([off], [0.0])
    assert found.agrees is agrees
    assert ("--runs 2" in found.why) == (agrees is None)


@pytest.mark.parametrize("wide", [True, False])
def test_nothing_can_be_compared_with_a_reference_that_is_random(wide: bool) -> None:
    found = agreed([0.5], [0.0, 0.4], wide=wide)
    assert found.agrees is None and "more than rounding explains" in found.why


def test_results_that_are_not_finite_do_not_agree() -> None:
    found = agreed([float("nan")], [0.0, 0.0])
    assert (found.gradient_error, found.agrees) == (None, False)
