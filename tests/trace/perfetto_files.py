"""A window of Kineto's JSON as Perfetto traces: as the Perfetto SDK writes one (rocprofv3) and as torch does.

Field numbers are those of protos/perfetto/trace/ in the Perfetto project.
"""

import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from typing import Any

SEQUENCE = 7
_CLEARED, _NEEDS_STATE = 1, 2
_INCREMENTAL = 64
_STAGES = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "gpu_user_annotation": "Annotation"}
# what torch writes of a kernel in other words
_OVERHEAD = 0x7FFFFFFF
_EXTRA = {"device": "device id", "stream": "stream id", "context": "context id"}
_LAUNCH = {"registers per thread": "registers_per_thread", "shared memory": "shared_mem_dynamic"}


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = []
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    return message(field, value.encode("utf-8", "replace"))


def packet(*parts: bytes) -> bytes:
    return message(1, *parts)


def clocks(*of: tuple[int, int], incremental: int | None = None) -> bytes:
    found = [message(1, number(1, clock), number(2, ns)) for clock, ns in of]
    if incremental is not None:
        found.append(message(1, number(1, _INCREMENTAL), number(2, incremental), number(3, 1)))
    return message(6, *found)


def ns_of(event: dict[str, Any], key: str) -> int:
    """Return a time in whole nanoseconds, exact."""
    return round(Decimal(str(event[key])) * 1000)


def as_json(document: dict[str, Any], path: Any) -> None:
    """Write the part of a window that Perfetto's format has a place for."""
    kept = [e for e in document["traceEvents"] if e["ph"] in "XMi"]
    path.write_text(json.dumps({"baseTimeNanoseconds": document.get("baseTimeNanoseconds", 0), "traceEvents": kept}))


class _Names:
    """Interned names of one kind."""

    def __init__(self, field: int, first: int = 1) -> None:
        self.field, self.ids, self.new, self._next = field, dict[str, int](), list[bytes](), count(first)

    def id(self, name: str) -> int:
        if name not in self.ids:
            self.ids[name] = next(self._next)
            self.new.append(message(self.field, number(1, self.ids[name]), text(2, name)))
        return self.ids[name]


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return number(2, value)
    if isinstance(value, int):
        return number(4, value)
    if isinstance(value, float):
        return varint(5 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, dict):
        return b"".join(message(11, text(10, key), _value(of)) for key, of in value.items())
    return b"".join(message(12, _value(of)) for of in value) if isinstance(value, list) else text(6, str(value))


def _args(event: dict[str, Any]) -> dict[str, Any]:
    return event.get("args") or {}


