"""Each value once is what numpy's sets say, with a table of all values and without."""

import numpy as np
import pytest

from stepscope.stats.distinct import among, common, distinct, distinct_places, distinct_rows, union_of_values

RNG = np.random.default_rng(5)
SAMPLES: list[np.ndarray] = [
    np.empty(0, np.int64),
    RNG.integers(-5, 5, 40),
    RNG.integers(0, 1 << 40, 40),
    np.array([-128, 127, 0, 127], np.int8),
    np.array([0, 255, 3, 255], np.uint8),
    np.array([-(1 << 62), 7, 7, 1 << 62]),
    np.array([1.5, -2.0, 1.5]),
]


@pytest.mark.parametrize("values", SAMPLES, ids=lambda v: f"{v.dtype}-{len(v)}")
def test_each_value_once(values: np.ndarray) -> None:
    once = distinct(values)
    assert once.dtype == values.dtype
    assert once.tolist() == np.unique(values).tolist()
    also, place = distinct_places(values)
    assert also.dtype == values.dtype and also.tolist() == once.tolist()
    assert also[place].tolist() == values.tolist()


@pytest.mark.parametrize("a", [s for s in SAMPLES if s.dtype == np.int64], ids=len)
@pytest.mark.parametrize("b", [s for s in SAMPLES if s.dtype == np.int64], ids=len)
def test_sets_of_two(a: np.ndarray, b: np.ndarray) -> None:
    assert union_of_values(a, b).tolist() == np.union1d(a, b).tolist()
    assert common(a, b).tolist() == np.intersect1d(a, b).tolist()
    assert among(a, b).tolist() == np.isin(a, b).tolist()


def test_a_few_codes_need_not_fit_the_type_of_the_values() -> None:
    codes = np.array([0, 255, 3, 255, 44], np.uint8)
    for wanted in ((3,), (255, 3), (300, -1), tuple(range(40, 60))):
        assert among(codes, wanted).tolist() == [value in wanted for value in codes.tolist()]


def test_rows_of_a_table_among_others() -> None:
    rows, wanted = RNG.integers(-1, 500, 300), RNG.integers(0, 400, 60)
    assert among(rows, wanted).tolist() == np.isin(rows, wanted).tolist()
    far = wanted * (1 << 40)
    assert among(np.append(rows, far[:3]), far).tolist() == np.isin(np.append(rows, far[:3]), far).tolist()


def test_each_row_once() -> None:
    table = RNG.integers(0, 3, (20, 2))
    assert distinct_rows(table).tolist() == np.unique(table, axis=0).tolist()
