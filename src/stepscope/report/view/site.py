"""What `stepscope view` answers to which path: the page, the report, the tables in pages of rows, the timeline."""

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepscope.json_text import json_text
from stepscope.report.view.server import Answer
from stepscope.report.view.shell import POLICY, shell_page
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
    timeline: Callable[[], bytes]
    perfetto: str = PERFETTO
    """address of the Perfetto page that the reader's click opens"""
    _made: dict[str, bytes] = field(default_factory=dict, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __call__(self, path: str, query: Mapping[str, str]) -> Answer | None:
        """Return what lies at a path, None where nothing does."""
        if path == "":
            page = shell_page(self.name, perfetto=self.perfetto)
            return Answer(page.encode(), "text/html", {"Content-Security-Policy": POLICY})
        if path == "report.html":
            return Answer(self.report_html.encode(errors="replace"), "text/html", _FRAMED)
        if path == "timeline":
            return Answer(self._timeline(), "application/octet-stream")
        if path == "tables.json":
            return _json({"tables": [{"name": name, "meaning": schema.meaning} for name, schema in TABLES.items()]})
        if path.startswith("tables/") and path.endswith(".json"):
            return self._page(path[len("tables/") : -len(".json")], query)
        return None

    def _page(self, name: str, query: Mapping[str, str]) -> Answer | None:
        if name not in TABLES:
            return None
        offset, limit = _whole(query.get("offset"), 0), _whole(query.get("limit"), 100)
        with self._making:  # what several tables need is made once
            table = self.tables.table(name)
        return _json(table_page(table, offset=offset, limit=limit))

    def _timeline(self) -> bytes:
        with self._making:
            if "timeline" not in self._made:
                self._made["timeline"] = self.timeline()
            return self._made["timeline"]


def table_page(table: Table, *, offset: int, limit: int) -> dict[str, Any]:
    """Return some rows of a table as JSON values, with the unit and the meaning of each column."""
    rows = slice(offset, offset + min(limit, MAX_ROWS))
    parts = [_values(table.cells[name], rows) for name in table.columns]
    return {
        "columns": [{"name": c.name, "unit": c.unit, "meaning": c.meaning} for c in table.schema.columns],
        "rows": [list(row) for row in zip(*parts, strict=True)],
        "offset": offset,
        "total": len(table),
    }


def _values(cells: Cells, rows: slice) -> list[Any]:
    """Return a column's values in these rows, None where unknown."""
    raw = cells.values[rows].tolist()
    texts = None if cells.texts is None else (*cells.texts, None)  # where all are unknown there is no text at all
    values = [_value(v) for v in raw] if texts is None else [texts[v] for v in raw]
    if cells.missing is None:
        return values
    return [None if gone else v for v, gone in zip(values, cells.missing[rows].tolist(), strict=True)]


def _value(value: bool | int | float) -> bool | int | float | str | None:
    """Return a number as a page can hold it: NaN is null, whole numbers that it would round are text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool) or abs(value) < 2**53 else str(value)


def _whole(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else default


def _json(value: Any) -> Answer:
    return Answer(json_text(value).encode(errors="replace"), "application/json")
