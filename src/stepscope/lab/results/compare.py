"""What differs between two benchmarks: series of the same name, with intervals over their runs and steps."""

from collections.abc import Iterator, Mapping, Sequence
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
from stepscope.document.rows import plain
from stepscope.lab.results.folder import BenchResults, BenchSeries, joined_series
from stepscope.stats.robust import difference, slow_start
from stepscope.units import NS_PER_MS

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
    compared = [_series(sides[0][name], sides[1][name]) for name in both]
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
