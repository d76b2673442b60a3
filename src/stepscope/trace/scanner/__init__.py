"""The scanner: a block of trace text in, columns out. C compiled to WebAssembly, run in a sandbox by wasmtime.

`Scanner` is one instance with its own memory and its own table of strings: one per thread. Calls release the GIL.
`scanner.wasm` is built from the C files here by `tools/build_scanner.py`:

    scanner.c     what the host calls, and the loop over a block's events
    shape.h       events that repeat, by comparing     columns.h   the rows being filled
    event.h       one event into the next row          waits.h     earliest times in a graph, for the replay
    recover.h     what happens where an event is bad   call_stack.h   who encloses whom
    text.h        where strings and values end         decimal.h   numbers, exactly
    intern.h      the table of distinct texts          memory.h    memory, loads and compares
    packets.h     Perfetto traces: packets of protobuf, in place of the loop over events
    slices.h      their begins and ends, paired
    repeats.h     cache of repeated packets            wire.h      protobuf fields
"""

import atexit
import ctypes
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import IntEnum, IntFlag
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.cache_files import open_trusted_file, write_trusted_file
from stepscope.errors import InputError
from stepscope.records import dataclass
from stepscope.stats.robust import distinct_places
from stepscope.trace.table import ARGS, DENSE
from stepscope.units import digest_of

# The scanner's WebAssembly module: loaded once per process, one instance with its own memory per scanner.
#
# Its machine code is cached in a separate folder where Python caches the bytecode of this package: compiling takes
# 40 ms, loading three. Loaded code runs as the current user, so it must come from that user or root, in a folder that
# no one else can write to (`cache_files`), and never from a trace's folder. The file begins with a digest of the
# module and of all that follows, against damage; wasmtime refuses code of another version or processor. Anything else
# is compiled again and replaced; where nothing can be written, nothing is cached.

if TYPE_CHECKING:
    import wasmtime  # at run time with the first instance: a cached run needs none

_WASM = Path(__file__).with_name("scanner.wasm")


def module_code() -> bytes:
    """Return the scanner's module as it was built."""
    return _WASM.read_bytes()


@cache
def version() -> str:
    """Return a digest of the scanner's code."""
    return digest_of(module_code(), 16)


# threads that come for the module at once wait for one of them
_compiling = Lock()


class MemoryLimitError(InputError):
    """A file needs more memory than an instance may have."""


def _module(*, frugal: bool) -> "tuple[wasmtime.Engine, wasmtime.Module]":
    with _compiling:
        return _compiled(frugal=frugal)


@cache
def _compiled(*, frugal: bool) -> "tuple[wasmtime.Engine, wasmtime.Module]":
    import wasmtime

    config = wasmtime.Config()
    config.parallel_compilation = False  # one small module: threads cost more than they save
    config.memory_may_move = frugal  # else it may be filled while code runs
    if frugal:
        config.memory_reservation = config.memory_guard_size = 0
        config.memory_reservation_for_growth = 1 << 24
    atexit.register(_compiled.cache_clear)  # before wasmtime, which frees them, is torn down
    engine, code = wasmtime.Engine(config), module_code()
    return engine, wasmtime.Module(engine, code) if frugal else module_of(engine, code)


_DIGEST_CHARACTERS = 32


def module_of(engine: "wasmtime.Engine", code: bytes) -> "wasmtime.Module":
    """Return the compiled module of some WebAssembly, from an earlier process where one left it."""
    import wasmtime

    place = machine_code_file()
    cached = _cached(place, code)
    if cached is not None:
        with suppress(wasmtime.WasmtimeError):  # of another wasmtime, or another processor
            return wasmtime.Module.deserialize(engine, cached)
    module = wasmtime.Module(engine, code)
    machine_code = bytes(module.serialize())
    write_trusted_file(place, [_digest(code, machine_code), machine_code], permissions=0o644)  # for all users
    return module


def machine_code_file() -> Path:
    """Return where the machine code is cached."""
    return Path(cache_from_source(__file__)).parent / "machine-code" / "scanner"


def _cached(place: Path, code: bytes) -> bytes | None:
    try:
        with open_trusted_file(place, max_bytes=8 << 20) as f:
            content = f.read()
    except OSError:
        return None
    machine_code = content[_DIGEST_CHARACTERS:]
    return machine_code if content[:_DIGEST_CHARACTERS] == _digest(code, machine_code) else None


