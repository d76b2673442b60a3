"""The timeline as a file: in Perfetto's own format, and below as Chrome's JSON.

Perfetto's packets are TrackEvents; names are written once, times are exact to the nanosecond.

    ClockSnapshot       our clock against the time of day
    TrackDescriptor     a track per rank that shows its steps, below it one per stream, thread or other lane
    InternedData        names and categories by number
    TrackEvent          two packets per slice: it begins, it ends

A collective carries one flow per match, which is what the arrows between ranks are drawn from. Field numbers are those
of `protos/perfetto/trace/` in the Perfetto project.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from stepscope.records import ArrayRecord, dataclass
from stepscope.report.timeline import FIRST_PID, STEPS, RankTimeline, Timeline, Track, Values
from stepscope.run.formats import Progress
from stepscope.trace.read import TIMELINE
from stepscope.units import json_text

# Protobuf's wire format: single fields as bytes, and many messages of one shape at once as columns.
#
# A message is written as its fields, each a tag (number and kind) and a value. A column of values becomes a matrix
# with
# one row per message and the bytes each row uses; matrices side by side, cut to those bytes, are the messages.

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
# of a varint
_MAX_BYTES = 10


def _varint(value: int) -> bytes:
    """Return a number from 0 to 2^64 - 1, seven bits per byte, lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def number(field: int, value: int) -> bytes:
    """Return a whole number as a field; negative ones as 64 bits."""
    return _tag(field, _VARINT) + _varint(value % 2**64)


def message(field: int, *parts: bytes) -> bytes:
    """Return a message, or any bytes, as a field."""
    body = b"".join(parts)
    return _tag(field, _LENGTH) + _varint(len(body)) + body


def _text(field: int, value: str) -> bytes:
    return message(field, value.encode(errors="replace"))


@dataclass(frozen=True, eq=False, repr=False)
class Column(ArrayRecord):
    """One piece of many messages: row `i` has the first `length[i]` bytes of `data[i]`."""

    data: npt.NDArray[np.uint8]
    length: npt.NDArray[np.int64]


