"""Which of many named times differ between two sides: parts of the budget, kernels, operators?

Of many equals some differ by chance alone: p-values are raised for how many there are (Holm).
"""

from collections.abc import Sequence
from math import nan

import numpy as np
import numpy.typing as npt

from stepscope.compare.samples import PerStepTimes
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.stats.autocorrelation import CONFIDENCE, mean_errors
from stepscope.stats.bootstrap import Difference, holm, same
from stepscope.stats.student_t import detectable, t_quantile, t_two_sided

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One part, kernel or operator: ms per step, mean over ranks and runs."""

    name: str
    difference: Difference
    """of this row by itself"""
    p_among_all: float | None
    """its p-value, raised for how many rows there are"""
    a_count: float
    b_count: float
    """calls per step"""

    @property
    def significant(self) -> bool:
        """Return whether the row stands out among all rows."""
        return self.p_among_all is not None and self.p_among_all < 1 - CONFIDENCE

    @property
    def what(self) -> str:
        """Return what became of it: `appeared`, `vanished`, `slower`, `faster` or `no difference found`."""
        if not self.a_count or not self.b_count:
            return "appeared" if self.b_count else "vanished"
        if not self.significant:
            return "no difference found"
        return "slower" if self.difference.change > 0 else "faster"


def changed_rows(a: Sequence[PerStepTimes], b: Sequence[PerStepTimes]) -> tuple[Row, ...]:
    """Return the rows that changed at all, the largest changes first."""
    rows = [row for row in rows_of(a, b) if not same(row.difference.a, row.difference.b)]
    return tuple(sorted(rows, key=lambda row: -abs(row.difference.change)))


def rows_of(a: Sequence[PerStepTimes], b: Sequence[PerStepTimes]) -> list[Row]:
    """Return every name of either side with its difference."""
    names = tuple(dict.fromkeys(name for table in (*a, *b) for name in table.names))
    if not names:
        return []
    sides = [[_Means.of(table, names) for table in side] for side in (a, b)]
    means = [np.mean([run.ms for run in side], axis=0) for side in sides]
    counts = [np.mean([run.count for run in side], axis=0) for side in sides]
    errors = _row_errors(sides)
    each = [
        _difference(means[0][i], means[1][i], [(float(se[i]), float(df[i])) for se, df in errors])
        for i in range(len(names))
    ]
    p_values = holm(np.array([nan if d.p_value is None else d.p_value for d in each]))
    return [
        Row(name, d, None if d.p_value is None else float(p), float(before), float(after))
        for name, d, p, before, after in zip(names, each, p_values, *counts, strict=True)
    ]


def recentred(d: Difference, a: float, b: float) -> Difference:
    """Return the same doubt around other values."""
    moved = (b - a) - d.change
    return Difference(a, b, d.low + moved, d.high + moved, d.p_value, d.detectable)


@dataclass(frozen=True, eq=False, repr=False)
class _Means(ArrayRecord):
    """One run's means per step with their errors, in a given order of names; 0 for what it lacks."""

    ms: Floats
    count: Floats
    se: Floats
    df: Floats

    @staticmethod
    def of(table: PerStepTimes, names: Sequence[str]) -> "_Means":
        at = {name: i for i, name in enumerate(table.names)}
        pick = np.array([at.get(name, len(at)) for name in names])
        steps = len(table.ms)
        ordered = (np.ascontiguousarray(x) for x in (table.ms, table.count))  # the order decides how sums are rounded
        ms, count = (np.column_stack((x, np.zeros(steps)))[:, pick] for x in ordered)
        se, df = mean_errors(ms)
        mean = [x.mean(axis=0) if steps else np.zeros(len(names)) for x in (ms, count)]
        return _Means(mean[0], mean[1], se, df)


def _row_errors(sides: Sequence[Sequence[_Means]]) -> list[tuple[Floats, Floats]]:
    """Return standard errors and degrees of freedom: of the steps and, with several runs, of the runs."""
    variance = np.zeros(len(sides[0][0].ms))
    quarters = np.zeros(len(variance))
    for runs in sides:
        for run in runs:
            mine = run.se**2 / len(runs) ** 2
            variance, quarters = variance + mine, quarters + mine**2 / run.df
    df = np.where(quarters > 0, variance**2 / np.where(quarters > 0, quarters, 1.0), 1.0)
    errors = [(np.sqrt(variance), np.floor(np.maximum(df, 1.0)))]
    several = sum(len(runs) - 1 for runs in sides)
    if several:
        off = sum(np.var([run.ms for run in runs], axis=0) * len(runs) for runs in sides) / several
        between = np.sqrt(off * sum(1 / len(runs) for runs in sides))
        errors.append((np.asarray(between), np.full(len(variance), float(several))))
    return errors


def _difference(a: float, b: float, errors: Sequence[tuple[float, float]]) -> Difference:
    if any(se != se for se, _ in errors):
        return Difference(float(a), float(b), nan, nan, None, None)
    change = 0.0 if same(a, b) else float(b - a)
    se, df = max(errors, key=lambda e: e[0] * t_quantile(CONFIDENCE, e[1]))
    width = se * t_quantile(CONFIDENCE, df)
    p = max(t_two_sided(change / se, df) if se else float(change == 0) for se, df in errors)
    return Difference(float(a), float(b), change - width, change + width, p, detectable(se, df))
