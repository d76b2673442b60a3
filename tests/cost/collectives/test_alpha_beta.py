"""Lines through sizes and times whose latency and bandwidth are known."""

import numpy as np
import pytest

from stepscope.cost.alpha_beta import DEFAULT_LATENCY_NS, fit
from stepscope.errors import InputError

SIZES = 1024.0 * 4 ** np.arange(9)


def test_latency_and_bandwidth_come_back_from_noisy_times():
    rng = np.random.default_rng(0)
    sizes = np.repeat(SIZES, 5)
    times = (50_000 + 0.4 * sizes) * rng.lognormal(0, 0.1, len(sizes))
    found = fit(sizes, times)
    assert found.alpha_ns == pytest.approx(50_000, rel=0.15)
    assert found.ns_per_byte == pytest.approx(0.4, rel=0.15)
    assert 0.05 < found.relative_error < 0.15 and found.spread == pytest.approx(0.16, abs=0.05)


def test_one_outlier_does_not_move_the_line():
    times = 50_000 + 0.4 * SIZES
    times[3] *= 40
    found = fit(SIZES, times)
    assert found.alpha_ns == pytest.approx(50_000) and found.ns_per_byte == pytest.approx(0.4)


def test_small_sizes_count_as_much_as_large_ones():
    times = (30_000 + 0.4 * SIZES) * np.where(SIZES > 1e7, 1.1, 1.0)
    assert fit(SIZES, times).alpha_ns == pytest.approx(30_000, rel=0.02)


def test_neither_latency_nor_bandwidth_goes_below_zero():
    assert fit([1e3, 1e6, 1e9], [9e4, 8e4, 7e4]).ns_per_byte == 0
    assert fit([1e6, 2e6, 4e6], [1e6, 2.2e6, 5e6]).alpha_ns == 0


def test_one_size_takes_the_default_latency_but_never_most_of_the_time():
    long, short = fit([1e8] * 3, [1e8] * 3), fit([1e3], [10_000])
    assert long.alpha_ns == DEFAULT_LATENCY_NS and long.time_ns(1e8) == pytest.approx(1e8)
    assert short.alpha_ns == 5_000 and short.num_sizes == 1


def test_many_sizes_are_thinned_and_the_line_stays():
    rng = np.random.default_rng(1)
    sizes = rng.uniform(1e3, 1e8, 5000)
    found = fit(sizes, 1e5 + 0.1 * sizes)
    assert found.alpha_ns == pytest.approx(1e5, rel=0.01) and found.num_sizes == 5000


@pytest.mark.parametrize("sizes, times", [([], []), ([1, 2], [1]), ([1, -2], [1, 1]), ([1, 2], [1, float("nan")])])
def test_nonsense_points_are_refused(sizes, times):
    with pytest.raises(InputError, match=r"needs a time|have to be above 0"):
        fit(sizes, times)
