"""One trace that lies in several files: its parts joined back into one table.

The profiler gives every trace an id of its own, so files that share it hold parts of the same trace, and files of
two windows or two runs never do.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.streams import Stream
from stepscope.trace.table import ARGS, DENSE, NO_STRING, STRING_ID_BASE, ArgKind, Int64s, Quality, SparseColumn, Trace

_STRING_COLUMNS = ("cat", "name")
_ID_COLUMNS = ("pid", "tid")
# as `offset`: the event is not in the file that the joined trace names
_ELSEWHERE = -1


def trace_id(trace: Trace) -> str | None:
    """Return the id that the profiler gave the trace, None where there is none."""
    found = trace.header.get("trace_id")
    return found if isinstance(found, str) and found else None


def joined(parts: Sequence[Trace]) -> Trace:
    """Return the events of all parts as one trace, part after part."""
    strings: dict[str, int] = {}
    ids = [np.array([strings.setdefault(s, len(strings)) for s in p.strings], np.int64) for p in parts]
    return Trace(
        path=parts[0].path,
        raw_bytes=sum(p.raw_bytes for p in parts),
        header={key: value for p in reversed(parts) for key, value in p.header.items()},
        strings=list(strings),
        columns={c.name: _column(c.name, c.dtype, parts, ids) for c in DENSE},
        args={a.name: _sparse(a.name, a.kind, parts, ids) for a in ARGS if any(a.name in p.args for p in parts)},
        quality=_quality([p.quality for p in parts]),
    )


def _column(name: str, dtype: str, parts: Sequence[Trace], ids: Sequence[Int64s]) -> npt.NDArray[Any]:
    columns = [p[name] for p in parts]
    if name in _STRING_COLUMNS:
        columns = [_renumbered(column, new) for column, new in zip(columns, ids, strict=True)]
    elif name in _ID_COLUMNS:
        columns = [_id_renumbered(column, new) for column, new in zip(columns, ids, strict=True)]
    elif name == "offset":
        columns[1:] = [np.full_like(column, _ELSEWHERE) for column in columns[1:]]
        return np.concatenate(columns)
    return np.concatenate(columns).astype(dtype)


def _sparse(name: str, kind: ArgKind, parts: Sequence[Trace], ids: Sequence[Int64s]) -> SparseColumn:
    rows, values, first = [], [], 0
    for part, new in zip(parts, ids, strict=True):
        column = part.arg(name)
        rows.append(column.rows + first)
        values.append(_renumbered(column.values, new) if kind is ArgKind.TEXT else column.values)
        first += part.num_events
    joined = np.concatenate(values)
    return SparseColumn(np.concatenate(rows), joined.astype(np.int32) if kind is ArgKind.TEXT else joined)


def _renumbered(column: npt.NDArray[Any], new: Int64s) -> Int64s:
    has = column != NO_STRING
    out = np.full(len(column), NO_STRING, np.int64)
    out[has] = new[column[has]]
    return out


def _id_renumbered(column: Int64s, new: Int64s) -> Int64s:
    text = column < STRING_ID_BASE // 2
    out = column.copy()
    out[text] = STRING_ID_BASE + new[column[text] - STRING_ID_BASE]
    return out


def _quality(parts: Sequence[Quality]) -> Quality:
    counts = {f.name: sum(getattr(q, f.name) for q in parts) for f in fields(Quality) if f.type is int}
    return Quality(
        truncated=any(q.truncated for q in parts),
        first_bad_offset=parts[0].first_bad_offset,
        notes=tuple(note for q in parts for note in q.notes),
        **counts,
    )


# Whole events on demand: what the columns do not hold is read from the file by the event's byte offset.

_CHUNK_BYTES = 1 << 20
_TYPICAL_EVENT_BYTES = 1 << 13
_MAX_EVENT_BYTES = 1 << 20


def events_at(path: str | Path, offsets: Sequence[int]) -> list[dict[str, Any] | None]:
    """Return the events at the given offsets of a trace, None for one that is no valid JSON.

    The file is unpacked once, up to the last offset.
    """
    wanted = sorted(set(offsets))
    found = dict(zip(wanted, _texts(Stream(Path(path)).chunks(_CHUNK_BYTES), wanted), strict=False))
    return [_event(found[offset]) if offset in found else None for offset in offsets]


def _texts(chunks: Iterator[bytes], offsets: list[int]) -> Iterator[bytes]:
    window, start = bytearray(), 0
    for offset in offsets:
        while start + len(window) < offset + _MAX_EVENT_BYTES and (chunk := next(chunks, None)):
            window += chunk
            if start + len(window) < offset:
                start += len(window)
                window.clear()
        del window[: offset - start]
        start = max(start, offset)
        if not window:
            return
        yield bytes(window[:_MAX_EVENT_BYTES])


def _event(text: bytes) -> dict[str, Any] | None:
    for size in (_TYPICAL_EVENT_BYTES, _MAX_EVENT_BYTES):
        try:
            event, _ = json.JSONDecoder(strict=False).raw_decode(text[:size].decode(errors="replace"))
        except (ValueError, RecursionError):
            continue
        return event if isinstance(event, dict) else None
    return None
