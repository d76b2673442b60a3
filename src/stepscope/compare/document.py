"""A comparison as JSON (schema 1): times in milliseconds, changes are B minus A, unknown is null."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from stepscope.compare.conditions import GateResult, dotted_numbers
from stepscope.compare.runs import FATES, Comparison, Row, fate, savings_by_key
from stepscope.compare.runs import Key as FindingKey
from stepscope.compare.samples import RunSamples
from stepscope.contract.run_folder import SCHEMA
from stepscope.document.report import ms_or_none, plain
from stepscope.records import dataclass
from stepscope.results.folder import BenchResults, BenchSeries, joined_series
from stepscope.stats.robust import CONFIDENCE, Difference, difference, difference_of_numbers, same, slow_start
from stepscope.units import NS_PER_MS, ms

ONE_VALUE = "no interval: one value per side"
_UNKNOWN = "unknown on one side"
ONE_SIDE = "only one side has it"
# no measurements, or the same ones again
_DROPPED = frozenset(("schema", "run", "critical_path", "guides", "findings_combined"))
# an amount per step over the step's time: as sure as that time
_PER_STEP_TIME = ("step.samples_per_s", "step.tokens_per_s", "efficiency.mfu", "efficiency.hfu")

Reports = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Metric:
    """One number of both reports."""

    name: str
    a: float | None
    #: mean over the runs of a side; None where no run has it
    b: float | None
    difference: Difference | None
    #: why there is no interval; empty where there is one
    reason: str

    @property
    def change_pct(self) -> float | None:
        """Return the change in percent of A, None where that is unknown or A is 0."""
        return None if self.a is None or self.b is None or not self.a else 100 * (self.b - self.a) / abs(self.a)


# what gates say of these numbers
Judge = Callable[[Sequence[Metric]], Sequence[GateResult]]


def metrics_of(a: Reports, b: Reports, found: Comparison) -> tuple[Metric, ...]:
    """Return every number that a report of either side has, the step first."""
    known = found.step.change == found.step.change
    step = Metric(
        "step_ms",
        found.step.a if known else None,
        found.step.b if known else None,
        *interval_or_reason(found.step),
    )
    numbers = [[dotted_numbers({k: v for k, v in r.items() if k not in _DROPPED}) for r in side] for side in (a, b)]
    names = dict.fromkeys(name for side in numbers for report in side for name in report)
    sampled = {**found.sampled, **{f"step.budget.{r.name}.ms_per_step": r.difference for r in found.budget}}
    return (step, *(m for name in names for m in _metric(name, numbers, sampled.get(name), found.step)))


def waterfall_changes(a: Reports, b: Reports) -> list[dict[str, Any]]:
    """Return the rows of the waterfall on both sides, none where a side has none."""
    rows = [[{row["loss"]: row for row in r["waterfall"]} for r in side if r["waterfall"]] for side in (a, b)]
    if not all(rows):
        return []
    names = dict.fromkeys(loss for side in rows for report in side for loss in report if loss != "achieved")
    return [_loss(loss, rows) for loss in (*names, "achieved")]


def finding_changes(a: Reports, b: Reports) -> list[dict[str, Any]]:
    """Return the findings of either side by status: what got worse first.

    A side's saving is what fixing it alone saves per step, mean over runs, 0 where the side lacks it.
    """
    sides = [[_by_key(r["findings"]) for r in side] for side in (a, b)]
    keys = dict.fromkeys(key for side in sides for report in side for key in report)
    changes = [_finding(key, sides) for key in keys]
    return sorted(changes, key=lambda c: (FATES.index(c["what"]), -max(c["a_saving_ms"], c["b_saving_ms"])))


def _settings_of_jobs(a: Reports, b: Reports) -> Iterator[str]:
    for name in ("world_size", "device", "strategy", "torch"):
        said = [sorted({str(r["run"][name]) for r in side}) for side in (a, b)]
        if said[0] != said[1]:
            yield f"the sides differ in their {name.replace('_', ' ')} ({', '.join(said[0])} and {', '.join(said[1])})"


def _metric(
    name: str, numbers: Sequence[Sequence[Mapping[str, float | None]]], sampled: Difference | None, step: Difference
) -> Iterator[Metric]:
    values = [[v for v in (report.get(name) for report in side) if v is not None] for side in numbers]
    a, b = (_mean(v) if v else None for v in values)
    if a is None and b is None:
        return
    if a is None or b is None:
        everywhere = all(name in report for side in numbers for report in side)
        yield Metric(name, a, b, None, _UNKNOWN if everywhere else ONE_SIDE)
        return
    if sampled is not None:
        yield Metric(name, a, b, *interval_or_reason(sampled))
    elif name in _PER_STEP_TIME and step.p_value is not None:
        yield Metric(name, a, b, *interval_or_reason(_over_time(a, b, step)))
    elif min(map(len, values)) > 1:
        yield Metric(name, a, b, *interval_or_reason(difference_of_numbers(values[0], values[1])))
    else:
        yield Metric(name, a, b, None, ONE_VALUE)


def _over_time(a: float, b: float, step: Difference) -> Difference:

    def at(change: float) -> float:
        return b * step.b / (step.b + change - step.change) - a if step.b + change > step.change else nan

    p_value = step.p_value if same(a * step.a, b * step.b) else None
    return Difference(a, b, at(step.high), at(step.low), p_value, None)


def interval_or_reason(found: Difference) -> tuple[Difference | None, str]:
    """Return the difference, or None and why it has no interval."""
    few = "no interval: too few steps on a side"
    return (found, "") if found.low == found.low else (None, few)


def _by_key(findings: Sequence[Mapping[str, Any]]) -> dict[FindingKey, tuple[str, float]]:
    keyed = [((f["id"], tuple(f["ranks"])), f) for f in findings]
    titles = {key: f["title"] for key, f in reversed(keyed)}
    saving = savings_by_key((key, f["saving_alone_ms"]) for key, f in keyed)
    return {key: (titles[key], ms) for key, ms in saving.items()}


def _finding(key: FindingKey, sides: Sequence[Sequence[Mapping[FindingKey, tuple[str, float]]]]) -> dict[str, Any]:
    found = [[report[key] for report in side if key in report] for side in sides]
    a_ns, b_ns = (_ns(sum(ms for _, ms in mine) / len(side)) for mine, side in zip(found, sides, strict=True))
    return {
        "id": key[0],
        "what": fate(a_ns if found[0] else None, b_ns if found[1] else None),
        "title": next(title for mine in reversed(found) for title, _ in mine),
        "ranks": list(key[1]),
        "a_saving_ms": ms(a_ns),
        "b_saving_ms": ms(b_ns),
        "a_runs": len(found[0]),
        "b_runs": len(found[1]),
    }


def _loss(loss: str, sides: Sequence[Reports]) -> dict[str, Any]:
    a_pct, b_pct = (_mean([r.get(loss, {}).get("pct_of_peak", 0.0) for r in side]) for side in sides)
    a_ns, b_ns = (_mean_known_ns([r.get(loss, {}).get("ms_per_step") for r in side]) for side in sides)
    return {
        "loss": loss,
        "a_pct_of_peak": a_pct,
        "b_pct_of_peak": b_pct,
        "change_pct_of_peak": b_pct - a_pct,
        "a_ms": ms_or_none(a_ns),
        "b_ms": ms_or_none(b_ns),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _mean_known_ns(values_ms: Sequence[float | None]) -> int | None:
    known = [v for v in values_ms if v is not None]
    return _ns(_mean(known)) if known else None


def _ns(time_ms: float) -> int:
    return round(time_ms * NS_PER_MS)


# Which lines of the code got slower from one side to the other, where owners were recorded?
#
# A line's time is the longer of its self times on host and device, per step and mean over ranks. Other user lines that
# it calls are not included, so one slow line is one row. Lines move when a file is edited, so a
# line is identified by its file, its function and its text; by its number only where the text was not recorded.
#
#     A  train.py:41  loss = model(x)   8.1 ms          train.py:44  loss = model(x)   8.1 -> 12.0 ms
#     B  train.py:44  loss = model(x)  12.0 ms    ->

Key = tuple[str, str, str]


@dataclass(frozen=True)
class OwnedLine:
    """One source line of a run and its self time."""

    file: str
    line: int
    function: str
    module: str | None
    #: the line's text, None if not recorded
    source: str | None
    #: the longer of its self times on host and device
    own_ns: float

    @property
    def key(self) -> Key:
        """Return the key of the line."""
        return self.file, self.function, (self.source or "").strip() or str(self.line)


# the lines of one run
Lines = Mapping[Key, OwnedLine]


@dataclass(frozen=True)
class LineChange:
    """One line on both sides."""

    #: where it is, on B where B has it
    row: OwnedLine
    #: ms; 0 on a side that lacks it
    difference: Difference
    a_runs: int
    #: how many runs have it
    b_runs: int

    @property
    def what(self) -> str:
        """Return `appeared`, `vanished`, `slower`, `faster` or, with too few runs, an empty text."""
        if not self.a_runs or not self.b_runs:
            return "appeared" if self.b_runs else "vanished"
        if not self.difference.significant:
            return ""
        return "slower" if self.difference.change > 0 else "faster"

    @property
    def reason(self) -> str:
        """Return why there is no interval, an empty text where there is one."""
        return interval_or_reason(self.difference)[1] and "no interval: one run per side"


def lines_by_key(lines: Iterable[OwnedLine]) -> Lines:
    """Return the lines of one run by key; the last of those with equal keys."""
    return {line.key: line for line in lines}


def line_changes(a: Sequence[Lines | None], b: Sequence[Lines | None]) -> tuple[LineChange, ...]:
    """Return the lines that differ, those that got slower most first; none where a run has no owners."""
    sides = [[run for run in side if run is not None] for side in (a, b)]
    if len(sides[0]) < len(a) or len(sides[1]) < len(b):
        return ()
    keys = dict.fromkeys(key for side in reversed(sides) for run in side for key in run)
    found = [c for c in [_change(key, sides) for key in keys] if not same(c.difference.a, c.difference.b)]
    return tuple(sorted(found, key=lambda c: -c.difference.change))


def _change(key: Key, sides: Sequence[Sequence[Lines]]) -> LineChange:
    rows = [[run.get(key) for run in side] for side in sides]
    times = [[0.0 if row is None else row.own_ns / NS_PER_MS for row in side] for side in rows]
    known = [row for side in reversed(rows) for row in side if row is not None]
    counts = [sum(row is not None for row in side) for side in rows]
    return LineChange(known[0], difference_of_numbers(times[0], times[1]), *counts)


# What differs between two benchmarks: series of the same name, with intervals over their runs and steps.

# numbers of a summary that the samples give more precisely
_TIMES = (
    "num_steps",
    "num_runs",
    "avg_step_time",
    "std_step_time",
    "median_step_time",
    "min_step_time",
    "max_step_time",
)


def _series(a: BenchSeries, b: BenchSeries) -> tuple[dict[str, Any], list[Metric]]:
    runs = [[_settled(run) for run in one.samples_ns] for one in (a, b)]
    step = difference(runs[0], runs[1])
    row = {
        "name": a.name,
        "verdict": verdict_of(step),
        "step_ms": _difference_json(step),
        "num_runs": [len(runs[0]), len(runs[1])],
        "num_steps": [sum(map(len, runs[0])), sum(map(len, runs[1]))],
        "config_changes": list(_settings_that_differ(a.config, b.config)),
    }
    shared = [k for k in a.summary if k in b.summary and k not in _TIMES]
    return row, [
        Metric(f"{a.name}.step_ms", step.a, step.b, *interval_or_reason(step)),
        *(Metric(f"{a.name}.{k}", a.summary[k], b.summary[k], None, ONE_VALUE) for k in shared),
    ]


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
NO_DIFFERENCE = "no difference found"


def compare_json(
    found: Comparison, samples: Sequence[Sequence[RunSamples]], reports: Sequence[Reports], *, judge: Judge,
    code: Sequence[LineChange],
) -> dict[str, Any]:  # fmt: skip
    """Return the comparison of two sides of runs, by their samples and reports; `judge` holds gates against metrics."""
    metrics = metrics_of(reports[0], reports[1], found)
    a, b = (_side(*side, found) for side in zip(samples, reports, strict=True))
    return plain(
        {
            **_head(a=a, b=b),
            "basis": found.basis,
            "verdict": verdict_of(found.step),
            "step_ms": _difference_json(found.step),
            "budget": [{"part": row.name, **_row(row)} for row in found.budget],
            "waterfall": waterfall_changes(*reports),
            "kernels": [_called(row) for row in found.kernels[:_MAX_ROWS]],
            "kernels_changed": len(found.kernels),
            "operators": [_called(row) for row in found.operators[:_MAX_ROWS]],
            "operators_changed": len(found.operators),
            "code": [_line(line) for line in _both_ends(code)],
            "code_changed": len(code),
            "findings": finding_changes(*reports),
            "metrics": [_metric_json(m) for m in metrics],
            "gates": [_gate(g) for g in judge(metrics)],
            "notes": [*found.notes, *_settings_of_jobs(*reports)],
        }
    )


def compare_bench_json(a: Sequence[BenchResults], b: Sequence[BenchResults], *, judge: Judge) -> dict[str, Any]:
    """Return the comparison of two sides of benchmarks: of the series that both have."""
    sides, names = (joined_series(a), joined_series(b)), [[one.name for one in side] for side in (a, b)]
    both = [name for name in sides[0] if name in sides[1]]
    compared = [_series(sides[0][name], sides[1][name]) for name in both]
    metrics = [metric for _, several in compared for metric in several]
    return plain(
        {
            **_head(**{side: {"name": _side_name(of), "runs": of} for side, of in zip("ab", names, strict=True)}),
            "basis": "bench",
            "series": [row for row, _ in compared],
            "only_a": [name for name in sides[0] if name not in sides[1]],
            "only_b": [name for name in sides[1] if name not in sides[0]],
            "metrics": [_metric_json(m) for m in metrics],
            "gates": [_gate(g) for g in judge(metrics)],
            "notes": list(_notes(a, b, both)),
        }
    )


def verdict_of(step: Difference) -> str:
    """Return `slower`, `faster`, or that no difference was found or there are too few steps."""
    if step.p_value is None:
        return "too few steps to compare"
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


def _side(runs: Sequence[RunSamples], reports: Reports, found: Comparison) -> dict[str, Any]:
    rows = [_run(run, report["verdict"], found) for run, report in zip(runs, reports, strict=True)]
    return {"name": _side_name([r.name for r in runs]), "runs": rows}


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
        "step_times_ms": [round(float(t), 4) for t in times.ms[:2000]] if times else [],
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


def _metric_json(m: Metric) -> dict[str, Any]:
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


def _gate(g: GateResult) -> dict[str, Any]:
    return {"fail_on": str(g.gate), "holds": g.holds, "value": g.value, "said": g.said}
