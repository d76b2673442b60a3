"""Does a file hold more than one trace? Two that were written one after the other would be read as one rank.

    cat rank0.json rank1.json > all.json      two objects, `} {`
    tar cf all.tar rank0.json rank1.json      a tar archive: headers between the files

A second array of events counts where a new object, or a new array, began before it. The same key twice in one object,
or in a text, is no second trace. Nor are braces in a text: a quote after them ends it, and no name follows that quote.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stepscope.errors import TraceError
from stepscope.trace.scanner import Buffer

_KEY = b'"traceEvents"'
_EVENTS = re.compile(rb'"traceEvents"\s*(?::\s*(?:\[|\Z)|\Z)')
_NEW_OBJECT = re.compile(rb'\}\s*(\{)\s*"[\w$]')
_NEW_ARRAY = re.compile(rb'\}\s*\]\s*(\[)\s*\{\s*"[\w$]')
_KEPT_BYTES = 1 << 20
"""before a second key, in which the object that holds it began"""
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
                raise TraceError(_how_to_split(self._path, begin + at, packed=self._packed))
        while self._recent and self._begin + len(self._recent[0]) <= until - _KEPT_BYTES:
            self._begin += len(self._recent.popleft())


def _second_trace(window: bytes, *, top_array: bool) -> int | None:
    """Return where in some bytes a second trace begins, None where none does."""
    if top_array:
        found = _NEW_ARRAY.search(window)
        return found.start(1) if found else None
    if _KEY not in window:
        return None
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
