"""Differences of step times: rarely false, rarely missed, whatever the noise; several runs; many rows."""

import numpy as np
import numpy.typing as npt
import pytest

from stepscope.stats import bootstrap as under_test
from stepscope.stats.bootstrap import (
    difference,
    typical,
)

STEPS = 200
TRIALS = 120
Floats = npt.NDArray[np.float64]


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the draws: the rates below are of many trials, not of one."""
    monkeypatch.setattr(under_test, "_DRAWS", 199)


def noisy(rng: np.random.Generator, kind: str, n: int = STEPS) -> Floats:
    """Return step times around 100 ms with 5 % noise."""
    r = 0.3 if kind == "correlated" else 0.0
    z = rng.standard_normal(n + 20)
    for i in range(1, len(z)):
        z[i] = r * z[i - 1] + np.sqrt(1 - r * r) * z[i]
    z = z[20:]
    if kind == "skewed":
        z = (np.exp(0.55 * z) - np.exp(0.55**2 / 2)) / 0.693
    return np.asarray(100 * (1 + 0.05 * z))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "correlated", "skewed"])
def test_three_percent_are_found_and_chance_is_not(kind: str) -> None:
    rng = np.random.default_rng(3)
    alarms = found = 0
    for _ in range(TRIALS):
        a, b = noisy(rng, kind), noisy(rng, kind)
        alarms += difference([a], [b]).significant
        found += difference([a], [1.03 * b]).significant
    assert found >= 0.95 * TRIALS
    # 5 % of 120 is 6; chance gives more than 11 in one of fifty such tests at a true rate of 5 %.
    assert alarms <= 11


@pytest.mark.slow
def test_resampled_steps_of_one_run_do_not_differ() -> None:
    rng = np.random.default_rng(5)
    run = noisy(rng, "correlated", 400) + 30 * (rng.random(400) < 0.03)
    alarms = 0
    for _ in range(TRIALS):
        sides = [run[(rng.integers(0, 400, 10)[:, None] + np.arange(20)).ravel() % 400] for _ in range(2)]
        alarms += difference([sides[0]], [sides[1]]).significant
    assert alarms <= 11


@pytest.mark.slow
def test_interval_holds_the_true_difference() -> None:
    rng = np.random.default_rng(7)
    found = [difference([noisy(rng, "skewed")], [noisy(rng, "skewed") + 4]) for _ in range(TRIALS)]
    assert np.mean([d.low <= 4 <= d.high for d in found]) > 0.9
    assert np.mean([d.high - d.low for d in found]) < 4


def test_what_paired_runs_share_is_no_doubt() -> None:
    rng = np.random.default_rng(31)
    shifts = (0.0, 40.0, -40.0)
    a, b = ([noisy(rng, "normal") + more + s for s in shifts] for more in (0, 3))
    apart, together = difference(a, b), difference(a, b, paired=True)
    assert apart.change == together.change
    assert together.significant and not apart.significant


def test_spikes_do_not_move_the_typical_step() -> None:
    steps = np.full(100, 10.0)
    steps[::10] = 50
    assert typical(steps) == 10.0
    assert difference([steps], [np.full(100, 10.0)]).change == 0


def test_runs_that_differ_make_the_interval_wider_than_their_steps_do() -> None:
    rng = np.random.default_rng(9)
    shifts = (0.0, 4.0, -4.0)
    one = difference([noisy(rng, "normal")], [noisy(rng, "normal") + 3])
    several = difference(
        [[*noisy(rng, "normal") + s] for s in shifts], [[*noisy(rng, "normal") + 3 + s] for s in shifts]
    )
    assert one.significant and not several.significant
    assert several.high - several.low > 2 * (one.high - one.low)


@pytest.mark.slow
def test_busy_stretches_are_no_difference() -> None:
    """A machine that is slower for 25 steps now and then: lag-1 alone would cry wolf in a quarter of all cases."""
    rng = np.random.default_rng(19)
    alarms = 0
    for _ in range(TRIALS):
        level = np.repeat(rng.standard_normal((2, 8)), 25, axis=1)
        a, b = 100 + 3 * level + 4 * rng.standard_normal((2, STEPS))
        alarms += difference([a], [b]).significant
    assert alarms <= 0.15 * TRIALS


@pytest.mark.slow
def test_long_series_are_drawn_in_part_and_known_better_all_the_same() -> None:
    rng = np.random.default_rng(23)
    found = difference([100 + rng.standard_normal(40_000)], [100 + rng.standard_normal(40_000)])
    assert found.high - found.low == pytest.approx(2 * 1.96 * 1.09 * np.sqrt(2 / 40_000), rel=0.5)
