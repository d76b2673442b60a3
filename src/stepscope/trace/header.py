"""The top-level fields of a trace beside its events: where the array of events begins, and what stands around it.

Both parts are small and are read by the standard library; where they are damaged, the fields that matter most are
picked out one by one.
"""

import json
import re
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.side_file import ParsedJson, unusable_fields, usable

MAX_HEADER_BYTES = 4 << 20
MAX_TAIL_BYTES = 4 << 20
"""Twenty groups of 1,024 ranks each, at six characters a rank, are 120 kB."""
_MAX_CANDIDATES = 16

_BOM = b"\xef\xbb\xbf"
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


def read_head(data: bytes, *, complete: bool) -> Head | None:
    """Return the head of a file that begins with `data`, or None as long as it has no array of events.

    `complete` says that nothing follows: then a damaged head is taken as it is.
    """
    notes = ("byte-order mark",) if data.startswith(_BOM) else ()
    text_at = _SPACE.match(data).end()  # type: ignore[union-attr]
    if data[text_at : text_at + 1] == b"[":
        return Head({}, text_at + 1, True, notes)
    candidates = []
    for found in _EVENTS.finditer(data):
        parsed = _object(data[text_at : found.start()])
        if parsed is not None:
            return Head(parsed.value, found.end(), False, (*notes, *unusable_fields(parsed, "header")))
        candidates.append(found)
        if len(candidates) == _MAX_CANDIDATES:
            break
    if not candidates or not (complete or len(data) >= MAX_HEADER_BYTES):
        return None
    salvaged = _salvaged(data[: candidates[0].start()])
    return Head(salvaged, candidates[0].end(), False, (*notes, "the fields before the events are damaged"))


def read_tail(data: bytes, *, top_array: bool) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
    """Return the fields after the events, whether the file ends properly, and notes on what it ends with."""
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
    """Return the object that is still open at the end of `data`, or None if it is no object."""
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
