"""One trace file to one table.

`read` is the way in: it finds the events (`header`), unpacks the file (`streams`), parses it block by block
(`blocks`, `scanner`) and joins the parts (`assemble`, `texts`). Damage ends up in `Quality`.
"""

import ctypes
import json
import mmap
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.errors import InputError, TraceError
from stepscope.records import ArrayRecord, dataclass
from stepscope.side_file import ParsedJson, unusable_fields, usable
from stepscope.trace.scanner import (
    Buffer,
    Counts,
    Flags,
    MemoryLimitError,
    ParsedBlock,
    Room,
    Rows,
    Scanner,
    Text,
    TextFlags,
)
from stepscope.trace.streams import Filler, Stream
from stepscope.trace.table import (
    ARGS,
    DENSE,
    NO_STRING,
    STRING_ID_BASE,
    ArgKind,
    Quality,
    SparseColumn,
    Trace,
    drop_implausible,
)

# Memory limit for the tables of some input, derived from the input's size on disk.
#
# Tables of 25 real traces, ours and of other projects, on NVIDIA, AMD and MTIA, took 4.0 to 6.3 times their gzipped
# size.
# Input that asks for three times as much is not what a profiler wrote: a few kilobytes can unpack to gigabytes of empty
# events.

# of a distinct string: in the scanner, as bytes, as text, and in the table of strings
BYTES_PER_TEXT = 300
# bytes in memory of a byte of JSON at worst, a list of small objects
JSON_FACTOR = 32


class OverBudget(InputError):
    """Input whose tables would take more memory than its size accounts for."""


