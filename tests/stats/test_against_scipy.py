"""Our statistics, written out so that the analysis needs no scipy, against scipy's own."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from stepscope.stats.bootstrap import (
    difference,
    difference_of_numbers,
    interval,
    mean_errors,
    t_quantile,
    t_two_sided,
)
from stepscope.stats.robust import theil_sen, trend

DEGREES = (1.0, 1.5, 2.0, 3.7, 9.0, 48.2, 999.0, 5e4, 3e5)
SEEDS = range(5)


@pytest.fixture(scope="module")
def stats() -> Any:
    """scipy, which takes a second to import: not where tests are only collected."""
    return pytest.importorskip("scipy.stats")


def test_two_sided_probability_of_t(stats: Any) -> None:
    """Beyond 100,000 degrees of freedom ours is the normal distribution's, which is right to five places."""
    for df, t in product(DEGREES, (0.0, 0.01, 0.7, 1.96, 4.3, 31.0)):
        expected = pytest.approx(2 * stats.t.sf(t, df), abs=1e-5 if df > 1e5 else 1e-12, rel=1e-8)
        assert t_two_sided(t, df) == expected, (df, t)


@pytest.mark.parametrize("seed", SEEDS)
def test_welchs_test_of_single_numbers(stats: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(100, 2, 4 + seed), rng.normal(101, 5, 7)
    ours, theirs = difference_of_numbers(a, b), stats.ttest_ind(b, a, equal_var=False)
    bounds = theirs.confidence_interval(0.95)
    assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-7)
    assert (ours.low, ours.high) == pytest.approx((bounds.low, bounds.high), rel=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
def test_interval_of_a_mean_of_independent_samples(stats: Any, seed: int) -> None:
    """Ours considers autocorrelation and rounds its doubt upwards: never narrower than scipy's, and not far wider."""
    values = np.random.default_rng(seed).normal(100, 5, (400, 1))
    error, df = (float(one[0]) for one in mean_errors(values))
    low, high = stats.t.interval(0.95, len(values) - 1, scale=stats.sem(values[:, 0]))
    assert 1 - 1e-6 < 2 * error * t_quantile(0.95, df) / (high - low) < 2


@pytest.mark.parametrize("seed", SEEDS)
def test_interval_of_independent_steps_is_like_scipys_bootstrap(stats: Any, seed: int) -> None:
    """Wider at most by what is added for autocorrelation, and never much narrower."""
    values = np.random.default_rng(seed).gamma(9, 3, 300)
    middle, low, high = interval([values])
    draws = stats.bootstrap(
        (values,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), n_resamples=1999, method="percentile", rng=seed
    )
    theirs = draws.confidence_interval
    assert middle == pytest.approx(stats.trim_mean(values, 0.25))
    assert 0.9 < (high - low) / (theirs.high - theirs.low) < 2
    assert low < middle < high


def test_differences_are_judged_like_mann_whitney_does(stats: Any) -> None:
    """Of independent steps both find a clear difference, and both find none where there is none."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        a, same, slower = rng.gamma(400, 0.25, 200), rng.gamma(400, 0.25, 200), rng.gamma(400, 0.26, 200)
        assert difference([a], [slower]).significant
        assert stats.mannwhitneyu(a, slower).pvalue < 0.01
        if stats.mannwhitneyu(a, same).pvalue > 0.2:
            assert not difference([a], [same]).significant


@pytest.mark.parametrize("seed", SEEDS)
def test_median_slope(stats: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.arange(50.0)
    y = 3 + 0.2 * x + rng.standard_t(2, 50)
    theirs = stats.theilslopes(y, x)
    assert theil_sen(x, y)[0] == pytest.approx(theirs.slope)
    found = trend(x, y)
    assert found is not None
    assert found.slope == pytest.approx(theirs.slope)
    assert found.low <= theirs.low_slope + 1e-3 and found.high >= theirs.high_slope - 1e-3


def test_trend_without_autocorrelation_is_kendalls_test(stats: Any) -> None:
    """Residuals that alternate have no positive autocorrelation, so that nothing is widened."""
    x = np.arange(40.0)
    y = 0.05 * x + np.where(x % 2, 0.6, -0.6)
    found = trend(x, y)
    assert found is not None
    theirs = stats.kendalltau(x, y, method="asymptotic").pvalue
    assert found.p_value == pytest.approx(theirs, rel=0.2), "ours has the continuity correction"
    assert found.p_value > theirs
