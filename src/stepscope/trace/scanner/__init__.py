"""The scanner: a block of trace text in, columns out. C compiled to WebAssembly, run in a sandbox by wasmtime.

`Scanner` is one instance with its own memory and its own table of strings: one per thread. Calls release the GIL.
`scanner.wasm` is built from the C files here by `tools/build_scanner.py`.
"""

import ctypes
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import wasmtime

from stepscope.errors import InputError
from stepscope.trace.schema import ARGS, DENSE

WASM = Path(__file__).with_name("scanner.wasm")

_ROW_CAPACITY = 1 << 15
_SALVAGED_BYTES = 1 << 16
"""the end of a file whose events do not end properly: there may be fields in it"""
_CHUNK_ROWS = 1 << 16
_DENSE_DTYPES = tuple("uint32" if c.name == "offset" else c.dtype for c in DENSE)

_EXHAUSTED = (
    "more distinct strings than can be kept (4 million, or 512 MB of them); expected names to repeat; "
    "record fewer steps, or without stacks and shapes"
)

Buffer = bytes | bytearray | memoryview


class Exhausted(InputError):
    """A file needs more memory than a scanner may have."""


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


class TextFlags(IntFlag):
    """What is known of a text in the table of strings."""

    JSON = 1
    ESCAPED = 2
    SHORTENED = 4
    MENDED = 8


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

    def copy(self) -> "Rows":
        """Return the same rows in memory of their own."""
        return Rows(
            [column.copy() for column in self.columns],
            {number: (rows.copy(), values.copy()) for number, (rows, values) in self.args.items()},
        )


class Counts(NamedTuple):
    """Events dropped or mended and arguments left out: the fields of `table.Quality` of the same names."""

    malformed: int = 0
    bad_time: int = 0
    negative_duration: int = 0
    mended: int = 0
    bad_args: int = 0

    def plus(self, more: Iterable[int]) -> "Counts":
        """Return the sums."""
        return Counts(*(a + b for a, b in zip(self, more, strict=True)))


@dataclass(frozen=True)
class Parsed:
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


@cache
def _module(*, frugal: bool) -> tuple[wasmtime.Engine, wasmtime.Module]:
    """Return the compiled module. A frugal one reserves no addresses ahead, and so has to check every access."""
    config = wasmtime.Config()
    config.parallel_compilation = False  # one small module: threads cost more than they save
    if frugal:
        config.memory_reservation = config.memory_guard_size = 0
        config.memory_reservation_for_growth = 1 << 24
    engine = wasmtime.Engine(config)
    return engine, wasmtime.Module(engine, WASM.read_bytes())


@cache
def version() -> str:
    """Return a digest of the scanner's code."""
    return hashlib.sha256(WASM.read_bytes()).hexdigest()[:16]


class _Instance:
    """One instance of the module and a view of its memory."""

    def __init__(self) -> None:
        try:
            self._start(frugal=False)
        except wasmtime.WasmtimeError:  # address space is limited (ulimit -v): 4 GB of it are reserved per instance
            self._start(frugal=True)
        self._memory: npt.NDArray[np.uint8] | None = None

    def _start(self, *, frugal: bool) -> None:
        engine, module = _module(frugal=frugal)
        self._store = wasmtime.Store(engine)
        self._exports = wasmtime.Instance(self._store, module, []).exports(self._store)

    def call(self, name: str, *args: int) -> int:
        """Return what an exported function returns; addresses come back unsigned."""
        self._memory = None  # a call may let the memory grow
        return int(self._exports[name](self._store, *args)) & 0xFFFFFFFF

    def memory(self) -> npt.NDArray[np.uint8]:
        """Return a view of all memory, valid until the next call."""
        if self._memory is None:
            exported = self._exports["memory"]
            start = ctypes.addressof(exported.data_ptr(self._store).contents)
            raw: Any = (ctypes.c_uint8 * exported.data_len(self._store)).from_address(start)
            self._memory = np.frombuffer(raw, np.uint8)
        return self._memory

    def view(self, address: int, dtype: str, count: int) -> npt.NDArray[Any]:
        """Return a view of `count` values in memory, valid until the next call."""
        return self.memory()[address : address + count * np.dtype(dtype).itemsize].view(dtype)


