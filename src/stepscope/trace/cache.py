"""Cache of a large trace's table in one file, so that the next read maps the columns instead of parsing.

    magic, length of the description | description (JSON) | strings (JSON) | columns, each at a multiple of 64 bytes

The description holds the key (size, times and sampled content of the trace, version of the parser and of the schema),
the offset of each column, and a checksum of everything behind it. A cache that does not fit, is cut, damaged or
unreadable is ignored and the trace is read again. So is one with columns that no parser could have made (an id beyond
the strings, rows that do not ascend): a checksum is easy to forge. The file is written atomically.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from stepscope.cache_files import (
    MIN_RAW_BYTES,
    cache_file,
    content_key,
    is_unchanged,
    open_trusted_file,
    wait_for,
    write_trusted_file,
)
from stepscope.trace.read import Budget
from stepscope.trace.scanner import version
from stepscope.trace.table import (
    ARGS,
    DENSE,
    MAX_DURATION_NS,
    MAX_TIME_NS,
    MIN_TIME_NS,
    NO_STRING,
    NONE_NS,
    STRING_ID_BASE,
    ArgKind,
    Quality,
    SparseColumn,
    Trace,
)
from stepscope.units import digest_of

# Checks of the columns: a cache file is input like any other.

_DTYPES = {ArgKind.TEXT: (np.int32,), ArgKind.INT: (np.int32, np.int64), ArgKind.FLOAT: (np.int64,)}


def _is_sound(strings: object, columns: dict[str, npt.NDArray[Any]], args: dict[str, SparseColumn]) -> bool:
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        return False
    count = len(columns["ts_ns"])
    for c in DENSE:
        dtypes = (c.dtype, "int32") if c.name == "offset" else (c.dtype,)
        if columns[c.name].dtype not in map(np.dtype, dtypes) or len(columns[c.name]) != count:
            return False
    texts = all(_within(columns[name], NO_STRING, len(strings) - 1) for name in ("cat", "name"))
    ids = all(
        _within(of[of < STRING_ID_BASE // 2], STRING_ID_BASE, STRING_ID_BASE + len(strings) - 1)
        for of in (columns["pid"], columns["tid"])
    )
    start, lasts, untimed = columns["ts_ns"], columns["dur_ns"], columns["ph"] != ord("X")
    timed = _within_or_none(start, MIN_TIME_NS, MAX_TIME_NS - 1) and bool((untimed | (start != NONE_NS)).all())
    lasting = _within_or_none(lasts, 0, MAX_DURATION_NS - 1) and bool((untimed | (lasts != NONE_NS)).all())
    return texts and ids and timed and lasting and _args_are_sound(args, count, len(strings))


def _sound_quality(found: dict[str, Any]) -> Quality | None:
    said = Quality(**(found | {"notes": tuple(found["notes"])}))
    offset = said.first_bad_offset
    counts = [getattr(said, f.name) for f in fields(Quality) if f.type is int] + ([] if offset is None else [offset])
    sound = all(type(n) is int and 0 <= n <= 1 << 53 for n in counts) and type(said.truncated) is bool
    return said if sound and all(isinstance(note, str) for note in said.notes) else None


def _args_are_sound(args: dict[str, SparseColumn], count: int, num_strings: int) -> bool:
    rows = {id(arg.rows): arg.rows for arg in args.values()}  # of which many arguments have the same
    if not all(
        (array.dtype.kind in "iu" and bool((array[1:] > array[:-1]).all()) and _within(array, 0, count - 1))
        for array in rows.values()
    ):
        return False
    for column in ARGS:
        arg = args.get(column.name)
        if arg is None:
            continue
        if arg.values.dtype not in _DTYPES[column.kind] or len(arg.rows) != len(arg.values):
            return False
        low, high = (0, num_strings - 1) if column.kind is ArgKind.TEXT else (column.low, column.high)
        values = arg.values.view(np.float64) if column.kind is ArgKind.FLOAT else arg.values
        if not _within(values, low, high):
            return False
    return True


def _within_or_none(values: npt.NDArray[np.int64], low: int, high: int) -> bool:
    return bool((((values >= low) & (values <= high)) | (values == NONE_NS)).all())


def _within(values: npt.NDArray[Any], low: int, high: int) -> bool:
    return not len(values) or bool(low <= values.min() and values.max() <= high)


# it is mapped, not read
_MAX_CACHE_BYTES = 1 << 42

_MAGIC = b"stepscope columns 2\n"
_ALIGNMENT = 64
_Array = npt.NDArray[Any]
# takes a file's path and what makes it
WriteLater = Callable[[Path, Callable[[], None]], None]


def read_cached(
    path: str | Path,
    *,
    cache_folder: Path | None = None,
    enabled: bool = True,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
    budget: Budget | None = None,
    min_raw_bytes: int | None = None,
    write_later: WriteLater | None = None,
) -> Trace:
    """Return the table of a trace, from its cache where there is a valid one; writes one for a large trace.

    The cache is in `.stepscope` next to the trace, or in `cache_folder`; there is none where that is not writable.
    `min_raw_bytes` overrides how large a trace has to be for one. `write_later`, if given, is called with a function
    that writes the cache.
    """
    trace_path = Path(path)
    target = cache_file(trace_path, cache_folder)
    wait_for(target)
    key = _key(trace_path) if enabled else None
    cached = _load(target, trace_path, key) if key else None
    if cached:
        return cached
    from stepscope.trace.read import read  # only where it is not at hand

    trace = read(trace_path, threads=threads, progress=progress, budget=budget)
    large_enough = trace.raw_bytes >= (MIN_RAW_BYTES if min_raw_bytes is None else min_raw_bytes)
    if key and large_enough and is_unchanged(trace_path, key):
        if write_later:
            write_later(target, lambda: _store(target, trace, key))
        else:
            _store(target, trace, key)
    return trace


@cache
def _parser_version() -> str:
    columns = repr((DENSE, ARGS, NONE_NS, STRING_ID_BASE, Quality.__dataclass_fields__.keys()))
    return f"{version()}-{digest_of(columns.encode(), 16)}"


def _key(path: Path) -> dict[str, Any] | None:
    content = content_key(path)
    return content | {"parser": _parser_version()} if content else None


def _store(target: Path, trace: Trace, key: dict[str, Any]) -> None:
    strings = json.dumps(trace.strings).encode()
    pieces: list[Any] = [strings]
    layout, place, at = {}, {}, _aligned(len(strings))
    arrays = {f"dense/{name}": column for name, column in trace.columns.items()}
    for name, sparse in trace.args.items():
        arrays |= {f"rows/{name}": sparse.rows, f"values/{name}": sparse.values}
    for name, array in arrays.items():
        if id(array) not in place:  # many arguments are on the same rows
            place[id(array)] = at
            pieces.append(array.view(np.uint8).data)
            at = _aligned(at + array.nbytes)
        layout[name] = {"at": place[id(array)], "dtype": array.dtype.str, "count": len(array)}
    content = [part for piece in pieces for part in (piece, bytes(_aligned(len(piece)) - len(piece)))]
    description = {
        "key": key,
        "strings_bytes": len(strings),
        "columns": layout,
        "content_bytes": at,
        "checksum": reduce(lambda checksum, part: zlib_ng.crc32(part, checksum), content, 0),
        "raw_bytes": trace.raw_bytes,
        "header": trace.header,
        "quality": asdict(trace.quality),
    }
    text = json.dumps(description).encode()
    text += b" " * (_aligned(_PREFIX.size + len(text)) - _PREFIX.size - len(text))
    write_trusted_file(target, [_PREFIX.pack(_MAGIC, len(text), zlib_ng.crc32(text)), text, *content])


_PREFIX = struct.Struct(f"<{len(_MAGIC)}sQI")


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _load(target: Path, path: Path, key: dict[str, Any]) -> Trace | None:
    try:
        with open_trusted_file(target, max_bytes=_MAX_CACHE_BYTES) as f:
            data: _Array = np.memmap(f, np.uint8, mode="r").view(np.ndarray)
        magic, length, checksum = _PREFIX.unpack(data[: _PREFIX.size].tobytes())
        text = data[_PREFIX.size : _PREFIX.size + length].tobytes()
        if magic != _MAGIC or len(text) != length or zlib_ng.crc32(text) != checksum:
            return None
        description = json.loads(text)
        content = data[_PREFIX.size + length :]
        if description["key"] != key or len(content) != description["content_bytes"]:
            return None
        return _mapped(content, description, path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error):
        return None


def _mapped(content: _Array, description: dict[str, Any], path: Path) -> Trace | None:
    if zlib_ng.crc32(content) != description["checksum"]:
        return None
    strings = json.loads(content[: description["strings_bytes"]].tobytes())
    arrays = _columns(content, description["columns"])
    columns = {c.name: arrays[f"dense/{c.name}"] for c in DENSE}
    args = {
        c.name: SparseColumn(arrays[f"rows/{c.name}"], arrays[f"values/{c.name}"])
        for c in ARGS
        if f"rows/{c.name}" in arrays
    }
    header, raw_bytes = description["header"], description["raw_bytes"]
    sound = isinstance(header, dict) and isinstance(raw_bytes, int) and _is_sound(strings, columns, args)
    quality = _sound_quality(description["quality"])
    if not sound or quality is None:
        return None
    return Trace(str(path), raw_bytes, header, strings, columns, args, quality, from_cache=True)


def _columns(content: _Array, layout: dict[str, dict[str, Any]]) -> dict[str, _Array]:
    @cache
    def column(at: int, kind: str, count: int) -> _Array:  # many arguments are on the same rows
        dtype = np.dtype(kind)
        end = at + count * dtype.itemsize
        if not 0 <= at <= end <= len(content):
            raise ValueError("a column outside the file")
        return content[at:end].view(dtype)

    return {name: column(where["at"], where["dtype"], where["count"]) for name, where in layout.items()}
