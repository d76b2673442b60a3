"""What differs between two runs, or two sets of runs: the step, its budget, kernels and operators, with intervals.

Times without the profiler are compared where both sides have them, else times with it: never one with the other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import nan

import numpy as np
import numpy.typing as npt

from stepscope.analyze.budget import PARTS
from stepscope.compare.samples import PerStepTimes, RunSamples, StepSamples, StepTimes
from stepscope.document.report import ms_or_none
from stepscope.records import dataclass
from stepscope.stats.robust import (
    CONFIDENCE,
    MIN_SAMPLES,
    Difference,
    detectable,
    difference,
    holm,
    mean_errors,
    same,
    t_quantile,
    t_two_sided,
)
from stepscope.units import ms

# Which of many named times differ between two sides: parts of the budget, kernels, operators?
#
# Of many equals some differ by chance alone: p-values are raised for how many there are (Holm).

Floats = npt.NDArray[np.float64]
# by name: mean of the times and of the counts, standard error of the first and its degrees of freedom
_Means = tuple[Floats, Floats, Floats, Floats]


@dataclass(frozen=True)
class Row:
    """One part, kernel or operator: ms per step, mean over ranks and runs."""

    name: str
    #: of this row alone
    difference: Difference
    #: its p-value, raised for how many rows there are
    p_among_all: float | None
    a_count: float
    #: calls per step
    b_count: float

    @property
    def significant(self) -> bool:
        """Return whether the row differs significantly after correction for all rows."""
        return self.p_among_all is not None and self.p_among_all < 1 - CONFIDENCE

    @property
    def what(self) -> str:
        """Return its status: `appeared`, `vanished`, `slower`, `faster` or `no difference found`."""
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
    sides = [[_means(table, names) for table in side] for side in (a, b)]
    means = [np.mean([ms for ms, *_ in side], axis=0) for side in sides]
    counts = [np.mean([count for _, count, *_ in side], axis=0) for side in sides]
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


def _recentred(d: Difference, a: float, b: float) -> Difference:
    moved = (b - a) - d.change
    return Difference(a, b, d.low + moved, d.high + moved, d.p_value, d.detectable)


def _means(table: PerStepTimes, names: Sequence[str]) -> _Means:
    at = {name: i for i, name in enumerate(table.names)}
    pick = np.array([at.get(name, len(at)) for name in names])
    steps = len(table.ms)
    ordered = (np.ascontiguousarray(x) for x in (table.ms, table.count))  # the order decides how sums are rounded
    ms, count = (np.column_stack((x, np.zeros(steps)))[:, pick] for x in ordered)
    mean_ms, mean_count = (x.mean(axis=0) if steps else np.zeros(len(names)) for x in (ms, count))
    return mean_ms, mean_count, *mean_errors(ms)


def _row_errors(sides: Sequence[Sequence[_Means]]) -> list[tuple[Floats, Floats]]:
    variance = np.zeros(len(sides[0][0][0]))
    quarters = np.zeros(len(variance))
    for runs in sides:
        for _, _, se, own_df in runs:
            mine = se**2 / len(runs) ** 2
            variance, quarters = variance + mine, quarters + mine**2 / own_df
    df = np.where(quarters > 0, variance**2 / np.where(quarters > 0, quarters, 1.0), 1.0)
    errors = [(np.sqrt(variance), np.floor(np.maximum(df, 1.0)))]
    several = sum(len(runs) - 1 for runs in sides)
    if several:
        off = sum(np.var([ms for ms, *_ in runs], axis=0) * len(runs) for runs in sides) / several
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


# Status of a finding from one run to the next, for comparisons and investigations.
#
#     came          only the second side has it
#     went          only the first side has it
#     mostly gone   both have it, less than half of its saving is left to gain
#     grew          both have it, its saving has more than doubled
#     stayed        both have it, about as it was
#
# Findings are identified by id and ranks: a straggler that moves to another rank is one resolved and one new finding.

CAME, WENT, MOSTLY_GONE, GREW, STAYED = "came", "went", "mostly gone", "grew", "stayed"
# in display order: regressions first
FATES = (CAME, GREW, WENT, MOSTLY_GONE, STAYED)
FIXED = (WENT, MOSTLY_GONE)
_HALF = 0.5

Key = tuple[str, tuple[int, ...]]


def fate(before: float | None, after: float | None) -> str:
    """Return the status of a finding whose fix saved `before` and saves `after`; None where a side lacks it."""
    if before is None or after is None:
        return WENT if after is None else CAME
    if after < _HALF * before:
        return MOSTLY_GONE
    return GREW if before < _HALF * after else STAYED


def savings_by_key(findings: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return what findings of one id and the same ranks save, those of one key together."""
    out: dict[Key, float] = {}
    for key, saving in findings:
        out[key] = out.get(key, 0.0) + saving
    return out


UNPROFILED, PROFILED = "unprofiled", "profiled"
_FEW = 8


