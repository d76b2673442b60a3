"""Files for other tools: stacks of source lines with their times, and Chakra execution traces.

    pprof       profile.proto of the pprof project, gzipped; one sample per stack and module, the module as a label
    speedscope  the JSON of speedscope.app; lines and modules, each by critical path, device and host

All times are nanoseconds per step.
"""

import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.replay.replay import Replay
from stepscope.contract.operations import OPS
from stepscope.report.perfetto import message, number
from stepscope.trace.chakra import COLLECTIVE_TYPES
from stepscope.trace.table import EventKind
from stepscope.units import NS_PER_US
from stepscope.version import __version__

# stack of (`file:line`, function) with the outermost first, and module; then host, device and critical path
Stacks = Mapping[tuple[tuple[tuple[str, str], ...], str], npt.NDArray[np.float64]]

_KINDS = {"critical_path": 2, "device": 1, "host": 0}
_UNOWNED = "(no owner)"


def pprof_profile(stacks: Stacks, *, name: str, step_ns: float | None) -> bytes:
    """Return the stacks as a gzipped profile for `pprof`; the first sample type is the critical path."""
    texts: dict[str, int] = {"": 0}
    functions: dict[tuple[str, str], int] = {}
    locations: dict[tuple[str, str], int] = {}
    text = partial(_id, texts, 0)
    body = [message(1, number(1, text(kind)), number(2, text("nanoseconds"))) for kind in _KINDS]
    for (stack, module), times in stacks.items():
        frames = [number(1, _id(locations, 1, frame)) for frame in reversed(stack or ((_UNOWNED, _UNOWNED),))]
        values = [number(2, round(float(times[at]))) for at in _KINDS.values()]
        labels = [message(3, number(1, text("module")), number(2, text(module)))] if module else []
        body.append(message(2, *frames, *values, *labels))
    for (place, function), location in locations.items():
        file, line = _place(place)
        row = number(1, _id(functions, 1, (file, function))), number(2, line)
        body.append(message(4, number(1, location), message(4, *row)))
    for (file, function), at in functions.items():
        body.append(
            message(5, number(1, at), number(2, text(function)), number(3, text(function)), number(4, text(file)))
        )
    body.append(number(10, round(step_ns or 0)))
    body.append(message(11, number(1, text("step")), number(2, text("count"))) + number(12, 1))
    body.append(number(13, text(f"stepscope {__version__}: {name}, times per step")))
    body.append(number(14, text("critical_path")))
    body += [message(6, one.encode("utf-8", "replace")) for one in texts]
    packer = zlib.compressobj(wbits=31)
    return packer.compress(b"".join(body)) + packer.flush()


def speedscope_profile(stacks: Stacks, *, name: str) -> bytes:
    """Return the stacks as the JSON of speedscope: lines and modules by each kind of time that there is any of."""
    frames: dict[tuple[str, str], int] = {}
    profiles = []
    for what in ("lines", "modules"):
        for kind, at in _KINDS.items():
            times: dict[tuple[int, ...], int] = {}
            for (stack, module), values in stacks.items():
                path = stack if what == "lines" else tuple(("", part) for part in _modules(module))
                key = tuple(_id(frames, 0, frame) for frame in path or (("", _UNOWNED),))
                times[key] = times.get(key, 0) + round(float(values[at]))
            if any(times.values()):
                profiles.append(_sampled(f"{what}, {kind.replace('_', ' ')}", times))
    shown = [_frame(place, label) for place, label in frames]
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": f"{name}, time per step",
        "exporter": f"stepscope@{__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": shown},
        "profiles": profiles,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _id(known: dict[Any, int], first: int, key: Any) -> int:
    return known.setdefault(key, len(known) + first)


def _place(name: str) -> tuple[str, int]:
    file, _, line = name.rpartition(":")
    return (file, int(line)) if line.isdigit() else ("", 0)


