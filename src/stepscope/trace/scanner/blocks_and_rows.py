"""What a scanner is told and what it gives back."""

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass

Buffer = bytes | bytearray | memoryview


class Status(IntEnum):
    """Why the scanner came back."""

    NEED_MORE = 0
    ROWS_FULL = 1
    ARRAY_END = 2
    EXHAUSTED = 3


class Flags(IntFlag):
    """What the scanner has to know of a block."""

    NONE = 0
    FINAL = 1
    """nothing follows this block"""
    TOP_ARRAY = 2
    """the file is an array of events, not an object with `traceEvents`"""
    LOST = 4
    """the block before ended in damage: search for an event first"""
    NEW_ROWS = 8
    """the rows that are there have been copied"""


class TextFlags(IntFlag):
    """What is known of a text in the table of strings."""

    JSON = 1
    ESCAPED = 2
    SHORTENED = 4
    FIXED = 8


class Text(NamedTuple):
    """One distinct text as it stands in the file."""

    raw: bytes
    flags: TextFlags


class Rows(NamedTuple):
    """Rows of one call: `columns` in the order of `schema.DENSE`, `args` by the column's number in `schema.ARGS`.

    The arrays are views of the scanner's memory, valid until it is called again.
    """

    columns: list[npt.NDArray[Any]]
    args: dict[int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]
    origin: int
    """from where on in the file, or in what was parsed of it, the offsets count"""

    @property
    def nbytes(self) -> int:
        """Return the bytes that the rows take in the table."""
        of_args = sum(rows.nbytes + values.nbytes for rows, values in self.args.values())
        return sum(column.nbytes for column in self.columns) + of_args

    def copy(self) -> "Rows":
        """Return the same rows in memory of their own."""
        return Rows(
            [column.copy() for column in self.columns],
            {number: (rows.copy(), values.copy()) for number, (rows, values) in self.args.items()},
            self.origin,
        )


class Counts(NamedTuple):
    """Events dropped or fixed and arguments left out: the fields of `table.Quality` of the same names."""

    malformed: int = 0
    bad_time: int = 0
    negative_duration: int = 0
    repaired: int = 0
    bad_args: int = 0

    def plus(self, more: Iterable[int]) -> "Counts":
        """Return the sums."""
        return Counts(*(a + b for a, b in zip(self, more, strict=True)))


@dataclass(frozen=True)
class ParsedBlock:
    """What one block gave beside its rows. Offsets count from the block's first byte."""

    rest: bytes
    """what was not read: the start of the next block, or what follows the events"""
    ended: bool
    """whether the array of events ended in this block"""
    lost: bool
    cut: bool
    """whether the file ends inside an event"""
    counts: Counts
    first_bad: int | None
    holds_events: bool
    """whether an object among the events has a list of events of its own"""

    @property
    def clean(self) -> bool:
        """Return whether all of it were events, one after the other, and more are to come."""
        faults = self.ended or self.lost or self.cut or self.holds_events
        return not (faults or self.counts.malformed or self.counts.repaired)
