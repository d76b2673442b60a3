"""What differs between two runs, or two sets of runs: the step, its budget, kernels and operators, with intervals.

Times without the profiler are compared where both sides have them, else times with it: never one with the other.
"""

from collections.abc import Iterator, Sequence
from math import nan

import numpy as np
import numpy.typing as npt

from stepscope.analyze.budget import PARTS
from stepscope.compare.samples import PerStepTimes, RunSamples, StepSamples, StepTimes
from stepscope.contract.student import t_quantile, t_two_sided
from stepscope.document.rows import ms_or_none
from stepscope.records import dataclass
from stepscope.stats.change import WAIT_SHARES, Location, location_of, mean, unpaired, without_waits
from stepscope.stats.robust import CONFIDENCE, MIN_SAMPLES, Difference, detectable, holm, mean_errors, same, typical
from stepscope.units import NS_PER_MS, ms

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


UNPROFILED, PROFILED = "unprofiled", "profiled"
_FEW, _STRETCHES = 8, 10
_TINY = 1e-12
# how well waits for a core are known: measured, 0 to 3 % of them are missing or too many
_WAIT_ERROR = 0.03
# half the distance of the shares of the waits that are tried
_HALF_SHARE = (WAIT_SHARES[1] - WAIT_SHARES[0]) / 2


