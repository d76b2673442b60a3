"""Student's t distribution: how far may the mean of few samples lie from the truth by chance? Standard library only."""

from functools import cache, lru_cache
from math import exp, isinf, lgamma, log, log1p, pi, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statistics import NormalDist

_MAX_TERMS = 300
# degrees of freedom from which on t is the normal distribution to five digits
_LIKE_NORMAL = 1e5


@cache
def normal() -> "NormalDist":
    """Return the normal distribution."""
    from statistics import NormalDist  # with ten modules of its own, for what few reports ask

    return NormalDist()


def t_two_sided(t: float, df: float) -> float:
    """Return how likely chance alone gives at least this t, in either direction.

    >>> round(t_two_sided(2.776, 4), 4)
    0.05
    """
    if isinf(t):
        return 0.0
    if df > _LIKE_NORMAL:
        return 2 * normal().cdf(-abs(t))
    x = df / (df + t * t)
    a = df / 2
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + 0.5) - lgamma(a) - lgamma(0.5) + a * log(x) + 0.5 * log1p(-x))
    if x < (a + 1) / (a + 0.5 + 2):
        return front * _fraction(x, a, 0.5) / a
    return 1 - front * _fraction(1 - x, 0.5, a) / 0.5


@lru_cache(maxsize=4096)
def t_quantile(confidence: float, df: float) -> float:
    """Return the two-sided t quantile.

    >>> round(t_quantile(0.95, 4), 3), round(t_quantile(0.95, 1e9), 3)
    (2.776, 1.96)
    """
    t = normal().inv_cdf(0.5 + confidence / 2)
    if df > _LIKE_NORMAL:
        return t
    scale = exp(lgamma((df + 1) / 2) - lgamma(df / 2)) / sqrt(df * pi)
    for _ in range(
        _MAX_TERMS
    ):  # Newton from below: what lies beyond t falls ever more slowly, so that it never overshoots
        step = (t_two_sided(t, df) - (1 - confidence)) / (2 * scale * (1 + t * t / df) ** (-(df + 1) / 2))
        t += step
        if step < 1e-9 * t:
            break
    return t


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    h = d
    for m in range(1, _MAX_TERMS):
        for part in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + part * d or tiny)
            c = 1 + part / c or tiny
            h *= d * c
        if abs(d * c - 1) < 1e-12:
            break
    return h
