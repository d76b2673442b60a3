"""A page of cards, sections and notes, whatever shows it: a terminal, a browser or Markdown.

    sheet_text(sheet)       lines for a terminal or a pipe         report/sheet_text.py
    sheet_markdown(sheet)   Markdown for a pull request            report/sheet_text.py
    sheet_page(sheet)       a self-contained HTML file             report/html/sheets.py

Values carry the unit that they are in, and every rendering writes them alike (`4.2 ms`, `1.5 GB`). Units of numbers:
`ms`, `bytes`, `pct`, `x` (times), `gb_per_s`, `flops`, `number`, `count`, `rank`, `signed_ms` and `signed_pct`. Units
of words: `text`, `verdict` (coloured), `kernel` (shortened) and `name` (cut, never wrapped). None is unknown, an empty
text does not apply.

Standard library only. Pictures are functions: a terminal, which shows none, imports nothing for them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from math import floor, log10
from typing import Any, Protocol

from stepscope.records import dataclass
from stepscope.units import readable_bytes

Document = Mapping[str, Any]
Value = str | float | int | bool | None
Values = dict[str, Any]
# A column: its title, the unit that its values are in, and a key or function of the items.
Column = tuple[str, str, str | int | Callable[[Any], Any]]

#: units whose values are words
WORDS = ("text", "kernel", "verdict", "name")


class Drawn(Protocol):
    """A picture: a `Drawing`."""

    def as_json(self) -> dict[str, Any]:
        """Return the picture as plain values."""


#: drawn where a rendering shows pictures
Picture = Drawn | Callable[[], Drawn | None] | None


@dataclass(frozen=True)
class Section:
    """A heading with what belongs to it."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    chart: Picture = None
    #: from `table_of`, the columns in the order of their importance
    table: Values | None = None
    #: below the first one
    more: tuple[Picture, ...] = ()
    #: rows that a terminal shows without --verbose; 0: all of the section is a detail
    most: int = 12


@dataclass(frozen=True)
class Sheet:
    """A whole page."""

    title: str
    facts: tuple[str, ...]
    cards: tuple[Values, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()


def card(title: str, value: Value, unit: str = "text", why: str = "", tone: str = "") -> Values:
    """Return one number at the top; the tone `high` is bad, `low` good."""
    return {"title": title, "value": value, "unit": unit, "why": why, "tone": tone}


def table_of(items: Iterable[Any], *columns: Column, most: int | None = None) -> Values:
    """Return a table of items as plain values; a column that nothing is known of is dropped."""
    chosen = list(items)[:most]
    rows = [[value(item) if callable(value) else item[value] for _, _, value in columns] for item in chosen]
    known = [i for i in range(len(columns)) if any(row[i] not in (None, "") for row in rows)]
    titles = [{"title": columns[i][0], "key": k, "unit": columns[i][1]} for k, i in enumerate(known)]
    return {"columns": titles, "rows": [[row[i] for i in known] for row in rows]}


def section_of(id_: str, title: str, said: str, items: Iterable[Any], *columns: Column, **more: Any) -> list[Section]:
    """Return a section with a table, none where the table is empty."""
    table = table_of(items, *columns)
    return [Section(id_, title, (said,) if said else (), table=table, **more)] if table["rows"] else []


def picture(module: str, name: str, *given: Any) -> Callable[[], Drawn | None]:
    """Return a picture by the module of `report` and the function that draw it, imported where it is shown."""

    def draw() -> Drawn | None:
        drawn: Drawn | None = getattr(import_module(f"stepscope.report.{module}"), name)(*given)
        return drawn

    return draw


def pct(share: float | None) -> float | None:
    """Return a share in percent, None where it is unknown."""
    return None if share is None else 100 * share


# Values as text: `js/numbers.js` writes the same.


_NAMESPACES = re.compile(r"^void |at::native::|\(anonymous namespace\)::")


def unit_text(value: Value, unit: str) -> str:
    """Return a value in its unit as people read it.

    >>> unit_text(12.5, "ms"), unit_text(1_500_000, "bytes"), unit_text(3.14159, "pct"), unit_text(2.5e12, "flops")
    ('12.5 ms', '1.5 MB', '3.1 %', '2.50 TFLOP')
    >>> unit_text(0.25, "signed_ms"), unit_text(-3.0, "signed_pct"), unit_text(1234.5, "count")
    ('+250 µs', '-3.0 %', '1,234')
    """
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return _NAMESPACES.sub("", value) if unit == "kernel" else value
    match unit:
        case "ms":
            return time_text(value)
        case "bytes":
            return readable_bytes(round(value))
        case "pct":
            return f"{value:,.1f} %"
        case "x":
            return f"{digits(value)}×"  # noqa: RUF001
        case "gb_per_s":
            return f"{digits(value)} GB/s"
        case "flops":
            power = min(7, max(0, floor(log10(max(abs(value), 1)) / 3)))
            return f"{digits(value / 1000**power)} {' kMGTPEZ'[power].strip()}FLOP"
        case "count":
            return _written(value, 1 if abs(value) < 1000 else 0)
        case "signed_ms" | "signed_pct":
            return f"{'+' if value > 0 else ''}{unit_text(value, unit.removeprefix('signed_'))}"
        case "number" if value == int(value):
            return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.0f}"
        case "number":
            return _written(value, 0 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4)
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _written(value: float, places: int) -> str:
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def time_text(ms: float) -> str:
    """Return a time as people read it, with the digits that the page shows.

    >>> time_text(0), time_text(12.5), time_text(0.25), time_text(1_234)
    ('0 ms', '12.5 ms', '250 µs', '1.23 s')
    """
    if not ms:
        return "0 ms"
    for limit, scale, unit in ((999.5, 1e-3, "s"), (0.9995, 1, "ms"), (0.0009995, 1e3, "µs")):
        if abs(ms) >= limit:
            return f"{digits(ms * scale)} {unit}"
    return f"{round(ms * 1e6)} ns"


def digits(value: float) -> str:
    """Return a number with the digits that the page shows.

    >>> digits(2.954), digits(29.54), digits(2954)
    ('2.95', '29.5', '2,954')
    """
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{places}f}"
