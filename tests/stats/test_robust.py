"""Spreads, slow starts and trends recover what was put into a series."""

import numpy as np
import pytest

from stepscope.stats.robust import centre, mad_sigma, medians_without_each, slow_start, theil_sen, trend


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


def test_median_spread_equals_sigma_and_ignores_outliers() -> None:
    values = np.random.default_rng(2).normal(50, 4, 4000)
    values[::10] = 1e9
    assert mad_sigma(values) == pytest.approx(4, rel=0.2)
    assert mad_sigma([]) == 0.0


@pytest.mark.parametrize("n", [2, 50, 3000])
def test_median_slope_holds_against_a_third_of_outliers(n: int) -> None:
    x = np.arange(n, dtype=float)
    y = 7 - 0.25 * x
    y[np.random.default_rng(3).permutation(n)[: n // 3]] += 1e6
    slope, intercept = theil_sen(x, y)
    assert slope == pytest.approx(-0.25, abs=1e-6)
    assert intercept == pytest.approx(7, abs=1)


@pytest.mark.parametrize("draw", ["normal", "laplace", "uniform"])
def test_centre_is_near_and_its_error_is_what_it_varies_by(draw: str) -> None:
    rng = np.random.default_rng(3)
    found = [centre(getattr(rng, draw)(size=60)) for _ in range(400)]
    values = np.array([c.value for c in found])
    middle = 0.5 if draw == "uniform" else 0.0
    assert values.mean() == pytest.approx(middle, abs=3 * values.std() / np.sqrt(400))
    assert np.median([c.error for c in found]) == pytest.approx(values.std(), rel=0.15)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_medians_without_each_are_those_of_the_others(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    for rows in (rng.normal(size=(ranks, 30)), rng.integers(0, 3, (ranks, 30)).astype(float)):
        plain = np.array([np.median(np.delete(rows, i, axis=0), axis=0) for i in range(ranks)])
        assert (medians_without_each(rows) == plain).all()
    assert np.isnan(medians_without_each(np.ones((1, 3)))).all()
