"""What `stepscope view` answers to which path: the page, the report, the tables in pages of rows, the timeline."""

import base64
import hashlib
import html
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from importlib.resources import files
from string import Template
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stepscope.document.rows import TABLES
from stepscope.records import dataclass
from stepscope.report.view.server import EXPANDED, Answer, Site
from stepscope.tables.table import Cells, Table, table_csv
from stepscope.units import json_text, printable

# The page around the report: tabs for the report, the tables and the timeline.


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").strip() + "\n"


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


# what the page shares with the report's: files of `report/html/js`
SCRIPTS = ("numbers", "theme", "elements", "state")


def _shared(name: str) -> str:
    return files("stepscope.report.html").joinpath(f"js/{name}.js").read_text(encoding="utf-8").strip() + "\n"


_STYLE = _source("view.css")
_SCRIPT = '"use strict";\n(() => {\n' + "".join(map(_shared, SCRIPTS)) + _source("view.js") + "})();\n"
# the page may run its own script, show its own style, ask this server, and frame the report
_POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


# Which rows of a table, in which order? Filters and sorts whole columns, so that a million rows take a moment.
#
# filter    words that all have to hold: `nccl` is in a text of the row, `rank=3` `dur_ns>1000` `op=all_reduce` compare
# sort      a column's name; unknown values come last either way

# columns of moments on a clock, shown since the first start of the table
_INSTANTS = ("start_ns", "launch_ns", "issue_ns")
_COMPARED = re.compile(r"^([a-z_0-9]+)(>=|<=|!=|=|>|<)(.+)$")

Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TableQuery:
    """What somebody wants to see of a table."""

    text: str = ""
    sort: str = ""
    down: bool = False


def chosen_rows(table: Table, query: TableQuery) -> Rows:
    """Return the rows that hold all words of the filter, sorted by an existing column on request."""
    keep = np.ones(len(table), bool)
    for word in query.text.split()[:16]:
        keep &= _holds(table, word)
    rows = np.flatnonzero(keep)
    if query.sort not in table.columns:
        return rows
    cells = table.cells[query.sort]
    order = np.argsort(_sortable(cells)[rows], kind="stable")
    rows = rows[order[::-1] if query.down else order]
    if cells.missing is None:
        return rows
    return np.concatenate((rows[~cells.missing[rows]], rows[cells.missing[rows]]))


def first_start_ns(table: Table) -> int | None:
    """Return the earliest start in a table, None where it has no moments."""
    cells = table.cells.get(_INSTANTS[0])
    return int(cells.values.min()) if cells is not None and len(cells.values) else None


def rows_of(table: Table, rows: Rows) -> Table:
    """Return some rows of a table as a table."""
    cells = {
        name: Cells(one.values[rows], one.texts, None if one.missing is None else one.missing[rows])
        for name, one in table.cells.items()
    }
    return Table(table.schema, cells)


def _holds(table: Table, word: str) -> Mask:
    compared = _COMPARED.match(word)
    if compared and compared[1] in table.columns:
        return _compares(table.cells[compared[1]], compared[2], compared[3])
    found = np.zeros(len(table), bool)
    for cells in table.cells.values():
        if cells.texts is not None:
            found |= _text_is(cells, lambda text: word.lower() in text.lower())
    return found


def _compares(cells: Cells, sign: str, said: str) -> Mask:
    if cells.texts is not None:
        same = _text_is(cells, lambda text: text.lower() == said.lower())
        return ~same if sign == "!=" else same if sign == "=" else np.zeros(len(same), bool)
    number = _number(said)
    known = np.ones(len(cells.values), bool) if cells.missing is None else ~cells.missing
    if number is None:
        return np.zeros(len(known), bool)
    compare: dict[str, Any] = {
        "=": np.equal, "!=": np.not_equal, ">": np.greater, "<": np.less, ">=": np.greater_equal, "<=": np.less_equal,
    }  # fmt: skip
    return known & np.asarray(compare[sign](cells.values, number))


def _text_is(cells: Cells, right: Any) -> Mask:
    texts: Iterable[str] = cells.texts or ()
    each = np.array([bool(right(text)) for text in texts] or [False])
    found = each[np.clip(cells.values, 0, len(each) - 1)]
    return found if cells.missing is None else found & ~cells.missing


