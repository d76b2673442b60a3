"""What does a benchmark's results folder hold: series of step times by name, each of one or several runs?

And what differs between two of them?
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.compare.document import (
    ONE_VALUE,
    Judge,
    Metric,
    difference_json,
    gate_json,
    head,
    interval_or_reason,
    metric_json,
    side_name,
    verdict_of,
)
from stepscope.contract.run_folder import SCHEMA, json_object_in
from stepscope.document.rows import plain
from stepscope.errors import InputError
from stepscope.records import dataclass
from stepscope.run.sources import RESULTS_JSON
from stepscope.side_file import is_number
from stepscope.stats.robust import difference, slow_start
from stepscope.units import NS_PER_MS

_KIND = "bench"
# thirty years
_MAX_TIME_MS = 1e12


@dataclass(frozen=True)
class BenchSeries:
    """One configuration that was measured."""

    name: str
    #: step times of every run, in order
    samples_ns: tuple[tuple[int, ...], ...]
    config: dict[str, Any] = field(default_factory=dict)
    #: its other numbers
    summary: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchResults:
    """The results of one benchmark."""

    name: str
    command: str
    series: dict[str, BenchSeries]
    #: where it ran: ranks, backend, device, versions
    environment: dict[str, str | float] = field(default_factory=dict)
    #: of a sweep
    question: str = ""
    #: what to take, and why
    advice: tuple[str, ...] = ()
    #: why it is not complete
    message: str = ""


def read_bench_results(folder: str | Path) -> BenchResults:
    """Return the results in a folder; an `InputError` where they are damaged or of another schema."""
    path = Path(folder) / RESULTS_JSON
    return bench_results_of(json_object_in(path), name=Path(folder).resolve().name, path=path)


def bench_results_of(document: dict[str, Any], *, name: str, path: Path) -> BenchResults:
    """Return the contents of a results document; values of a wrong type are ignored."""
    if document.get("kind") != _KIND or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a benchmark result of schema {SCHEMA}")
    rows = document.get("series")
    found = [_series(row, path) for row in (rows if isinstance(rows, list) else [])]
    kept = {s.name: s for s in found if s.samples_ns}
    if not kept:
        raise InputError(f"{path} has no series with samples_ms; was the benchmark interrupted?")
    where, sweep = _object(document, "environment"), _object(document, "sweep")
    return BenchResults(
        name=name,
        command=str(document.get("command") or ""),
        series=kept,
        environment={k: v for k, v in where.items() if isinstance(v, str) or is_number(v)},
        question=_text(sweep.get("question")),
        advice=tuple(_advice(document, sweep)),
        message=_text(document.get("message")),
    )


def _advice(document: dict[str, Any], sweep: dict[str, Any]) -> Iterator[str]:
    verdict = sweep.get("verdict")
    listed = verdict.get("advice") if isinstance(verdict, dict) else None
    yield from (line for line in (listed if isinstance(listed, list) else ()) if isinstance(line, str))
    chosen = document.get("recommendation")
    if isinstance(chosen, dict) and isinstance(chosen.get("series"), str):
        yield f"recommended: {chosen['series']} ({_text(chosen.get('reason'))})"


def _object(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def joined_series(several: Sequence[BenchResults]) -> dict[str, BenchSeries]:
    """Return the series of several results of one side, the runs of the same name together."""
    out: dict[str, BenchSeries] = {}
    for results in several:
        for name, one in results.series.items():
            before = out.get(name)
            runs = (*before.samples_ns, *one.samples_ns) if before else one.samples_ns
            out[name] = BenchSeries(name, runs, one.config, one.summary)
    return out


def _series(row: Any, path: Path) -> BenchSeries:
    name, samples = (row.get("name"), row.get("samples_ms")) if isinstance(row, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(samples, list):
        raise InputError(f"{path}: a series needs name and samples_ms, which a {type(row).__name__} does not have")
    runs = [tuple(round(t * NS_PER_MS) for t in run if _is_time(t)) for run in samples if isinstance(run, list)]
    config, summary = (row.get(key) if isinstance(row.get(key), dict) else {} for key in ("config", "summary"))
    numbers = {k: float(v) for k, v in summary.items() if is_number(v)}
    return BenchSeries(name, tuple(run for run in runs if run), config, numbers)


def _is_time(value: object) -> bool:
    return is_number(value, high=_MAX_TIME_MS) and isinstance(value, int | float) and value * NS_PER_MS > 0.5


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


def _joined_series(a: BenchSeries, b: BenchSeries) -> tuple[dict[str, Any], list[Metric]]:
    runs = [[_settled(run) for run in one.samples_ns] for one in (a, b)]
    step = difference(runs[0], runs[1])
    row = {
        "name": a.name,
        "verdict": verdict_of(step),
        "step_ms": difference_json(step),
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


def compare_bench_json(a: Sequence[BenchResults], b: Sequence[BenchResults], *, judge: Judge) -> dict[str, Any]:
    """Return the comparison of two sides of benchmarks: of the series that both have."""
    sides, names = (joined_series(a), joined_series(b)), [[one.name for one in side] for side in (a, b)]
    both = [name for name in sides[0] if name in sides[1]]
    compared = [_joined_series(sides[0][name], sides[1][name]) for name in both]
    metrics = [metric for _, several in compared for metric in several]
    return plain(
        {
            **head(**{side: {"name": side_name(of), "runs": of} for side, of in zip("ab", names, strict=True)}),
            "basis": "bench",
            "series": [row for row, _ in compared],
            "only_a": [name for name in sides[0] if name not in sides[1]],
            "only_b": [name for name in sides[1] if name not in sides[0]],
            "metrics": [metric_json(m) for m in metrics],
            "gates": [gate_json(g) for g in judge(metrics)],
            "notes": list(_notes(a, b, both)),
        }
    )
