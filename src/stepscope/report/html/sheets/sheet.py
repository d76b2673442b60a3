"""A page of cards, sections and notes: what is shown as data, drawn by the scripts that the report's page uses too.

Numbers carry the unit that they are in, and the page writes them the way the report does (`4.2 ms`, `1.5 GB`). Units:
`ms`, `bytes`, `pct`, `x` (times), `gb_per_s`, `flops`, `number`, `count` and `text`.
"""

from collections.abc import Sequence
from dataclasses import asdict, field
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.document.plain_values import plain
from stepscope.report.html.assembled import assembled
from stepscope.report.html.data import ReportData
from stepscope.report.html.pack import packed
from stepscope.units import printable

_SCRIPTS = ("unpack", "numbers", "elements", "theme", "state", "contents", "sized", "tables", "sheet_charts", "sheet")
MAX_POINTS = 2000
"""of one line in a chart; longer ones are thinned out"""

Value = str | float | int | bool | None


@dataclass(frozen=True)
class Card:
    """One number at the top."""

    title: str
    value: Value
    unit: str = "text"
    why: str = ""
    tone: str = ""
    """`high` is bad, `low` good"""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    unit: str = "text"


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted and filtered; None is unknown."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    links: tuple[str, ...] = ()
    """where the first text of each row leads, in a page that is served; none elsewhere"""


@dataclass(frozen=True)
class MeasuredRow:
    """One row of a chart of values with their intervals, and the samples behind it."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    samples: tuple[tuple[float, ...], ...] = ()
    """by run"""


@dataclass(frozen=True)
class Intervals:
    """Values with intervals, one under the other, from zero."""

    rows: tuple[MeasuredRow, ...]
    unit: str
    label: str
    kind: str = field(default="intervals", init=False)


@dataclass(frozen=True)
class Axis:
    """One axis of a chart of lines."""

    title: str
    unit: str
    log: bool = False


@dataclass(frozen=True)
class Line:
    """Points that belong together: x, y and where known low and high."""

    name: str
    points: tuple[tuple[float, ...], ...]
    fitted: bool = False
    """a line through measurements that are not on it; else its points are marked"""
    colour: int | None = None
    """lines of one colour belong together; its place in the list by default"""


@dataclass(frozen=True)
class Lines:
    """Lines over one axis."""

    lines: tuple[Line, ...]
    x: Axis
    y: Axis
    label: str
    kind: str = field(default="lines", init=False)


@dataclass(frozen=True)
class Stack:
    """One bar of a chart of stacked parts, by their names."""

    name: str
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Stacks:
    """Bars on one scale, their parts in the same colours; `limit` is drawn as a line."""

    rows: tuple[Stack, ...]
    unit: str
    label: str
    limit: float | None = None
    kind: str = field(default="stacks", init=False)


Chart = Intervals | Lines | Stacks


@dataclass(frozen=True)
class Section:
    """A heading with what belongs to it."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    chart: Chart | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Sheet:
    """A whole page."""

    title: str
    facts: tuple[str, ...]
    cards: tuple[Card, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()


def sheet_page(sheet: Sheet) -> str:
    """Return the page's text."""
    data = ReportData(report=plain(asdict(sheet)), grid=None, slices=None)
    return assembled(packed(data), scripts=_SCRIPTS, title=sheet.title, in_words=_in_words(sheet))


def thinned(points: Sequence[tuple[float, ...]], most: int = MAX_POINTS) -> tuple[tuple[float, ...], ...]:
    """Return at most that many points, evenly spread; the last one stays."""
    if len(points) <= most:
        return tuple(points)
    step = (len(points) - 1) / (most - 1)
    return tuple(points[round(i * step)] for i in range(most))


def table_of(titles: Sequence[tuple[str, str]], rows: Sequence[Sequence[Value]]) -> Table:
    """Return a table from `(title, unit)` of each column; columns of which no row knows a value are left out."""
    known = [i for i in range(len(titles)) if any(row[i] is not None for row in rows)]
    return Table(tuple(Column(*titles[i]) for i in known), tuple(tuple(row[i] for i in known) for row in rows))


def _in_words(sheet: Sheet) -> str:
    """Return the essence for a reader without scripts."""
    said = [f"{card.title}: {_plain(card)}." for card in sheet.cards]
    return " ".join([*said, *(printable(note) + "." for note in sheet.notes)])


def _plain(card: Card) -> str:
    value: Any = card.value
    if value is None:
        return "unknown"
    return printable(value if isinstance(value, str) else f"{value:.4g} {card.unit.replace('_', ' ')}")
