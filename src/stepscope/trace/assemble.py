"""Rows of many blocks to the columns of one table: numbered through, with one table of strings.

Rows are copied once, from the scanner's memory to where they stay. Arrays are made larger than needed; memory that
is never written to costs nothing.
"""

import json
import mmap
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.trace.budget import BYTES_PER_TEXT, Share
from stepscope.trace.scanner.scanner import Rows, Scanner, Text, TextFlags
from stepscope.trace.table import ARGS, DENSE, NO_STRING, STRING_ID_BASE, ArgKind, SparseColumn

# Raw texts of the scanner to strings: each distinct one is decoded once, escapes resolved, damage replaced.

_BAD_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f]")
_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s*([,:])\s*|\s+')
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
        if flags is _JSON:  # as next to all are that are not plain; to ask for each flag takes longer than the rest
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
    return _SPACE.sub(lambda m: m.group(1) or (m.group(2) or "") + (" " if m.group(2) else ""), text)


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
        if self._room.dtype != values.dtype and not _fit_32_bits(values):
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
    """Return an array that is made larger than needed, on pages of its own: they cost nothing before they are written
    to and go back to the system with it. From the heap, others would come to use what was left over.
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

    def __init__(self, raw_bytes: int, share: Share) -> None:
        self._share = share
        capacity = max(raw_bytes // 200, min(1 << 14, raw_bytes))
        dtypes = ["int32" if number == _OFFSET else column.dtype for number, column in enumerate(DENSE)]
        self._dense = [_GrowingArray(dtype, capacity) for dtype in dtypes]
        some = max(capacity // 8, min(_MANY, capacity))
        self._sparse = [(_GrowingArray("int32", some), _GrowingArray("int32", some)) for _ in ARGS]
        self._segments: list[_Segment] = []

    def append(self, rows: Rows, *, scanner: int, offset: int) -> None:
        first_row = self._dense[0].length
        self._share.take(rows.nbytes)
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


def _fit_32_bits(values: Ids) -> bool:
    if 0 <= int(np.bitwise_or.reduce(values)) < _SIGN_OF_32_BITS:
        return True
    return int(values.min()) >= -_SIGN_OF_32_BITS and int(values.max()) < _SIGN_OF_32_BITS


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