class Scanner:
    """A parser of trace events with its own table of strings."""

    def __init__(self) -> None:
        self._wasm = _Instance()
        self._input = self._length = self._capacity = 0
        self._require(self._wasm.call("setup"))
        self._columns = [self._wasm.call("column_at", i) for i in range(len(DENSE))]
        self._result = self._wasm.call("result_at")
        self._arg_counts = self._wasm.call("arg_counts_at")
        self._arg_rows = self._wasm.call("arg_rows_at")
        self._arg_values = self._wasm.call("arg_values_at")
        keys = [(k.encode(), number, c.kind.value) for number, c in enumerate(ARGS) for k in c.keys]
        self.put(b"".join(bytes((len(text), column, kind)) + text for text, column, kind in keys))
        self._require(self._wasm.call("configure_keys", len(keys)))
        self._length = 0

    def put(self, piece: Buffer) -> None:
        """Add a piece to the block that will be parsed next."""
        length = self._length + len(piece)
        if length > self._capacity:
            self._capacity = 2 * length
            self._input = self._wasm.call("input_buffer", self._capacity, self._length)
            self._require(self._input)
        self._wasm.view(self._input + self._length, "uint8", len(piece))[:] = np.frombuffer(piece, np.uint8)
        self._length = length

    def parse(self, flags: Flags, sink: Callable[[Rows], None]) -> Parsed:
        """Parse the block that was put; `sink` is called with its rows, as often as they fill the columns."""
        length, self._length = self._length, 0
        totals = Counts()
        first_bad = None
        position = 0
        status = Status.ROWS_FULL
        while status == Status.ROWS_FULL:
            status = Status(self._wasm.call("parse", length, position, int(flags)))
            rows, position, lost, cut, *counts, bad_at, has_bad = self._wasm.view(self._result, "uint32", 11).tolist()
            totals = totals.plus(counts)
            if has_bad and first_bad is None:
                first_bad = bad_at
            if rows:
                sink(self._rows(rows))
            flags &= ~Flags.LOST
        if status == Status.EXHAUSTED:
            raise Exhausted(_EXHAUSTED)
        ended = status == Status.ARRAY_END
        if Flags.FINAL in flags and not ended:
            position = min(position, max(0, length - _SALVAGED_BYTES))
        rest = self._wasm.view(self._input + position, "uint8", length - position).tobytes()
        return Parsed(rest, ended, bool(lost), bool(cut), totals, first_bad)

    def texts(self) -> list[Text]:
        """Return all distinct texts seen so far, by their number."""
        count, address = self._wasm.view(self._result + 44, "uint32", 2).tolist()
        table = self._wasm.view(address, "uint32", 3 * count).reshape(count, 3).tolist()
        memory: Any = self._wasm.memory().data
        return [Text(bytes(memory[at : at + length]), TextFlags(flags)) for at, length, flags in table]

    def _rows(self, count: int) -> Rows:
        view = self._wasm.view
        columns = [view(at, dtype, count) for at, dtype in zip(self._columns, _DENSE_DTYPES, strict=True)]
        args = {}
        for column, n in enumerate(view(self._arg_counts, "uint32", len(ARGS)).tolist()):
            if n:
                args[column] = (
                    view(self._arg_rows + column * _ROW_CAPACITY * 4, "uint32", n),
                    view(self._arg_values + column * _ROW_CAPACITY * 8, "int64", n),
                )
        return Rows(columns, args)

    @staticmethod
    def _require(success: int) -> None:
        if not success:
            raise Exhausted(_EXHAUSTED)


def call_stack_parents(
    thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return for each row the innermost row of its thread that encloses it, or -1.

    Rows must be sorted by (thread, start, end descending). Of equal intervals the earlier row is the parent. An
    interval that begins where another ends is not enclosed by it. Where A and B cross (A starts first and ends
    inside B), neither is the other's child, and what lies in both belongs to B.
    """
    wasm = _Instance()
    chunk = wasm.call("stack_chunk")
    parents = np.empty(len(thread), np.int64)
    for first in range(0, len(thread), _CHUNK_ROWS):
        rows = slice(first, min(first + _CHUNK_ROWS, len(thread)))
        count = rows.stop - rows.start
        for i, column in enumerate((thread, start, end)):
            wasm.view(chunk + i * _CHUNK_ROWS * 8, "int64", count)[:] = column[rows]
        if not wasm.call("stack_parents", count, first):
            raise Exhausted("call stack too deep: expected less than 100 million events inside each other")
        parents[rows] = wasm.view(chunk + 3 * _CHUNK_ROWS * 8, "int64", count)
    return parents
