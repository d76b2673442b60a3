"""What `stepscope view` answers to which path: the page, the report, the tables in pages of rows, the timeline."""

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from stepscope.dataclass import dataclass
from stepscope.json_text import json_text
from stepscope.report.view.server import Answer
from stepscope.report.view.shell import POLICY, shell_page
from stepscope.report.view.table_query import INSTANTS, TableQuery, chosen_rows, first_start_ns, rows_of
from stepscope.tables.csv import table_csv
from stepscope.tables.schema import TABLES
from stepscope.tables.table import Cells, Table

MAX_ROWS = 1000
PERFETTO = "https://ui.perfetto.dev"
_FRAMED = {"Content-Security-Policy": "frame-ancestors 'self'"}


class Tables(Protocol):
    """The tables of a run by their names in `TABLES`."""

    def table(self, name: str) -> Table:
        """Return one of them."""


@dataclass(frozen=True)
class ViewSite:
    """The pages of one run. The timeline is made when it is first asked for, and kept."""

    name: str
    report_html: str
    tables: Tables
    timeline: Callable[[], bytes] | None
    """None where there is nothing to draw one of"""
    names: tuple[str, ...] = tuple(TABLES)
    """the tables that there are"""
    perfetto: str = PERFETTO
    """address of the Perfetto page that the reader's click opens"""
    _made: dict[str, bytes] = field(default_factory=dict, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __call__(self, path: str, query: Mapping[str, str]) -> Answer | None:
        """Return what lies at a path, None where nothing does."""
        if path == "":
            page = shell_page(
                self.name, perfetto=self.perfetto, has_tables=bool(self.names), has_timeline=bool(self.timeline)
            )
            return Answer(page.encode(), "text/html", {"Content-Security-Policy": POLICY})
        if path == "report.html":
            return Answer(self.report_html.encode(errors="replace"), "text/html", _FRAMED)
        if path == "timeline" and self.timeline:
            return Answer(self._timeline(), "application/octet-stream")
        if path == "tables.json":
            return _json({"tables": [{"name": name, "meaning": TABLES[name].meaning} for name in self.names]})
        name, _, ending = path.removeprefix("tables/").rpartition(".")
        if path.startswith("tables/") and name in self.names and ending in ("json", "csv"):
            return self._table(name, ending, query)
        return None

    def _table(self, name: str, ending: str, query: Mapping[str, str]) -> Answer:
        """Return a page of a table's chosen rows, or all of them as CSV."""
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
            {"name": c.name, "unit": c.unit, "meaning": c.meaning, "is_instant": c.name in INSTANTS}
            for c in table.schema.columns
        ],
        "rows": [list(row) for row in zip(*parts, strict=True)],
        "offset": offset,
        "chosen": len(chosen),
        "total": len(table),
        "first_start_ns": None if since is None else str(since),
    }


def _values(cells: Cells) -> list[Any]:
    """Return a column's values, None where unknown."""
    raw = cells.values.tolist()
    texts = None if cells.texts is None else (*cells.texts, None)  # where all are unknown there is no text at all
    values = [_value(v) for v in raw] if texts is None else [texts[v] for v in raw]
    if cells.missing is None:
        return values
    return [None if gone else v for v, gone in zip(values, cells.missing.tolist(), strict=True)]


def _value(value: bool | int | float) -> bool | int | float | str | None:
    """Return a number as a page can hold it: NaN is null, whole numbers that it would round are text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool) or abs(value) < 2**53 else str(value)


def _whole(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else default


def _json(value: Any) -> Answer:
    return Answer(json_text(value).encode(errors="replace"), "application/json")
