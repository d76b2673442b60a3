"""Statistics against scipy's own, and against series with a known truth."""

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stepscope.contract.student import t_two_sided
from stepscope.stats import robust as under_test
from stepscope.stats.robust import difference, trend

DEGREES = (1.0, 1.5, 2.0, 3.7, 9.0, 48.2, 999.0, 5e4, 3e5)


@pytest.fixture(scope="module")
def stats() -> Any:
    """scipy, which takes a second to import: not where tests are only collected."""
    return pytest.importorskip("scipy.stats")


@pytest.mark.slow
def test_two_sided_probability_of_t(stats: Any) -> None:
    """Beyond 100,000 degrees of freedom ours is the normal distribution's, which is right to five places."""
    for df, t in product(DEGREES, (0.0, 0.01, 0.7, 1.96, 4.3, 31.0)):
        expected = pytest.approx(2 * stats.t.sf(t, df), abs=1e-5 if df > 1e5 else 1e-12, rel=1e-8)
        assert t_two_sided(t, df) == expected, (df, t)


@pytest.mark.parametrize("n", [12, 60, 5000])
def test_trend_recovers_a_slope_and_its_interval(n: int) -> None:
    x = np.arange(n)
    y = 1000 + 0.5 * x + np.random.default_rng(1).normal(0, 0.05 * n, n)
    y[:: max(n // 10, 2)] += 10_000  # spikes
    found = trend(x, y)
    assert found is not None
    assert found.low <= 0.5 <= found.high
    assert found.slope == pytest.approx(0.5, rel=0.3)
    assert found.p_value < 0.01 or n == 12


def test_steady_series_seldom_shows_a_trend_even_with_autocorrelation() -> None:
    rng = np.random.default_rng(5)
    false_alarms = 0
    for _ in range(200):
        noise = rng.normal(0, 1, 300)
        for i in range(1, 300):
            noise[i] += 0.6 * noise[i - 1]
        found = trend(np.arange(300), 100 + noise)
        false_alarms += found is not None and found.p_value < 0.01
    assert false_alarms <= 8  # 1 % is 2 of 200


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
def test_interval_holds_the_true_difference() -> None:
    rng = np.random.default_rng(7)
    found = [difference([noisy(rng, "skewed")], [noisy(rng, "skewed") + 4]) for _ in range(TRIALS)]
    assert np.mean([d.low <= 4 <= d.high for d in found]) > 0.9
    assert np.mean([d.high - d.low for d in found]) < 4


@pytest.mark.slow
def test_long_series_are_drawn_in_part_and_known_better_all_the_same() -> None:
    rng = np.random.default_rng(23)
    found = difference([100 + rng.standard_normal(40_000)], [100 + rng.standard_normal(40_000)])
    assert found.high - found.low == pytest.approx(2 * 1.96 * 1.09 * np.sqrt(2 / 40_000), rel=0.5)
