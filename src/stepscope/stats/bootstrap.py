"""How well is a series of step times known, do two differ, by how much, and how sure is that?

Step times are skewed (most steps alike, a few long) and autocorrelated (a slow moment lasts several steps). So:

    location        mean of the middle half of the steps: spikes do not move it, and it wastes less than the median
    draws           blocks of consecutive steps drawn with replacement, as long as the autocorrelation lasts
    standard error  the largest of the draws' spread, the spread of the steps over the root of how many
                    *independent* steps they are worth, and that of the means of ten long stretches
    several runs    runs are drawn first, then blocks in them; never surer than the spread between runs allows
    paired runs     of runs made in turn those of the same number are subtracted first: what they share cancels

The interval has the shape of the draws and the width of Student's t.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import exp, inf, isinf, lgamma, log, log1p, nan, pi, sqrt
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.stats.robust import median, quantiles

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
    paired: bool = False,
    seed: int = 0,
) -> Difference:
    """Return the difference of two sides, each one or several runs, each run a series of samples in order.

    `paired`: runs of the same number were made in turn, so that what slows both cancels.
    """
    rng = np.random.default_rng(seed)
    ours, theirs = (_side(side, statistic, rng) for side in (a, b))
    if _unknown([*ours, *theirs]):
        return Difference(_mean(ours), _mean(theirs), nan, nan, None, None)
    if paired:
        pairs = [_subtracted(y, x) for x, y in zip(ours, theirs, strict=True)]
        shape, errors = _over_runs(pairs, rng), _errors([pairs])
    else:
        shape, errors = _over_runs(theirs, rng) - _over_runs(ours, rng), _errors([ours, theirs])
    return _difference_of(_mean(ours), _mean(theirs), _centred(shape), errors)


def difference_of_numbers(a: npt.ArrayLike, b: npt.ArrayLike) -> Difference:
    """Return the difference of the means of single numbers, one per run, by Welch's test."""
    x, y = np.asarray(a, float), np.asarray(b, float)
    if min(len(x), len(y)) < 2:
        return Difference(float(x.mean()), float(y.mean()), nan, nan, None, None)
    variances = [float(v.var(ddof=1)) / len(v) for v in (x, y)]
    df = _welch(variances, [len(x) - 1, len(y) - 1])
    return _difference_of(float(x.mean()), float(y.mean()), None, [(float(np.sqrt(sum(variances))), df)])


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


def _welch(variances: Sequence[float], df: Sequence[float]) -> float:
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


def _subtracted(b: _BootstrapRun, a: _BootstrapRun) -> _BootstrapRun:
    count = min(len(a.draws), len(b.draws))
    variances = [a.se**2, b.se**2]
    df = _welch(variances, [a.df, b.df])
    return _BootstrapRun(b.value - a.value, b.draws[:count] - a.draws[:count], float(np.sqrt(sum(variances))), df)


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
    df = [_welch([r.se**2 for r in runs], [r.df for r in runs]) for runs in sides]
    errors = [(float(np.sqrt(sum(variances))), _welch(variances, df))]
    several = sum(len(runs) - 1 for runs in sides)
    if several:
        off = sum(float(np.var([r.value for r in runs])) * len(runs) for runs in sides) / several
        errors.append((float(np.sqrt(off * sum(1 / len(runs) for runs in sides))), float(several)))
    return errors


def _difference_of(a: float, b: float, shape: Floats | None, errors: Sequence[tuple[float, float]]) -> Difference:
    se, df = _widest(errors)
    if not se:
        return Difference(a, b, b - a, b - a, float(same(a, b)), 0.0)
    low, high = _interval(b - a, shape, errors)
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
