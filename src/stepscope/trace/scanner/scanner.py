"""A parser of trace events: blocks of text in, rows of columns out."""

from collections.abc import Callable, Iterable
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.trace.scanner.wasm import Instance, MemoryLimitError
from stepscope.trace.table import ARGS, DENSE

# What a scanner is told and what it gives back.

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
    #: nothing follows this block
    FINAL = 1
    #: the file is an array of events, not an object with `traceEvents`
    TOP_ARRAY = 2
    #: the block before ended in damage: search for an event first
    LOST = 4
    #: the rows that are there have been copied
    NEW_ROWS = 8


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
    #: from where on in the file, or in what was parsed of it, the offsets count
    origin: int

    @property
    def nbytes(self) -> int:
        of_args = sum(rows.nbytes + values.nbytes for rows, values in self.args.values())
        return sum(column.nbytes for column in self.columns) + of_args

    def copy(self) -> "Rows":
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
        return Counts(*(a + b for a, b in zip(self, more, strict=True)))


@dataclass(frozen=True)
class ParsedBlock:
    """What one block gave beside its rows. Offsets count from the block's first byte."""

    #: what was not read: the start of the next block, or what follows the events
    rest: bytes
    #: whether the array of events ended in this block
    ended: bool
    lost: bool
    #: whether the file ends inside an event
    cut: bool
    counts: Counts
    first_bad: int | None
    #: whether an object among the events has a list of events of its own
    holds_events: bool

    @property
    def clean(self) -> bool:
        """Return whether all of it were events, one after the other, and more are to come."""
        faults = self.ended or self.lost or self.cut or self.holds_events
        return not (faults or self.counts.malformed or self.counts.repaired)


# places in an argument's array, as in columns.h
_STRIDE = (1 << 15) + 112
# room for a block; memory that is not written to costs nothing, what is outgrown is not given back
_INPUT_BYTES = 4 << 20
# for a block that is parsed, the one before it, which may be looked at, and the one after it, which is filled
_NUM_ROOMS = 3
# before each of them, for what the block before left over
_REST_BYTES = 1 << 16
# bytes behind a block that parsing it writes to, as in text.h
_PADDING = 64
# bytes of a file whose rows are handed over together: offsets have 32 bits
_MAX_SPAN = 1 << 30
# the end of a file whose events do not end properly: there may be fields in it
_SALVAGED_BYTES = 1 << 16
_DENSE_DTYPES = tuple("uint32" if c.name == "offset" else c.dtype for c in DENSE)
# made once: there are thousands of texts
_TEXT_FLAGS = tuple(map(TextFlags, range(1 + sum(TextFlags))))

_EXHAUSTED = (
    "more distinct strings than can be kept (4 million, or 512 MB of them); names of a trace repeat; "
    "record fewer steps, or without stacks and shapes"
)


class Room(NamedTuple):
    """Where the bytes of a block are to lie."""

    #: behind where room for blocks begins
    at: int
    bytes: memoryview