@dataclass(frozen=True)
class StepDifference:
    """The step of two sides."""

    #: ms
    difference: Difference
    #: `unprofiled` or `profiled`: what the step times are
    basis: str
    #: whether they are those of the step logs; if not they are the profiled periods
    logged: bool
    #: whether it is the mean of all steps, because long ones recur, and not of the middle half
    of_all: bool = False
    #: the same steps without waits for a core; None where these are unknown
    code: Difference | None = None
    #: by side, ms per step of the training thread: its waits for a core, its CPU time; None where unknown
    core_wait_ms: tuple[float | None, ...] = (None, None)
    cpu_ms: tuple[float | None, ...] = (None, None)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Two sides, each one or several runs."""

    step: StepDifference
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
        step=step,
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
        walls, known = (_wall(a), _wall(b)), _without_core_waits(a, b)
        location = location_of(*(walls if known is None else known[0]))
        waits, cpu = _thread_times(a, b, location=location)
        found, code = step_change(*walls, location=location), known and _code(*known, location=location)
        return StepDifference(found, UNPROFILED, True, location is mean, code, waits, cpu)
    periods = _series(a, "periods"), _series(b, "periods")
    location = location_of(*periods)
    measured, of_all = step_change(*periods, location=location), location is mean
    values = [[ms(r.unprofiled_ns) for r in side if r.unprofiled_ns is not None] for side in (a, b)]
    if len(values[0]) + len(values[1]) < len(runs):
        return StepDifference(measured, PROFILED, False, of_all)
    note = "the step without the profiler is one number per run: its interval is that of the profiled steps"
    found = _recentred(measured, float(np.mean(values[0])), float(np.mean(values[1])))
    return StepDifference(found, UNPROFILED, False, of_all, notes=(note,))


def step_change(a: Sequence[Floats], b: Sequence[Floats], *, location: Location = typical) -> Difference:
    """Return the difference of the step times of two sides in their unit, nan where a side has none."""
    found, before, after = unpaired(a, b, location=location), _location_of(a, location), _location_of(b, location)
    if found is None or found.p_value is None:
        return Difference(before, after, nan, nan, None, None)
    low, high = (before * (ratio - 1) for ratio in (found.low, found.high))
    least = None if found.detectable is None else before * (found.detectable - 1)
    return Difference(before, after, low, high, found.p_value, least)


def _location_of(side: Sequence[Floats], location: Location) -> float:
    known = [float(np.log(max(float(location(run)), _TINY))) for run in side if len(run)]
    return float(np.exp(np.mean(known))) if known else nan


_Sides = Sequence[Sequence[Floats]]  # by side: its runs
_Code = tuple[_Sides, _Sides, float]


def _without_core_waits(*sides: Sequence[StepSamples]) -> _Code | None:
    """Return the steps without waits for a core, those waits (by side: steps of its runs), and the share of them that
    may be wrong; None where they are unknown.
    """
    runs = [[np.array([r.logged.wall_ms, waits]) for r in side if r.logged and (waits := r.logged.waits_ms) is not None]
            for side in sides]  # fmt: skip
    if any(len(known) < len(side) for known, side in zip(runs, sides, strict=True)):
        return None
    runs = [[run[:, np.isfinite(run[1])] for run in side] for side in runs]
    one_thread = all(r.logged and r.logged.one_thread for side in sides for r in side)
    share, error = (1.0, _WAIT_ERROR) if one_thread else (_waits_share([*runs[0], *runs[1]]), _HALF_SHARE)
    steps = [[without_waits(run, share) for run in side] for side in runs]
    return steps, [[run[1] for run in side] for side in runs], error


def _code(steps: _Sides, waits: _Sides, error: float, *, location: Location) -> Difference:
    """Return the difference without waits for a core.

    The interval is wider by the change of the waits, as far as these are known or the step includes them: the machine
    may have changed the step by that.
    """
    found = step_change(*steps, location=location)
    if found.p_value is None:
        return found
    before, after = (float(np.mean([location(run) for run in side])) for side in waits)
    moved = error * abs(after - before)
    low, high = max(found.low - moved, -found.a), found.high + moved
    p_value = found.p_value if low * high > 0 else max(found.p_value, 1 - CONFIDENCE)
    return Difference(found.a, found.b, low, high, p_value, (found.detectable or 0.0) + moved)


def _thread_times(*sides: Sequence[StepSamples], location: Location) -> Iterator[tuple[float | None, ...]]:
    logged = [[run.logged for run in side if run.logged is not None] for side in sides]
    of_waits = [[run.waits_ms for run in side] for side in logged]
    of_cpu = [[None if run.cpu_ns is None else run.cpu_ns / NS_PER_MS for run in side] for side in logged]
    for known in (of_waits, of_cpu):
        yield tuple(
            None
            if any(ms is None for ms in side)
            else float(np.mean([location(ms[np.isfinite(ms)]) for ms in side if ms is not None]))
            for side in known
        )


def _waits_share(runs: Sequence[Floats]) -> float:
    """Return the share of the waits for a core without which long stretches of each run agree best."""
    whole = [_stretches(run[0]).var() or 1.0 for run in runs]
    return min(
        WAIT_SHARES,
        key=lambda share: sum(
            float(_stretches(without_waits(run, share)).var() / var) for run, var in zip(runs, whole, strict=True)
        ),
    )


def _stretches(times: Floats) -> Floats:
    return np.array([part.mean() for part in np.array_split(times, min(_STRETCHES, len(times)))])


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


def _wall(runs: Sequence[StepSamples]) -> list[Floats]:
    return [run.logged.wall_ms for run in runs if run.logged is not None]


def _series(runs: Sequence[StepSamples], name: str) -> list[Floats]:
    return [found.ms if (found := getattr(r, name)) is not None else np.empty(0) for r in runs]


_OF_STEADINESS: dict[str, Location] = {
    "median_ms": lambda x: np.asarray(np.median(x, axis=-1)),
    "mean_ms": mean,
}


def _sampled(a: Sequence[RunSamples], b: Sequence[RunSamples], *, logged: bool) -> Iterator[tuple[str, Difference]]:
    sides = (a, b)
    if all(r.periods is not None and r.profiled_ns is not None for r in (*a, *b)):
        values = [float(np.mean([ms_or_none(r.profiled_ns) for r in side])) for side in sides]
        found = step_change(_series(a, "periods"), _series(b, "periods"), location=_OF_STEADINESS["median_ms"])
        yield "step.profiled_ms", _recentred(found, *values)
    steady = [[r.logged or r.recorded for r in side] for side in sides]
    if _same_source([s for side in steady for s in side]):
        series = [[s.ms for s in side if s is not None] for side in steady]
        for name, location in _OF_STEADINESS.items():
            found = step_change(series[0], series[1], location=location)
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
