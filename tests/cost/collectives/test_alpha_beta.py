"""Lines through sizes and times whose latency and bandwidth are known."""

import numpy as np
import pytest

from stepscope.cost.alpha_beta import fit
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


@pytest.mark.parametrize("sizes, times", [([], []), ([1, 2], [1]), ([1, -2], [1, 1]), ([1, 2], [1, float("nan")])])
def test_nonsense_points_are_refused(sizes, times):
    with pytest.raises(InputError, match=r"needs a time|have to be above 0"):
        fit(sizes, times)
