"""What differs between the reports of two sides: every number by its dotted name, the waterfall, the findings.

A number that samples were kept of comes with their interval; with several runs on both sides every number has one
(Welch). A single number has none, and says so.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from stepscope.compare.conditions import dotted_numbers
from stepscope.compare.runs import FATES, Comparison, fate, savings_by_key
from stepscope.compare.runs import Key as finding_change_Key
from stepscope.dataclass import dataclass
from stepscope.stats.bootstrap import Difference, difference_of_numbers, same
from stepscope.units import NS_PER_MS

ONE_VALUE = "no interval: one value on a side"
_UNKNOWN = "not known of both sides"
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
    #: mean over the runs of a side; None where no run knows it
    b: float | None
    difference: Difference | None
    #: why there is no interval; empty where there is one
    reason: str

    @property
    def change_pct(self) -> float | None:
        """Return the change in percent of A, None where that is unknown or A is 0."""
        return None if self.a is None or self.b is None or not self.a else 100 * (self.b - self.a) / abs(self.a)


@dataclass(frozen=True)
class FindingChange:
    """What became of a finding."""

    id: str
    title: str
    ranks: tuple[int, ...]
    a_ns: int
    #: what fixing it alone saves per step, mean over runs; 0 where a side lacks it
    b_ns: int
    a_runs: int
    #: how many runs have it
    b_runs: int

    @property
    def what(self) -> str:
        """Return `came`, `grew`, `went`, `mostly gone` or `stayed`."""
        return fate(self.a_ns if self.a_runs else None, self.b_ns if self.b_runs else None)


@dataclass(frozen=True)
class LossChange:
    """One row of the waterfall."""

    loss: str
    a_pct: float
    b_pct: float
    a_ns: int | None
    b_ns: int | None


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


def waterfall_changes(a: Reports, b: Reports) -> tuple[LossChange, ...]:
    """Return the rows of the waterfall on both sides, none where a side has none."""
    rows = [[{row["loss"]: row for row in r["waterfall"]} for r in side if r["waterfall"]] for side in (a, b)]
    if not all(rows):
        return ()
    names = dict.fromkeys(loss for side in rows for report in side for loss in report if loss != "achieved")
    return tuple(_loss(loss, rows[0], rows[1]) for loss in (*names, "achieved"))


def finding_changes(a: Reports, b: Reports) -> tuple[FindingChange, ...]:
    """Return the findings of either side by what became of them: what got worse first."""
    sides = [[_by_key(r["findings"]) for r in side] for side in (a, b)]
    keys = dict.fromkeys(key for side in sides for report in side for key in report)
    changes = [_finding(key, sides) for key in keys]
    return tuple(sorted(changes, key=lambda c: (FATES.index(c.what), -max(c.a_ns, c.b_ns))))


@dataclass(frozen=True)
class FullComparison:
    """Two sides in full: what their samples and what their reports say."""

    found: Comparison
    metrics: tuple[Metric, ...]
    waterfall: tuple[LossChange, ...]
    findings: tuple[FindingChange, ...]
    notes: tuple[str, ...]


def compared(found: Comparison, a: Reports, b: Reports) -> FullComparison:
    """Return everything that differs, from the comparison of the samples and the reports of both sides."""
    return FullComparison(
        found=found,
        metrics=metrics_of(a, b, found),
        waterfall=waterfall_changes(a, b),
        findings=finding_changes(a, b),
        notes=(*found.notes, *settings_that_differ(a, b)),
    )


def settings_that_differ(a: Reports, b: Reports) -> Iterator[str]:
    """Yield a line for each thing that makes the two sides different jobs."""
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


@dataclass(frozen=True)
class _FaultReport:
    title: str
    saving_ms: float


def _by_key(findings: Sequence[Mapping[str, Any]]) -> dict[finding_change_Key, _FaultReport]:
    keyed = [((f["id"], tuple(f["ranks"])), f) for f in findings]
    titles = {key: f["title"] for key, f in reversed(keyed)}
    saving = savings_by_key((key, f["saving_alone_ms"]) for key, f in keyed)
    return {key: _FaultReport(titles[key], ms) for key, ms in saving.items()}


def _finding(
    key: finding_change_Key, sides: Sequence[Sequence[Mapping[finding_change_Key, _FaultReport]]]
) -> FindingChange:
    found = [[report[key] for report in side if key in report] for side in sides]
    saving = [_ns(sum(f.saving_ms for f in mine) / len(side)) for mine, side in zip(found, sides, strict=True)]
    title = next(f.title for mine in reversed(found) for f in mine)
    return FindingChange(key[0], title, key[1], saving[0], saving[1], len(found[0]), len(found[1]))


def _loss(loss: str, a: Reports, b: Reports) -> LossChange:
    a_pct, b_pct = (_mean([r.get(loss, {}).get("pct_of_peak", 0.0) for r in side]) for side in (a, b))
    a_ns, b_ns = (_mean_known_ns([r.get(loss, {}).get("ms_per_step") for r in side]) for side in (a, b))
    return LossChange(loss, a_pct, b_pct, a_ns, b_ns)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _mean_known_ns(values_ms: Sequence[float | None]) -> int | None:
    known = [v for v in values_ms if v is not None]
    return _ns(_mean(known)) if known else None


def _ns(time_ms: float) -> int:
    return round(time_ms * NS_PER_MS)


# Which lines of the code got slower from one side to the other, where owners were recorded?
#
# A line's time is the longer of its own time on the host and on the device, per step and mean over ranks: what it
# calls
# in other lines of the user is not in it, so that one slow line is one row. Lines move when a file is edited, so a
# line
# is told by its file, its function and its text; by its number only where the text was not kept.
#
#     A  train.py:41  loss = model(x)   8.1 ms          train.py:44  loss = model(x)   8.1 -> 12.0 ms
#     B  train.py:44  loss = model(x)  12.0 ms    ->

Key = tuple[str, str, str]


@dataclass(frozen=True)
class OwnedLine:
    """One line of one run that has a time of its own."""

    file: str
    line: int
    function: str
    module: str | None
    #: the line's text, None where it was not kept
    source: str | None
    #: the longer of its own time on the host and on the device
    own_ns: float

    @property
    def key(self) -> Key:
        """Return what tells it from others."""
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
        """Return `appeared`, `vanished`, `slower`, `faster` or, where runs are too few to tell, an empty text."""
        if not self.a_runs or not self.b_runs:
            return "appeared" if self.b_runs else "vanished"
        if not self.difference.significant:
            return ""
        return "slower" if self.difference.change > 0 else "faster"

    @property
    def reason(self) -> str:
        """Return why there is no interval, an empty text where there is one."""
        return interval_or_reason(self.difference)[1] and "no interval: one run on a side"


def lines_by_key(lines: Iterable[OwnedLine]) -> Lines:
    """Return the lines of one run by what tells them apart: the last of those that nothing does."""
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
