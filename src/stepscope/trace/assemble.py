"""Rows of many blocks to the columns of one table: joined, numbered through, strings shared.

Column by column, freeing the parts as it goes: at no time is there more than one column twice in memory.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.blocks import Events
from stepscope.trace.schema import ARGS, DENSE, NO_STRING, STRING_ID_BASE, ArgKind
from stepscope.trace.table import Sparse
from stepscope.trace.texts import decode_all

Ids = npt.NDArray[np.int64]
_STRING_COLUMNS = ("cat", "name")
_ID_COLUMNS = ("pid", "tid")


class Strings:
    """One table of strings for all scanners: `of[scanner]` gives each scanner's numbers in it, None if equal."""

    def __init__(self, events: Events) -> None:
        ids: dict[str, int] = {}
        self.of: list[Ids | None] = []
        bad: set[str] = set()
        short: set[str] = set()
        for scanner in events.scanners:
            decoded = decode_all(scanner.texts())
            numbers = np.fromiter((ids.setdefault(d.text, len(ids)) for d in decoded), np.int64, len(decoded))
            self.of.append(None if np.array_equal(numbers, np.arange(len(numbers))) else numbers)
            bad.update(d.text for d in decoded if d.replaced)
            short.update(d.text for d in decoded if d.shortened)
        self.strings = list(ids)
        self.num_bad, self.num_shortened = len(bad), len(short)


def dense_columns(events: Events, strings: Strings) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of `schema.DENSE`; takes them out of the parts."""
    num_rows = sum(len(part.columns[0]) for _, _, part in events.parts)
    columns: dict[str, npt.NDArray[Any]] = {}
    for number, column in enumerate(DENSE):
        out = np.empty(num_rows, column.dtype)
        at = 0
        for scanner, offset, part in events.parts:
            values = part.columns[number]
            here = out[at : at + len(values)]
            here[:] = values
            at += len(values)
            if column.name == "offset":
                here += offset
            elif column.name in _STRING_COLUMNS:
                _renumber(here, strings.of[scanner], here != NO_STRING, base=0)
            elif column.name in _ID_COLUMNS:
                _renumber(here, strings.of[scanner], here < STRING_ID_BASE // 2, base=STRING_ID_BASE)
            part.columns[number] = values[:0] if number else values
        columns[column.name] = out
    return columns


def sparse_columns(events: Events, strings: Strings) -> tuple[dict[str, Sparse], int]:
    """Return the columns of `schema.ARGS` that any event has, and how many values were no numbers."""
    columns: dict[str, Sparse] = {}
    bad = 0
    for number, column in enumerate(ARGS):
        total = sum(len(part.args[number][0]) for _, _, part in events.parts if number in part.args)
        if not total:
            continue
        rows, values = np.empty(total, np.int32), np.empty(total, np.int64)
        at = first_row = 0
        for scanner, _, part in events.parts:
            if number in part.args:
                part_rows, part_values = part.args.pop(number)
                here = slice(at, at + len(part_rows))
                np.add(part_rows, first_row, out=rows[here], casting="unsafe")
                values[here] = part_values
                if column.kind is not ArgKind.INT:
                    _renumber(values[here], strings.of[scanner], np.True_, base=0)
                at += len(part_rows)
            first_row += len(part.columns[0])
        if column.kind is ArgKind.FLOAT:
            rows, values = _floats(rows, values, strings.strings)
            bad += total - len(rows)
        columns[column.name] = Sparse(rows, values)
    return columns, bad


def _renumber(values: npt.NDArray[Any], numbers: Ids | None, which: Any, *, base: int) -> None:
    if numbers is not None and len(numbers):
        values[...] = np.where(which, numbers[np.where(which, values - base, 0)] + base, values)


def _floats(rows: npt.NDArray[Any], ids: Ids, strings: list[str]) -> tuple[npt.NDArray[Any], Ids]:
    """Return the bits of the numbers that the texts hold; those that hold none are left out."""
    distinct, which = np.unique(ids, return_inverse=True)
    numbers = np.array([_float(strings[i]) for i in distinct])[which]
    finite = np.isfinite(numbers)
    return rows[finite], numbers[finite].view(np.int64)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