@dataclass(frozen=True)
class StepDifference:
    """The step of two sides."""

    #: ms; mean over runs of the mean of the middle half of the steps
    difference: Difference
    #: `unprofiled` or `profiled`: what the step times are
    basis: str
    #: whether they are those of the step logs; if not they are the profiled periods
    logged: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Two sides, each one or several runs."""

    step: Difference
    basis: str
    #: these three as in `StepDifference`
    logged: bool
    #: numbers of the report with samples, by their dotted names
    sampled: dict[str, Difference]
    budget: tuple[Row, ...]
    kernels: tuple[Row, ...]
    #: by size of the change, those without any left out
    operators: tuple[Row, ...]
    notes: tuple[str, ...]


def compare(a: Sequence[RunSamples], b: Sequence[RunSamples]) -> Comparison:
    """Return what differs between two sides."""
    step = step_difference(a, b)
    return Comparison(
        step=step.difference,
        basis=step.basis,
        logged=step.logged,
        sampled=dict(_sampled(a, b, logged=step.logged)),
        budget=_budget_rows(a, b, basis=step.basis),
        kernels=changed_rows([r.kernels for r in a], [r.kernels for r in b]),
        operators=changed_rows([r.operators for r in a], [r.operators for r in b]),
        notes=(*step.notes, *_notes(a, b, step)),
    )


def step_difference(a: Sequence[StepSamples], b: Sequence[StepSamples]) -> StepDifference:
    """Return the difference of the step: without the profiler where that is known of all runs, else with it."""
    runs = [*a, *b]
    if all(r.logged is not None and len(r.logged.dur_ns) >= MIN_SAMPLES for r in runs):
        return StepDifference(difference(_series(a, "logged"), _series(b, "logged")), UNPROFILED, True)
    measured = difference(_series(a, "periods"), _series(b, "periods"))
    values = [[ms(r.unprofiled_ns) for r in side if r.unprofiled_ns is not None] for side in (a, b)]
    if len(values[0]) + len(values[1]) < len(runs):
        return StepDifference(measured, PROFILED, False)
    note = "the step without the profiler is one number per run: its interval is that of the profiled steps"
    found = _recentred(measured, float(np.mean(values[0])), float(np.mean(values[1])))
    return StepDifference(found, UNPROFILED, False, (note,))


def _budget_rows(a: Sequence[RunSamples], b: Sequence[RunSamples], *, basis: str) -> tuple[Row, ...]:
    whole = [[r.part_ms if basis == UNPROFILED else r.profiled_part_ms for r in side] for side in (a, b)]
    known = [[parts for parts in side if parts is not None] for side in whole]
    if not all(known):
        return ()
    values = [np.mean(side, axis=0) for side in known]
    by_name = {row.name: row for row in rows_of([r.parts for r in a], [r.parts for r in b])}
    return tuple(
        Row(
            part,
            _recentred(by_name[part].difference, float(x), float(y)),
            by_name[part].p_among_all,
            float(x > 0),
            float(y > 0),
        )
        for part, x, y in zip(PARTS, *values, strict=True)
        if x or y
    )


def _series(runs: Sequence[StepSamples], name: str) -> list[Floats]:
    return [found.ms if (found := getattr(r, name)) is not None else np.empty(0) for r in runs]


_OF_STEADINESS: dict[str, Callable[[Floats], Floats]] = {
    "median_ms": lambda x: np.asarray(np.median(x, axis=-1)),
    "mean_ms": lambda x: np.asarray(x.mean(axis=-1)),
    "p10_ms": lambda x: np.asarray(np.percentile(x, 10, axis=-1)),
    "p90_ms": lambda x: np.asarray(np.percentile(x, 90, axis=-1)),
    "p99_ms": lambda x: np.asarray(np.percentile(x, 99, axis=-1)),
    "steps_per_s": lambda x: np.asarray(1000 / x.mean(axis=-1)),
}


def _sampled(a: Sequence[RunSamples], b: Sequence[RunSamples], *, logged: bool) -> Iterator[tuple[str, Difference]]:
    sides = (a, b)
    if all(r.periods is not None and r.profiled_ns is not None for r in (*a, *b)):
        values = [float(np.mean([ms_or_none(r.profiled_ns) for r in side])) for side in sides]
        yield (
            "step.profiled_ms",
            _recentred(
                difference(_series(a, "periods"), _series(b, "periods"), statistic=_OF_STEADINESS["median_ms"]), *values
            ),
        )
    steady = [[r.logged or r.recorded for r in side] for side in sides]
    if _same_source([s for side in steady for s in side]):
        series = [[s.ms for s in side if s is not None] for side in steady]
        for name, statistic in _OF_STEADINESS.items():
            found = difference(series[0], series[1], statistic=statistic)
            yield f"steadiness.{name}", found
            if name == "median_ms" and logged and all(r.unprofiled_ns is not None for r in (*a, *b)):
                values = [float(np.mean([ms_or_none(r.unprofiled_ns) for r in side])) for side in sides]
                yield "step.unprofiled_ms", _recentred(found, *values)
    for row in rows_of([r.causes for r in a], [r.causes for r in b]):
        yield f"idle.{row.name}.ms_per_step", row.difference


def _same_source(found: Sequence[StepTimes | None]) -> bool:
    return len({None if s is None else s.source for s in found}) == 1 and found[0] is not None


def _notes(a: Sequence[StepSamples], b: Sequence[StepSamples], step: StepDifference) -> Iterator[str]:
    runs = [*a, *b]
    if step.basis == PROFILED:
        without = list(dict.fromkeys(r.name for r in runs if r.unprofiled_ns is None))
        yield (
            f"profiled steps are compared: the step without the profiler is unknown for {', '.join(without[:3])}"
            f"{' and others' if len(without) > 3 else ''}"
        )
        if any(r.unprofiled_ns is not None for r in runs):
            yield "efficiency, waterfall and findings hold the profiler's cost on one side only: see each run's report"
    times = [r.logged if step.logged else r.periods for r in runs]
    few = min(0 if t is None else len(t.dur_ns) for t in times)
    if MIN_SAMPLES <= few < _FEW:
        yield f"only {few} steps per run: too few to estimate autocorrelation"
    if min(len(a), len(b)) == 1:
        yield "one run per side: the intervals do not include run-to-run variation; give several runs with --a and --b"
