"""Robust statistics: medians, spreads and slopes that one outlier cannot move."""

from math import erfc, sqrt

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass

# The middle of some values. As `np.median`, which imports numpy's masked arrays first.


def median(values: npt.ArrayLike) -> float:
    """Return the median of all values, NaN where one of them is or there is none.

    >>> median([3, 1, 2]), median([4.0, 1.0, 2.0, 3.0])
    (2.0, 2.5)
    """
    x = np.asarray(values).ravel()
    if not len(x):
        return float("nan")
    at = len(x) // 2
    first = at - 1 + len(x) % 2
    parted = np.partition(x, [first, at, len(x) - 1])  # NaN comes last
    return float("nan") if parted[-1] != parted[-1] else float(parted[first : at + 1].mean())


def medians(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the median of each row of a table, NaN where one of its values is.

    >>> medians(np.array([[3.0, 1.0, 2.0], [4.0, 4.0, 5.0]])).tolist()
    [2.0, 4.0]
    """
    at = rows.shape[-1] // 2
    first = at - 1 + rows.shape[-1] % 2
    middle = np.partition(rows, [first, at], axis=-1)[..., first : at + 1].mean(axis=-1)
    return np.where(np.isnan(rows).any(axis=-1), np.nan, middle)


def _medians_between(values: npt.NDArray[np.float64], cuts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the median of the values between each cut and the next, at least one, NaN where one of them is.

    >>> medians_between(np.array([3.0, 1.0, 2.0, 4.0, 5.0]), np.array([0, 3, 5])).tolist()
    [2.0, 4.5]
    """
    count = np.diff(cuts)
    ordered = values[np.lexsort((values, np.repeat(np.arange(len(count)), count)))]  # NaN comes last
    middle = (ordered[cuts[:-1] + (count - 1) // 2] + ordered[cuts[:-1] + count // 2]) / 2
    return np.where(np.isnan(ordered[cuts[1:] - 1]), np.nan, middle)


def quantiles(values: npt.ArrayLike, shares: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return below which value each share of the values lies, interpolated between neighbours as `np.quantile` does.

    >>> quantiles([4, 1, 3, 2], [0.0, 0.5, 0.9]).tolist()
    [1.0, 2.5, 3.7]
    """
    ordered = np.sort(np.asarray(values).ravel())
    place = (len(ordered) - 1) * np.asarray(shares, float)
    below = np.floor(place).astype(np.int64)
    part, low, high = place - below, ordered[below], ordered[np.minimum(below + 1, len(ordered) - 1)]
    apart = high - low
    return np.where(part >= 0.5, high - apart * (1 - part), low + apart * part).astype(float)


def lower_median(values: npt.ArrayLike) -> float:
    """Return the median, the smaller one of two in the middle.

    >>> lower_median([4, 1, 3, 2])
    2.0
    """
    ordered = np.sort(np.asarray(values).ravel())
    return float(ordered[(len(ordered) - 1) // 2])


Floats = npt.NDArray[np.float64]

MAD_TO_SIGMA = 1.4826
_MAX_POINTS = 400
FAR_LONGER = 1.5
OFTEN = 0.1


def mad_sigma(values: npt.ArrayLike) -> float:
    """Return the standard deviation as the median absolute deviation gives it (for a normal distribution)."""
    x = np.asarray(values, float)
    return float(MAD_TO_SIGMA * median(np.abs(x - median(x)))) if len(x) else 0.0


@dataclass(frozen=True)
class Centre:
    """Where a series lies, and how well independent values tell it."""

    value: float
    #: standard error
    error: float


def centre(values: npt.ArrayLike) -> Centre:
    """Return the median of the means of all pairs (Hodges and Lehmann): nearly as sharp as the mean where the noise is
    normal, and up to three in ten values can be anything. Beyond 400 values, as many quantiles stand for them.

    The error is half the distance between the pairs' means that Wilcoxon's signed ranks leave within one sigma.

    >>> centre([1.0, 2, 3, 4, 90]).value
    3.0
    """
    x = np.asarray(values, float)
    if not len(x):
        return Centre(0.0, 0.0)
    n = min(len(x), _MAX_POINTS)
    fewer = quantiles(x, (np.arange(n) + 0.5) / n) if n < len(x) else x
    i, j = np.triu_indices(n)
    means = np.sort((fewer[i] + fewer[j]) / 2)
    reach = sqrt(n * (n + 1) * (2 * n + 1) / 24)
    ends = np.interp([len(means) / 2 - 0.5 - reach, len(means) / 2 - 0.5 + reach], np.arange(len(means)), means)
    return Centre(median(means), float(ends[1] - ends[0]) / 2 * sqrt(n / len(x)))


def medians_without_each(rows: Floats) -> Floats:
    """Return, for each row, the median of all other rows in each column: by one sort, not one for each row.

    >>> medians_without_each(np.array([[1.0], [2.0], [9.0]])).tolist()
    [[5.5], [5.0], [1.5]]
    """
    n = len(rows) - 1
    if n < 1:
        return np.full(rows.shape, np.nan)
    order = np.argsort(rows, axis=0, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(rows))[:, None], axis=0)
    ordered = np.take_along_axis(rows, order, axis=0)
    low, high = (n - 1) // 2, n // 2

    def without(k: int) -> Floats:
        return np.where(place <= k, ordered[k + 1], ordered[k])

    return (without(low) + without(high)) / 2


def num_stretches(mask: npt.NDArray[np.bool_]) -> int:
    """Return in how many stretches of neighbours something holds: what lasts for a while happened once."""
    return int((mask & ~np.concatenate(([False], mask[:-1]))).sum())


def theil_sen(x: Floats, y: Floats) -> tuple[float, float]:
    """Return slope and intercept by the median of all pairwise slopes.

    Beyond 400 points, medians of consecutive chunks stand for them, so that the cost stays bounded.
    """
    if len(x) > _MAX_POINTS:
        cuts = np.linspace(0, len(x), _MAX_POINTS + 1).astype(int)
        x, y = _medians_between(x, cuts), _medians_between(y, cuts)
    i, j = np.triu_indices(len(x), 1)
    run = x[j] - x[i]
    keep = run != 0
    slope = median((y[j] - y[i])[keep] / run[keep]) if keep.any() else 0.0
    return slope, median(y - slope * x)


@dataclass(frozen=True)
class Spread:
    """One figure over several ranks, steps or occurrences."""

    mean: float
    min: float
    max: float
    std: float
    count: int


def spread(values: npt.ArrayLike) -> Spread | None:
    """Return mean, extremes and standard deviation (of the population) of the known values, None without any.

    >>> spread([2.0, 4.0, float("nan")])
    Spread(mean=3.0, min=2.0, max=4.0, std=1.0, count=2)
    """
    x = np.asarray(values, float)
    x = x[np.isfinite(x)]
    if not len(x):
        return None
    return Spread(float(x.mean()), float(x.min()), float(x.max()), float(x.std()), len(x))


@dataclass(frozen=True)
class Trend:
    """How a series moves: the median slope, its 95 % interval, and how likely chance alone gives as much."""

    #: per unit of x
    slope: float
    low: float
    high: float
    #: two-sided Mann-Kendall, widened for positive autocorrelation
    p_value: float


def trend(x: npt.ArrayLike, y: npt.ArrayLike, *, chunks: int = 60) -> Trend | None:
    """Return the Theil-Sen slope with its significance, None below 8 points and where x does not increase.

    Long series are judged on medians of consecutive chunks: that bounds the cost, keeps single spikes out, and takes
    most of the autocorrelation away (the rest widens the test by (1 + r) / (1 - r), r the residuals' lag-1).
    """
    xs, ys = _chunk_medians(np.asarray(x, float), np.asarray(y, float), chunks)
    n = len(xs)
    if n < 8 or not (np.diff(xs) > 0).all():
        return None
    i, j = np.triu_indices(n, 1)
    slopes = np.sort((ys[j] - ys[i]) / (xs[j] - xs[i]))
    slope = median(slopes)
    sigma = np.sqrt(_kendall_variance(ys) * _inflation(ys - slope * xs))
    score = float(np.sign(ys[j] - ys[i]).sum())
    z = max(abs(score) - 1, 0) / sigma if sigma else 0.0
    reach = 1.96 * sigma / 2
    low = slopes[max(int(np.floor(len(slopes) / 2 - reach)), 0)]
    high = slopes[min(int(np.ceil(len(slopes) / 2 + reach)), len(slopes) - 1)]
    return Trend(slope, float(low), float(high), erfc(z / sqrt(2)))


def far_longer(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which values are over 1.5 times the median."""
    x = np.asarray(values, float)
    return x > FAR_LONGER * median(x) if len(x) else np.zeros(0, bool)


def recurring_long(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which values are far longer than the median, where two or more are, and one in ten at least; else none.

    One long step is a hiccup and does not stand for the run; one in ten is what the run is like.

    >>> [int(recurring_long(times).sum()) for times in ([10, 30, 10, 10, 30, 10, 10], [10, 30, 10, 10])]
    [2, 0]
    """
    long = far_longer(values)
    return long if long.sum() >= max(2, OFTEN * len(long)) else np.zeros(len(long), bool)


def slow_start(values: npt.ArrayLike) -> int:
    """Return how many values at the start are larger than the series settles to.

    Settled is the median of the second half; larger is above it by 3 sigmas and 5 %. The start ends where two of
    three values in a row are no longer larger, so that one lucky step does not end it; it never takes more than half.

    >>> slow_start([90, 30, 10, 11, 10, 10, 11, 10])
    2
    """
    x = np.asarray(values, float)
    settled = x[len(x) // 2 :]
    if len(settled) < 2:
        return 0
    middle = median(settled)
    slow = x > middle + max(3 * mad_sigma(settled), 0.05 * middle)
    most = len(x) // 2
    ends = (k for k in range(most) if not slow[k] and slow[k : k + 3].sum() <= 1)
    return next(ends, most if slow[:most].all() else 0)


def _chunk_medians(x: Floats, y: Floats, chunks: int) -> tuple[Floats, Floats]:
    if len(x) <= chunks:
        return x, y
    cuts = np.linspace(0, len(x), chunks + 1).astype(int)
    return _medians_between(x, cuts), _medians_between(y, cuts)


def _kendall_variance(y: Floats) -> float:
    n = len(y)
    _, ties = np.unique(y, return_counts=True)
    return float(n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18


def _inflation(residuals: Floats) -> float:
    r = residuals - residuals.mean()
    power = float((r * r).sum())
    lag = float((r[1:] * r[:-1]).sum()) / power if power else 0.0
    lag = min(max(lag, 0.0), 0.95)
    return (1 + lag) / (1 - lag)
