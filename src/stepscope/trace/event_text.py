"""Whole events on demand: what the columns do not hold is read from the file by the event's byte offset."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stepscope.trace.streams import Stream

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
    """Yield from each of the ascending offsets as much text as an event may take."""
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
