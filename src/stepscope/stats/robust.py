"""Robust statistics: medians, spreads and slopes that one outlier cannot move."""

from collections.abc import Callable, Sequence
from math import erfc, inf, nan, sqrt
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.contract.student import normal, t_quantile, t_two_sided
from stepscope.records import ArrayRecord, Row, dataclass

_Kind = TypeVar("_Kind", bound=np.generic)

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


def segment_middles(
    values: npt.NDArray[_Kind], first: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[_Kind], npt.NDArray[_Kind]]:
    """Return the one or two values in the middle of each segment `values[first[i]:first[i + 1]]`, 0 for empty ones."""
    count = np.diff(first)
    low, high = np.zeros(len(count), values.dtype), np.zeros(len(count), values.dtype)
    for n in distinct(count[count > 0]).tolist():
        alike = np.flatnonzero(count == n)
        block = np.partition(values[first[alike][:, None] + np.arange(n)], ((n - 1) // 2, n // 2), axis=1)
        low[alike], high[alike] = block[:, (n - 1) // 2], block[:, n // 2]
    return low, high


def segment_medians(values: npt.NDArray[np.float64], first: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the median of each segment, 0 for empty ones.

    >>> segment_medians(np.array([1.0, 9.0, 2.0, 4.0, 6.0]), np.array([0, 3, 3, 5]))
    array([2., 0., 5.])
    """
    low, high = segment_middles(values, first)
    return (low + high) / 2


def quantiles(values: npt.ArrayLike, shares: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return quantiles, interpolated between neighbours as `np.quantile` does.

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
    """The location of a series and its standard error."""

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


def num_stretches(mask: npt.NDArray[np.bool_]) -> int:
    """Return in how many stretches of neighbours something holds: what lasts for a while happened once."""
    return int((mask & ~np.concatenate(([False], mask[:-1]))).sum())


def theil_sen(x: Floats, y: Floats) -> tuple[float, float]:
    """Return slope and intercept by the median of all pairwise slopes.

    Beyond 400 points, medians of consecutive chunks stand for them, so that the cost stays bounded.
    """
    x, y = _chunk_medians(x, y, _MAX_POINTS)
    i, j = np.triu_indices(len(x), 1)
    run = x[j] - x[i]
    keep = run != 0
    slope = median((y[j] - y[i])[keep] / run[keep]) if keep.any() else 0.0
    return slope, median(y - slope * x)


def spread(values: npt.ArrayLike) -> Row | None:
    """Return mean, extremes and standard deviation (of the population) of the known values, None without any.

    >>> spread([2.0, 4.0, float("nan")])
    {'mean': 3.0, 'min': 2.0, 'max': 4.0, 'std': 1.0, 'count': 2}
    """
    x = np.asarray(values, float)
    x = x[np.isfinite(x)]
    if not len(x):
        return None
    return Row(mean=float(x.mean()), min=float(x.min()), max=float(x.max()), std=float(x.std()), count=len(x))


def trend(x: npt.ArrayLike, y: npt.ArrayLike, *, chunks: int = 60) -> Row | None:
    """Return the Theil-Sen slope (the median of all) per unit of x with its 95 % interval, and how likely chance alone
    gives as much (two-sided Mann-Kendall); None below 8 points and where x does not increase.

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
    return Row(slope=slope, low=float(low), high=float(high), p_value=erfc(z / sqrt(2)))


def far_longer(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which values are over 1.5 times the median."""
    x = np.asarray(values, float)
    return x > FAR_LONGER * median(x) if len(x) else np.zeros(0, bool)


def one_hiccup(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which value exceeds the sum of all others, if any: it would dominate a mean.

    >>> [bool(one_hiccup(times).any()) for times in ([10, 10, 90, 10], [10, 10, 30, 10], [10, 90])]
    [True, False, False]
    """
    x = np.asarray(values, float)
    return 2 * x > x.sum() if len(x) > 2 else np.zeros(len(x), bool)


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
    return segment_medians(x, cuts), segment_medians(y, cuts)


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


# Each value once, in order. As `np.unique` without indices or counts, which imports numpy's masked arrays first.

# slots for each value up to which a table of all possible values is quicker than sorting them
_MAX_SPREAD = 32


def distinct(values: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    """Return each value once, ascending.

    >>> distinct(np.array([7, -2, 7, 30])).tolist()
    [-2, 7, 30]
    """
    if not len(values):
        return values[:0].copy()
    if values.dtype.kind == "i":
        low, high = int(values.min()), int(values.max())
        if high - low <= _MAX_SPREAD * len(values):
            there = np.zeros(high - low + 1, bool)
            there[np.subtract(values, low, dtype=np.int64)] = True
            return (np.flatnonzero(there) + low).astype(values.dtype)
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])]


def distinct_places(values: npt.NDArray[_Kind]) -> tuple[npt.NDArray[_Kind], npt.NDArray[np.intp]]:
    """Return each value once, ascending, and where each of the values is among them.

    As `np.unique` with its inverse, by a merge sort: for values that are a few runs that ascend already.

    >>> [x.tolist() for x in distinct_places(np.array([7, -2, 7, 30]))]
    [[-2, 7, 30], [1, 0, 1, 2]]
    """
    order = np.argsort(values, kind="stable")
    ordered = values.take(order)
    fresh = np.append(True, ordered[1:] != ordered[:-1])[: len(values)]
    place = np.empty(len(values), np.intp)
    place[order] = np.cumsum(fresh) - 1
    return ordered[fresh], place


def numbered(values: npt.NDArray[_Kind]) -> tuple[npt.NDArray[_Kind], npt.NDArray[np.int64]]:
    """Return each value once, ascending, and where each of the values is among them: for few values, in any order.

    >>> [x.tolist() for x in numbered(np.array([7, -2, 7, 30]))]
    [[-2, 7, 30], [1, 0, 1, 2]]
    """
    low, high = (int(values.min()), int(values.max())) if len(values) and values.dtype.kind == "i" else (0, 0)
    if high == low or high - low > _MAX_SPREAD * len(values):
        once = distinct(values)
        return once, np.searchsorted(once, values)
    slot = np.subtract(values, low, dtype=np.intp)
    there = np.zeros(high - low + 1, bool)
    there[slot] = True
    return (np.flatnonzero(there) + low).astype(values.dtype), (np.cumsum(there) - 1).take(slot)


def union_of_values(*several: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    """Return each value that is in any of them once, ascending."""
    return distinct(np.concatenate(several))


def common(a: npt.NDArray[_Kind], b: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    """Return each value that is in both once, ascending.

    >>> common(np.array([3, 1, 3]), np.array([3, 2])).tolist()
    [3]
    """
    once, other = distinct(a), distinct(b)
    both = np.sort(np.concatenate((once, other)))
    return both[1:][both[1:] == both[:-1]]


def among(values: npt.NDArray[np.integer], wanted: npt.NDArray[np.integer] | Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return which values are among those wanted: rows of a table in the time that reading them takes.

    >>> among(np.array([5, 2, 9]), np.array([9, 5])).tolist()
    [True, False, True]
    """
    if not len(wanted) or not len(values):
        return np.zeros(len(values), bool)
    if len(wanted) <= 8:
        first, *others = (int(one) for one in wanted)  # numbers of Python's own: others widen the values to 64 bits
        out = values == first
        for one in others:
            out |= values == one
        return out
    wanted = np.asarray(wanted)
    low, high = int(wanted.min()), int(wanted.max())
    if high - low > _MAX_SPREAD * (len(values) + len(wanted)):
        once = distinct(wanted)
        return once[np.minimum(np.searchsorted(once, values), len(once) - 1)] == values
    there = np.zeros(high - low + 2, bool)  # in the last place: what lies outside
    there[np.subtract(wanted, low, dtype=np.int64)] = True
    return there[np.where((values >= low) & (values <= high), np.subtract(values, low, dtype=np.int64), -1)]


def distinct_rows(table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return each row of a table once, in order.

    >>> distinct_rows(np.array([[2, 1], [1, 5], [2, 1]])).tolist()
    [[1, 5], [2, 1]]
    """
    return np.unique(table, axis=0, return_index=True)[0]


# How well is a series of step times known, do two differ, by how much, and how sure is that?
#
# Step times are skewed (most steps alike, a few long) and autocorrelated (a slow moment lasts several steps). So:
#
#     location        mean of the middle half of the steps: spikes do not move it, and it wastes less than the median
#     draws           blocks of consecutive steps drawn with replacement, as long as the autocorrelation lasts
#     standard error  the largest of the draws' spread, the spread of the steps over the root of how many
#                     *independent* steps they are worth, and that of the means of ten long stretches
#     several runs    runs are drawn first, then blocks in them; never surer than the spread between runs allows
#
# The interval has the shape of the draws and the width of Student's t.


def detectable(se: float, df: float, *, confidence: float = 0.95, power: float = 0.8) -> float:
    """Return the smallest difference that a test with this standard error finds in a share `power` of all cases."""
    return se * (t_quantile(confidence, df) + normal().inv_cdf(power))


# fewer say nothing of how they vary
MIN_SAMPLES = 3
CONFIDENCE = 0.95
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

    r is the lag-1 autocorrelation, corrected for bias (Kendall 1954), and half a standard error more: one taken too
    small gives false alarms, one too large only wider intervals. Few samples cannot tell a drift from chance: they
    count as four independent ones at least.
    """
    n = len(centred)
    seen = (centred[1:] * centred[:-1]).sum(axis=0) / np.where(power > 0, power, 1.0)
    r = np.clip((n * seen + 1) / max(n - 3, 1), -1, 1)
    r = np.clip(r + 0.5 * np.sqrt((1 - r * r) / n), 0, 0.95)
    return np.asarray(np.minimum((1 + r) / (1 - r), max(n / _INDEPENDENT, 1.0)))


# one number for each row
Statistic = Callable[[Floats], Floats]
_TRIM = 0.25
_DRAWS = 1999
_MAX_STEPS = 10_000
# beyond them the draws are too few, or too near to each other, to show a shape
_LEVELS = 0.005, 0.5


@dataclass(frozen=True)
class Difference:
    """How far B is above A. All but the values is nan or None where a side has too few samples."""

    a: float
    b: float
    low: float
    #: 95 % interval of b - a
    high: float
    #: how likely chance alone gives as large a difference
    p_value: float | None
    #: smallest difference that would be found in four of five such comparisons
    detectable: float | None

    @property
    def change(self) -> float:
        return self.b - self.a

    @property
    def significant(self) -> bool:
        """Return whether the interval leaves no room for no difference."""
        return self.p_value is not None and self.p_value < 1 - CONFIDENCE


def typical(rows: Floats) -> Floats:
    """Return the mean of the middle half of each row; of less than five samples the mean of all.

    >>> typical(np.array([1.0, 2, 3, 4, 90])).item()
    3.0
    """
    n = rows.shape[-1]
    cut = num_trimmed(n, _TRIM)
    return np.asarray(np.sort(rows, axis=-1)[..., cut : n - cut].mean(axis=-1))


def interval(
    runs: Sequence[npt.ArrayLike], *, statistic: Statistic = typical, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean over runs of a statistic and its 95 % interval, nan where a run has too few samples."""
    rng = np.random.default_rng(seed)
    side = _side(runs, statistic, rng)
    value = _mean(side)
    if _unknown(side):
        return value, nan, nan
    return value, *_interval(value, _centred(_over_runs(side, rng)), _errors([side]))


def difference(
    a: Sequence[npt.ArrayLike],
    b: Sequence[npt.ArrayLike],
    *,
    statistic: Statistic = typical,
    seed: int = 0,
) -> Difference:
    """Return the difference of two sides, each one or several runs, each run a series of samples in order."""
    rng = np.random.default_rng(seed)
    ours, theirs = (_side(side, statistic, rng) for side in (a, b))
    if _unknown([*ours, *theirs]):
        return Difference(_mean(ours), _mean(theirs), nan, nan, None, None)
    shape, errors = _over_runs(theirs, rng) - _over_runs(ours, rng), _errors([ours, theirs])
    return _difference_of(_mean(ours), _mean(theirs), _centred(shape), errors, is_amount=_are_amounts([*a, *b]))


def difference_of_numbers(a: npt.ArrayLike, b: npt.ArrayLike) -> Difference:
    """Return the difference of the means of single numbers, one per run, by Welch's test."""
    x, y = np.asarray(a, float), np.asarray(b, float)
    if min(len(x), len(y)) < 2:
        return Difference(float(x.mean()), float(y.mean()), nan, nan, None, None)
    variances = [float(v.var(ddof=1)) / len(v) for v in (x, y)]
    df = welch(variances, [len(x) - 1, len(y) - 1])
    errors = [(float(np.sqrt(sum(variances))), df)]
    return _difference_of(float(x.mean()), float(y.mean()), None, errors, is_amount=_are_amounts([x, y]))


def _are_amounts(series: Sequence[npt.ArrayLike]) -> bool:
    return all((np.asarray(one, float) >= 0).all() for one in series)


def holm(p_values: Floats) -> Floats:
    """Return p-values such that the smallest of many equals is no alarm (Holm 1979); nan stays nan."""
    out = np.full(len(p_values), nan)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    raised = p_values[order] * np.arange(len(order), 0, -1)
    out[order] = np.minimum(np.maximum.accumulate(raised), 1.0) if len(order) else raised
    return out


def same(a: float, b: float) -> bool:
    """Return whether two numbers differ by rounding alone.

    >>> same(0.1 + 0.2, 0.3), same(0.3, 0.31)
    (True, False)
    """
    return abs(b - a) <= 1e-9 * max(abs(a), abs(b))


def welch(variances: Sequence[float], df: Sequence[float]) -> float:
    """Return the degrees of freedom of a sum of variances (Welch and Satterthwaite)."""
    whole = sum(v * v / d for v, d in zip(variances, df, strict=True))
    return sum(variances) ** 2 / whole if whole else float(sum(df))


@dataclass(frozen=True, eq=False, repr=False)
class _BootstrapRun(ArrayRecord):
    value: float
    draws: Floats
    se: float
    df: float


def _side(runs: Sequence[npt.ArrayLike], statistic: Statistic, rng: "np.random.Generator") -> list[_BootstrapRun]:
    return [_drawn(np.asarray(run, float), statistic, rng) for run in runs]


def _mean(side: Sequence[_BootstrapRun]) -> float:
    return float(np.mean([run.value for run in side]))


def _unknown(side: Sequence[_BootstrapRun]) -> bool:
    return any(np.isnan(run.se) for run in side)


def _centred(draws: Floats) -> Floats:
    return np.sort(draws - median(draws))


def _drawn(series: Floats, statistic: Statistic, rng: "np.random.Generator") -> _BootstrapRun:
    value = float(statistic(series)) if len(series) else nan
    n = len(series)
    if n < MIN_SAMPLES:
        return _BootstrapRun(value, np.empty(0), nan, nan)
    low, high = quantiles(series, (_TRIM, 1 - _TRIM))
    length = block_length(np.clip(series, low, high))
    drawn = series[_blocks(n, length, rng)]
    draws = statistic(drawn)
    middle = draws if statistic is typical else typical(drawn)
    errors, df = mean_errors(series[:, None], trim=_TRIM)
    # Blocks cannot show what the whole series shares; fewer steps than there are vary more than all of them.
    missed = np.sqrt(n / max(n - length, 1) * min(n, _MAX_STEPS) / n)
    # Other statistics have no formula: their draws are widened as much as those of the middle half need to be.
    seen = float(middle.std()) * missed
    widened = max(1.0, float(errors[0]) / seen) if seen else 1.0
    return _BootstrapRun(value, draws, float(draws.std()) * missed * widened, float(df[0]))


def _blocks(n: int, length: int, rng: "np.random.Generator") -> npt.NDArray[np.int64]:
    most = min(n, _MAX_STEPS)
    count = int(np.clip(2_000_000 // most, 199, _DRAWS))
    starts = rng.integers(0, n, (count, -(-most // length)))
    return np.asarray((starts[:, :, None] + np.arange(length)).reshape(count, -1)[:, :most] % n)


def _over_runs(runs: Sequence[_BootstrapRun], rng: "np.random.Generator") -> Floats:
    count = min(len(run.draws) for run in runs)
    if len(runs) == 1:
        return runs[0].draws[:count]
    table = np.array([run.draws[:count] for run in runs])
    chosen = rng.integers(0, len(runs), (len(runs), count))
    return np.asarray(table[chosen, rng.integers(0, count, chosen.shape)].mean(axis=0))


def _errors(sides: Sequence[Sequence[_BootstrapRun]]) -> list[tuple[float, float]]:
    variances = [float(np.sum([r.se**2 for r in runs])) / len(runs) ** 2 for runs in sides]
    df = [welch([r.se**2 for r in runs], [r.df for r in runs]) for runs in sides]
    errors = [(float(np.sqrt(sum(variances))), welch(variances, df))]
    several = sum(len(runs) - 1 for runs in sides)
    if several:
        off = sum(float(np.var([r.value for r in runs])) * len(runs) for runs in sides) / several
        errors.append((float(np.sqrt(off * sum(1 / len(runs) for runs in sides))), float(several)))
    return errors


def _difference_of(
    a: float, b: float, shape: Floats | None, errors: Sequence[tuple[float, float]], *, is_amount: bool
) -> Difference:
    se, df = _widest(errors)
    if not se:
        return Difference(a, b, b - a, b - a, float(same(a, b)), 0.0)
    low, high = _interval(b - a, shape, errors)
    if is_amount:  # none falls below 0
        low, high = max(low, -a), max(high, -a)
    return Difference(a, b, low, high, _p_value(b - a, shape, errors), detectable(se, df))


def _interval(middle: float, shape: Floats | None, errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    se, df = _widest(errors)
    width = se * t_quantile(CONFIDENCE, df)
    below, above = _skew(shape, 1 - CONFIDENCE)
    return middle - below * width, middle + above * width


def _widest(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return max(errors, key=lambda e: e[0] * t_quantile(CONFIDENCE, e[1]))


def _skew(shape: Floats | None, p: float) -> tuple[float, float]:
    spread = 0.0 if shape is None else float(shape.std())
    if shape is None or not spread:
        return 1.0, 1.0
    low, high = quantiles(shape, (p / 2, 1 - p / 2)) / (spread * t_quantile(1 - p, inf))
    return max(-float(low), 0.0), max(float(high), 0.0)


def _p_value(change: float, shape: Floats | None, errors: Sequence[tuple[float, float]]) -> float:
    p = 1 - CONFIDENCE
    for _ in range(8):
        side = _skew(shape, min(max(p, _LEVELS[0]), _LEVELS[1]))[change < 0]
        p = max(t_two_sided(change / (side * se), df) if side * se else 0.0 for se, df in errors)
    return float(p)
