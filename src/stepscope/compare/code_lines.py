"""Which lines of the code got slower from one side to the other, where owners were recorded?

A line's time is the longer of its own time on the host and on the device, per step and mean over ranks: what it calls
in other lines of the user is not in it, so that one slow line is one row. Lines move when a file is edited, so a line
is told by its file, its function and its text; by its number only where the text was not kept.

    A  train.py:41  loss = model(x)   8.1 ms          train.py:44  loss = model(x)   8.1 -> 12.0 ms
    B  train.py:44  loss = model(x)  12.0 ms    ->
"""

from collections.abc import Iterable, Mapping, Sequence

from stepscope.compare.reports import interval_or_reason
from stepscope.dataclass import dataclass
from stepscope.stats.bootstrap import Difference, difference_of_numbers, same
from stepscope.units import NS_PER_MS

Key = tuple[str, str, str]


@dataclass(frozen=True)
class OwnedLine:
    """One line of one run that has a time of its own."""

    file: str
    line: int
    function: str
    module: str | None
    source: str | None
    """the line's text, None where it was not kept"""
    own_ns: float
    """the longer of its own time on the host and on the device"""

    @property
    def key(self) -> Key:
        """Return what tells it from others."""
        return self.file, self.function, (self.source or "").strip() or str(self.line)


Lines = Mapping[Key, OwnedLine]
"""the lines of one run"""


@dataclass(frozen=True)
class LineChange:
    """One line on both sides."""

    row: OwnedLine
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


def lines_by_key(lines: Iterable[OwnedLine]) -> Lines:
    """Return the lines of one run by what tells them apart: the last of those that nothing does."""
    return {line.key: line for line in lines}


def line_changes(a: Sequence[Lines | None], b: Sequence[Lines | None]) -> tuple[LineChange, ...]:
    """Return the lines that differ, those that got slower most first; none where a run has no owners."""
    sides = [[run for run in side if run is not None] for side in (a, b)]
    if len(sides[0]) < len(a) or len(sides[1]) < len(b):
        return ()
    keys = dict.fromkeys(key for side in reversed(sides) for run in side for key in run)
    changes = [_change(key, sides) for key in keys]
    found = [c for c in changes if not same(c.difference.a, c.difference.b)]
    return tuple(sorted(found, key=lambda c: -c.difference.change))


def _change(key: Key, sides: Sequence[Sequence[Lines]]) -> LineChange:
    rows = [[run.get(key) for run in side] for side in sides]
    times = [[0.0 if row is None else row.own_ns / NS_PER_MS for row in side] for side in rows]
    known = [row for side in reversed(rows) for row in side if row is not None]
    counts = [sum(row is not None for row in side) for side in rows]
    return LineChange(known[0], difference_of_numbers(times[0], times[1]), *counts)