class Scanner:
    """A parser of trace events with its own table of strings."""

    def __init__(self) -> None:
        self._wasm = Instance()
        self._input = self._length = self._capacity = 0
        self._pending = self._origin = 0  # rows, and where in the file their offsets count from
        layout = self._wasm.call("setup")
        self._require(layout)
        *self._columns, self._result, self._arg_counts, self._arg_rows, self._arg_values, self._request = (
            self._wasm.view(layout, "uint32", len(DENSE) + 5).tolist()
        )
        keys = [(k.encode(), number, c.kind.value) for number, c in enumerate(ARGS) for k in c.keys]
        self.put(b"".join(bytes((len(text), column, kind)) + text for text, column, kind in keys))
        self._require(self._wasm.call("configure_keys", len(keys)))
        self._length = 0

    def put(self, piece: Buffer) -> None:
        length = self._length + len(piece)
        if length > self._capacity:
            self._capacity = max(2 * length, _INPUT_BYTES)
            self._input = self._wasm.call("input_buffer", self._capacity, self._length)
            self._require(self._input)
        self._wasm.write(self._input + self._length, piece)
        self._length = length

    def parse(self, flags: Flags, sink: Callable[[Rows], None], *, offset: int = 0) -> ParsedBlock:
        """Parse the block that was put, which begins at byte `offset` of the file.

        `sink` is called with rows as often as they fill the columns; what does not waits for `finish`.
        """
        length, self._length = self._length, 0
        return self._parse(0, length, flags, sink, offset=offset)

    def _parse(self, start: int, end: int, flags: Flags, sink: Callable[[Rows], None], *, offset: int) -> ParsedBlock:
        if offset - self._origin > _MAX_SPAN:
            self.finish(sink)
        if not self._pending:
            self._origin = offset
        totals = Counts()
        first_bad = None
        position, another = start, 0
        status = Status.ROWS_FULL
        while status == Status.ROWS_FULL:
            new_rows = Flags.NONE if self._pending else Flags.NEW_ROWS
            asked = (end, position, flags | new_rows, (offset - self._origin - start) & 0xFFFFFFFF)
            self._wasm.view(self._request, "uint32", len(asked))[:] = asked
            status = Status(self._wasm.call("parse"))
            found = self._wasm.view(self._result, "uint32", 14).tolist()
            self._pending, position, lost, cut, *counts, bad_at, has_bad, _, _, holds_events = found
            another |= holds_events
            totals = totals.plus(counts)
            if has_bad and first_bad is None:
                first_bad = bad_at - start
            if status == Status.ROWS_FULL:
                self.finish(sink)
                self._origin = offset
            flags &= ~Flags.LOST
        if status == Status.EXHAUSTED:
            raise MemoryLimitError(_EXHAUSTED)
        ended = status == Status.ARRAY_END
        if Flags.FINAL in flags and not ended:
            position = min(position, max(start, end - _SALVAGED_BYTES))
        rest = self._wasm.view(self._input + position, "uint8", end - position).tobytes()
        return ParsedBlock(rest, ended, bool(lost), bool(cut), totals, first_bad, bool(another))

    @property
    def memory_moves(self) -> bool:
        """Return whether parsing may move the memory, so that no room stays where it is."""
        return self._wasm.may_move

    def room(self, number: int, size: int) -> Room:
        """Return where to put block `number` of up to `size` bytes, that of the one before it left as it is."""
        stride = _REST_BYTES + size + _PADDING
        if _NUM_ROOMS * stride > self._capacity:
            self._capacity = _NUM_ROOMS * stride
            self._input = self._wasm.call("input_buffer", self._capacity, 0)
            self._require(self._input)
        at = number % _NUM_ROOMS * stride + _REST_BYTES
        return Room(at, self._wasm.view(self._input + at, "uint8", size).data)

    def parse_room(
        self, room: Room, filled: int, flags: Flags, sink: Callable[[Rows], None], *, rest: bytes, offset: int
    ) -> ParsedBlock:
        """Parse the bytes that fill a room behind the `rest` of the block before, which begins at byte `offset`.

        `sink` is as in `parse`. The rest has to fit (`fits`).
        """
        start = room.at - len(rest)
        self._wasm.write(self._input + start, rest)
        return self._parse(start, room.at + filled, flags, sink, offset=offset)

    @staticmethod
    def fits(rest: bytes) -> bool:
        """Return whether there is room for what a block left over before the next."""
        return len(rest) <= _REST_BYTES

    def finish(self, sink: Callable[[Rows], None]) -> None:
        if self._pending:
            sink(self._rows(self._pending))
            self._pending = 0

    def num_texts(self) -> int:
        return int(self._wasm.view(self._result + 44, "uint32", 1)[0])

    def texts(self) -> list[Text]:
        count, address = self._wasm.view(self._result + 44, "uint32", 2).tolist()
        table = self._wasm.view(address, "uint32", 3 * count).reshape(count, 3).tolist()
        memory: Any = self._wasm.memory().data
        return [Text(bytes(memory[at : at + length]), _TEXT_FLAGS[flags]) for at, length, flags in table]

    def _rows(self, count: int) -> Rows:
        view = self._wasm.view
        columns = [view(at, dtype, count) for at, dtype in zip(self._columns, _DENSE_DTYPES, strict=True)]
        args = {}
        for column, n in enumerate(view(self._arg_counts, "uint32", len(ARGS)).tolist()):
            if n:
                args[column] = (
                    view(self._arg_rows + column * _STRIDE * 4, "uint32", n),
                    view(self._arg_values + column * _STRIDE * 8, "int64", n),
                )
        return Rows(columns, args, self._origin)

    @staticmethod
    def _require(success: int) -> None:
        if not success:
            raise MemoryLimitError(_EXHAUSTED)
