"""One trace file to one table.

`read` is the way in: it finds the events (`header`), unpacks the file (`streams`), parses it block by block
(`blocks`, `scanner`) and joins the parts (`assemble`, `texts`). Damage ends up in `Quality`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.errors import TraceError
from stepscope.trace.assemble import Columns, Strings
from stepscope.trace.blocks import Events, parse_ahead, parse_in_turn
from stepscope.trace.budget import JSON_FACTOR, Budget, OverBudget, Share
from stepscope.trace.header import MAX_HEADER_BYTES, MAX_TAIL_BYTES, Head, read_head, read_tail
from stepscope.trace.implausible_values import drop_implausible
from stepscope.trace.scanner import Buffer
from stepscope.trace.scanner.wasm import MemoryLimitError
from stepscope.trace.second_trace import SecondTrace, refuse_archive
from stepscope.trace.streams import Filler, Stream
from stepscope.trace.table import Quality, Trace

CHUNK_BYTES = 1 << 18
_MAGIC_BYTES = 512
_XPLANE = ".xplane.pb"
_MAX_BASE_NS = 1 << 62


def read(
    path: str | Path,
    *,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
    budget: Budget | None = None,
) -> Trace:
    """Return the table of one trace file; `progress` is told the bytes read of it so far.

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
        columns = Columns(stream.expected_raw_bytes(), share)
        events = Events(top_array=head.top_array, offset=head.events_at, columns=columns)
        second = SecondTrace(stream.path, offset=head.events_at, top_array=head.top_array, packed=stream.packed)
        following = _first_of(data[head.events_at :], fill)

        def done(recent: Sequence[Buffer] | None = None) -> None:
            second.refuse(events.offset, recent, clean=events.clean)
            if progress:
                progress(stream.read_bytes)

        if threads == 1 or stream.packed:
            parse_in_turn(events, following, beside=threads > 1, done=done)
        else:
            parse_ahead(events, second.watched(_chunks(following)), threads=threads, done=done)
    return _trace(stream, head, events, share)


def _first_of(data: bytes, fill: Filler) -> Filler:
    """Return what gives some bytes before all that `fill` gives."""
    left = memoryview(data)

    def filled(buffer: memoryview) -> int:
        nonlocal left
        size = min(len(left), len(buffer))
        buffer[:size] = left[:size]
        left = left[size:]
        return size + (fill(buffer[size:]) if size < len(buffer) else 0)

    return filled


def _chunks(fill: Filler) -> Iterator[Buffer]:
    size = CHUNK_BYTES
    while size == CHUNK_BYTES:
        chunk = np.empty(CHUNK_BYTES, np.uint8).data
        size = fill(chunk)
        yield chunk[:size]


def _head(stream: Stream, fill: Filler) -> tuple[Head, bytes]:
    """Return the file's head and all bytes read to find it; looks again each time the bytes have doubled."""
    data = bytearray()
    complete = False
    while not complete and len(data) < MAX_HEADER_BYTES:
        more = bytearray(max(CHUNK_BYTES, len(data)))
        size = fill(memoryview(more))
        data += memoryview(more)[:size]
        complete = size < len(more)
        refuse_archive(stream.path, bytes(data[:_MAGIC_BYTES]))
        head = read_head(bytes(data), complete=complete)
        if head:
            return head, bytes(data)
    if stream.path.name.endswith(_XPLANE):
        raise TraceError(f"{stream.path}: XPlane, the profile of XLA, is not read; give a trace of torch's profiler")
    kind = "this JSON" if data.lstrip()[:1] == b"{" else "this file, which is not JSON,"
    raise TraceError(f"{stream.path}: {kind} has no traceEvents array; is it a profiler trace?")


def _trace(stream: Stream, head: Head, events: Events, share: Share) -> Trace:
    share.take(JSON_FACTOR * len(events.tail))
    fields, closed, notes = read_tail(bytes(events.tail), top_array=head.top_array)
    truncated = stream.truncated or not events.ended or events.cut or not closed
    if len(events.tail) > MAX_TAIL_BYTES:
        notes = (*notes, f"more than {MAX_TAIL_BYTES >> 20} MB after the events are ignored")
    strings = Strings(events.scanners, share)
    events.scanners.clear()  # their memory, before the table needs some for a while
    columns = events.columns.dense(strings)
    args, bad_floats = events.columns.sparse(strings)
    header = head.fields | fields
    base_ns, time_notes = _base_time(header)
    table = drop_implausible(columns, args, base_ns=base_ns)
    columns, args = table.columns, table.args
    counts = events.counts._replace(bad_args=events.counts.bad_args + bad_floats + table.bad_args)
    quality = Quality(
        truncated=truncated,
        bad_text=strings.num_bad,
        shortened=strings.num_shortened,
        first_bad_offset=events.first_bad_offset,
        notes=(*head.notes, *stream.notes, *notes, *time_notes, *table.notes),
        far_times=table.far_times,
        **counts._asdict(),
    )
    if not len(columns["ph"]) and (truncated or quality.malformed or quality.bad_time or quality.far_times):
        raise TraceError(f"{stream.path}: no trace event of it can be read; the file is damaged, record it again")
    for array in (*columns.values(), *(a for sparse in args.values() for a in (sparse.rows, sparse.values))):
        array.flags.writeable = False  # as from the cache
    return Trace(str(stream.path), stream.raw_bytes, header, strings.strings, columns, args, quality)


def _base_time(header: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Return what is to be added to all times, and a note where the file gives no usable number."""
    base = header.get("baseTimeNanoseconds") or 0
    if isinstance(base, int) and not isinstance(base, bool) and abs(base) < _MAX_BASE_NS:
        return base, ()
    return 0, ("baseTimeNanoseconds is no number of nanoseconds; times are as in the file",)
