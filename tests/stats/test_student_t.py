"""Student's t against tables."""

import pytest

from stepscope.stats.bootstrap import detectable, t_quantile, t_two_sided

TABLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 5: 2.5706, 10: 2.2281, 30: 2.0423, 120: 1.9799}


@pytest.mark.parametrize(("df", "t"), TABLE.items())
def test_quantiles_are_those_of_the_tables(df: int, t: float) -> None:
    assert t_quantile(0.95, df) == pytest.approx(t, abs=1e-4)
    assert t_two_sided(t, df) == pytest.approx(0.05, abs=1e-5)
    assert t_two_sided(-t, df) == t_two_sided(t, df)


def test_between_whole_degrees_of_freedom_lies_what_lies_between() -> None:
    assert t_quantile(0.95, 3) > t_quantile(0.95, 3.5) > t_quantile(0.95, 4)


def test_extremes_are_no_error() -> None:
    assert t_two_sided(0, 4) == pytest.approx(1)
    assert t_two_sided(float("inf"), 4) == 0
    assert t_two_sided(1e6, 1) == pytest.approx(6.4e-7, rel=0.01)
    assert t_quantile(0.95, 1e12) == pytest.approx(1.95996, abs=1e-4)


def test_detectable_is_the_quantile_and_the_power() -> None:
    assert detectable(1.0, 1e12) == pytest.approx(1.96 + 0.8416, abs=1e-3)
