"""What differs between two benchmarks: series of the same name, with intervals over their runs and steps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.compare.reports import ONE_VALUE, Metric, interval_or_reason
from stepscope.dataclass import dataclass
from stepscope.results.folder import BenchResults, BenchSeries, joined_series
from stepscope.stats.bootstrap import Difference, difference
from stepscope.stats.robust import slow_start
from stepscope.units import NS_PER_MS

_TIMES = (
    "num_steps",
    "num_runs",
    "avg_step_time",
    "std_step_time",
    "median_step_time",
    "min_step_time",
    "max_step_time",
)
"""numbers of a summary that the samples tell better"""


@dataclass(frozen=True)
class SeriesChange:
    """One series of both sides."""

    name: str
    step: Difference
    """ms"""
    num_runs: tuple[int, int]
    num_steps: tuple[int, int]
    config: tuple[str, ...]
    """settings that differ, as `key: a -> b`"""
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