class Budget:
    """The memory that the tables of one input may take together; shared by all threads that read it."""

    def __init__(self, input_bytes: int) -> None:
        self.limit_bytes = max(256 << 20, 20 * input_bytes)
        self._used_bytes = 0
        self._lock = Lock()

    def share(self) -> "Share":
        return Share(self)

    def _take(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes += size_bytes
            over = self._used_bytes > self.limit_bytes
        if over:
            raise OverBudget(
                f"needs more memory than its size accounts for ({self.limit_bytes >> 20} MB for all files together); "
                "it multiplies when it is read, as traces of a profiler do not; record fewer steps if it is one"
            )


class Share:
    """What one file took; given back where the file turns out to be none."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken_bytes = 0

    def take(self, size_bytes: int) -> None:
        self._taken_bytes += size_bytes
        self._budget._take(size_bytes)

    def give_back(self) -> None:
        with self._budget._lock:
            self._budget._used_bytes -= self._taken_bytes
        self._taken_bytes = 0


# Freed memory: reading a trace leaves tens of megabytes. In another program's process they are returned to the system;
# in a command the analyses reuse them, because clearing new pages costs as much as filling them.

# of raw text
_WORTH_RETURNING_BYTES = 32 << 20
# the most that glibc takes
_MAX_IN_HEAP_BYTES = 32 << 20
# of `mallopt` in glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_is_kept = False


def keep_freed() -> None:
    """Let arrays use the memory of those before them, whichever thread had them: from now on, in all of this process.

    For commands alone. Only glibc can.
    """
    global _is_kept
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, _MAX_IN_HEAP_BYTES)
        library.mallopt(_TRIM_THRESHOLD, 64 << 20)
        _is_kept = True


def return_freed(raw_bytes: int) -> None:
    """Return memory to the system after reading `raw_bytes`, unless the heap is retained. glibc only."""
    if raw_bytes >= _WORTH_RETURNING_BYTES and not _is_kept:
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)


# Raw texts of the scanner to strings: each distinct one is decoded once, escapes resolved, damage replaced.

_BAD_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f]")
_JSON_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s*([,:])\s*|\s+')
_BARE_QUOTE = re.compile(r'\\.|"', re.DOTALL)

_PLAIN, _JSON = TextFlags(0), TextFlags.JSON
_REPLACEMENT = "\ufffd"


class DecodedTexts(NamedTuple):
    """Strings, and which of them something had to be done to."""

    texts: list[str]
    replaced: set[str]
    shortened: set[str]


def _decode_all(texts: Iterable[Text]) -> DecodedTexts:
    """Return the strings of the scanner's texts in their order: the content of a JSON string, or the JSON text of
    another value in one spelling.
    """
    out: list[str] = []
    replaced: set[str] = set()
    shortened: set[str] = set()
    for raw, flags in texts:
        try:
            plain, is_sound = raw.decode(), True
        except UnicodeDecodeError:
            plain, is_sound = raw.decode(errors="replace"), False
        if flags is _JSON:  # nearly always if not plain; a test of each flag takes longer than the rest
            plain = _one_spelling(plain)
        elif flags is not _PLAIN:
            plain, is_sound = _cleaned(plain, flags, is_sound)
            if TextFlags.SHORTENED in flags:
                shortened.add(plain)
        out.append(plain)
        if not is_sound:
            replaced.add(plain)
    return DecodedTexts(out, replaced, shortened)


def _cleaned(text: str, flags: TextFlags, is_sound: bool) -> tuple[str, bool]:
    clean = _CONTROL.sub(_REPLACEMENT, text) if TextFlags.FIXED in flags else text
    is_sound = is_sound and clean == text
    if TextFlags.JSON in flags:
        clean = _one_spelling(clean)
    elif TextFlags.ESCAPED in flags:
        clean, bad_escapes = _unescaped(clean)
        is_sound = is_sound and not bad_escapes
    return clean.rstrip(_REPLACEMENT) + "…" if TextFlags.SHORTENED in flags else clean, is_sound


def _unescaped(text: str) -> tuple[str, bool]:
    text = _BARE_QUOTE.sub(lambda m: '\\"' if m.group() == '"' else m.group(), text)
    sound = _BAD_ESCAPE.sub(lambda m: m.group() if len(m.group()) > 1 else "\\\\", text)
    plain = json.loads(f'"{sound}"', strict=False)
    whole = _SURROGATE.sub(_REPLACEMENT, plain)
    return whole, sound != text or whole != plain


def _one_spelling(text: str) -> str:
    if "\n" not in text and "," not in text.replace(", ", ""):
        return text
    if "\\" not in text and text.count('"') % 2 == 0:
        parts = text.split('"')
        parts[::2] = ["".join(part.split()).replace(",", ", ").replace(":", ": ") for part in parts[::2]]
        return '"'.join(parts)
    return _JSON_SPACE.sub(lambda m: m.group(1) or (m.group(2) or "") + (" " if m.group(2) else ""), text)


Ids = npt.NDArray[np.int64]
# events that may have the same argument before its array has to grow
_MANY = 1 << 18
_SIGN_OF_32_BITS = 1 << 31
_OFFSET = next(i for i, column in enumerate(DENSE) if column.name == "offset")


class _GrowingArray:
    def __init__(self, dtype: str, capacity: int) -> None:
        self._room = _reserved(capacity, np.dtype(dtype))
        self.length = 0

    def extend(self, values: npt.NDArray[Any], *, plus: int = 0) -> None:
        end = self.length + len(values)
        if end > len(self._room):
            self._move(2 * end, self._room.dtype)
        added = self._room[self.length : end]
        added[:] = values
        if plus:
            added += plus
        self.length = end

    def extend_by_offsets(self, values: npt.NDArray[Any], *, plus: int) -> None:
        if len(values) and int(values[-1]) + plus >= _SIGN_OF_32_BITS and self._room.itemsize == 4:  # they ascend
            self._move(len(self._room), np.dtype(np.int64))
        self.extend(values, plus=plus)

    def extend_by_numbers(self, values: Ids) -> None:
        if self._room.dtype != values.dtype:
            seen = int(np.bitwise_or.reduce(values))  # quicker than both ends
            low, high = (0, seen) if seen >= 0 else (int(values.min()), int(values.max()))
            if low < -_SIGN_OF_32_BITS or high >= _SIGN_OF_32_BITS:
                self._move(len(self._room), values.dtype)
        self.extend(values)

    def _move(self, capacity: int, dtype: np.dtype[Any]) -> None:
        room = _reserved(capacity, dtype)
        room[: self.length] = self._room[: self.length]
        self._room = room

    def array(self) -> npt.NDArray[Any]:
        left_over = self._room.nbytes - self.length * self._room.itemsize
        if left_over > self._room.nbytes // 2 and self._room.nbytes <= 1 << 20:  # it would stay with the values
            return self._room[: self.length].copy()
        return self._room[: self.length]


def _reserved(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an array that is larger than needed, on separate pages: they cost nothing before they are written to and
    are returned to the system with it. On the heap, other arrays would fill what was left over.
    """
    size = count * dtype.itemsize
    if size < 1 << 16:
        return np.empty(count, dtype)
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype, count)


class _Segment(NamedTuple):
    scanner: int
    dense_end: int
    sparse_ends: list[int]


