"""How many times as long is B's step as A's, and how sure is that? One statistic of every comparison of step times.

    step of a run     mean of the middle half of its steps (`typical`); of all of them where long ones recur
    rounds            runs of A and B made in turn; log(step of B / step of A), so a slowdown of the whole round cancels
    change            Hodges-Lehmann centre over rounds: a few disturbed rounds do not move it
    standard error    the widest of: signed ranks over rounds; between starts of the job; with fewer than three rounds
                      that of the autocorrelated steps within them
    interval          Student's t; the false-alarm rate is divided by the number of tests: looks, variants, statistics

Runs that were not made in turn (`unpaired`) have the same location, logarithm and interval; the errors of both sides,
between their steps and between their runs, are added.

An interval ends where the samples end: with two or three runs, Student's t would exceed all of them.
"""

from collections.abc import Callable, Sequence
from math import exp, log, sqrt

import numpy as np
import numpy.typing as npt

from stepscope.contract.student import t_quantile, t_two_sided
from stepscope.records import dataclass
from stepscope.stats.robust import centre, detectable, mean_errors, one_hiccup, recurring_long, typical, welch

Floats = npt.NDArray[np.float64]
#: one number for each row of steps
Location = Callable[[Floats], Floats]

FALSE_ALARMS = 0.05
_TINY = 1e-12
#: cut off at either end, as in `typical`
_TRIM = 0.25
_ENOUGH_ROUNDS = 3
_MATTERS = 1.05
#: logarithm of a factor of a million
_FAR = log(1e6)
#: of the waits for a core; all of them only where one thread of one rank determines the step
WAIT_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: of a step that consists of waits
_LEAST_STEP = 0.01


@dataclass(frozen=True)
class Change:
    """How many times as long the step of B is as that of A."""

    ratio: float
    low: float
    high: float
    #: how likely chance alone gives as much, times the number of tests; None where too few steps are known
    p_value: float | None
    #: smallest ratio above 1 that four of five such comparisons find
    detectable: float | None
    #: of A and B in turn; 0 where they were not
    rounds: int

    @property
    def slower(self) -> bool:
        """Return whether B is slower beyond chance."""
        return self.p_value is not None and self.low > 1

    @property
    def faster(self) -> bool:
        """Return whether B is faster beyond chance."""
        return self.p_value is not None and self.high < 1

    @property
    def undecided(self) -> bool:
        """Return whether chance hides differences that would matter, either way."""
        return not (self.slower or self.faster) and (self.low < 1 / _MATTERS or self.high > _MATTERS)

    def scaled(self, factor: float) -> "Change":
        """Return the change with every ratio times a factor: per sample instead of per step."""
        least = None if self.detectable is None else self.detectable * factor
        return Change(self.ratio * factor, self.low * factor, self.high * factor, self.p_value, least, self.rounds)

    def inverse(self) -> "Change":
        """Return how many times as fast B is."""
        return Change(1 / self.ratio, 1 / self.high, 1 / self.low, self.p_value, self.detectable, self.rounds)


def mean(rows: Floats) -> Floats:
    """Return the mean of each row: for work of some steps only, such as a loader that starts again."""
    return np.asarray(rows.mean(axis=-1))


def location_of(*sides: Sequence[npt.ArrayLike]) -> Location:
    """Return which step stands for these runs: where long steps recur in any of them, the mean of all its steps.

    >>> location_of([[4.0, 4, 60, 4, 4, 4, 60, 4]]) is mean, location_of([[4.0, 4, 60, 4, 4, 4, 5, 4]]) is mean
    (True, False)
    """
    return mean if any(recurring_long(run).any() for side in sides for run in _steps(side)) else typical


def paired(
    a: Sequence[npt.ArrayLike],
    b: Sequence[npt.ArrayLike],
    *,
    starts: Sequence[int] | None = None,
    location: Location = typical,
    tests: int = 1,
    false_alarms: float = FALSE_ALARMS,
) -> Change | None:
    """Return the change from rounds, each with the step times of A and B; None where no round has both.

    `starts` has the start of the job that each round belongs to, where one start has several rounds.

    >>> found = paired([[100.0], [104.0], [98.0]], [[50.0], [51.0], [50.0]])
    >>> round(found.ratio, 2), found.faster
    (0.5, True)
    """
    rounds = list(zip(_steps(a), _steps(b), strict=False))
    known = [k for k, (x, y) in enumerate(rounds) if len(x) and len(y)]
    if not known:
        return None
    ours, theirs = [rounds[k][0] for k in known], [rounds[k][1] for k in known]
    ratios = np.array([_log(y, location) - _log(x, location) for x, y in zip(ours, theirs, strict=True)])
    found = centre(ratios)
    errors = [(found.error, len(ratios) - 1.0)] if len(ratios) > 1 else []
    of_starts = _means_by(ratios, [starts[k] for k in known]) if starts is not None else ratios
    if 1 < len(of_starts) < len(ratios):
        errors.append((float(of_starts.std(ddof=1)) / sqrt(len(of_starts)), len(ratios) - 1.0))
    if len(ratios) < _ENOUGH_ROUNDS:
        errors.append(_within([*ours, *theirs], len(ratios), location))
    return _change(found.value, errors, (ours, theirs), tests, false_alarms, rounds=len(ratios))


