"""What differs between two runs, or two sets of runs: the step, its budget, kernels and operators, with intervals.

Times without the profiler are compared where both sides have them, else times with it: never one with the other.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.step.parts import PARTS
from stepscope.compare.rows import Row, changed_rows, recentred, rows_of
from stepscope.compare.samples import RunSamples, StepSamples, StepTimes
from stepscope.dataclass import dataclass
from stepscope.document.plain_values import ms_or_none
from stepscope.stats.autocorrelation import MIN_SAMPLES
from stepscope.stats.bootstrap import Difference, difference
from stepscope.units import ms

Floats = npt.NDArray[np.float64]
UNPROFILED, PROFILED = "unprofiled", "profiled"
_FEW = 8


@dataclass(frozen=True)
class StepDifference:
    """The step of two sides."""

    difference: Difference
    """ms; mean over runs of the mean of the middle half of the steps"""
    basis: str
    """`unprofiled` or `profiled`: what the step times are"""
    logged: bool
    """whether they are those of the step logs; if not they are the profiled periods"""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Two sides, each one or several runs."""

    step: Difference
    basis: str
    logged: bool
    """these three as in `StepDifference`"""
    sampled: dict[str, Difference]
    """numbers of the report that samples were kept of, by their dotted names"""
    budget: tuple[Row, ...]
    kernels: tuple[Row, ...]
    operators: tuple[Row, ...]
    """by size of the change, those without any left out"""
    notes: tuple[str, ...]


def compare(a: Sequence[RunSamples], b: Sequence[RunSamples]) -> Comparison:
    """Return what differs between two sides."""
    step = step_difference(a, b)
    return Comparison(
        step=step.difference,
        basis=step.basis,
        logged=step.logged,
        sampled=dict(_sampled(a, b, logged=step.logged)),
        budget=budget_rows(a, b, basis=step.basis),
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
    found = recentred(measured, float(np.mean(values[0])), float(np.mean(values[1])))
    return StepDifference(found, UNPROFILED, False, (note,))


def budget_rows(a: Sequence[RunSamples], b: Sequence[RunSamples], *, basis: str) -> tuple[Row, ...]:
    """Return the parts of the step in order, as reported; their changes sum to the change of the reported step."""
    whole = [[r.part_ms if basis == UNPROFILED else r.profiled_part_ms for r in side] for side in (a, b)]
    known = [[parts for parts in side if parts is not None] for side in whole]
    if not all(known):
        return ()
    values = [np.mean(side, axis=0) for side in known]
    rows = rows_of([r.parts for r in a], [r.parts for r in b])
    by_name = {row.name: row for row in rows}
    return tuple(
        Row(
            part,
            recentred(by_name[part].difference, float(x), float(y)),
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
    """Yield the numbers of the report that samples were kept of."""
    sides = (a, b)
    if all(r.periods is not None and r.profiled_ns is not None for r in (*a, *b)):
        values = [float(np.mean([ms_or_none(r.profiled_ns) for r in side])) for side in sides]
        yield (
            "step.profiled_ms",
            recentred(
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
                yield "step.unprofiled_ms", recentred(found, *values)
    for row in rows_of([r.causes for r in a], [r.causes for r in b]):
        yield f"idle.{row.name}.ms_per_step", row.difference


def _same_source(found: Sequence[StepTimes | None]) -> bool:
    return len({None if s is None else s.source for s in found}) == 1 and found[0] is not None


def _notes(a: Sequence[StepSamples], b: Sequence[StepSamples], step: StepDifference) -> Iterator[str]:
    runs = [*a, *b]
    if step.basis == PROFILED:
        without = list(dict.fromkeys(r.name for r in runs if r.unprofiled_ns is None))
        yield (
            f"profiled steps are compared: the step without the profiler is not known of {', '.join(without[:3])}"
            f"{' and others' if len(without) > 3 else ''}"
        )
        if any(r.unprofiled_ns is not None for r in runs):
            yield "efficiency, waterfall and findings hold the profiler's cost on one side only: see each run's report"
    times = [r.logged if step.logged else r.periods for r in runs]
    few = min(0 if t is None else len(t.dur_ns) for t in times)
    if MIN_SAMPLES <= few < _FEW:
        yield f"only {few} steps of a run: whether a slow moment lasts several steps cannot be told from so few"
    if min(len(a), len(b)) == 1:
        yield "one run on a side: how much runs differ is not in the intervals; give several with --a and --b"
