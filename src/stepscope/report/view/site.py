"""What `stepscope view` answers to which path: the page, the report, the tables in pages of rows, the timeline."""

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepscope.report.view.server import Answer
from stepscope.report.view.shell import POLICY, shell_page

MOST_ROWS = 1000
PERFETTO = "https://ui.perfetto.dev"
_FRAMED = {"Content-Security-Policy": "frame-ancestors 'self'"}


class Tables(Protocol):
    """Named tables of a run, each as columns of equal length."""

    def names(self) -> Sequence[str]:
        """Return what tables there are."""

    def columns(self, name: str) -> Mapping[str, Sequence[Any]]:
        """Return the columns of one of them."""


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
            return _json({"tables": list(self.tables.names())})
        if path.startswith("tables/") and path.endswith(".json"):
            return self._page(path[len("tables/") : -len(".json")], query)
        return None

    def _page(self, name: str, query: Mapping[str, str]) -> Answer | None:
        if name not in self.tables.names():
            return None
        offset, limit = _whole(query.get("offset"), 0), _whole(query.get("limit"), 100)
        return _json(table_page(self.tables.columns(name), offset=offset, limit=limit))

    def _timeline(self) -> bytes:
        with self._making:
            if "timeline" not in self._made:
                self._made["timeline"] = self.timeline()
            return self._made["timeline"]


def table_page(columns: Mapping[str, Sequence[Any]], *, offset: int, limit: int) -> dict[str, Any]:
    """Return some rows of a table as JSON values: `columns`, `rows`, `offset`, `total`.

    >>> table_page({"rank": [0, 1, 2], "ms": [1.5, float("nan"), 3.0]}, offset=1, limit=1)
    {'columns': ['rank', 'ms'], 'rows': [[1, None]], 'offset': 1, 'total': 3}
    """
    total = max((len(values) for values in columns.values()), default=0)
    end = offset + min(limit, MOST_ROWS)
    parts = [[_value(v) for v in values[offset:end]] for values in columns.values()]
    rows = [list(row) for row in zip(*parts, strict=True)]
    return {"columns": list(columns), "rows": rows, "offset": offset, "total": total}


def _value(value: Any) -> Any:
    """Return a cell as a JSON value; NaN is null, and whole numbers that a page would round are text."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str) else str(value)


def _whole(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else default


def _json(value: Any) -> Answer:
    return Answer(json.dumps(value, separators=(",", ":")).encode(errors="replace"), "application/json")