def _varints(values: npt.NDArray[np.int64]) -> Column:
    data = np.zeros((len(values), _MAX_BYTES), np.uint8)
    length = np.ones(len(values), np.int64)
    rest = values.astype(np.uint64)
    width = 0
    while width < _MAX_BYTES:
        more = rest > 0x7F
        data[:, width] = (rest & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        width += 1
        if not more.any():
            break
        length += more
        rest >>= np.uint64(7)
    return Column(data[:, :width], length)


def _constant(value: bytes, where: npt.NDArray[np.bool_]) -> Column:
    data = np.broadcast_to(np.frombuffer(value, np.uint8), (len(where), len(value)))
    return Column(data, where * len(value))


def _ragged(values: Sequence[bytes]) -> Column:
    length = np.array([len(v) for v in values], np.int64)
    data = np.zeros((len(values), int(length.max(initial=0))), np.uint8)
    for i in np.flatnonzero(length).tolist():
        data[i, : length[i]] = np.frombuffer(values[i], np.uint8)
    return Column(data, length)


def _only(column: Column, where: npt.NDArray[np.bool_]) -> Column:
    return Column(column.data, column.length * where)


_PACKET = 1
_CLOCK_SNAPSHOT, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 6, 8, 10, 11, 12, 13, 60
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _TRACK, _FLOW = 3, 4, 9, 10, 11, 47
_CATEGORIES, _NAMES, _ANNOTATION_NAMES = 1, 2, 3
_CHILD_ORDERING, _ORDER, _DESCRIPTION = 11, 12, 14
_EXPLICIT = 3
_BEGIN, _END = 1, 2
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_BOOT_TIME, _REAL_TIME = 6, 1
_ANNOTATIONS = ("op", "group", "size_bytes", "wait_ns")
_CHUNK = 1 << 16

_ONE_SEQUENCE = number(_SEQUENCE, 1)


def perfetto_trace(timeline: Timeline, *, progress: Progress | None = None) -> Iterator[bytes]:
    """Yield the file's bytes, piece by piece. `progress` is called with the slices written and all there are."""
    yield _packet(message(_CLOCK_SNAPSHOT, _clock(_BOOT_TIME, 0), _clock(_REAL_TIME, timeline.base_ns)))
    yield _interned(timeline)
    uuid, done = 1 + len(timeline.ranks), 0
    for i, rank in enumerate(timeline.ranks):
        notes = timeline.left_out if i == 0 else ()
        rank_uuid = uuid if rank.tracks[:1] == (Track(STEPS, 0),) else 1 + i
        yield b"".join(_descriptors(rank, rank_uuid=rank_uuid, first_uuid=uuid, notes=notes))
        yield from _events(rank, first_uuid=uuid)
        uuid, done = uuid + len(rank.tracks), done + len(rank)
        if progress:
            progress(done, timeline.num_slices)


def _packet(*parts: bytes) -> bytes:
    return message(_PACKET, *parts)


def _clock(clock: int, time_ns: int) -> bytes:
    return message(1, number(1, clock), number(2, time_ns))


def _interned(timeline: Timeline) -> bytes:
    categories = (*timeline.categories, TIMELINE)
    tables = ((_NAMES, timeline.names), (_CATEGORIES, categories), (_ANNOTATION_NAMES, _ANNOTATIONS))
    entries = [
        message(table, number(1, i), _text(2, name)) for table, names in tables for i, name in enumerate(names, start=1)
    ]
    return _packet(_ONE_SEQUENCE, number(_FLAGS, _STATE_CLEARED | _NEEDS_STATE), message(_INTERNED, *entries))


def _descriptors(rank: RankTimeline, *, rank_uuid: int, first_uuid: int, notes: tuple[str, ...]) -> Iterator[bytes]:
    # Not a process: Perfetto sorts processes by their activity, and the tracks of a process by their names.
    parts = (number(1, rank_uuid), _text(2, rank.label), number(_CHILD_ORDERING, _EXPLICIT), number(_ORDER, rank.rank))
    said = (_text(_DESCRIPTION, "; ".join(notes)),) if notes else ()
    yield _packet(_ONE_SEQUENCE, message(_DESCRIPTOR, *parts, *said))
    for i, track in enumerate(rank.tracks):
        if first_uuid + i != rank_uuid:
            parts = (number(1, first_uuid + i), _text(2, track.name), number(5, rank_uuid), number(_ORDER, i))
            yield _packet(_ONE_SEQUENCE, message(_DESCRIPTOR, *parts))


def _events(rank: RankTimeline, *, first_uuid: int) -> Iterator[bytes]:
    listed = rank.values.keys() | rank.flows.keys()
    extras = {
        i: b"".join(
            (
                *((_tag(_FLOW, _FIXED64) + f.to_bytes(8, "little")) for f in rank.flows.get(i, ())),
                *_annotations(rank.values.get(i, {})),
            )
        )
        for i in listed
    }
    for first in range(0, len(rank.tokens), _CHUNK):
        tokens = rank.tokens[first : first + _CHUNK]
        begins = tokens >= 0
        at = np.where(begins, tokens, ~tokens)
        everywhere = np.ones(len(at), bool)
        nothing = b""
        event = [
            _constant(_tag(_TYPE, 0), everywhere),
            _varints(np.where(begins, _BEGIN, _END)),
            _constant(_tag(_TRACK, 0), everywhere),
            _varints(rank.track[at] + first_uuid),
            _constant(_tag(_NAME, 0), begins),
            _only(_varints(rank.name[at] + 1), begins),
            _constant(_tag(_CATEGORY, 0), begins),
            _only(_varints(rank.category[at] + 1), begins),
            _ragged(
                [extras.get(i, nothing) if b else nothing for i, b in zip(at.tolist(), begins.tolist(), strict=True)]
            ),
        ]
        packet = [
            _constant(_tag(_TIMESTAMP, 0), everywhere),
            _varints(rank.start_ns[at] + np.where(begins, 0, rank.dur_ns[at])),
            _constant(_ONE_SEQUENCE, everywhere),
            _constant(number(_FLAGS, _NEEDS_STATE), begins),
            *_as_message(_TRACK_EVENT, event),
        ]
        columns = _as_message(_PACKET, packet)
        used = [np.arange(c.data.shape[1]) < c.length[:, None] for c in columns]
        yield np.concatenate([c.data for c in columns], axis=1)[np.concatenate(used, axis=1)].tobytes()


def _as_message(field: int, columns: list[Column]) -> list[Column]:
    size = np.sum([c.length for c in columns], axis=0)
    return [_constant(_tag(field, 2), np.ones(len(size), bool)), _varints(size), *columns]


def _annotations(values: Values) -> Iterator[bytes]:
    for i, name in enumerate(_ANNOTATIONS, start=1):
        value = values.get(name)
        if value is not None:
            yield message(_ANNOTATION, number(1, i), _text(6, value) if isinstance(value, str) else number(4, value))


# The timeline as Chrome's JSON: what chrome://tracing, Perfetto and most other viewers open.
#
# Times are microseconds with three decimals, since `baseTimeNanoseconds`: exact to the nanosecond, and small enough
# that no reader's floating point loses any of it. Each lane is a thread, its numbers unlike those of any process.

_NEXT = b",\n"


def chrome_trace(timeline: Timeline, *, progress: Progress | None = None) -> Iterator[bytes]:
    """Yield the file's bytes, piece by piece. `progress` is called with the slices written and all there are."""
    first_tid = FIRST_PID + 1 + max((rank.rank for rank in timeline.ranks), default=0)
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": timeline.base_ns,
        "notes": timeline.notes,
        "source": TIMELINE,
    }
    yield json_text(head)[:-1].encode() + b', "traceEvents": ['
    names = [json_text(name) for name in timeline.names]
    categories = [json_text(category) for category in timeline.categories]
    flows: dict[int, list[tuple[int, int, int]]] = {}
    tid, done = first_tid, 0
    between = b"\n"
    for rank in timeline.ranks:
        for event in chain(_described(rank, tid), _slices(rank, tid, names, categories)):
            yield between + event.encode()
            between = _NEXT
        for i, ids in rank.flows.items():
            for flow in ids:
                flows.setdefault(flow, []).append((int(rank.start_ns[i]), _pid(rank), tid + int(rank.track[i])))
        tid, done = tid + len(rank.tracks), done + len(rank)
        if progress:
            progress(done, timeline.num_slices)
    for event in _flows(flows):
        yield _NEXT + event.encode()
    yield b"\n]}\n"