def unpaired(
    a: Sequence[npt.ArrayLike],
    b: Sequence[npt.ArrayLike],
    *,
    location: Location = typical,
    tests: int = 1,
    false_alarms: float = FALSE_ALARMS,
) -> Change | None:
    """Return the change between runs that were not made in turn; None where a side has no step."""
    sides = [[run for run in _steps(side) if len(run)] for side in (a, b)]
    if not all(sides):
        return None
    logs = [np.array([_log(run, location) for run in side]) for side in sides]
    errors = [_added([_within(side, len(side), location) for side in sides])]
    several = sum(len(side) - 1 for side in sides)
    if several:
        pooled = sum(float(one.var()) * len(one) for one in logs) / several
        errors.append((sqrt(pooled * sum(1 / len(one) for one in logs)), float(several)))
    middle = float(logs[1].mean() - logs[0].mean())
    return _change(middle, errors, (sides[0], sides[1]), tests, false_alarms, rounds=0)


def _steps(side: Sequence[npt.ArrayLike]) -> list[Floats]:
    """Return the steps of each run or round of a side, without a single hiccup of the whole side."""
    runs = [np.atleast_1d(np.asarray(run, float)) for run in side]
    hiccup = one_hiccup(np.concatenate([np.empty(0), *runs]))
    ends = np.cumsum([len(run) for run in runs])[:-1]
    return [run[~found] for run, found in zip(runs, np.split(hiccup, ends), strict=True)] if runs else []


def _log(run: Floats, location: Location) -> float:
    return log(max(float(location(run)), _TINY))


def _means_by(values: Floats, group: Sequence[int]) -> Floats:
    groups = np.asarray(group)
    return np.array([centre(values[groups == one]).value for one in dict.fromkeys(group)])


def _within(runs: Sequence[Floats], rounds: int, location: Location) -> tuple[float, float]:
    """Return the standard error by the steps of several runs, of the mean over rounds of their logarithms."""
    if location is mean:
        each = [mean_errors((run / max(float(run.mean()), _TINY))[:, None]) for run in runs]
    else:
        each = [mean_errors(np.log(np.maximum(run, _TINY))[:, None], trim=_TRIM) for run in runs]
    error, df = _added([(float(se[0]), float(df[0])) for se, df in each])
    return error / rounds, df


def _added(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    variances = [se * se for se, _ in errors]
    return sqrt(sum(variances)), welch(variances, [df for _, df in errors])


def _change(
    middle: float,
    errors: Sequence[tuple[float, float]],
    sides: tuple[Sequence[Floats], Sequence[Floats]],
    tests: int,
    false_alarms: float,
    *,
    rounds: int,
) -> Change:
    (least_a, most_a), (least_b, most_b) = ((min(map(np.min, s)), max(map(np.max, s))) for s in sides)
    span = [log(max(x, _TINY) / max(y, _TINY)) for x, y in ((least_b, most_a), (most_b, least_a))]
    confidence = 1 - false_alarms / tests
    if any(np.isnan(se) for se, _ in errors):
        return Change(exp(middle), exp(span[0]), exp(span[1]), None, None, rounds)
    error, df = max(errors, key=lambda one: one[0] * t_quantile(confidence, one[1]))
    width = error * t_quantile(confidence, df)
    # the samples' own extremes limit the interval, but never exclude that nothing changed
    low = max(middle - width, min(span[0], 0.0, middle))
    high = min(middle + width, max(span[1], 0.0, middle))
    p_value = min(1.0, tests * t_two_sided(middle / error, df)) if error else float(middle == 0)
    least = detectable(error, df, confidence=confidence)
    return Change(_exp(middle), _exp(low), _exp(high), p_value, _exp(least), rounds)


def _exp(x: float) -> float:
    return exp(min(max(x, -_FAR), _FAR))


def without_waits(ms: Floats, share: float) -> Floats:
    """Return step times without a share of their waits for a core; the first row are times, the second waits."""
    return np.maximum(ms[0] - share * ms[1], _LEAST_STEP * ms[0])


def load_share(a: Sequence[Floats], b: Sequence[Floats]) -> float:
    """Return the share of the waits for a core without which the rounds agree best; runs as for `without_waits`."""

    def error(share: float) -> float:
        return centre(
            [
                _log(without_waits(y, share), typical) - _log(without_waits(x, share), typical)
                for x, y in zip(a, b, strict=True)
            ]
        ).error

    return min(WAIT_SHARES, key=error)
