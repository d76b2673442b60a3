"""What became of lines and findings from one side to the other, and did the predicted saving come true?

Times of lines are those on the critical path of the step that the report gives, so they add up to no more than the
step, its parts and its findings. Lines move when a file is edited, so a line is identified by its file, its function
and its text; by its number only where the text was not recorded.

    A  train.py:41  loss = model(x)   8.1 ms          train.py:44  loss = model(x)   8.1 -> 12.0 ms
    B  train.py:44  loss = model(x)  12.0 ms    ->

Findings are matched by cause, line and ranks:

    new        only B has it, and its line costs more than in A
    larger     both have it: more than twice the saving, in ms and in percent of the step
    resolved   only A has it, and its line costs less in B or is no longer there
    smaller    both have it: less than half of the saving is left, in ms and in percent of the step
    same       else, also where one side does not report it and its line costs as much

Another load changes milliseconds and not percentages, another fix percentages and not milliseconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.analyze.account import Account
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Diagnosis
from stepscope.document.statements import three_digits
from stepscope.records import dataclass
from stepscope.stats.robust import Difference
from stepscope.units import NS_PER_MS

NEW, LARGER, RESOLVED, SMALLER, SAME = "new", "larger", "resolved", "smaller", "same"
# in display order: regressions first
STATUSES = (NEW, LARGER, RESOLVED, SMALLER, SAME)
_HALF = 0.5

# file, function, text
Key = tuple[str, str, str]


@dataclass(frozen=True)
class OwnedLine:
    """One source line of a run and its time."""

    file: str
    line: int
    function: str
    module: str | None
    #: the line's text, None if not recorded
    source: str | None
    #: of the critical path of the step; of lines with the same key together
    critical_ns: float

    @property
    def key(self) -> Key:
        """Return the key of the line."""
        return self.file, self.function, (self.source or "").strip() or str(self.line)


# the lines of one run
Lines = Mapping[Key, OwnedLine]


@dataclass(frozen=True)
class Cause:
    """One finding of a run, as comparisons see it; times in ms per step."""

    id: str
    #: its title without the numbers and names of this run
    kind: str
    title: str
    ranks: tuple[int, ...]
    #: key of its line, None where it names none
    line: Key | None
    saving_ms: float
    low_ms: float
    high_ms: float
    saving_pct: float
    #: on top of those that save more
    adds_ms: float

    @property
    def key(self) -> tuple[str, str, Key | None, tuple[int, ...]]:
        """Return the cause, line and ranks by which it is matched."""
        return self.id, "" if self.line else self.kind, self.line, self.ranks


@dataclass(frozen=True)
class Side:
    """Lines and findings of one run."""

    #: None where no line was recorded
    lines: Lines | None
    causes: tuple[Cause, ...]
    #: share of the time that the report leaves out because training had no core
    lost: float = 0.0


def code_side(account: Account, diagnosis: Diagnosis) -> Side:
    """Return the lines and findings of a run."""
    functions = _functions(account)
    causes = tuple(_cause(account, functions, f) for f in diagnosis.findings)
    return Side(code_lines(account), causes, account.run.lost)


def code_lines(account: Account) -> Lines | None:
    """Return the lines of a run by key, None where none was recorded."""
    times, functions = account.critical_lines, _functions(account)
    if not times or account.step is None:
        return None
    scale = min(1.0, account.step.step_ns / sum(times.values()))
    modules = {(one.file, one.line): one.module for one in (account.code.lines if account.code else ())}
    return lines_by_key(
        OwnedLine(*line, functions.get(line, ""), modules.get(line), account.run.source.line(*line), scale * ns)
        for line, ns in times.items()
        if ns > 0
    )


def lines_by_key(lines: Iterable[OwnedLine]) -> Lines:
    """Return lines by key; those with equal keys as one, at the place of the longest."""
    found: dict[Key, list[OwnedLine]] = {}
    for line in lines:
        found.setdefault(line.key, []).append(line)
    return {
        key: OwnedLine(
            **vars(max(equal, key=lambda one: one.critical_ns)) | {"critical_ns": sum(one.critical_ns for one in equal)}
        )
        for key, equal in found.items()
    }


def _functions(account: Account) -> dict[tuple[str, int], str]:
    sampled = {(f.file, f.line): f.function for one in account.sampled for f in one.samples.frames}
    return sampled | {(one.file, one.line): one.function for one in (account.code.lines if account.code else ())}


def _cause(account: Account, functions: Mapping[tuple[str, int], str], found: Finding) -> Cause:
    line = None
    if found.where and found.where[0].file is not None and found.where[0].line is not None:
        at = found.where[0].file, found.where[0].line
        line = at[0], functions.get(at, ""), (account.run.source.line(*at) or "").strip() or str(at[1])
    times = (found.alone_ns, found.low_ns, found.high_ns)
    saving, low, high = (ns / NS_PER_MS for ns in times)
    adds = found.saving_ns / NS_PER_MS
    return Cause(found.id, found.kind, found.title, found.ranks, line, saving, low, high, found.saving_pct, adds)


def finding_changes(a: Sequence[Side], b: Sequence[Side]) -> list[dict[str, Any]]:
    """Return the findings of either side as JSON, by status: what got worse first.

    Times are in ms per step, means over the runs of a side.
    """
    keys = dict.fromkeys(cause.key for side in (a, b) for run in side for cause in run.causes)
    changes = [_finding(key, a, b) for key in keys]
    return sorted(changes, key=lambda c: (STATUSES.index(c["what"]), -max(c["a_saving_ms"], c["b_saving_ms"])))


def _finding(key: Any, *sides: Sequence[Side]) -> dict[str, Any]:
    found = [[[cause for cause in run.causes if cause.key == key] for run in side] for side in sides]
    first = next(cause for side in reversed(found) for run in side for cause in run)
    runs = [sum(map(bool, side)) for side in found]
    saving, pct = (
        [_mean([sum(getattr(cause, name) for cause in run) for run in side]) if any(side) else None for side in found]
        for name in ("saving_ms", "saving_pct")
    )
    line = [_line_ms(first.line, side) for side in sides]
    return {
        "id": first.id,
        "what": _status(saving, pct, line),
        "title": first.title,
        "ranks": first.ranks,
        "line": first.line and dict(zip(("file", "function", "text"), first.line, strict=True)),
        "a_saving_ms": saving[0] or 0.0,
        "b_saving_ms": saving[1] or 0.0,
        "a_runs": runs[0],
        "b_runs": runs[1],
        "a_line_ms": line[0],
        "b_line_ms": line[1],
    }


def _line_ms(line: Key | None, side: Sequence[Side]) -> float | None:
    if line is None or any(run.lines is None for run in side):
        return None
    known = [run.lines.get(line) for run in side if run.lines is not None]
    return _mean([one.critical_ns / NS_PER_MS if one else 0.0 for one in known])


def _status(saving: Sequence[float | None], pct: Sequence[float | None], line: Sequence[float | None]) -> str:
    a, b = saving
    if a is None or b is None:
        more, less = reversed(line) if a is None else line
        if more is not None and less is not None and less >= _HALF * more > 0:
            return SAME
        return NEW if a is None else RESOLVED
    a_pct, b_pct = (one or 0.0 for one in pct)
    if b < _HALF * a and b_pct < _HALF * a_pct:
        return SMALLER
    return LARGER if a < _HALF * b and a_pct < _HALF * b_pct else SAME


# of a saving: what three digits do not show is no difference
_ROUNDED = 0.005
CAME_TRUE, LESS, MORE = "came true", "less than predicted", "more than predicted"


def prediction(a: Sequence[Side], changes: Sequence[Mapping[str, Any]], measured: Difference) -> dict[str, Any] | None:
    """Return as JSON what the findings that are resolved or smaller were to save, and what was saved, in ms per step.

    None where there are none; the outcome is None where the measured interval is unknown. A report without waits for a
    core shortens other waits as much, so a finding may save more by the share left out.
    """
    resolved = {
        (c["id"], c["line"] and tuple(c["line"].values()), c["ranks"])
        for c in changes
        if c["what"] in (RESOLVED, SMALLER)
    }
    fixed = [[c for c in run.causes if c.saving_ms > 0 and (c.id, c.line, c.ranks) in resolved] for run in a]
    if not any(fixed) or measured.change != measured.change:
        return None
    low, middle, high = np.mean([_together(causes) for causes in fixed], axis=0).tolist()
    high /= 1 - _mean([run.lost for run in a])
    bounds = (-measured.high, -measured.low) if measured.low == measured.low else (None, None)
    outcome = _outcome(low, high, *bounds)
    ids = tuple(dict.fromkeys(c.id for causes in fixed for c in causes))
    times = f"{_interval(middle, low, high)}, measured: {_interval(-measured.change, *bounds)}"
    return {
        "fixed": ids,
        "predicted_ms": middle,
        "low_ms": low,
        "high_ms": high,
        "measured_ms": -measured.change,
        "measured_low_ms": bounds[0],
        "measured_high_ms": bounds[1],
        "outcome": outcome,
        "sentence": f"Predicted saving for {', '.join(ids)}: {times}{f': {outcome}' if outcome else ''}.",
    }


def _outcome(low: float, high: float, measured_low: float | None, measured_high: float | None) -> str | None:
    """Return whether both intervals meet."""
    if measured_low is None or measured_high is None:
        return None
    if measured_high < low * (1 - _ROUNDED):
        return LESS
    return MORE if measured_low > high * (1 + _ROUNDED) else CAME_TRUE


def _interval(middle: float, low: float | None, high: float | None) -> str:
    between = "interval unknown" if low is None or high is None else f"{three_digits(low)} to {three_digits(high)}"
    return f"{three_digits(middle)} ms ({between})"


def _together(causes: Sequence[Cause]) -> tuple[float, float, float]:
    """Return what fixes save together, with each as unsure as it is alone."""
    if len(causes) == 1:
        return causes[0].low_ms, causes[0].saving_ms, causes[0].high_ms
    saving = sum(c.adds_ms for c in causes)
    below, above = (
        float(np.linalg.norm([getattr(c, name) - c.saving_ms for c in causes])) for name in ("low_ms", "high_ms")
    )
    return max(0.0, saving - below), saving, saving + above


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