class Columns:
    """The columns of a file as its blocks fill them, string numbers still those of the scanner they came from."""

    def __init__(self, raw_bytes: int, share: Share, *, bytes_per_row: int = 200) -> None:
        self._share = share
        capacity = max(raw_bytes // bytes_per_row, min(1 << 14, raw_bytes))
        dtypes = ["int32" if number == _OFFSET else column.dtype for number, column in enumerate(DENSE)]
        self._dense = [_GrowingArray(dtype, capacity) for dtype in dtypes]
        some = max(capacity // 8, min(_MANY, capacity))
        self._sparse = [(_GrowingArray("int32", some), _GrowingArray("int32", some)) for _ in ARGS]
        self._segments: list[_Segment] = []
        self.marks: list[npt.NDArray[np.void]] = []

    def append(self, rows: Rows, *, scanner: int, offset: int) -> None:
        first_row = self._dense[0].length
        self._share.take(rows.nbytes)
        if len(rows.marks):
            self.marks.append(rows.marks.copy())
        for number, values in enumerate(rows.columns):
            if number == _OFFSET:
                self._dense[number].extend_by_offsets(values, plus=offset)
            else:
                self._dense[number].extend(values)
        for number, (where, values) in rows.args.items():
            self._sparse[number][0].extend(where, plus=first_row)
            if ARGS[number].kind is ArgKind.INT:
                self._sparse[number][1].extend_by_numbers(values)
            else:  # numbers of strings, of which there are never as many
                self._sparse[number][1].extend(values)
        ends = [values.length for _, values in self._sparse]
        if self._segments and self._segments[-1].scanner == scanner:
            self._segments.pop()
        self._segments.append(_Segment(scanner, self._dense[0].length, ends))

    def dense(self, strings: "Strings") -> dict[str, npt.NDArray[Any]]:
        columns = {column.name: self._dense[number].array() for number, column in enumerate(DENSE)}
        start = 0
        for segment in self._segments:
            numbers = strings.of[segment.scanner]
            if numbers is not None:
                _renumber_dense({name: column[start : segment.dense_end] for name, column in columns.items()}, numbers)
            start = segment.dense_end
        return columns

    def sparse(self, strings: "Strings") -> tuple[dict[str, SparseColumn], int]:
        """Return the columns of `schema.ARGS` that any event has, by name, and how many values were no numbers."""
        columns, bad = {}, 0
        known: dict[int, npt.NDArray[Any]] = {}
        for number, column in enumerate(ARGS):
            rows, values = (growing.array() for growing in self._sparse[number])
            if column.kind is not ArgKind.INT:
                self._renumber_arg(number, values, strings)
            if column.kind is ArgKind.FLOAT:
                rows, values = _floats(rows, values, strings.strings)
                bad += self._sparse[number][0].length - len(rows)
            if len(rows):
                same = known.setdefault(len(rows), rows)  # shapes, types and values of operators lie on the same rows
                is_same = same is rows or np.array_equal(same, rows)
                columns[column.name] = SparseColumn(same if is_same else rows, values)
        return columns, bad

    def _renumber_arg(self, number: int, values: npt.NDArray[np.int32], strings: "Strings") -> None:
        start = 0
        for segment in self._segments:
            numbers, end = strings.of[segment.scanner], segment.sparse_ends[number]
            if numbers is not None and end > start:
                values[start:end] = numbers.take(values[start:end])
            start = end


class Strings:
    """One table of strings for all scanners: `of[scanner]` gives each scanner's numbers in it, None if equal."""

    def __init__(self, scanners: Sequence[Scanner], share: Share) -> None:
        ids: dict[str, int] = {}
        bad: set[str] = set()
        short: set[str] = set()
        self.of: list[Ids | None] = []
        for scanner in scanners:
            share.take(BYTES_PER_TEXT * scanner.num_texts())
            decoded = _decode_all(scanner.texts())
            self.of.append(_added(ids, decoded.texts))
            bad |= decoded.replaced
            short |= decoded.shortened
        self.strings = list(ids)
        self.num_bad, self.num_shortened = len(bad), len(short)


def _added(ids: dict[str, int], texts: list[str]) -> Ids | None:
    if not ids:
        ids.update(zip(texts, range(len(texts)), strict=True))
        if len(ids) == len(texts):
            return None
        ids.clear()
    numbers = np.array([ids.setdefault(text, len(ids)) for text in texts], np.int64)
    return None if np.array_equal(numbers, np.arange(len(numbers))) else numbers


def _renumber_dense(columns: dict[str, npt.NDArray[Any]], numbers: Ids) -> None:
    or_none = np.append(numbers, NO_STRING).astype(np.int32)  # -1 picks the last: no string stays no string
    for name in ("cat", "name"):
        columns[name][:] = or_none[columns[name]]
    for name in ("pid", "tid"):
        rows = np.flatnonzero(columns[name] < STRING_ID_BASE // 2)
        columns[name][rows] = numbers[columns[name][rows] - STRING_ID_BASE] + STRING_ID_BASE


def _floats(rows: npt.NDArray[Any], ids: npt.NDArray[np.int32], strings: list[str]) -> tuple[npt.NDArray[Any], Ids]:
    used = np.zeros(len(strings), np.bool_)
    used[ids] = True
    of_string = np.full(len(strings), np.nan)
    for i in np.flatnonzero(used):
        of_string[i] = _float(strings[i])
    numbers = of_string[ids]
    finite = np.isfinite(numbers)
    return rows[finite], numbers[finite].view(np.int64)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


# Fields around the array of events; where they are damaged, the most important ones are salvaged.

_MAX_HEADER_BYTES = 4 << 20
# Twenty groups of 1,024 ranks each, at six characters a rank, are 120 kB.
_MAX_TAIL_BYTES = 4 << 20

_SPACE = re.compile(rb"(?:\xef\xbb\xbf)?\s*")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_SALVAGED_NUMBER = re.compile(r'"(baseTimeNanoseconds|schemaVersion)"\s*:\s*(-?\d{1,30})\b')
_SALVAGED_OBJECT = re.compile(r'"(distributedInfo|deviceProperties)"\s*:\s*')


@dataclass(frozen=True)
class Head:
    """What precedes the events. They start at byte `events_at`."""

    fields: dict[str, Any]
    events_at: int
    top_array: bool
    notes: tuple[str, ...]
    #: a Perfetto trace, which has no head
    packets: bool = False


def _read_head(data: bytes, *, complete: bool) -> Head | None:
    """Return the head of a file that begins with `data`, or None as long as it has no array of events.

    `complete`: nothing follows, so a damaged head is taken as it is.
    """
    notes = ("byte-order mark",) if data.startswith(b"\xef\xbb\xbf") else ()
    text_at = _SPACE.match(data).end()  # type: ignore[union-attr]
    if data[text_at : text_at + 1] == b"[":
        return Head({}, text_at + 1, True, notes)
    candidates = []
    for found in _EVENTS.finditer(data):
        parsed = _object(data[text_at : found.start()])
        if parsed is not None:
            return Head(parsed.value, found.end(), False, (*notes, *unusable_fields(parsed, "header")))
        candidates.append(found)
        if len(candidates) == 16:
            break
    if not candidates or not (complete or len(data) >= _MAX_HEADER_BYTES):
        return None
    salvaged = _salvaged(data[: candidates[0].start()])
    return Head(salvaged, candidates[0].end(), False, (*notes, "the fields before the events are damaged"))


def _read_tail(data: bytes, *, top_array: bool) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
    text = data.decode(errors="replace").strip().strip("\0").strip()
    if top_array:
        return {}, True, ("bytes after the events are ignored",) if text else ()
    try:
        found, end = json.JSONDecoder(strict=False).raw_decode("{" + text.removeprefix(","))
        parsed = usable(found)
    except (ValueError, RecursionError):
        return _salvaged(data), False, ()
    fields = parsed.value
    fields.pop("traceEvents", None)
    garbage = len("{" + text.removeprefix(",")) > end
    notes = ("bytes after the end of the JSON are ignored",) if garbage else ()
    return fields, True, (*notes, *unusable_fields(parsed, "header"))


def _object(data: bytes) -> ParsedJson | None:
    try:
        text = data.rstrip().removesuffix(b",").decode(errors="replace") + "}"
        parsed = usable(json.loads(text, strict=False))
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed.value, dict) else None


def _salvaged(data: bytes) -> dict[str, Any]:
    text = data.decode(errors="replace")
    fields: dict[str, Any] = usable({name: int(number) for name, number in _SALVAGED_NUMBER.findall(text)}).value
    for found in _SALVAGED_OBJECT.finditer(text):
        try:
            fields[found.group(1)] = usable(json.JSONDecoder(strict=False).raw_decode(text, found.end())[0]).value
        except (ValueError, RecursionError):
            continue
    return fields


# A second trace in the file (`cat rank0.json rank1.json`, or a tar archive): two would be read as one rank. A second
# array of events counts where a new object or array began before it; the same key twice in one object, or in a text,
# is no second trace.

_KEY = b'"traceEvents"'
_SECOND_TRACE_EVENTS = re.compile(rb'"traceEvents"\s*(?::\s*(?:\[|\Z)|\Z)')
_NEW_OBJECT = re.compile(rb'\}\s*(\{)\s*"[\w$]')
_NEW_ARRAY = re.compile(rb'\}\s*\]\s*(\[)\s*\{\s*"[\w$]')
# before a second key, in which the object that holds it began
_KEPT_BYTES = 1 << 20
# in the timelines that are written from traces: a category that no slice has, a field of the JSON
TIMELINE = "timeline of stepscope"
# the first field of a packet, as writers begin: a tag of one byte or two
_FIELDS = {6, 8, 10, 11, 12, 13, 33, 36, 41, 42, 43, 44, 45, 58, 59, 60, 79, 87, 89, 98, 124}
_ARCHIVES = ((257, b"ustar", "tar", "tar -xf"), (0, b"PK\x03\x04", "zip", "unzip"))


class SecondTrace:
    """A watch for a second trace in the bytes that follow byte `offset` of a file.

    Where a block holds nothing but events there is none, so only the others are searched, with what came before them.
    """

    def __init__(self, path: Path, *, offset: int, top_array: bool, packed: bool) -> None:
        self._path, self._top_array, self._packed = path, top_array, packed
        self._recent: deque[Buffer] = deque()
        self._begin = offset

    def watched(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        """Yield the chunks, and keep them until they are read as events."""
        for chunk in chunks:
            self._recent.append(chunk)
            yield chunk

    def refuse(self, until: int, recent: Sequence[Buffer] | None = None, *, clean: bool) -> None:
        """Raise where a second trace begins before byte `until` of the file, up to which it was read last.

        `recent` are the bytes before it, where they were not watched.
        """
        if not clean:
            known = self._recent if recent is None else recent
            begin = self._begin if recent is None else until - sum(map(len, recent))
            at = _second_trace(b"".join(known)[: until - begin], top_array=self._top_array)
            if at is not None:
                at, name = begin + at, self._path.name
                read, source = (f"gzip -dc {name} | ", "") if self._packed else ("", f" {name}")
                raise TraceError(
                    f"{self._path}: holds several traces one after the other, the second from byte {at:,} on; split "
                    f"them: {read}head -c {at}{source} > first.json; {read}tail -c +{at + 1}{source} > second.json"
                )
        while self._recent and self._begin + len(self._recent[0]) <= until - _KEPT_BYTES:
            self._begin += len(self._recent.popleft())


def _second_trace(window: bytes, *, top_array: bool) -> int | None:
    if top_array:
        found = _NEW_ARRAY.search(window)
        return found.start(1) if found else None
    if _KEY not in window:
        return None
    for key in _SECOND_TRACE_EVENTS.finditer(window):
        begins = [found.start(1) for found in _NEW_OBJECT.finditer(window, 0, key.start() + 2)]
        if begins:
            return begins[-1]
    return None


# Packed files take as long to unpack as to parse, so one thread unpacks to where the other parses. Others are cut into
# blocks where one event seems to end; a block parsed ahead counts only if the one before it ended exactly at the cut.

_BLOCK_BYTES = 3 << 20
_BETWEEN_EVENTS = re.compile(rb"\}\s{0,64},(\s{0,64}\{\s{0,64})\Z")
# blocks in flight beyond one per thread
_AHEAD = 1


@dataclass(eq=False, repr=False)
class Events(ArrayRecord):
    """What the events of a file gave so far, before the strings are joined."""

    top_array: bool
    #: where the next block begins in the file
    offset: int
    columns: Columns
    packets: bool = False
    scanners: list[Scanner] = field(default_factory=lambda: [Scanner()])
    counts: Counts = field(default_factory=Counts)
    first_bad_offset: int | None = None
    #: what the block before left over
    rest: bytes = b""
    lost: bool = False
    #: whether the last block held nothing but events: no end of the array, no damage
    clean: bool = True
    ended: bool = False
    cut: bool = False
    #: what follows the events, or what could not be read of them
    tail: bytearray = field(default_factory=bytearray)

    def flags(self, *, last: bool) -> Flags:
        wanted = {
            Flags.TOP_ARRAY: self.top_array,
            Flags.FINAL: last,
            Flags.LOST: self.lost,
            Flags.PACKETS: self.packets,
        }
        return sum((flag for flag, is_set in wanted.items() if is_set), Flags.NONE)

    def parse(self, size: int, *, last: bool) -> None:
        """Parse the next block: its `size` bytes were put to the first scanner, behind what the one before left."""
        offset = self.offset - len(self.rest)
        parsed = self.scanners[0].parse(self.flags(last=last), self._append, offset=offset)
        self._take(parsed, offset, size, last=last)

    def parse_room(self, room: Room, size: int, *, last: bool) -> None:
        offset, flags = self.offset - len(self.rest), self.flags(last=last)
        parsed = self.scanners[0].parse_room(room, size, flags, self._append, rest=self.rest, offset=offset)
        self._take(parsed, offset, size, last=last)

    def finish(self) -> None:
        self.scanners[0].finish(self._append)

    def _append(self, rows: Rows) -> None:
        self.columns.append(rows, scanner=0, offset=rows.origin)

    def accept(self, parts: list[Rows], parsed: ParsedBlock, *, scanner: int, size: int, last: bool) -> None:
        for rows in parts:
            self.columns.append(rows, scanner=scanner, offset=self.offset)
        self._take(parsed, self.offset, size, last=last)

    def keep_tail(self, pieces: Iterable[Buffer]) -> None:
        for piece in pieces:
            self.tail += memoryview(piece)[: _MAX_TAIL_BYTES + 1 - len(self.tail)]

    def pass_over(self, pieces: Iterable[Buffer]) -> None:
        for piece in pieces:
            self.keep_tail([piece])
            self.offset += len(piece)

    def _take(self, parsed: ParsedBlock, offset: int, size: int, *, last: bool) -> None:
        self.counts = self.counts.plus(parsed.counts)
        if parsed.first_bad is not None and self.first_bad_offset is None:
            self.first_bad_offset = offset + parsed.first_bad
        self.offset += size
        self.clean = parsed.clean and not self.lost
        self.ended, self.cut, self.lost, self.rest = parsed.ended, parsed.cut, parsed.lost, parsed.rest
        if self.ended or last:
            self.keep_tail([self.rest])
            self.rest = b""


def _parse_in_turn(events: Events, fill: Filler, *, beside: bool, done: Callable[[Sequence[Buffer]], None]) -> None:
    """Parse all that `fill` gives, where wanted while another thread fills the room for the block that follows.

    `done` is called after each block with it and the one before.
    """
    scanner, size = events.scanners[0], _BLOCK_BYTES
    with ThreadPoolExecutor(1) if beside and not scanner.memory_moves else nullcontext() as pool:
        before: Buffer = b""
        number, room = 0, scanner.room(0, size)
        filled = fill(room.bytes)
        last = False
        while not last:
            last = filled < size
            following = None
            if pool and not last and scanner.fits(events.rest):
                following = pool.submit(fill, scanner.room(number + 1, size).bytes)
            block: Buffer = room.bytes[:filled]
            if scanner.memory_moves or not scanner.fits(events.rest):
                before, block = bytes(before), bytes(block)
            _parse_room(events, room, block, last=last)
            done([before, block])
            before = block
            if not last:
                number += 1
                room = scanner.room(number, size)
                filled = following.result() if following else fill(room.bytes)
    events.finish()


def _parse_room(events: Events, room: Room, block: Buffer, *, last: bool) -> None:
    scanner = events.scanners[0]
    if events.ended:
        events.pass_over([block])
    elif scanner.fits(events.rest):
        events.parse_room(room, len(block), last=last)
    else:
        for piece in (events.rest, block):
            scanner.put(piece)
        events.parse(len(block), last=last)


@dataclass(frozen=True)
class Block:
    """A stretch of the events. `clean`: it should begin between two events."""

    pieces: list[Buffer]
    clean: bool
    last: bool

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


def _parse_ahead(events: Events, chunks: Iterator[Buffer], *, threads: int, done: Callable[[], None]) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for block, guess in _parsed_ahead(events, _cut_blocks(chunks), pool, threads):
            if events.ended:
                events.pass_over(block.pieces)
            elif guess is None or events.rest or events.lost:
                for piece in (events.rest, *block.pieces):
                    events.scanners[0].put(piece)
                events.parse(block.size, last=block.last)
                events.finish()
            else:
                scanner, parts, parsed = guess.result()
                events.accept(parts, parsed, scanner=scanner, size=block.size, last=block.last)
            done()


Guess = Future[tuple[int, list[Rows], ParsedBlock]]


def _parsed_ahead(
    events: Events, blocks: Iterator[Block], pool: ThreadPoolExecutor, threads: int
) -> Iterator[tuple[Block, Guess | None]]:
    idle: SimpleQueue[int] = SimpleQueue()
    for _ in range(threads):
        idle.put(len(events.scanners))
        events.scanners.append(Scanner())

    def parse(block: Block) -> tuple[int, list[Rows], ParsedBlock]:
        number = idle.get()
        scanner, parts = events.scanners[number], list[Rows]()
        try:
            for piece in block.pieces:
                scanner.put(piece)
            flags = (Flags.TOP_ARRAY if events.top_array else Flags.NONE) | (Flags.FINAL if block.last else Flags.NONE)
            parsed = scanner.parse(flags, lambda rows: parts.append(rows.copy()))
            scanner.finish(lambda rows: parts.append(rows.copy()))
            return number, parts, parsed
        finally:
            idle.put(number)

    waiting: deque[tuple[Block, Guess | None]] = deque()
    for block in blocks:
        waiting.append((block, pool.submit(parse, block) if block.clean and not events.ended else None))
        if len(waiting) > threads + _AHEAD:
            yield waiting.popleft()
    yield from waiting


def _cut_blocks(chunks: Iterator[Buffer]) -> Iterator[Block]:
    pieces: list[Buffer] = []
    clean, size = True, 0
    for chunk in chunks:
        if size >= _BLOCK_BYTES:
            cut = _last_separator(pieces[-1])
            rest = bytes(memoryview(pieces[-1])[cut:]) if cut else b""
            if cut:
                pieces[-1] = memoryview(pieces[-1])[:cut]
            yield Block(pieces, clean, False)
            clean, pieces, size = cut > 0, [rest], len(rest)
        pieces.append(chunk)
        size += len(chunk)
    yield Block(pieces, clean, True)


def _last_separator(chunk: Buffer) -> int:
    tail = bytes(memoryview(chunk)[-(1 << 16) :])
    at = len(tail)
    for _ in range(64):
        at = tail.rfind(b'"ph"', 0, at)
        if at < 0:
            return 0
        found = _BETWEEN_EVENTS.search(tail, max(0, at - 256), at)
        if found:
            return len(chunk) - len(tail) + found.start(1)
    return 0


_CHUNK_BYTES = 1 << 18


def read(
    path: str | Path,
    *,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
    budget: Budget | None = None,
) -> Trace:
    """Return the table of one trace file; `progress` is called with the bytes read of it so far.

    Raises `TraceError` only if there is nothing usable in it, or it needs more than is left of the memory `budget`.
    """
    stream = Stream(Path(path))
    share = (budget or Budget(stream.size)).share()
    try:
        return _read(stream, share, threads=threads, progress=progress)
    except (MemoryLimitError, OverBudget) as e:
        share.give_back()
        raise TraceError(f"{path}: {e}") from e
    except MemoryError as e:
        needed = stream.expected_raw_bytes() // 2
        raise TraceError(f"{path}: not enough memory: about {needed >> 20} MB have to be free to read it") from e


def _read(stream: Stream, share: Share, *, threads: int, progress: Callable[[int], None] | None) -> Trace:
    with stream.opened() as fill:
        head, data = _head(stream, fill)
        share.take(JSON_FACTOR * head.events_at)
        columns = Columns(stream.expected_raw_bytes(), share, bytes_per_row=50 if head.packets else 200)
        events = Events(head.top_array, head.events_at, columns, packets=head.packets)
        second = SecondTrace(stream.path, offset=head.events_at, top_array=head.top_array, packed=stream.packed)
        following = _first_of(data[head.events_at :], fill)

        def done(recent: Sequence[Buffer] | None = None) -> None:
            if not head.packets:
                second.refuse(events.offset, recent, clean=events.clean)
            if progress:
                progress(stream.read_bytes)

        if threads == 1 or stream.packed or head.packets:
            _parse_in_turn(events, following, beside=threads > 1, done=done)
        else:
            _parse_ahead(events, second.watched(_chunks(following)), threads=threads, done=done)
    return _trace(stream, head, events, share)


def _first_of(data: bytes, fill: Filler) -> Filler:
    left = memoryview(data)

    def filled(buffer: memoryview) -> int:
        nonlocal left
        size = min(len(left), len(buffer))
        buffer[:size] = left[:size]
        left = left[size:]
        return size + (fill(buffer[size:]) if size < len(buffer) else 0)

    return filled


def _chunks(fill: Filler) -> Iterator[Buffer]:
    size = _CHUNK_BYTES
    while size == _CHUNK_BYTES:
        chunk = np.empty(_CHUNK_BYTES, np.uint8).data
        size = fill(chunk)
        yield chunk[:size]


def _head(stream: Stream, fill: Filler) -> tuple[Head, bytes]:
    data = bytearray()
    complete = False
    while not complete and len(data) < _MAX_HEADER_BYTES:
        more = bytearray(max(_CHUNK_BYTES, len(data)))
        size = fill(memoryview(more))
        data += memoryview(more)[:size]
        complete = size < len(more)
        for at, magic, kind, unpack in _ARCHIVES:
            if data[at : at + len(magic)] == magic:
                raise TraceError(
                    f"{stream.path}: is a {kind} archive, not one trace; unpack it ({unpack} {stream.path.name}) and "
                    "give the folder"
                )
        head = Head({}, 0, False, (), packets=True) if is_pftrace(data) else _read_head(bytes(data), complete=complete)
        if head:
            return head, bytes(data)
    if stream.path.name.endswith(".xplane.pb"):
        raise TraceError(f"{stream.path}: XPlane, the profile of XLA, is not read; give a trace of torch's profiler")
    lacks = "JSON without a traceEvents array" if data.lstrip()[:1] == b"{" else "not JSON"
    raise TraceError(f"{stream.path}: not a profiler trace ({lacks})")


def is_pftrace(start: bytes | bytearray) -> bool:
    """Return whether a file that begins with these bytes is a Perfetto trace."""
    if start[:1] != b"\n":
        return False
    length, at = _varint(start, 1)
    tag, _ = _varint(start, at)
    return tag & 7 in (0, 2) and tag >> 3 in _FIELDS and start[at + length : at + length + 1] in (b"\n", b"")


def _varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(data[at : at + 5]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    return 0, at


def _trace(stream: Stream, head: Head, events: Events, share: Share) -> Trace:
    share.take(JSON_FACTOR * len(events.tail))
    fields, closed, notes = _read_tail(bytes(events.tail), top_array=head.top_array or head.packets)
    truncated = stream.truncated or not events.ended or events.cut or not closed
    if len(events.tail) > _MAX_TAIL_BYTES:
        notes = (*notes, f"more than {_MAX_TAIL_BYTES >> 20} MB after the events are ignored")
    strings = Strings(events.scanners, share)
    events.scanners.clear()  # their memory, before the table needs some for a while
    columns = events.columns.dense(strings)
    args, bad_floats = events.columns.sparse(strings)
    header = head.fields | fields
    if head.packets:
        from stepscope.trace.pftrace import resolve_packets  # only where there is such a file

        marks = events.columns.marks
        columns, args, header["baseTimeNanoseconds"], notes = resolve_packets(columns, args, strings.strings, marks)
    if TIMELINE in (header.get("source"), *(strings.strings if head.packets else ())):
        raise TraceError(
            f"{stream.path}: is a timeline that stepscope wrote, not a recording; give the recorded traces"
        )
    base_ns = header.get("baseTimeNanoseconds") or 0
    if not isinstance(base_ns, int) or isinstance(base_ns, bool) or abs(base_ns) >= 1 << 62:
        base_ns = 0
        notes = (*notes, "baseTimeNanoseconds is no number of nanoseconds; times are as in the file")
    table = drop_implausible(columns, args, base_ns=base_ns)
    columns, args = table.columns, table.args
    counts = events.counts._replace(bad_args=events.counts.bad_args + bad_floats + table.bad_args)
    quality = Quality(
        truncated=truncated,
        bad_text=strings.num_bad,
        shortened=strings.num_shortened,
        first_bad_offset=events.first_bad_offset,
        notes=(*head.notes, *stream.notes, *notes, *table.notes),
        far_times=table.far_times,
        **counts._asdict(),
    )
    if not len(columns["ph"]) and (truncated or quality.malformed or quality.bad_time or quality.far_times):
        raise TraceError(f"{stream.path}: none of its entries is a trace event: not a profiler trace, or a damaged one")
    for array in (*columns.values(), *(a for sparse in args.values() for a in (sparse.rows, sparse.values))):
        array.flags.writeable = False  # as from the cache
    return Trace(str(stream.path), stream.raw_bytes, header, strings.strings, columns, args, quality)