def _sortable(cells: Cells) -> npt.NDArray[Any]:
    if cells.texts is None:
        return cells.values
    order = np.argsort(np.array([text.lower() for text in cells.texts] or [""], object), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[np.clip(cells.values, 0, len(place) - 1)]


def _number(said: str) -> float | int | None:
    if said in ("true", "false"):
        return int(said == "true")
    try:
        return int(said) if said.lstrip("-").isdigit() and len(said) < 19 else float(said)
    except ValueError:
        return None


# The pages of a folder of runs: a list that leads to the pages of each run, which are made on request.

# runs with cached pages; a fifth replaces the oldest
_MAX_KEPT = 4
_PLACE = "run/"


@dataclass(frozen=True)
class RunsSite:
    """A list of runs, and behind `run/N/` the site of each."""

    list_html: str
    #: the site of each run, in the order of the list
    make: tuple[Callable[[], Site], ...]
    _made: dict[int, Site] = field(default_factory=dict, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __call__(self, path: str, query: Mapping[str, str]) -> Answer | None:
        if path == "":
            return Answer(self.list_html.encode(errors="replace"), "text/html")
        number, slash, rest = path.removeprefix(_PLACE).partition("/")
        place = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else -1
        if not path.startswith(_PLACE) or not slash or not 0 <= place < len(self.make):
            return None
        return self._site(place)(rest, query)

    def _site(self, place: int) -> Site:
        with self._making:
            if place not in self._made:
                if len(self._made) >= _MAX_KEPT:
                    del self._made[next(iter(self._made))]
                self._made[place] = self.make[place]()
            return self._made[place]


def link_to(place: int) -> str:
    """Return where the list leads for the run at that place."""
    return f"{_PLACE}{place}/"


MAX_ROWS = 1000
PERFETTO = f"https://ui.perfetto.dev/#!/{EXPANDED}"


class Tables(Protocol):
    """The tables of a run by their names in `TABLES`."""

    def table(self, name: str) -> Table:
        """Return one of them."""


@dataclass(frozen=True)
class ViewSite:
    """The pages of one run. The timeline is made on first use and cached."""

    name: str
    report_html: str
    tables: Tables
    #: None where there is nothing to draw one of
    timeline: Callable[[], bytes] | None
    #: the tables that there are
    names: tuple[str, ...] = tuple(TABLES)
    #: address of the Perfetto page that the reader's click opens
    perfetto: str = PERFETTO
    _made: dict[str, bytes] = field(default_factory=dict, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __call__(self, path: str, query: Mapping[str, str]) -> Answer | None:
        if path == "":
            shown = {True: "", False: "hidden"}
            page = Template(_source("template.html")).substitute(
                name=html.escape(printable(self.name)),
                perfetto=html.escape(self.perfetto),
                tables=shown[bool(self.names)],
                timeline=shown[bool(self.timeline)],
                style=_STYLE,
                script=_SCRIPT,
            )
            return Answer(page.encode(), "text/html", {"Content-Security-Policy": _POLICY})
        if path == "report.html":
            return Answer(
                self.report_html.encode(errors="replace"),
                "text/html",
                {"Content-Security-Policy": "frame-ancestors 'self'"},
            )
        if path == "timeline" and self.timeline:
            return Answer(self._timeline(), "application/octet-stream")
        if path == "tables.json":
            return _json({"tables": [{"name": name, "meaning": TABLES[name].meaning} for name in self.names]})
        name, _, ending = path.removeprefix("tables/").rpartition(".")
        if path.startswith("tables/") and name in self.names and ending in ("json", "csv"):
            return self._table(name, ending, query)
        return None

    def _table(self, name: str, ending: str, query: Mapping[str, str]) -> Answer:
        with self._making:  # what several tables need is made once
            table = self.tables.table(name)
        wanted = TableQuery(query.get("filter", ""), query.get("sort", ""), query.get("down") == "1")
        if ending == "csv":
            chosen = rows_of(table, chosen_rows(table, wanted)) if wanted != TableQuery() else table
            named = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
            return Answer(b"".join(table_csv(chosen)), "text/csv", named)
        offset, limit = _whole(query.get("offset"), 0), _whole(query.get("limit"), 100)
        return _json(table_page(table, offset=offset, limit=limit, query=wanted))

    def _timeline(self) -> bytes:
        with self._making:
            if "timeline" not in self._made and self.timeline:
                self._made["timeline"] = self.timeline()
            return self._made["timeline"]


_EVERYTHING = TableQuery()


def table_page(table: Table, *, offset: int, limit: int, query: TableQuery = _EVERYTHING) -> dict[str, Any]:
    """Return some of the chosen rows of a table as JSON values, with the unit and the meaning of each column."""
    chosen = np.arange(len(table)) if query == _EVERYTHING else chosen_rows(table, query)
    shown = rows_of(table, chosen[offset : offset + min(limit, MAX_ROWS)])
    parts = [_values(shown.cells[name]) for name in table.columns]
    since = first_start_ns(table)
    return {
        "columns": [
            {"name": c.name, "unit": c.unit, "meaning": c.meaning, "is_instant": c.name in _INSTANTS}
            for c in table.schema.columns
        ],
        "rows": [list(row) for row in zip(*parts, strict=True)],
        "offset": offset,
        "chosen": len(chosen),
        "total": len(table),
        "first_start_ns": None if since is None else str(since),
    }


def _values(cells: Cells) -> list[Any]:
    raw = cells.values.tolist()
    texts = None if cells.texts is None else (*cells.texts, None)  # where all are unknown there is no text at all
    values = [_value(v) for v in raw] if texts is None else [texts[v] for v in raw]
    if cells.missing is None:
        return values
    return [None if gone else v for v, gone in zip(values, cells.missing.tolist(), strict=True)]


def _value(value: bool | int | float) -> bool | int | float | str | None:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool) or abs(value) < 2**53 else str(value)


def _whole(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else default


def _json(value: Any) -> Answer:
    return Answer(json_text(value).encode(errors="replace"), "application/json")
