"""Student's t distribution: how far may the mean of few samples lie from the truth by chance?"""

from functools import cache, lru_cache
from math import exp, isinf, lgamma, log, log1p, pi, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statistics import NormalDist

_MAX_TERMS = 300
_LIKE_NORMAL = 1e5
"""degrees of freedom from which on t is the normal distribution to five digits"""


@cache
def _normal() -> "NormalDist":
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
        return 2 * _normal().cdf(-abs(t))
    return _incomplete_beta(df / (df + t * t), df / 2)


@lru_cache(maxsize=4096)
def t_quantile(confidence: float, df: float) -> float:
    """Return the t within which this share of all samples lies.

    >>> round(t_quantile(0.95, 4), 3), round(t_quantile(0.95, 1e9), 3)
    (2.776, 1.96)
    """
    t = _normal().inv_cdf(0.5 + confidence / 2)
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


def _incomplete_beta(x: float, a: float, b: float = 0.5) -> float:
    """Return the regularised incomplete beta function by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


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


def detectable(se: float, df: float, *, confidence: float = 0.95, power: float = 0.8) -> float:
    """Return the smallest difference that a test with this standard error finds in a share `power` of all cases."""
    return se * (t_quantile(confidence, df) + _normal().inv_cdf(power))