def _modules(path: str) -> Collection[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _frame(place: str, label: str) -> dict[str, Any]:
    file, line = _place(place)
    return {"name": f"{label} ({place})", "file": file, "line": line} if file else {"name": label}


def _sampled(name: str, times: Mapping[tuple[int, ...], int]) -> dict[str, Any]:
    largest = sorted(((stack, ns) for stack, ns in times.items() if ns > 0), key=lambda one: one[0])
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(ns for _, ns in largest),
        "samples": [list(stack) for stack, _ in largest],
        "weights": [ns for _, ns in largest],
    }


# The replayed steps of a rank as a Chakra execution trace: host time before each launch, and what it launched.

_COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7
_P2P_KINDS = {"send": _SEND, "recv": _RECEIVE}
# of AttributeProto: fields of its values
_INTEGER, _BOOLEAN, _STRING = 9, 27, 29


def chakra_files(replay: Replay) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the name and the pieces of each rank's file, of ranks with a device."""
    for index, rank in enumerate(replay.shared.run.ranks):
        if rank.has_device and len(replay.programs[index]):
            yield f"chakra.{rank.rank}.et", _pieces(replay, index)


def _pieces(replay: Replay, index: int) -> Iterator[bytes]:
    """Yield the nodes of a rank: of item `i` the host's has number 2i + 1, that of its work 2i + 2."""
    rank, program = replay.shared.run.ranks[index], replay.programs[index]
    work, collectives = rank.work, rank.collectives
    launched = rank.trace["ts_ns"][work.launch_row[program.device_index]].tolist()
    before = program.host.total_ns.tolist()
    waits: dict[int, list[int]] = {}
    for other, item in program.waits.T.tolist():
        waits.setdefault(item, []).append(2 * other + 2)
    yield _framed(message(1, b"0.0.4"))
    for i, at in enumerate(program.device_index.tolist()):
        released, previous = int(program.released_by[i]), int(program.stream_predecessor[i])
        after = ([2 * i - 1] if i else []) + ([2 * released + 2] if released >= 0 else [])
        host = (_attr("is_cpu_op", 1, _BOOLEAN), _attr("tid", 0))
        yield _node(2 * i + 1, "host", _COMPUTE, launched[i] - before[i], before[i], after, *host)
        of = int(program.collective[i])
        attrs = [_attr("is_cpu_op", 0, _BOOLEAN), _attr("stream", int(work.stream[at]))]
        kind = _COLLECTIVE if work.kind[at] == EventKind.COMM_KERNEL else _COMPUTE
        if of >= 0:
            op, size = OPS[collectives.op[of]], int(collectives.full_bytes[of])
            kind = _P2P_KINDS.get(op, kind)
            attrs += [_attr("comm_type", COLLECTIVE_TYPES.index(op))] if op in COLLECTIVE_TYPES else []
            attrs += [_attr("comm_size", size)] if size >= 0 else []
            group = collectives.groups[collectives.group[of]].name.encode(errors="replace")
            attrs.append(message(10, message(1, b"pg_name"), message(_STRING, group)))
        after = [2 * i + 1, *([2 * previous + 2] if previous >= 0 else []), *waits.get(i, ())]
        name, took = rank.trace.text(int(work.name[at])) or "?", int(work.end_ns[at] - work.start_ns[at])
        yield _node(2 * i + 2, name, kind, int(work.start_ns[at]), took, after, *attrs)


def _node(own: int, name: str, kind: int, start_ns: int, dur_ns: int, waits: Sequence[int], *attrs: bytes) -> bytes:
    packed = [message(5, *(number(1, other)[1:] for other in waits))] if waits else []
    times = (number(6, start_ns // NS_PER_US), number(7, round(dur_ns / NS_PER_US)))
    exact = (_attr("start_ns", start_ns), _attr("duration_ns", dur_ns))
    head = (number(1, own), message(2, name.encode(errors="replace")), number(3, kind))
    return _framed(*head, *packed, *times, *attrs, *exact)


def _framed(*parts: bytes) -> bytes:
    return message(1, *parts)[1:]  # length and content, without the tag


def _attr(name: str, value: int, field: int = _INTEGER) -> bytes:
    return message(10, message(1, name.encode()), number(field, value))
