"""The timeline in Perfetto's own format: TrackEvent packets, names written once, exact to the nanosecond.

    ClockSnapshot       our clock against the time of day
    TrackDescriptor     a process per rank, a track per stream, thread or other lane below it
    InternedData        names and categories by number
    TrackEvent          two packets per slice: it begins, it ends

A collective carries one flow per match, which is what the arrows between ranks are drawn from. Field numbers are those
of `protos/perfetto/trace/` in the Perfetto project.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stepscope.report.timeline.protobuf import (
    Column,
    constant,
    fixed64,
    joined,
    lengths,
    message,
    number,
    only,
    ragged,
    tag,
    text,
    varints,
)
from stepscope.report.timeline.slices import FIRST_PID, RankTimeline, Timeline, Values
from stepscope.run.reading.each_file import Progress

_PACKET = 1
_CLOCK_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 6, 8, 10, 11, 12, 13, 60
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _TRACK, _FLOW = 3, 4, 9, 10, 11, 47
_CATEGORIES, _NAMES, _ANNOTATION_NAMES = 1, 2, 3
_BEGIN, _END = 1, 2
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_BOOT_TIME, _REAL_TIME = 6, 1
_EXPLICIT_ORDER = 3
_ANNOTATIONS = ("op", "group", "size_bytes", "wait_ns")
_CHUNK = 1 << 16

_ONE_SEQUENCE = number(_SEQUENCE, 1)


def perfetto_trace(timeline: Timeline, *, progress: Progress | None = None) -> Iterator[bytes]:
    """Yield the file's bytes, piece by piece. `progress` is called with the slices written and all there are."""
    yield _packet(message(_CLOCK_SNAPSHOT, _clock(_BOOT_TIME, 0), _clock(_REAL_TIME, timeline.base_ns)))
    yield _interned(timeline)
    uuid, done = 1 + len(timeline.ranks), 0
    for i, rank in enumerate(timeline.ranks):
        labels = timeline.left_out if i == 0 else ()
        yield b"".join(_descriptors(rank, process_uuid=1 + i, first_uuid=uuid, labels=labels))
        yield from _events(rank, first_uuid=uuid)
        uuid, done = uuid + len(rank.tracks), done + len(rank)
        if progress:
            progress(done, timeline.num_slices)


def _packet(*parts: bytes) -> bytes:
    return message(_PACKET, *parts)


def _clock(clock: int, time_ns: int) -> bytes:
    return message(1, number(1, clock), number(2, time_ns))


def _interned(timeline: Timeline) -> bytes:
    """Return all names by number, from 1."""
    tables = ((_NAMES, timeline.names), (_CATEGORIES, timeline.categories), (_ANNOTATION_NAMES, _ANNOTATIONS))
    entries = [
        message(table, number(1, i), text(2, name)) for table, names in tables for i, name in enumerate(names, start=1)
    ]
    return _packet(_ONE_SEQUENCE, number(_FLAGS, _STATE_CLEARED | _NEEDS_STATE), message(_INTERNED, *entries))


def _descriptors(rank: RankTimeline, *, process_uuid: int, first_uuid: int, labels: tuple[str, ...]) -> Iterator[bytes]:
    process = message(3, number(1, FIRST_PID + rank.rank), text(6, rank.label), *(text(8, said) for said in labels))
    yield _packet(_ONE_SEQUENCE, message(_DESCRIPTOR, number(1, process_uuid), process, number(11, _EXPLICIT_ORDER)))
    for i, track in enumerate(rank.tracks):
        parts = (number(1, first_uuid + i), text(2, track.name), number(5, process_uuid), number(12, i))
        yield _packet(_ONE_SEQUENCE, message(_DESCRIPTOR, *parts))


def _events(rank: RankTimeline, *, first_uuid: int) -> Iterator[bytes]:
    """Yield the beginnings and ends of all slices, track by track, in order."""
    extras = _extras(rank)
    for first in range(0, len(rank.tokens), _CHUNK):
        tokens = rank.tokens[first : first + _CHUNK]
        begins = tokens >= 0
        yield _token_packets(rank, np.where(begins, tokens, ~tokens), begins, extras, first_uuid)


def _token_packets(
    rank: RankTimeline,
    at: npt.NDArray[np.int64],
    begins: npt.NDArray[np.bool_],
    extras: dict[int, bytes],
    first_uuid: int,
) -> bytes:
    everywhere = np.ones(len(at), bool)
    nothing = b""
    event = [
        constant(tag(_TYPE, 0), everywhere),
        varints(np.where(begins, _BEGIN, _END)),
        constant(tag(_TRACK, 0), everywhere),
        varints(rank.track[at] + first_uuid),
        constant(tag(_NAME, 0), begins),
        only(varints(rank.name[at] + 1), begins),
        constant(tag(_CATEGORY, 0), begins),
        only(varints(rank.category[at] + 1), begins),
        ragged([extras.get(i, nothing) if b else nothing for i, b in zip(at.tolist(), begins.tolist(), strict=True)]),
    ]
    packet = [
        constant(tag(_TIMESTAMP, 0), everywhere),
        varints(rank.start_ns[at] + np.where(begins, 0, rank.dur_ns[at])),
        constant(_ONE_SEQUENCE, everywhere),
        constant(number(_FLAGS, _NEEDS_STATE), begins),
        *_as_message(_TRACK_EVENT, event),
    ]
    return joined(_as_message(_PACKET, packet))


def _as_message(field: int, columns: list[Column]) -> list[Column]:
    """Return the columns with the field's tag and their length before them."""
    size = lengths(columns)
    return [constant(tag(field, 2), np.ones(len(size), bool)), varints(size), *columns]


def _extras(rank: RankTimeline) -> dict[int, bytes]:
    """Return the flows and annotations of the slices that have any."""
    listed = rank.values.keys() | rank.flows.keys()
    return {
        i: b"".join((*(fixed64(_FLOW, f) for f in rank.flows.get(i, ())), *_annotations(rank.values.get(i, {}))))
        for i in listed
    }


def _annotations(values: Values) -> Iterator[bytes]:
    for i, name in enumerate(_ANNOTATIONS, start=1):
        value = values.get(name)
        if value is not None:
            yield message(_ANNOTATION, number(1, i), text(6, value) if isinstance(value, str) else number(4, value))
