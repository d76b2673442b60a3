"""The replayed steps of a rank as a Chakra execution trace: host time before each launch, and what it launched."""

from collections.abc import Iterator

from stepscope.analyze.replay.replay import Replay
from stepscope.contract.collectives import OPS
from stepscope.trace.chakra import Written, chakra_pieces
from stepscope.trace.table import EventKind

_COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7
_KINDS = {"send": _SEND, "recv": _RECEIVE}


def chakra_files(replay: Replay) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the name and the pieces of each rank's file, of ranks with a device."""
    for index, rank in enumerate(replay.shared.run.ranks):
        if rank.has_device and len(replay.programs[index]):
            yield f"chakra.{rank.rank}.et", chakra_pieces(_nodes(replay, index))


def _nodes(replay: Replay, index: int) -> Iterator[Written]:
    """Yield the nodes of a rank: of item `i` the host's has number 2i + 1, that of its work 2i + 2."""
    rank, program = replay.shared.run.ranks[index], replay.programs[index]
    work, collectives = rank.work, rank.collectives
    launched = rank.trace["ts_ns"][work.launch_row[program.device_index]].tolist()
    before = program.host.total_ns.tolist()
    waits: dict[int, list[int]] = {}
    for other, item in program.waits.T.tolist():
        waits.setdefault(item, []).append(2 * other + 2)
    for i, at in enumerate(program.device_index.tolist()):
        released = int(program.released_by[i])
        host_waits = ([2 * i - 1] if i else []) + ([2 * released + 2] if released >= 0 else [])
        yield Written("host", _COMPUTE, 0, launched[i] - before[i], before[i], True, tuple(host_waits))
        previous, of = int(program.stream_predecessor[i]), int(program.collective[i])
        device_waits = (2 * i + 1, *([2 * previous + 2] if previous >= 0 else ()), *waits.get(i, ()))
        op = OPS[collectives.op[of]] if of >= 0 else None
        is_communication = work.kind[at] == EventKind.COMM_KERNEL
        size = int(collectives.full_bytes[of]) if of >= 0 else -1
        yield Written(
            name=rank.trace.text(int(work.name[at])) or "?",
            kind=_KINDS.get(op or "", _COLLECTIVE) if is_communication else _COMPUTE,
            lane=int(work.stream[at]),
            start_ns=int(work.start_ns[at]),
            dur_ns=int(work.end_ns[at] - work.start_ns[at]),
            on_host=False,
            waits=device_waits,
            comm_op=op,
            comm_bytes=size if size >= 0 else None,
            group=collectives.groups[collectives.group[of]].name if of >= 0 else None,
        )
