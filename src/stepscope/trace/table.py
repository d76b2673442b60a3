"""One trace file as columns: what every reader returns and everything after it works on."""

from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.trace.schema import NO_STRING, STRING_ID_BASE

Int64s = npt.NDArray[np.int64]
_DENSE_FROM = 32
"""rows of a column for each row asked for, at which a dense copy of it pays"""
_SMALL = 1 << 31


@dataclass(frozen=True, eq=False, repr=False)
class SparseColumn(ArrayRecord):
    """One argument: `values[i]` belongs to event row `rows[i]`; rows ascend."""

    rows: npt.NDArray[np.integer[Any]]
    values: npt.NDArray[np.integer[Any]]
    """of a text its number; of a decimal number its bits as int64; all others in 32 bits where they fit"""

    def dense(self, num_rows: int, *, missing: int) -> Int64s:
        """Return one value per event row, `missing` where the event has none."""
        out = np.full(num_rows, missing, np.int64)
        out[self.rows.astype(np.intp)] = self.values  # an index of 32 bits takes four times as long
        return out

    def at(self, rows: npt.NDArray[Any], *, missing: int) -> Int64s:
        """Return the values at the given event rows, `missing` where the event has none."""
        if not len(self.rows):
            return np.full(len(rows), missing, np.int64)
        end = int(self.rows[-1]) + 1
        if _DENSE_FROM * len(rows) >= end and int(rows.min()) >= 0:  # looked up in less time than it is searched
            there = self.rows.astype(np.intp)
            if self.values.itemsize == 4 and abs(missing) < _SMALL:
                table = np.full(end + 1, missing, self.values.dtype)  # in the last place: no such row
                table[there] = self.values
                return table.take(np.minimum(rows, end)).astype(np.int64)
            table = np.zeros(end + 1, np.int32)  # half as large as one of values, 0 for a row that has none
            table[there] = np.arange(1, len(there) + 1, dtype=np.int32)
            place = table.take(np.minimum(rows, end))
            return np.where(place > 0, self.values.take(place - 1), np.int64(missing))
        wanted = rows.astype(self.rows.dtype, copy=False)  # else all of the column's rows are made as wide as these
        i = np.minimum(np.searchsorted(self.rows, wanted), len(self.rows) - 1)
        return np.where(self.rows[i] == wanted, self.values[i], np.int64(missing))


@dataclass(frozen=True)
class Quality:
    """What reading had to drop, fix or shorten. Every non-zero count becomes a warning."""

    truncated: bool = False
    malformed: int = 0
    """events that were no JSON and are lost"""
    bad_time: int = 0
    """events dropped for a ts or dur that is no finite number, out of range or missing where needed"""
    negative_duration: int = 0
    far_times: int = 0
    """events whose time cannot belong to the window that the others span, left out"""
    repaired: int = 0
    """events that were read although their JSON was bad (bare quotes, control characters)"""
    bad_text: int = 0
    """distinct strings with invalid UTF-8, lone surrogates or bad escapes, replaced"""
    shortened: int = 0
    """distinct strings longer than the limit, shortened"""
    bad_args: int = 0
    """argument values of the wrong type or out of range, left out; `notes` names those out of range"""
    first_bad_offset: int | None = None
    notes: tuple[str, ...] = ()
    """anything else worth telling: byte-order mark, trailing garbage"""


@dataclass(frozen=True, eq=False, repr=False)
class Trace(ArrayRecord):
    """One trace file: columns of `schema.DENSE`, sparse columns of `schema.ARGS`, strings and header.

    `header` holds the top-level fields beside `traceEvents` (`distributedInfo`, `deviceProperties`, ...).
    """

    path: str
    raw_bytes: int
    header: dict[str, Any]
    strings: list[str]
    columns: dict[str, npt.NDArray[Any]]
    args: dict[str, SparseColumn]
    quality: Quality = field(default_factory=Quality)
    from_cache: bool = False

    @property
    def num_events(self) -> int:
        """Return the number of rows."""
        return len(self.columns["ts_ns"])

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        return self.columns[column]

    def arg(self, name: str) -> SparseColumn:
        """Return a sparse column; an empty one where no event has it."""
        return self.args.get(name) or SparseColumn(np.empty(0, np.int64), np.empty(0, np.int64))

    def text(self, string_id: int) -> str | None:
        """Return the string of an id in `cat`, `name` or a TEXT argument; None for `NO_STRING`."""
        return None if string_id == NO_STRING else self.strings[string_id]

    def id_text(self, value: int) -> str:
        """Return a `pid` or `tid` as people read it, whether it was a number or a string."""
        return self.strings[value - STRING_ID_BASE] if value < STRING_ID_BASE // 2 else str(value)
