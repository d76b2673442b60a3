"""Does a file hold more than one trace? Two that were written one after the other would be read as one rank.

    cat rank0.json rank1.json > all.json      two objects, `} {`
    tar cf all.tar rank0.json rank1.json      a tar archive: headers between the files

A second array of events counts where a new object, or a new array, began before it. The same key twice in one object,
or in a text, is no second trace. Nor are braces in a text: a quote after them ends it, and no name follows that quote.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from stepscope.errors import TraceError
from stepscope.trace.scanner import Buffer

_KEY = b'"traceEvents"'
_PAIR = int.from_bytes(b"eE", "little")
"""of the key, and in next to no other text of a trace"""
_EVENTS = re.compile(rb'"traceEvents"\s*(?::\s*(?:\[|\Z)|\Z)')
_NEW_OBJECT = re.compile(rb'\}\s*(\{)\s*"[\w$]')
_NEW_ARRAY = re.compile(rb'\}\s*\]\s*(\[)\s*\{\s*"[\w$]')
_KEPT_BYTES = 1 << 20
"""before a second key, in which the object that holds it began"""
_SEAM_BYTES = 128
_TAR_MAGIC_AT = 257
_ARCHIVES = ((_TAR_MAGIC_AT, b"ustar", "tar"), (0, b"PK\x03\x04", "zip"))
_UNPACK = {"tar": "tar -xf", "zip": "unzip"}


def refuse_archive(path: Path, data: bytes) -> None:
    """Raise where the first bytes of a file, unpacked, are those of an archive."""
    for at, magic, kind in _ARCHIVES:
        if data[at : at + len(magic)] == magic:
            raise TraceError(
                f"{path}: is a {kind} archive, not one trace; unpack it ({_UNPACK[kind]} {path.name}) and give the "
                "folder"
            )


def reject_second_trace(
    chunks: Iterable[Buffer], path: Path, *, offset: int, top_array: bool, packed: bool
) -> Iterator[Buffer]:
    """Yield the chunks that follow byte `offset` of a file; raise where a second trace begins in them."""
    recent: deque[bytes] = deque()
    seam = b""
    for piece in chunks:
        chunk = bytes(piece)
        if _perhaps(seam, chunk, top_array=top_array):
            before = b"".join(recent)
            at = _second_trace(before + chunk, top_array=top_array)
            if at is not None:
                raise TraceError(_how_to_split(path, offset - len(before) + at, packed=packed))
        yield piece
        offset += len(chunk)
        seam = (seam + chunk)[-_SEAM_BYTES:] if len(chunk) < _SEAM_BYTES else chunk[-_SEAM_BYTES:]
        recent.append(chunk)
        while sum(map(len, recent)) - len(recent[0]) >= _KEPT_BYTES:
            recent.popleft()


def _perhaps(seam: bytes, chunk: bytes, *, top_array: bool) -> bool:
    """Return whether a closer look is due, as fast as memory is read: nearly all chunks hold none of this."""
    begin = seam + chunk[:_SEAM_BYTES]
    if top_array:
        return bool(_NEW_ARRAY.search(begin) or _NEW_ARRAY.search(chunk))
    return _KEY in begin or (_has_pair(chunk) and _KEY in chunk)


def _has_pair(chunk: bytes) -> bool:
    """Return whether the pair is in there: twice as fast as looking for the key itself."""
    each = (np.frombuffer(chunk, "<u2", (len(chunk) - first) // 2, first) for first in (0, 1) if len(chunk) > first + 1)
    return any((pairs == _PAIR).any() for pairs in each)


def _second_trace(window: bytes, *, top_array: bool) -> int | None:
    """Return where in some bytes a second trace begins, None where none does."""
    if top_array:
        found = _NEW_ARRAY.search(window)
        return found.start(1) if found else None
    for key in _EVENTS.finditer(window):
        begins = [found.start(1) for found in _NEW_OBJECT.finditer(window, 0, key.start() + 2)]
        if begins:
            return begins[-1]
    return None


def _how_to_split(path: Path, at: int, *, packed: bool) -> str:
    name = path.name
    read = f"gzip -dc {name} | " if packed else ""
    source = "" if packed else f" {name}"
    return (
        f"{path}: holds several traces one after the other, the second from byte {at:,} on; split them: "
        f"{read}head -c {at}{source} > first.json; {read}tail -c +{at + 1}{source} > second.json"
    )
