"""A comparison as JSON (schema 1): times in milliseconds, changes are B minus A, unknown is null."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.compare.conditions import GateResult
from stepscope.compare.reports import (
    ONE_VALUE,
    FindingChange,
    FullComparison,
    LineChange,
    LossChange,
    Metric,
    interval_or_reason,
)
from stepscope.compare.runs import Comparison, Row
from stepscope.compare.samples import RunSamples
from stepscope.contract.run_folder import SCHEMA
from stepscope.dataclass import dataclass
from stepscope.document.values import ms_or_none, plain
from stepscope.results.folder import BenchResults, BenchSeries, joined_series
from stepscope.stats.bootstrap import CONFIDENCE, Difference, difference
from stepscope.stats.robust import slow_start
from stepscope.units import NS_PER_MS, ms

# What differs between two benchmarks: series of the same name, with intervals over their runs and steps.

# numbers of a summary that the samples tell better
_TIMES = (
    "num_steps",
    "num_runs",
    "avg_step_time",
    "std_step_time",
    "median_step_time",
    "min_step_time",
    "max_step_time",
)


@dataclass(frozen=True)
class SeriesChange:
    """One series of both sides."""

    name: str
    #: ms
    step: Difference
    num_runs: tuple[int, int]
    num_steps: tuple[int, int]
    #: settings that differ, as `key: a -> b`
    config: tuple[str, ...]
    metrics: tuple[Metric, ...]


@dataclass(frozen=True)
class BenchComparison:
    """Two benchmarks, or two sets of them."""

    series: tuple[SeriesChange, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the numbers of all series; a series' step is `NAME.step_ms`."""
        return tuple(m for s in self.series for m in s.metrics)


def compare_bench(a: Sequence[BenchResults], b: Sequence[BenchResults]) -> BenchComparison:
    """Return what differs between the series that both sides have."""
    sides = joined_series(a), joined_series(b)
    both = [name for name in sides[0] if name in sides[1]]
    return BenchComparison(
        series=tuple(_series(sides[0][name], sides[1][name]) for name in both),
        only_a=tuple(name for name in sides[0] if name not in sides[1]),
        only_b=tuple(name for name in sides[1] if name not in sides[0]),
        notes=tuple(_notes(a, b, both)),
    )


def _series(a: BenchSeries, b: BenchSeries) -> SeriesChange:
    runs = [[_settled(run) for run in one.samples_ns] for one in (a, b)]
    step = difference(runs[0], runs[1])
    shared = [k for k in a.summary if k in b.summary and k not in _TIMES]
    return SeriesChange(
        name=a.name,
        step=step,
        num_runs=(len(runs[0]), len(runs[1])),
        num_steps=(sum(map(len, runs[0])), sum(map(len, runs[1]))),
        config=tuple(_settings_that_differ(a.config, b.config)),
        metrics=(
            Metric(f"{a.name}.step_ms", step.a, step.b, *interval_or_reason(step)),
            *(Metric(f"{a.name}.{k}", a.summary[k], b.summary[k], None, ONE_VALUE) for k in shared),
        ),
    )


def _settled(run_ns: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    times_ms = np.asarray(run_ns, float) / NS_PER_MS
    return times_ms[slow_start(times_ms) :]


def _settings_that_differ(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*a, *b)):
        if a.get(key) != b.get(key):
            yield f"{key}: {a.get(key)} -> {b.get(key)}"


def _notes(a: Sequence[BenchResults], b: Sequence[BenchResults], both: Sequence[str]) -> Iterator[str]:
    commands = [sorted({r.command for r in side}) for side in (a, b)]
    if commands[0] != commands[1]:
        yield f"the sides come from different benchmarks ({', '.join(commands[0])} and {', '.join(commands[1])})"
    if not both:
        yield "no series has the same name on both sides: there is nothing to compare"


_MAX_ROWS = 100
_MAX_TIMES = 2000
NO_DIFFERENCE = "no difference found"
_CANNOT_TELL = "cannot be told: too few steps"


def compare_json(
    compared: FullComparison,
    a: Sequence[RunSamples],
    b: Sequence[RunSamples],
    *,
    verdicts: tuple[Sequence[str | None], Sequence[str | None]],
    gates: Sequence[GateResult],
    code: Sequence[LineChange] = (),
) -> dict[str, Any]:
    """Return the comparison of two sides of runs; `verdicts` are those of their reports, in order."""
    found = compared.found
    return plain(
        {
            **_head(a=_side(a, verdicts[0], found), b=_side(b, verdicts[1], found)),
            "basis": found.basis,
            "verdict": verdict_of(found.step),
            "step_ms": _difference_json(found.step),
            "budget": [{"part": row.name, **_row(row)} for row in found.budget],
            "waterfall": [_loss(row) for row in compared.waterfall],
            "kernels": [_called(row) for row in found.kernels[:_MAX_ROWS]],
            "kernels_changed": len(found.kernels),
            "operators": [_called(row) for row in found.operators[:_MAX_ROWS]],
            "operators_changed": len(found.operators),
            "code": [_line(line) for line in _both_ends(code)],
            "code_changed": len(code),
            "findings": [_finding(f) for f in compared.findings],
            "metrics": [_metric(m) for m in compared.metrics],
            "gates": [_gate(g) for g in gates],
            "notes": list(compared.notes),
        }
    )


