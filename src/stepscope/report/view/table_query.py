"""Which rows of a table, in which order? Filters and sorts whole columns, so that a million rows take a moment.

filter    words that all have to hold: `nccl` is in a text of the row, `rank=3` `dur_ns>1000` `op=all_reduce` compare
sort      a column's name; unknown values come last either way
"""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.tables.table import Cells, Table

MAX_WORDS = 16
INSTANTS = ("start_ns", "launch_ns", "issue_ns")
"""columns of moments on a clock, shown since the first start of the table"""
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
    """Return the rows that hold all words of the filter, sorted where asked by a column that there is."""
    keep = np.ones(len(table), bool)
    for word in query.text.split()[:MAX_WORDS]:
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
    cells = table.cells.get(INSTANTS[0])
    return int(cells.values.min()) if cells is not None and len(cells.values) else None


def rows_of(table: Table, rows: Rows) -> Table:
    """Return some rows of a table as a table."""
    cells = {
        name: Cells(one.values[rows], one.texts, None if one.missing is None else one.missing[rows])
        for name, one in table.cells.items()
    }
    return Table(table.schema, cells)


def _holds(table: Table, word: str) -> Mask:
    """Return in which rows one word of the filter holds."""
    compared = _COMPARED.match(word)
    if compared and compared[1] in table.columns:
        return _compares(table.cells[compared[1]], compared[2], compared[3])
    found = np.zeros(len(table), bool)
    for cells in table.cells.values():
        if cells.texts is not None:
            found |= _text_is(cells, lambda text: word.lower() in text.lower())
    return found


def _compares(cells: Cells, sign: str, said: str) -> Mask:
    """Return in which rows a column compares as the filter says; where it is unknown it does not."""
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
    """Return in which rows a text is right; each distinct one is asked once."""
    texts: Iterable[str] = cells.texts or ()
    each = np.array([bool(right(text)) for text in texts] or [False])
    found = each[np.clip(cells.values, 0, len(each) - 1)]
    return found if cells.missing is None else found & ~cells.missing


def _sortable(cells: Cells) -> npt.NDArray[Any]:
    """Return numbers that sort as the values do: of texts their place in the alphabet."""
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
