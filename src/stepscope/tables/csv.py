"""Tables as CSV that no spreadsheet takes for formulas: names come from traces, and traces are untrusted."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stepscope.tables.table import Cells, Table

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_ROWS_AT_ONCE = 50_000


def safe_text(text: str) -> str:
    """Return a text that a spreadsheet shows as it is; what would begin a formula gets a quote before it.

    >>> safe_text("=cmd()"), safe_text("aten::mm")
    ("'=cmd()", 'aten::mm')
    """
    return "'" + text if text.startswith(_FORMULA) else text


def table_csv(table: Table) -> Iterator[bytes]:
    """Yield a table as CSV, piece by piece; an unknown value is an empty cell."""
    yield _lines([table.columns]).encode()
    columns = [_cells(table.cells[name]) for name in table.columns]
    for first in range(0, len(table), _ROWS_AT_ONCE):
        rows = zip(*(column[first : first + _ROWS_AT_ONCE] for column in columns), strict=True)
        yield _lines(rows).encode(errors="replace")


def answer_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return the answer to a query as CSV."""
    return _lines([[safe_text(name) for name in columns], *([_cell(value) for value in row] for row in rows)])


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows, whose texts are safe already, as lines."""
    out = io.StringIO()
    csv.writer(out).writerows(rows)  # lines end in CR LF, so that a CR in a name is quoted
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return safe_text(str(value).lower() if isinstance(value, bool) else str(value))


def _cells(cells: Cells) -> list[Any]:
    """Return a column's values as they are written; each distinct text is made safe once."""
    listed = cells.values.tolist()
    if cells.texts is not None:
        safe = [safe_text(text) for text in cells.texts]
        listed = [safe[i] for i in listed] if safe else [""] * len(listed)
    elif cells.values.dtype == bool:
        listed = [("false", "true")[value] for value in listed]
    if cells.missing is None:
        return listed
    return ["" if missing else value for value, missing in zip(listed, cells.missing.tolist(), strict=True)]
