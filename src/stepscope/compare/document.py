"""A comparison as JSON (schema 1): times in milliseconds, changes are B minus A, unknown is null."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from stepscope.compare.conditions import GateResult, dotted_numbers
from stepscope.compare.findings import (
    Key,
    Lines,
    Side,
    finding_changes,
    prediction,
)
from stepscope.compare.runs import Comparison, Row, StepDifference
from stepscope.compare.samples import RunSamples
from stepscope.contract.run_folder import SCHEMA
from stepscope.document.rows import ms_or_none, plain
from stepscope.document.sentence import three_digits
from stepscope.records import dataclass
from stepscope.stats.robust import CONFIDENCE, Difference, difference_of_numbers, same
from stepscope.units import NS_PER_MS

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
        a, b = (self.a, self.b) if self.difference is None else (self.difference.a, self.difference.b)
        return None if a is None or b is None or not a else 100 * (b - a) / abs(a)


# what gates say of these numbers
Judge = Callable[[Sequence[Metric]], Sequence[GateResult]]


def metrics_of(a: Reports, b: Reports, found: Comparison) -> tuple[Metric, ...]:
    """Return every number that a report of either side has, the step first."""
    whole = found.step.difference
    known = whole.change == whole.change
    step = Metric(
        "step_ms",
        whole.a if known else None,
        whole.b if known else None,
        *interval_or_reason(found.step.code or whole),
    )
    numbers = [[dotted_numbers({k: v for k, v in r.items() if k not in _DROPPED}) for r in side] for side in (a, b)]
    names = dict.fromkeys(name for side in numbers for report in side for name in report)
    sampled = {**found.sampled, **{f"step.budget.{r.name}.ms_per_step": r.difference for r in found.budget}}
    return (step, *(m for name in names for m in _metric(name, numbers, sampled.get(name), whole)))


def waterfall_changes(a: Reports, b: Reports) -> list[dict[str, Any]]:
    """Return the rows of the waterfall on both sides, none where a side has none."""
    rows = [[{row["loss"]: row for row in r["waterfall"]} for r in side if r["waterfall"]] for side in (a, b)]
    if not all(rows):
        return []
    names = dict.fromkeys(loss for side in rows for report in side for loss in report if loss != "achieved")
    return [_loss(loss, rows) for loss in (*names, "achieved")]


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


_MAX_ROWS = 100
NO_DIFFERENCE = "no difference found"


def compare_json(
    found: Comparison, samples: Sequence[Sequence[RunSamples]], reports: Sequence[Reports],
    sources: Sequence[Sequence[Side]], *, judge: Judge,
) -> dict[str, Any]:  # fmt: skip
    """Return the comparison of two sides of runs, by their samples, reports, and lines and findings; `judge` holds
    gates against metrics.
    """
    metrics, step = metrics_of(reports[0], reports[1], found), found.step
    code = line_changes(*([run.lines for run in side] for side in sources))
    findings = finding_changes(*sources)
    a, b = (_side(*side, found) for side in zip(samples, reports, strict=True))
    return plain(
        {
            **head(a=a, b=b),
            "basis": step.basis,
            "step": "mean" if step.of_all else "typical",
            "verdict": verdict_of(step.code or step.difference),
            "headline": headline(step),
            "step_ms": difference_json(step.difference),
            "code_ms": None if step.code is None else difference_json(step.code),
            "core_wait_ms": _pair(step.core_wait_ms),
            "cpu_ms": _pair(step.cpu_ms),
            "budget": [{"part": row.name, **_row(row)} for row in found.budget],
            "waterfall": waterfall_changes(*reports),
            "kernels": [_called(row) for row in found.kernels[:_MAX_ROWS]],
            "kernels_changed": len(found.kernels),
            "operators": [_called(row) for row in found.operators[:_MAX_ROWS]],
            "operators_changed": len(found.operators),
            "code": code[:_MAX_ROWS],
            "code_changed": len(code),
            "findings": findings,
            "prediction": prediction(sources[0], findings, step.code or step.difference),
            "metrics": [metric_json(m) for m in metrics],
            "gates": [gate_json(g) for g in judge(metrics)],
            "notes": [*found.notes, *_settings_of_jobs(*reports)],
        }
    )


def headline(step: StepDifference) -> str:
    """Return the first sentence: what differs, and whether the machine may explain it."""
    whole, code, waits = step.difference, step.code, step.core_wait_ms
    verdict, by_code = verdict_of(whole), verdict_of(code or whole)
    times = f"{_from_to(whole)} per step" if whole.change == whole.change else ""
    opening = f"B is {by_code}" if by_code in _DIFFER else f"{by_code[:1].upper()}{by_code[1:]}"
    if code is None or (verdict == by_code and not (whole.change < code.low or whole.change > code.high)):
        return f"{opening}: {times} ({step.basis})." if times else f"{opening}."
    waited = " and ".join(three_digits(ms or 0.0) for ms in waits)
    machine = f"{times} in all; the training thread waited {waited} ms for a CPU core"
    if by_code in _DIFFER:
        return f"{opening}: {_from_to(code)} per step without waits for a CPU core ({machine})."
    found = f"{times}, but the training thread waited {waited} ms for a CPU core"
    return f"The machine, not the code, may explain the difference: {found}; {_from_to(code)} without these waits."


def _from_to(found: Difference) -> str:
    return f"{three_digits(found.a)} → {three_digits(found.b)} ms"


_DIFFER = ("slower", "faster")


def verdict_of(step: Difference) -> str:
    """Return `slower`, `faster`, or that no difference was found or there are too few steps."""
    if step.p_value is None:
        return "too few steps to compare"
    if not step.significant:
        return NO_DIFFERENCE
    return "slower" if step.change > 0 else "faster"


def difference_json(found: Difference) -> dict[str, Any]:
    """Return a difference as JSON, in percent of A too."""

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


def head(**sides: Any) -> dict[str, Any]:
    """Return what every comparison begins with."""
    return {"schema": SCHEMA, "kind": "compare", "confidence": CONFIDENCE, **sides}


def _side(runs: Sequence[RunSamples], reports: Reports, found: Comparison) -> dict[str, Any]:
    rows = [_run(run, report["verdict"], found) for run, report in zip(runs, reports, strict=True)]
    return {"name": side_name([r.name for r in runs]), "runs": rows}


def _run(run: RunSamples, verdict: str | None, found: Comparison) -> dict[str, Any]:
    times = run.logged if found.step.logged else run.periods
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


def _pair(values: Sequence[float | None]) -> dict[str, float] | None:
    a, b = values
    return None if a is None or b is None else {"a": a, "b": b, "change": b - a}


def side_name(names: Sequence[str]) -> str:
    """Return the name of a side of one or several runs."""
    return names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names)}"


def _row(row: Row) -> dict[str, Any]:
    return {
        "what": row.what,
        **difference_json(row.difference),
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


def line_changes(a: Sequence[Lines | None], b: Sequence[Lines | None]) -> list[dict[str, Any]]:
    """Return the lines that differ as JSON, the largest changes first; none where a run has no lines."""
    sides = [[run for run in side if run is not None] for side in (a, b)]
    if len(sides[0]) < len(a) or len(sides[1]) < len(b):
        return []
    keys = dict.fromkeys(key for side in reversed(sides) for run in side for key in run)
    found = [c for c in [_line(key, sides) for key in keys] if not same(c["a"], c["b"])]
    return sorted(found, key=lambda c: -abs(c["change"]))


def _line(key: Key, sides: Sequence[Sequence[Lines]]) -> dict[str, Any]:
    rows = [[run.get(key) for run in side] for side in sides]
    times = [[0.0 if row is None else row.critical_ns / NS_PER_MS for row in side] for side in rows]
    row = next(row for side in reversed(rows) for row in side if row is not None)
    counts = [sum(row is not None for row in side) for side in rows]
    found = difference_of_numbers(times[0], times[1])
    changed = ("slower" if found.change > 0 else "faster") if found.significant else ""
    return {
        "file": row.file,
        "line": row.line,
        "function": row.function,
        "module": row.module,
        "source": row.source,
        "what": changed if all(counts) else "appeared" if counts[1] else "vanished",
        **difference_json(found),
        "reason": "" if found.low == found.low else "no interval: one run per side",
        "a_runs": counts[0],
        "b_runs": counts[1],
    }


def metric_json(m: Metric) -> dict[str, Any]:
    """Return a number of both sides as JSON."""
    doubt = difference_json(m.difference) if m.difference else {}
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


def gate_json(g: GateResult) -> dict[str, Any]:
    """Return the result of a gate as JSON."""
    return {"fail_on": str(g.gate), "holds": g.holds, "value": g.value, "said": g.said}
