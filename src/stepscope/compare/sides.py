"""Two sides of a comparison, of one run or several each, and the document of their differences."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analyze.account import Account
from stepscope.compare.conditions import Gate, GateResult, numbers
from stepscope.compare.document import ONE_SIDE, ONE_VALUE, Metric, compare_json
from stepscope.compare.findings import Cause, OwnedLine, Side, code_side, lines_by_key
from stepscope.compare.runs import compare
from stepscope.compare.samples import PerStepTimes, RunSamples, StepTimes, light_samples, run_samples
from stepscope.diagnose.findings import Diagnosis
from stepscope.document.cache import KeptPlace, kept_place
from stepscope.document.light import light_json
from stepscope.document.report import report_json
from stepscope.document.rows import plain
from stepscope.errors import UsageError
from stepscope.records import Row
from stepscope.run.light import LightRun
from stepscope.run.load import incomplete

# Gates on a change: `step_ms>5%` fails where the second side is slower by more than 5 %, and not by chance.
#
#     step_ms>5%              the change in percent of the first side
#     step_ms>120             the second side's number itself
#     ranks.*.idle_ms>10%     any item of the list
#
# A change that has an interval fails a gate only where the interval leaves no room for no change. One without an
# interval (a single number on a side) is judged as it is, and the reason says so.

_SECTIONS = ("step", "efficiency", "steadiness")
Reports = Sequence[Mapping[str, Any]]


def judge_changes(gates: Sequence[Gate], metrics: Sequence[Metric], a: Reports, b: Reports) -> list[GateResult]:
    """Return the result of each gate for two sides; a `UsageError` for a name that neither has."""
    by_name = {m.name: m for m in metrics}
    return [_worst(gate, _meant(gate.name, by_name, a, b)) for gate in gates]


def _meant(name: str, by_name: Mapping[str, Metric], a: Reports, b: Reports) -> list[Metric]:
    found = _named(name, by_name)
    missing = len(found) == 1 and found[0].reason == ONE_SIDE
    return found if found and not missing else [_from_reports(name, a, b)]


def _worst(gate: Gate, metrics: Sequence[Metric]) -> GateResult:
    results = [_gate_result(gate, metric) for metric in metrics]
    return next((r for r in results if not r.holds), results[0])


def _gate_result(gate: Gate, metric: Metric) -> GateResult:
    if metric.b is None or (gate.relative and metric.a is None):
        unknown = " and ".join(side for side, value in (("A", metric.a), ("B", metric.b)) if value is None)
        return GateResult(gate, False, None, f"{metric.name} is unknown in {unknown}, so the gate fails")
    if not gate.relative:
        return GateResult(gate, not gate.met(metric.b), metric.b, f"{metric.name} is {metric.b:g}")
    change = _change_pct(metric)
    said = f"{metric.name} changed by {change:+.2f} %{_interval(metric)}"
    if not gate.met(change):
        return GateResult(gate, True, change, said)
    found = metric.difference
    if found is None:
        return GateResult(gate, False, change, f"{said}; {metric.reason}")
    if found.low <= 0 <= found.high:
        return GateResult(gate, True, change, f"{said}: not significant{_least(metric)}")
    return GateResult(gate, False, change, said)


def _change_pct(metric: Metric) -> float:
    known = metric.change_pct
    if known is not None:
        return known
    return inf if (metric.b or 0) > 0 else -inf if (metric.b or 0) < 0 else 0.0


def _interval(metric: Metric) -> str:
    found = metric.difference
    if found is None or not metric.a:
        return ""
    low, high = (100 * x / abs(metric.a) for x in (found.low, found.high))
    return f" ({low:+.2f} to {high:+.2f})"


def _least(metric: Metric) -> str:
    found = metric.difference
    if found is None or found.detectable is None or not metric.a:
        return ""
    return f", less than {100 * found.detectable / abs(metric.a):.1f} % is not detectable with these samples"


def _named(name: str, by_name: Mapping[str, Metric]) -> list[Metric]:
    if "*" in name:
        return [m for n, m in by_name.items() if _matches(name.split("."), n.split("."))]
    short = [f"step.budget.{name.removesuffix('_pct')}.pct", f"step.budget.{name.removesuffix('_ms')}.ms_per_step"]
    written = [name, f"{name}.value", f"checks.{name}.value", *short, *(f"{s}.{name}" for s in _SECTIONS)]
    found = [by_name[n] for n in written if n in by_name][:1]
    return found or [m for n, m in by_name.items() if n.endswith(f".{name}") and "." not in name and n.count(".") == 1]


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return len(pattern) == len(parts) and all(p in ("*", part) for p, part in zip(pattern, parts, strict=True))


def _from_reports(name: str, a: Reports, b: Reports) -> Metric:
    sides = [_mean(name, side) for side in (a, b)]
    wrong = [error for _, error in sides if error is not None]
    if len(wrong) == 2:
        raise wrong[0]
    return Metric(name, sides[0][0], sides[1][0], None, ONE_VALUE)


def _mean(name: str, reports: Reports) -> tuple[float | None, UsageError | None]:
    try:
        values = [v for report in reports for v in numbers(report, name)]
    except UsageError as error:
        return None, error
    known = [v for v in values if v is not None]
    return (sum(known) / len(known) if known and len(known) == len(values) else None), None


def comparison_document(a: Sequence[Row], b: Sequence[Row], *, gates: Sequence[Gate] = ()) -> dict[str, Any]:
    """Return the comparison of two sides, each of one run or several, as the JSON document of `stepscope compare`."""
    samples = [[run.samples for run in side] for side in (a, b)]
    reports = [[run.report for run in side] for side in (a, b)]
    return compare_json(
        compare(samples[0], samples[1]),
        samples,
        reports,
        [[run.source for run in side] for side in (a, b)],
        judge=lambda metrics: judge_changes(gates, metrics, reports[0], reports[1]),
    )


# What a comparison needs of one run, from its account and findings or from its step logs.


def compared_run(account: Account, diagnosis: Diagnosis) -> Row:
    """Return what a comparison needs of a run."""
    run = account.run
    report = report_json(account, diagnosis)
    source = code_side(account, diagnosis)
    return Row(
        samples=run_samples(account),
        report=report,
        source=source,
        # one line for each thing of the run that could not be read
        not_read=incomplete(run),
        # a rank could not be read
        is_partial=bool(run.unreadable),
    )


def compared_light_run(run: LightRun) -> Row:
    """Return what a comparison needs of a run without traces: its steps, and the report of its step logs."""
    known = Row(samples=light_samples(run), report=light_json(run), source=Side(None, ()))
    return Row(known, not_read=[], is_partial=False)


# Cached samples, report and lines of a run for comparisons. Numbers are read back to the bit.


def compared_place(given: Sequence[str], *, options: Mapping[str, Any], cache_folder: Path | None) -> KeptPlace | None:
    """Return the cache file of a compared run, None if there is no run."""
    return kept_place(given, ending="compared", options=options, cache_folder=cache_folder)


def keep_compared(place: KeptPlace | None, run: Row, *, key: dict[str, Any] | None, raw_bytes: int) -> None:
    """Cache what a comparison needs of a run."""
    if place is None:
        return
    lines = None if run.source.lines is None else list(run.source.lines.values())
    try:
        parts = run | {
            "samples": plain(run.samples),
            "source": plain([lines, run.source.causes, run.source.lost]),
        }
        place.keep(parts, key=key, raw_bytes=raw_bytes)
    except ValueError:  # a number of the report that JSON does not know
        return


def found_compared(place: KeptPlace | None) -> Row | None:
    """Return the cached run, None if there is none."""
    kept = place.found() if place else None
    if kept is None:
        return None
    del kept["key"]
    lines, causes, lost = kept["source"]
    by_key = None if lines is None else lines_by_key(OwnedLine(**line) for line in lines)
    source = Side(by_key, tuple(_cause(one) for one in causes), lost)
    return Row(kept, samples=_samples(kept["samples"]), source=source)


def _cause(kept: dict[str, Any]) -> Cause:
    line = kept["line"]
    return Cause(**kept | {"ranks": tuple(kept["ranks"]), "line": line and tuple(line)})


def _samples(kept: dict[str, Any]) -> RunSamples:
    for name in ("logged", "recorded", "periods"):
        times = kept[name]
        kept[name] = times and StepTimes(
            **times
            | {"dur_ns": np.array(times["dur_ns"], np.int64)}
            | {one: times[one] and np.array(times[one], np.float64) for one in ("wait_ns", "lost_ns", "cpu_ns")}
        )
    for name in ("part_ms", "profiled_part_ms"):
        kept[name] = None if kept[name] is None else np.array(kept[name], np.float64)
    for name in ("parts", "causes", "kernels", "operators"):
        names, ms, count = (kept[name][column] for column in ("names", "ms", "count"))
        shape = (len(ms), len(names))
        kept[name] = PerStepTimes(tuple(names), *(np.array(v, np.float64).reshape(shape) for v in (ms, count)))
    return RunSamples(**kept)