def compare_bench_json(
    found: BenchComparison, *, a: Sequence[str], b: Sequence[str], gates: Sequence[GateResult]
) -> dict[str, Any]:
    """Return the comparison of two sides of benchmarks, by the names of their folders."""
    return plain(
        {
            **_head(a={"name": _side_name(a), "runs": list(a)}, b={"name": _side_name(b), "runs": list(b)}),
            "basis": "bench",
            "series": [_document_series(s) for s in found.series],
            "only_a": list(found.only_a),
            "only_b": list(found.only_b),
            "metrics": [_metric(m) for m in found.metrics],
            "gates": [_gate(g) for g in gates],
            "notes": list(found.notes),
        }
    )


def verdict_of(step: Difference) -> str:
    """Return `slower`, `faster`, or that no difference was found or can be told."""
    if step.p_value is None:
        return _CANNOT_TELL
    if not step.significant:
        return NO_DIFFERENCE
    return "slower" if step.change > 0 else "faster"


def _difference_json(found: Difference) -> dict[str, Any]:

    def pct(value: float | None) -> float | None:
        return None if value is None or not found.a else 100 * value / abs(found.a)

    return {
        "a": found.a,
        "b": found.b,
        "change": found.change,
        "change_pct": pct(found.change),
        "low": found.low,
        "high": found.high,
        "low_pct": pct(found.low),
        "high_pct": pct(found.high),
        "p_value": found.p_value,
        "significant": found.significant if found.p_value is not None else None,
        "smallest_detectable": found.detectable,
        "smallest_detectable_pct": pct(found.detectable),
    }


def _head(**sides: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": "compare", "confidence": CONFIDENCE, **sides}


def _side(runs: Sequence[RunSamples], verdicts: Sequence[str | None], found: Comparison) -> dict[str, Any]:
    return {
        "name": _side_name([r.name for r in runs]),
        "runs": [_run(r, verdict, found) for r, verdict in zip(runs, verdicts, strict=True)],
    }


def _run(run: RunSamples, verdict: str | None, found: Comparison) -> dict[str, Any]:
    times = run.logged if found.logged else run.periods
    return {
        "name": run.name,
        "unprofiled_ms": ms_or_none(run.unprofiled_ns),
        "profiled_ms": ms_or_none(run.profiled_ns),
        "verdict": verdict,
        "source": times.source if times else None,
        "num_steps": len(times.dur_ns) if times else 0,
        "warm_up_steps": times.warm_up_steps if times else 0,
        "step_times_ms": [round(float(t), 4) for t in times.ms[:_MAX_TIMES]] if times else [],
    }


def _side_name(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names)}"


def _row(row: Row) -> dict[str, Any]:
    return {
        "what": row.what,
        **_difference_json(row.difference),
        "p_among_all": row.p_among_all,
        "significant": row.significant if row.p_among_all is not None else None,
    }


def _called(row: Row) -> dict[str, Any]:
    each = [
        ms / count if count else None
        for ms, count in ((row.difference.a, row.a_count), (row.difference.b, row.b_count))
    ]
    return {
        "name": row.name,
        **_row(row),
        "a_count": row.a_count,
        "b_count": row.b_count,
        "a_each_ms": each[0],
        "b_each_ms": each[1],
    }


def _both_ends(code: Sequence[LineChange]) -> list[LineChange]:
    if len(code) <= _MAX_ROWS:
        return list(code)
    largest = sorted(code, key=lambda line: -abs(line.difference.change))[:_MAX_ROWS]
    return sorted(largest, key=lambda line: -line.difference.change)


def _line(line: LineChange) -> dict[str, Any]:
    row = line.row
    return {
        "file": row.file,
        "line": row.line,
        "function": row.function,
        "module": row.module,
        "source": row.source,
        "what": line.what,
        **_difference_json(line.difference),
        "reason": line.reason,
        "a_runs": line.a_runs,
        "b_runs": line.b_runs,
    }


def _loss(row: LossChange) -> dict[str, Any]:
    return {
        "loss": row.loss,
        "a_pct_of_peak": row.a_pct,
        "b_pct_of_peak": row.b_pct,
        "change_pct_of_peak": row.b_pct - row.a_pct,
        "a_ms": ms_or_none(row.a_ns),
        "b_ms": ms_or_none(row.b_ns),
    }


def _finding(f: FindingChange) -> dict[str, Any]:
    return {
        "id": f.id,
        "what": f.what,
        "title": f.title,
        "ranks": list(f.ranks),
        "a_saving_ms": ms(f.a_ns),
        "b_saving_ms": ms(f.b_ns),
        "a_runs": f.a_runs,
        "b_runs": f.b_runs,
    }


def _metric(m: Metric) -> dict[str, Any]:
    doubt = _difference_json(m.difference) if m.difference else {}
    change = None if m.a is None or m.b is None else m.b - m.a
    centre = {} if m.difference is None else {k: doubt[k] for k in doubt if k not in ("a", "b", "change", "change_pct")}
    return {
        "name": m.name,
        "a": m.a,
        "b": m.b,
        "change": change,
        "change_pct": m.change_pct,
        **centre,
        "reason": m.reason,
    }


def _document_series(s: SeriesChange) -> dict[str, Any]:
    return {
        "name": s.name,
        "verdict": verdict_of(s.step),
        "step_ms": _difference_json(s.step),
        "num_runs": list(s.num_runs),
        "num_steps": list(s.num_steps),
        "config_changes": list(s.config),
    }


def _gate(g: GateResult) -> dict[str, Any]:
    return {"fail_on": str(g.gate), "holds": g.holds, "value": g.value, "said": g.said}
