"""The middle of some values is what numpy says it is, to the last bit."""

import numpy as np
import pytest

from stepscope.stats.robust import lower_median, median, medians, quantiles

RNG = np.random.default_rng(3)
SAMPLES: list[np.ndarray] = [
    np.array([4]),
    RNG.integers(-9, 9, 10),
    RNG.integers(0, 1 << 40, 31),
    RNG.normal(size=12),
    RNG.lognormal(9, 3, 33),
    RNG.normal(size=7).astype(np.float32),
    np.array([True, False, True]),
]


@pytest.mark.parametrize("values", SAMPLES, ids=lambda v: f"{v.dtype}-{len(v)}")
def test_median_is_that_of_numpy(values: np.ndarray) -> None:
    assert median(values) == float(np.median(values))
    assert median(list(values)) == float(np.median(values))
    assert lower_median(values) == float(np.quantile(values.astype(float), 0.5, method="lower"))


@pytest.mark.parametrize("values", SAMPLES[:5], ids=lambda v: f"{v.dtype}-{len(v)}")
def test_quantiles_are_those_of_numpy(values: np.ndarray) -> None:
    shares = [0.0, 0.05, 0.1, 0.5, 0.75, 0.9, 0.99, 1.0, *RNG.random(20)]
    assert quantiles(values, shares).tolist() == np.quantile(values, shares).tolist()
    assert float(quantiles(values, 0.9)) == float(np.quantile(values, 0.9))


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_medians_of_rows_are_those_of_numpy(width: int) -> None:
    rows = RNG.normal(size=(6, width))
    assert medians(rows).tolist() == np.median(rows, axis=1).tolist()


def test_not_a_number_has_no_place() -> None:
    assert np.isnan(median([1.0, np.nan, 2.0])) and np.isnan(median([]))
    assert np.isnan(medians(np.array([[1.0, np.nan], [1.0, 2.0]]))).tolist() == [True, False]