def _tracks(events: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield each event with its track, counted from 1: another track of the same thread where slices cross."""
    open_until: dict[tuple[Any, Any], list[list[int]]] = {}
    number_of: dict[tuple[Any, ...], int] = {}
    for event in sorted(events, key=lambda e: (ns_of(e, "ts"), -ns_of(e, "dur") if "dur" in e else 0)):
        key = (event["pid"], event["tid"])
        start = ns_of(event, "ts")
        end = start + ns_of(event, "dur") if "dur" in event else start
        levels = open_until.setdefault(key, [[]])
        for level, stack in enumerate(levels):  # noqa: B007
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                break
        else:
            levels.append([])
            level = len(levels) - 1
        levels[level].append(end)
        yield event, number_of.setdefault((*key, level), len(number_of) + 1)


def _labels(document: dict[str, Any], kind: str) -> dict[tuple[Any, Any], str]:
    found = (e for e in document["traceEvents"] if e["ph"] == "M" and e["name"] == kind)
    return {(e["pid"], e["tid"] if kind == "thread_name" else 0): str(_args(e).get("name")) for e in found}


def _as_number(value: Any) -> int:
    return value if isinstance(value, int) else sum(map(ord, str(value))) + (1 << 20)


def _descriptors(document: dict[str, Any], tracks: dict[int, tuple[Any, Any]]) -> Iterator[bytes]:
    processes, threads = _labels(document, "process_name"), _labels(document, "thread_name")
    processes[_OVERHEAD, 0] = "Overhead"
    for i, pid in enumerate(dict.fromkeys(pid for pid, _ in tracks.values())):
        name = text(6, processes[pid, 0]) if (pid, 0) in processes else b""
        yield packet(message(60, number(1, 1_000_000 + i), message(3, number(1, _as_number(pid)), name)))
    for uuid, (pid, tid) in tracks.items():
        name = text(5, threads[pid, tid]) if (pid, tid) in threads else b""
        yield packet(
            message(60, number(1, uuid), message(4, number(1, _as_number(pid)), number(2, _as_number(tid)), name))
        )


def sdk_trace(document: dict[str, Any], *, boot_ns: int = 5_000_000_000) -> bytes:
    """Return a window in the order of time, with categories, interned texts and a clock that counts differences."""
    base = document.get("baseTimeNanoseconds", 0)
    placed = list(_tracks([e for e in document["traceEvents"] if e["ph"] in "Xi"]))
    first = base + min(ns_of(e, "ts") for e, _ in placed)
    names, categories, keys, texts = _Names(2), _Names(1), _Names(3), _Names(29)
    out = [packet(clocks((6, boot_ns), (1, first)))]
    state = [message(59, number(58, _INCREMENTAL)), number(13, _CLEARED), number(10, SEQUENCE)]
    out.append(packet(*state, clocks((6, boot_ns), incremental=boot_ns)))
    out += _descriptors(document, {track: (e["pid"], e["tid"]) for e, track in placed})
    moments: list[tuple[int, int, int, bytes]] = []
    for order, (event, track) in enumerate(placed):
        at = base + ns_of(event, "ts") - first
        fields = [number(9, 1 if event["ph"] == "X" else 3), number(11, track), number(10, names.id(event["name"]))]
        if "cat" in event:
            fields.append(number(3, categories.id(event["cat"])))
        for key, value in _args(event).items():
            interned = isinstance(value, str) and len(value) > 8
            part = number(17, texts.id(value)) if interned else _value(value)
            fields.append(message(4, number(1, keys.id(key)), part))
        interns = b"".join(part for kind in (names, categories, keys, texts) for part in kind.new)
        for kind in (names, categories, keys, texts):
            kind.new.clear()
        # interned before they are used: written in this order below, which is that of time
        moments.append((at, 1, order, message(12, interns) + message(11, *fields)))
        if event["ph"] == "X":
            end = at + ns_of(event, "dur")
            # inner ends first; what takes no time ends before anything that begins then
            moments.append((end, 0 if end > at else 2, -order, message(11, number(9, 2), number(11, track))))
    last = 0
    at_once = {-order for _, rank, order, _ in moments if rank == 2}
    moments.sort(key=lambda m: (m[0], 2, abs(m[2]), m[1]) if abs(m[2]) in at_once else (m[0], m[1], m[2], 0))
    for at, _, _, body in moments:
        out.append(packet(number(10, SEQUENCE), number(13, _NEEDS_STATE), number(8, at - last), body))
        last = at
    return b"".join(out)


def torch_trace(document: dict[str, Any]) -> bytes:
    """Return a window as torch's CUPTI monitor writes it: no categories, all begins and then all ends, GPU stages."""
    base = document.get("baseTimeNanoseconds", 0)
    complete = [e for e in document["traceEvents"] if e["ph"] == "X"]
    on_device = [e for e in complete if e.get("cat") in _STAGES]
    on_host = [e for e in complete if e.get("cat") not in _STAGES]
    names, stages, kernels, launch = _Names(2), _Names(24), _Names(1000), _Names(1001)
    for stage in _STAGES.values():
        stages.id(stage)
    tracks: dict[tuple[Any, Any], int] = {}
    begins, ends, work = [], [], []
    state = number(10, SEQUENCE) + number(13, _NEEDS_STATE)
    for event in on_host:
        if event.get("cat") == "overhead":
            event = {**event, "pid": _OVERHEAD, "tid": 0}
        track = tracks.setdefault((event["pid"], event["tid"]), len(tracks) + 1)
        at = base + ns_of(event, "ts")
        fields = [number(9, 1), number(11, track), number(10, names.id(event["name"]))]
        fields += [message(4, text(10, key), _value(value)) for key, value in _args(event).items()]
        begins.append(packet(number(8, at), state, message(11, *fields)))
        end = message(11, number(9, 2), number(11, track))
        ends.append(packet(number(8, at + ns_of(event, "dur")), number(10, SEQUENCE), end))
    for event in on_device:
        args = dict(_args(event))
        fields = [
            number(1, args.pop("correlation", 0)),
            number(2, ns_of(event, "dur")),
            number(11, int(event["pid"])),
            number(13, stages.id(f"stream {int(event['tid']):02d}")),
            number(14, stages.id(_STAGES[event["cat"]])),
            number(20, names.id(event["name"])),
        ]
        if event["cat"] == "kernel":
            fields.append(number(19, kernels.id(event["name"])))
            sizes = [
                message(i, *(number(1 + k, n) for k, n in enumerate(args.pop(key, ()))))
                for i, key in ((1, "grid"), (2, "block"))
            ]
            given = [(launch.id(_LAUNCH[key]), args.pop(key)) for key in _LAUNCH if key in args]
            fields.append(message(21, *sizes, *(message(3, number(1, i), number(4, v)) for i, v in given)))
        fields += [message(6, text(1, _EXTRA.get(key, key)), text(2, str(value))) for key, value in args.items()]
        work.append(packet(number(8, base + ns_of(event, "ts")), state, message(53, *fields)))
    interns = b"".join(part for kind in (names, stages, kernels, launch) for part in kind.new)
    head = packet(number(10, SEQUENCE), number(13, _CLEARED), message(12, interns))
    uuids = {uuid: place for place, uuid in tracks.items()}
    return b"".join([*_descriptors(document, uuids), head, *begins, *ends, *work])
