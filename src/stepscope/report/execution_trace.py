"""The replayed steps of a rank as a Chakra execution trace: host time before each launch, and what it launched."""

from collections.abc import Iterator, Sequence

from stepscope.analyze.replay.replay import Replay
from stepscope.contract.operations import OPS
from stepscope.report.perfetto import message, number
from stepscope.trace.chakra import COLLECTIVE_TYPES
from stepscope.trace.table import EventKind
from stepscope.units import NS_PER_US

_COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7
_KINDS = {"send": _SEND, "recv": _RECEIVE}
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
            kind = _KINDS.get(op, kind)
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
