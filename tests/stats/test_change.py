"""Planted changes of step times are recovered, and equal sides raise as many alarms as they may."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.not_none import not_none

from stepscope.stats.change import Change, paired, unpaired


def run(rng: np.random.Generator, *, factor: float = 1.0, steps: int = 50) -> np.ndarray:
    """Return autocorrelated, skewed step times of about 10 ms."""
    noise = rng.standard_normal(steps)
    for i in range(1, steps):
        noise[i] += 0.5 * noise[i - 1]
    return 10 * factor * np.exp(0.03 * noise) * np.where(rng.random(steps) < 0.03, 3.0, 1.0)


def alarms(compare: Callable[..., Change | None], rounds: int, *, seeds: int = 200, load: float = 0.0) -> int:
    """Return in how many of the comparisons of equal sides one is called faster or slower."""
    count = 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        busy = np.exp(load * rng.standard_normal(rounds))
        sides = [[run(rng, factor=slow * np.exp(0.01 * rng.standard_normal())) for slow in busy] for _ in range(2)]
        found = not_none(compare(*sides))
        count += found.slower or found.faster
    return count


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_equal_sides_raise_no_more_alarms_than_allowed(rounds: int) -> None:
    assert alarms(paired, rounds, load=0.2) <= 20
    assert alarms(unpaired, rounds) <= 20


@pytest.mark.parametrize("rounds", [3, 6])
def test_a_planted_change_is_in_the_interval_and_load_of_a_round_cancels(rounds: int) -> None:
    held = sharper = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        busy = np.exp(0.5 * rng.standard_normal(rounds))
        sides = [[run(rng, factor=slow * planted) for slow in busy] for planted in (1.0, 1.2)]
        in_turn, apart = paired(*sides), unpaired(*sides)
        assert in_turn is not None and apart is not None
        held += in_turn.low <= 1.2 <= in_turn.high and in_turn.slower
        sharper += in_turn.high / in_turn.low < apart.high / apart.low
    assert held >= 54 and sharper >= 54


def test_one_disturbed_round_of_nine_hides_nothing() -> None:
    times = [100.0, 104, 98, 101, 99, 103, 97, 100, 102]
    found = paired([[t] for t in times], [[t / 2] for t in times[:-1]] + [[5000.0]])
    assert found is not None and found.faster and found.ratio == pytest.approx(0.5, rel=0.02)


def test_more_tests_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    sides = [[run(rng) for _ in range(5)] for _ in range(2)]
    one, many = (paired(*sides, tests=tests) for tests in (1, 8))
    assert one is not None and many is not None
    assert many.low < one.low < one.high < many.high


def test_too_few_steps_give_their_range_and_nothing_is_certain() -> None:
    found = not_none(paired([[10.0]], [[20.0]]))
    assert found.ratio == pytest.approx(2.0) and found.p_value is None and not found.slower
    assert paired([[]], [[1.0]]) is None and unpaired([], [[1.0]]) is None
