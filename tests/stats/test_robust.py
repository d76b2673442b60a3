"""Spreads, slow starts and trends recover what was put into a series."""

import numpy as np
import pytest

from stepscope.stats.robust import slow_start, theil_sen, trend


@pytest.mark.parametrize("slow", [0, 1, 2, 7])
def test_slow_start_is_counted(slow: int) -> None:
    noise = np.random.default_rng(slow).normal(0, 1, 60)
    series = 100 + noise + np.where(np.arange(60) < slow, 60, 0)
    assert slow_start(series) == slow


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


@pytest.mark.parametrize("n", [2, 50, 3000])
def test_median_slope_holds_against_a_third_of_outliers(n: int) -> None:
    x = np.arange(n, dtype=float)
    y = 7 - 0.25 * x
    y[np.random.default_rng(3).permutation(n)[: n // 3]] += 1e6
    slope, intercept = theil_sen(x, y)
    assert slope == pytest.approx(-0.25, abs=1e-6)
    assert intercept == pytest.approx(7, abs=1)