def _digest(code: bytes, machine_code: bytes) -> bytes:
    return digest_of(digest_of(code).encode() + machine_code, _DIGEST_CHARACTERS).encode()


class Instance:
    """One instance of the module and a view of its memory."""

    def __init__(self) -> None:
        import wasmtime

        # the memory, when it grows
        self.may_move = False
        try:
            self._start(frugal=False)
        except wasmtime.WasmtimeError:  # address space is limited (ulimit -v): 4 GB of it are reserved per instance
            self._start(frugal=True)
            self.may_move = True
        self._memory: npt.NDArray[np.uint8] | None = None

    def _start(self, *, frugal: bool) -> None:
        import wasmtime

        engine, module = _module(frugal=frugal)
        self._store = wasmtime.Store(engine)
        self._exports = wasmtime.Instance(self._store, module, []).exports(self._store)

    def call(self, name: str, *args: int) -> int:
        """Return what an exported function returns; addresses come back unsigned."""
        self._memory = None  # a call may let the memory grow
        return int(self._exports[name](self._store, *args)) & 0xFFFFFFFF

    def run(self, name: str) -> None:
        """Call an exported function that returns nothing and does not grow the memory."""
        self._exports[name](self._store)

    def memory(self) -> npt.NDArray[np.uint8]:
        """Return a view of all memory, valid until the next call."""
        if self._memory is None:
            exported = self._exports["memory"]
            start = ctypes.addressof(exported.data_ptr(self._store).contents)
            raw: Any = (ctypes.c_uint8 * exported.data_len(self._store)).from_address(start)
            self._memory = np.frombuffer(raw, np.uint8)
        return self._memory

    def write(self, address: int, piece: bytes | bytearray | memoryview) -> None:
        self.memory()[address : address + len(piece)] = np.frombuffer(piece, np.uint8)

    def view(self, address: int, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        return np.ndarray((count,), dtype, self.memory(), address)


# Input and output of a scanner.

Buffer = bytes | bytearray | memoryview


class Status(IntEnum):
    """Why the scanner returned."""

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
    #: the file is a Perfetto trace
    PACKETS = 16


class TextFlags(IntFlag):
    """What is known of a text in the table of strings."""

    JSON = 1
    ESCAPED = 2
    SHORTENED = 4
    FIXED = 8


class Text(NamedTuple):
    """One distinct text as it is in the file."""

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
    #: of a Perfetto trace: durations and ends of earlier rows (`slices.h`)
    marks: npt.NDArray[np.void]

    @property
    def nbytes(self) -> int:
        of_args = sum(rows.nbytes + values.nbytes for rows, values in self.args.values())
        return sum(column.nbytes for column in self.columns) + of_args + self.marks.nbytes

    def copy(self) -> "Rows":
        return Rows(
            [column.copy() for column in self.columns],
            {number: (rows.copy(), values.copy()) for number, (rows, values) in self.args.items()},
            self.origin,
            self.marks.copy(),
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
    """The result of one block except its rows. Offsets count from the block's first byte."""

    #: what was not read: the start of the next block, or what follows the events
    rest: bytes
    #: whether the array of events ended in this block
    ended: bool
    lost: bool
    #: whether the file ends inside an event
    cut: bool
    counts: Counts
    first_bad: int | None
    #: whether an object among the events has its own list of events
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
# as in slices.h
MARK = np.dtype([("ns", "<i8"), ("row", "<u4"), ("track", "<i4")])
_DENSE_DTYPES = tuple("uint32" if c.name == "offset" else c.dtype for c in DENSE)
# made once: there are thousands of texts
_TEXT_FLAGS = tuple(map(TextFlags, range(1 + sum(TextFlags))))

_EXHAUSTED = (
    "more distinct strings than supported (4 million, or 512 MB of them); names of a trace repeat; "
    "record fewer steps, or without stacks and shapes"
)


class Room(NamedTuple):
    """Location of the bytes of a block."""

    #: behind where room for blocks begins
    at: int
    bytes: memoryview


class Scanner:
    """A parser of trace events with its own table of strings."""

    def __init__(self) -> None:
        self._wasm = Instance()
        self._input = self._length = self._capacity = 0
        self._pending = self._origin = 0  # rows and marks, and where in the file offsets count from
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
            found = self._wasm.view(self._result, "uint32", 16).tolist()
            rows, position, lost, cut, *counts, bad_at, has_bad, _, _, holds_events, marks, _ = found
            self._pending = rows + marks
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
        """Return the buffer of block `number` of up to `size` bytes, without changing that of the one before it."""
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
            sink(self._rows())
            self._pending = 0

    def num_texts(self) -> int:
        return int(self._wasm.view(self._result + 44, "uint32", 1)[0])

    def texts(self) -> list[Text]:
        count, address = self._wasm.view(self._result + 44, "uint32", 2).tolist()
        table = self._wasm.view(address, "uint32", 3 * count).reshape(count, 3).tolist()
        memory: Any = self._wasm.memory().data
        return [Text(bytes(memory[at : at + length]), _TEXT_FLAGS[flags]) for at, length, flags in table]

    def _rows(self) -> Rows:
        view = self._wasm.view
        count, *_, num_marks, marks = view(self._result, "uint32", 16).tolist()
        columns = [view(at, dtype, count) for at, dtype in zip(self._columns, _DENSE_DTYPES, strict=True)]
        args = {}
        for column, n in enumerate(view(self._arg_counts, "uint32", len(ARGS)).tolist()):
            if n:
                args[column] = (
                    view(self._arg_rows + column * _STRIDE * 4, "uint32", n),
                    view(self._arg_values + column * _STRIDE * 8, "int64", n),
                )
        return Rows(columns, args, self._origin, view(marks, MARK, num_marks))

    @staticmethod
    def _require(success: int) -> None:
        if not success:
            raise MemoryLimitError(_EXHAUSTED)


# Earliest times in a dependency graph, by the compiled module: a replay needs them for every change it tries.

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
_NO_MEMORY = "the graph of this run needs more than 4 GB: analyse fewer ranks or steps (--ranks, --steps)"


class WaitGraph:
    """Dependency graph in the module's memory. Not thread-safe."""

    def __init__(self, first_edge: Int64s, edge_from: Int64s, edge_lag_ns: Floats) -> None:
        self._edges = (first_edge, edge_from, edge_lag_ns)
        self._wasm = Instance()
        self._nodes = len(first_edge) - 1
        layout = self._wasm.call("waits_layout", self._nodes, len(edge_from))
        if not layout:
            raise MemoryLimitError(_NO_MEMORY)
        _, _, first, source, order, lag, self._earliest, self._duration, self._end = (
            int(address) for address in self._wasm.view(layout, "uint32", 9)
        )
        self._wasm.view(first, "uint32", self._nodes + 1)[:] = first_edge
        self._wasm.view(source, "uint32", len(edge_from))[:] = edge_from
        self._wasm.view(lag, "float64", len(edge_from))[:] = edge_lag_ns
        ordered = self._wasm.call("waits_order")
        if ordered == 0xFFFFFFFF:
            raise MemoryLimitError(_NO_MEMORY)
        # whether some nodes wait for each other, so that no order exists
        self.is_circular = ordered < self._nodes
        # every node after all it waits for
        self.order: Int64s = self._wasm.view(order, "uint32", ordered).astype(np.int64)

    def __reduce__(self) -> tuple[type["WaitGraph"], tuple[Int64s, Int64s, Floats]]:
        return (WaitGraph, self._edges)

    def ends(self, earliest_ns: Floats, duration_ns: Floats) -> Floats:
        """Return when each node ends that takes so long and starts no earlier than that."""
        self._wasm.view(self._earliest, "float64", self._nodes)[:] = earliest_ns
        self._wasm.view(self._duration, "float64", self._nodes)[:] = duration_ns
        self._wasm.run("waits_ends")
        return self._wasm.view(self._end, "float64", self._nodes).copy()

    def latest(self, last_ns: float, duration_ns: Floats) -> Floats:
        """Return by when each node that takes so long must end for all to have ended at `last_ns`."""
        self._wasm.view(self._end, "float64", self._nodes)[:] = last_ns
        self._wasm.view(self._duration, "float64", self._nodes)[:] = duration_ns
        self._wasm.run("waits_latest")
        return self._wasm.view(self._end, "float64", self._nodes).copy()


# Call-stack parents of events: by a real stack in the scanner's module, of few events without it.

# as in call_stack.h
CHUNK_ROWS = 1 << 15
# instances for reuse: making one takes longer than most stacks
_IDLE: "deque[Instance]" = deque(maxlen=4)
atexit.register(_IDLE.clear)  # before the code that frees their memory is unloaded


class Stacked(NamedTuple):
    """Rows by thread, start and end descending, as `call_stack_parents` wants them."""

    #: where each of them was
    order: npt.NDArray[np.intp]
    thread: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]


def stacked(
    thread: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    then: npt.NDArray[np.bool_] | None = None,
) -> Stacked:
    """Return rows by thread, start, end descending, and `then` at last.

    Rows come nearly sorted by start, which sorting by ends first would undo; so only those that start together are
    sorted by their ends.
    """
    order = _by_thread_and_start(thread, start)
    thread, start = thread.take(order), start.take(order)
    together = start[1:] == start[:-1]
    together &= thread[1:] == thread[:-1]
    if together.any():
        tied = np.flatnonzero(np.append(together, False) | np.append(False, together))
        group = np.cumsum(~np.append(False, together))[tied]
        rows = order[tied]
        keys = (-end[rows], group) if then is None else (then[rows], -end[rows], group)
        order[tied] = rows[np.lexsort(keys)]
    return Stacked(order, thread, start, end.take(order))


def _by_thread_and_start(thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    first = np.flatnonzero(np.append(True, thread[1:] != thread[:-1])[: len(thread)])  # rows of a thread come together
    of_run = distinct_places(thread[first])[1]
    wide = int(start.max(initial=0)) - int(start.min(initial=0)) + 1
    if wide * (int(of_run.max(initial=0)) + 1) > 1 << 62:  # times that no job has
        return np.lexsort((start, thread))
    moved = np.repeat(of_run * wide, np.diff(first, append=len(thread)))
    moved += start
    return np.argsort(moved, kind="stable")


def call_stack_parents(
    thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return for each row the innermost row of its thread that encloses it, or -1.

    Rows must be sorted as `stacked` does. Of equal intervals the earlier row is the parent. An interval that begins
    where another ends is not enclosed by it. Where A and B cross (A starts first and ends inside B), neither is the
    other's child, and their overlap belongs to B.
    """
    if not len(thread):
        return np.empty(0, np.int64)
    try:
        wasm = _IDLE.pop()
    except IndexError:  # there is none yet, or all are at work on other threads
        few = _parents_of_few(thread, start, end) if len(thread) <= 1 << 13 else None
        if few is not None:
            return few
        wasm = Instance()
    parents = _parents_by_stack(wasm, thread, start, end)
    _IDLE.append(wasm)
    return parents


def _parents_of_few(
    thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64] | None:
    """Return the same where that is faster than making an instance, None where rows nest too deeply.

    The first candidate is the row before; while a candidate does not enclose the row, the candidate's parent is next.
    No row between the two can enclose it, as none encloses both.
    """
    parent = np.arange(-1, len(thread) - 1)
    asking = np.arange(len(thread))
    for _ in range(64):
        asked = parent.take(asking)
        other = thread[asked] != thread[asking]
        asked[other] = parent[asking[other]] = -1
        from_ns, to_ns = start.take(asking), end[asked]
        encloses = (end.take(asking) <= to_ns) & ((from_ns < to_ns) | (from_ns == start[asked]))
        left = np.flatnonzero((asked >= 0) & ~encloses)
        if not len(left):
            return parent
        asking = asking.take(left)
        parent[asking] = parent.take(asked.take(left))
    return None


def _parents_by_stack(
    wasm: "Instance", thread: npt.NDArray[np.int64], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    chunk = wasm.call("stack_chunk")
    parents = np.empty(len(thread), np.int64)
    for first in range(0, len(thread), CHUNK_ROWS):
        rows = slice(first, min(first + CHUNK_ROWS, len(thread)))
        count = rows.stop - rows.start
        for i, column in enumerate((thread, start, end)):
            wasm.view(chunk + i * CHUNK_ROWS * 8, "int64", count)[:] = column[rows]
        if not wasm.call("stack_parents", count, first):
            raise MemoryLimitError("call stack too deep: 100 million or more nested events")
        parents[rows] = wasm.view(chunk + 3 * CHUNK_ROWS * 8, "int64", count)
    return parents
