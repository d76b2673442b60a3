"""One trace file to one table.

`read` is the way in: it finds the events (`header`), unpacks the file (`streams`), parses it block by block
(`blocks`, `scanner`) and joins the parts (`assemble`, `texts`). Damage ends up in `Quality`.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.errors import TraceError
from stepscope.trace.assemble import Columns, Strings
from stepscope.trace.blocks import Events, parse_ahead, parse_serially
from stepscope.trace.header import MAX_HEADER_BYTES, MAX_TAIL_BYTES, Head, read_head, read_tail
from stepscope.trace.scanner import Buffer, Exhausted
from stepscope.trace.schema import NONE_NS
from stepscope.trace.streams import Stream
from stepscope.trace.table import Quality, Trace

CHUNK_BYTES = 1 << 18


def read(path: str | Path, *, threads: int = 1, progress: Callable[[int], None] | None = None) -> Trace:
    """Return the table of one trace file; `progress` is told the bytes read of it so far.

    Raises `TraceError` only if there is nothing usable in it.
    """
    stream = Stream(Path(path))
    chunks = stream.chunks(CHUNK_BYTES)
    head, data = _head(stream, chunks)
    events = Events(top_array=head.top_array, offset=head.events_at, columns=Columns(stream.expected_raw_bytes()))
    following: Iterator[Buffer] = chain([memoryview(data)[head.events_at :]], chunks)
    del data

    def done() -> None:
        if progress:
            progress(stream.read_bytes)

    try:
        if threads == 1:
            parse_serially(events, following, done=done)
        else:
            parse_ahead(events, following, threads=threads, done=done)
        return _trace(stream, head, events)
    except Exhausted as e:
        raise TraceError(f"{path}: {e}") from e
    except MemoryError as e:
        needed = stream.expected_raw_bytes() // 2
        raise TraceError(f"{path}: not enough memory; expected about {needed >> 20} MB to be free") from e


def _head(stream: Stream, chunks: Iterator[bytes]) -> tuple[Head, bytes]:
    """Return the file's head and all bytes read to find it; looks again each time the bytes have doubled."""
    data = bytearray()
    complete = False
    while not complete and len(data) < MAX_HEADER_BYTES:
        wanted = 2 * len(data)
        for chunk in chunks:
            data += chunk
            if len(data) > wanted:
                break
        else:
            complete = True
        head = read_head(bytes(data), complete=complete)
        if head:
            return head, bytes(data)
    found = "JSON without it" if data.lstrip()[:1] == b"{" else "something else"
    raise TraceError(
        f"{stream.path}: expected a trace with a traceEvents array, found {found}; is it a profiler trace?"
    )


def _trace(stream: Stream, head: Head, events: Events) -> Trace:
    fields, closed, notes = read_tail(bytes(events.tail), top_array=head.top_array)
    truncated = stream.truncated or not events.ended or events.cut or not closed
    if len(events.tail) > MAX_TAIL_BYTES:
        notes = (*notes, f"more than {MAX_TAIL_BYTES >> 20} MB after the events are ignored")
    strings = Strings(events.scanners)
    columns = events.columns.dense(strings)
    args, bad_floats = events.columns.sparse(strings)
    header = head.fields | fields
    time_notes = _add_base_time(columns, header)
    counts = events.counts._replace(bad_args=events.counts.bad_args + bad_floats)
    quality = Quality(
        truncated=truncated,
        bad_text=strings.num_bad,
        shortened=strings.num_shortened,
        first_bad_offset=events.first_bad_offset,
        notes=(*head.notes, *stream.notes, *notes, *time_notes),
        **counts._asdict(),
    )
    if not len(columns["ph"]) and (truncated or quality.malformed or quality.bad_time):
        raise TraceError(f"{stream.path}: expected trace events, found none that can be read; the file is damaged")
    for array in (*columns.values(), *(a for sparse in args.values() for a in (sparse.rows, sparse.values))):
        array.flags.writeable = False  # as from the cache
    return Trace(str(stream.path), stream.raw_bytes, header, strings.strings, columns, args, quality)


def _add_base_time(columns: dict[str, Any], header: dict[str, Any]) -> tuple[str, ...]:
    """Add the file's base time to all times. A sum beyond 64 bits cannot be right: then nothing is added."""
    base = header.get("baseTimeNanoseconds", 0)
    times = columns["ts_ns"]
    if not base or not len(times):
        return ()
    if not isinstance(base, int) or abs(base) >= 2**63:
        return ("baseTimeNanoseconds is no number of nanoseconds; times are as in the file",)
    known = times != NONE_NS
    low, high = int(times.min(where=known, initial=0)), int(times.max(where=known, initial=0))
    if low + base <= NONE_NS or high + base >= 2**63:
        return ("baseTimeNanoseconds does not fit the times; they are as in the file",)
    np.add(times, base, out=times, where=known)
    return ()