def _pid(rank: RankTimeline) -> int:
    return FIRST_PID + rank.rank


def _described(rank: RankTimeline, first_tid: int) -> Iterator[str]:
    of_rank = {"ph": "M", "pid": _pid(rank)}
    yield json_text({**of_rank, "name": "process_name", "args": {"name": rank.label}})
    yield json_text({**of_rank, "name": "process_sort_index", "args": {"sort_index": rank.rank}})
    for i, track in enumerate(rank.tracks):
        of_track = {**of_rank, "tid": first_tid + i}
        name = track.name if not track.lane else f"{track.name} ({track.lane + 1})"
        yield json_text({**of_track, "name": "thread_name", "args": {"name": name}})
        yield json_text({**of_track, "name": "thread_sort_index", "args": {"sort_index": i}})


def _slices(rank: RankTimeline, first_tid: int, names: list[str], categories: list[str]) -> Iterator[str]:
    pid = _pid(rank)
    begun = rank.tokens[rank.tokens >= 0]
    columns = (begun, rank.start_ns[begun], rank.dur_ns[begun], rank.track[begun] + first_tid,
               rank.name[begun], rank.category[begun])  # fmt: skip
    for i, start, dur, tid, name, category in zip(*(c.tolist() for c in columns), strict=True):
        values = rank.values.get(i)
        more = f', "args": {json_text(values)}' if values else ""
        yield (
            f'{{"ph": "X", "pid": {pid}, "tid": {tid}, "ts": {_us(start)}, "dur": {_us(dur)}, '
            f'"name": {names[name]}, "cat": {categories[category]}{more}}}'
        )


def _flows(flows: dict[int, list[tuple[int, int, int]]]) -> Iterator[str]:
    for flow, members in flows.items():
        for k, (start, pid, tid) in enumerate(sorted(members)):
            phase = "s" if k == 0 else "f" if k == len(members) - 1 else "t"
            ends = ', "bp": "e"' if phase == "f" else ""
            yield (
                f'{{"ph": "{phase}", "id": {flow}, "pid": {pid}, "tid": {tid}, "ts": {_us(start)}, '
                f'"name": "collective", "cat": "collective"{ends}}}'
            )


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"
