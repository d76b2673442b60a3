"""Which lines of the code got slower from one side to the other, where owners were recorded?

A line's time is the longer of its own time on the host and on the device, per step and mean over ranks: what it calls
in other lines of the user is not in it, so that one slow line is one row. Lines move when a file is edited, so a line
is told by its file, its function and its text; by its number only where the text was not kept.

    A  train.py:41  loss = model(x)   8.1 ms          train.py:44  loss = model(x)   8.1 -> 12.0 ms
    B  train.py:44  loss = model(x)  12.0 ms    ->
"""

from collections.abc import Mapping, Sequence

from stepscope.analyze.account import Account
from stepscope.compare.reports import interval_or_reason
from stepscope.dataclass import dataclass
from stepscope.document.code import CodeRow, code_view
from stepscope.stats.bootstrap import Difference, difference_of_numbers, same
from stepscope.units import NS_PER_MS

Key = tuple[str, str, str]
Lines = Mapping[Key, CodeRow]
"""the lines of one run that have a time of their own"""


@dataclass(frozen=True)
class LineChange:
    """One line on both sides."""

    row: CodeRow
    """where it is, on B where B has it"""
    difference: Difference
    """ms; 0 on a side that lacks it"""
    a_runs: int
    b_runs: int
    """how many runs have it"""

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


def code_lines(account: Account) -> Lines | None:
    """Return the lines of a run by what tells them apart, None where nobody recorded owners."""
    view = code_view(account)
    if view is None:
        return None
    return {_key(row): row for row in reversed(view.lines) if own_ns(row) > 0}


def own_ns(row: CodeRow) -> float:
    """Return the longer of a line's own time on the host and on the device."""
    return max(row.own_host_ns, row.own_device_ns)


def line_changes(a: Sequence[Lines | None], b: Sequence[Lines | None]) -> tuple[LineChange, ...]:
    """Return the lines that differ, those that got slower most first; none where a run has no owners."""
    sides = [[run for run in side if run is not None] for side in (a, b)]
    if len(sides[0]) < len(a) or len(sides[1]) < len(b):
        return ()
    keys = dict.fromkeys(key for side in reversed(sides) for run in side for key in run)
    changes = [_change(key, sides) for key in keys]
    found = [c for c in changes if not same(c.difference.a, c.difference.b)]
    return tuple(sorted(found, key=lambda c: -c.difference.change))


def _key(row: CodeRow) -> Key:
    return row.file, row.function, (row.source or "").strip() or str(row.line)


def _change(key: Key, sides: Sequence[Sequence[Lines]]) -> LineChange:
    rows = [[run.get(key) for run in side] for side in sides]
    times = [[0.0 if row is None else own_ns(row) / NS_PER_MS for row in side] for side in rows]
    known = [row for side in reversed(rows) for row in side if row is not None]
    counts = [sum(row is not None for row in side) for side in rows]
    return LineChange(known[0], difference_of_numbers(times[0], times[1]), *counts)
