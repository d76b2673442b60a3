"""How many independent samples is a series worth whose neighbours resemble each other, and what is its mean's error?"""

from functools import cache, lru_cache
from math import exp, isinf, lgamma, log, log1p, nan, pi, sqrt
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from statistics import NormalDist

# Student's t distribution: how far may the mean of few samples lie from the truth by chance?

_MAX_TERMS = 300
# degrees of freedom from which on t is the normal distribution to five digits
_LIKE_NORMAL = 1e5


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


Floats = npt.NDArray[np.float64]
# fewer say nothing of how they vary
MIN_SAMPLES = 3
CONFIDENCE = 0.95
_MAX_LAG = 0.95
_INDEPENDENT = 4
_STRETCHES = 10


def mean_errors(columns: Floats, *, trim: float = 0.0) -> tuple[Floats, Floats]:
    """Return the standard error of each column's mean and its degrees of freedom, its autocorrelation considered.

    Rows are consecutive samples. With `trim` it is the error of the mean of what lies between (winsorised variance).
    """
    n = len(columns)
    if n < MIN_SAMPLES:
        return np.full(columns.shape[1:], nan), np.full(columns.shape[1:], nan)
    cut = num_trimmed(n, trim)
    ordered = np.sort(columns, axis=0)
    centred = np.clip(columns, ordered[cut], ordered[n - cut - 1])
    centred = centred - centred.mean(axis=0)
    power = (centred * centred).sum(axis=0)
    per_sample = _samples_per_independent(centred, power)
    kept = (n - 2 * cut) / n
    se, df = np.sqrt(power / (n - 1) * per_sample / n) / kept, np.maximum((n - 2 * cut - 1) / per_sample, 1.0)
    if n < 2 * _STRETCHES:
        return se, df
    # A machine that is busy for a while, or a device that warms up, outlasts any lag-1: long stretches show it.
    stretch = n // _STRETCHES
    means = centred[n - stretch * _STRETCHES :].reshape(_STRETCHES, stretch, -1).mean(axis=1)
    slow = means.std(axis=0, ddof=1).reshape(se.shape) / np.sqrt(_STRETCHES) / kept
    wider = slow * t_quantile(CONFIDENCE, _STRETCHES - 1) > se * _quantiles(df)
    return np.where(wider, slow, se), np.where(wider, _STRETCHES - 1.0, df)


def block_length(series: Floats) -> int:
    """Return how many consecutive samples to draw at once (Politis and White 2004, circular blocks)."""
    n = len(series)
    x = series - series.mean()
    if n < 8 or not x.any():
        return 1
    run_of_small = max(5, int(np.sqrt(np.log10(n))))
    most = min(int(np.ceil(np.sqrt(n))) + run_of_small, n - 1)
    cov = np.array([x[k:] @ x[: n - k] for k in range(most + 1)]) / n
    small = np.abs(cov[1:] / cov[0]) < 2 * np.sqrt(np.log10(n) / n)
    quiet = np.lib.stride_tricks.sliding_window_view(small, run_of_small).all(axis=1)
    last = int(quiet.argmax()) if quiet.any() else most
    lags = np.arange(1, min(2 * last, most) + 1)
    if not len(lags):
        return 1
    weight = np.clip(2 * (1 - lags / lags[-1]), 0, 1)
    sums = 2 * (weight * lags * cov[lags]).sum()
    spectrum = cov[0] + 2 * (weight * cov[lags]).sum()
    length = (1.5 * (sums / spectrum) ** 2 * n) ** (1 / 3) if spectrum > 0 else 1.0
    return int(np.clip(round(length), 1, np.ceil(min(3 * np.sqrt(n), n / 3))))


def _quantiles(df: Floats) -> Floats:
    known, at = np.unique(np.floor(df), return_inverse=True)
    return np.asarray(np.array([t_quantile(CONFIDENCE, float(d)) for d in known])[at].reshape(df.shape))


def num_trimmed(n: int, trim: float) -> int:
    """Return how many of `n` samples to leave out on either end; none of a few."""
    return int(n * trim) if n > _INDEPENDENT else 0


def _samples_per_independent(centred: Floats, power: Floats) -> Floats:
    """Return for each column how many samples are worth one independent one: (1 + r) / (1 - r).

    r is the lag-1 autocorrelation, its bias taken out (Kendall 1954), and half a standard error more: one taken too
    small gives false alarms, one too large only wider intervals. Few samples cannot tell a drift from chance: they
    count as four independent ones at least.
    """
    n = len(centred)
    seen = (centred[1:] * centred[:-1]).sum(axis=0) / np.where(power > 0, power, 1.0)
    r = np.clip((n * seen + 1) / max(n - 3, 1), -1, 1)
    r = np.clip(r + 0.5 * np.sqrt((1 - r * r) / n), 0, _MAX_LAG)
    return np.asarray(np.minimum((1 + r) / (1 - r), max(n / _INDEPENDENT, 1.0)))
