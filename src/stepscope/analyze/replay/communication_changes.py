"""Changes to what a run communicates: fewer bytes, larger messages, no repeats.

A transfer is modelled as latency + bytes / bandwidth, fitted on the run's own collectives of the same operation.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.replay.graph import Meeting
from stepscope.analyze.replay.program import NOTHING, Program
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.analyze.replay.unit_overhead import unit_overhead_ns
from stepscope.contract.collectives import OP_CODE
from stepscope.cost.collectives.alpha_beta import Fit, fit
from stepscope.run.matching.match import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

GOOD_MESSAGE_BYTES = 4 * 2**20
_CALL = "c10d::"
_MOSTLY = 0.5
GRADIENT_OPS = tuple(OP_CODE[op] for op in ("all_reduce", "reduce_scatter"))

Mask = npt.NDArray[np.bool_]
Transfers = Callable[[Program, Int64s, Int64s, Int64s], npt.NDArray[np.float64]]
"""`(program, operations, sizes, items) -> transfer times` of those items"""


def transfer_lines(replay: Replay, *, bulk_only: bool = False) -> dict[int, Fit]:
    """Return the fitted line of each operation the run used, by operation code.

    `bulk_only` leaves out the small messages that together carry 5 % of the bytes: they travel by another protocol
    and say nothing about large ones.
    """
    sizes: dict[int, list[Int64s]] = {}
    times: dict[int, list[Int64s]] = {}
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        items = np.flatnonzero(program.collective != NOTHING)
        rows = program.collective[items]
        size = rank.collectives.full_bytes[rows]
        for op in distinct(rank.collectives.op[rows]):
            mine = (rank.collectives.op[rows] == op) & (size > 0) & (program.duration_ns[items] > 0)
            sizes.setdefault(int(op), []).append(size[mine])
            times.setdefault(int(op), []).append(program.duration_ns[items][mine])
    lines = {}
    for op in sizes:
        x, y = np.concatenate(sizes[op]), np.concatenate(times[op])
        if not len(x):
            continue
        keep = x >= _bulk_size(x) if bulk_only else np.ones(len(x), bool)
        lines[op] = fit(x[keep], y[keep])
    return lines


def _bulk_size(sizes: Int64s) -> float:
    """Return the size from which on messages carry 95 % of the bytes."""
    ordered = np.sort(sizes)
    return float(ordered[np.searchsorted(np.cumsum(ordered), 0.05 * ordered.sum())])


def fewer_bytes(replay: Replay, share: float, *, kept: Sequence[Mask] | None = None) -> Replay:
    """Return the run with every collective moving `share` of its bytes; latency stays.

    `kept` marks collectives that stay as they are, one mask per rank over the rows of its Collectives.
    """
    lines = transfer_lines(replay)

    def changed(program: Program, op: Int64s, size: Int64s, items: Int64s) -> npt.NDArray[np.float64]:
        before = _modelled(lines, op, size)
        after = _modelled(lines, op, size * share)
        return np.asarray(program.duration_ns[items] * np.where(before > 0, after / np.maximum(before, 1), share))

    return _with_transfers(replay, changed, kept)


def larger_messages(replay: Replay, message_bytes: int = GOOD_MESSAGE_BYTES) -> Replay:
    """Return the run with small collectives merged into messages of the given size.

    Each keeps its bytes and its share of one message's latency, on the network and on the host.
    """
    if replay.message_bytes >= message_bytes:
        return replay
    lines = transfer_lines(replay, bulk_only=True)
    programs = []
    for index, (rank, program) in enumerate(zip(replay.shared.run.ranks, replay.programs, strict=True)):
        items = group_items(rank.collectives.op, program)
        rows = program.collective[items]
        size = rank.collectives.full_bytes[rows]
        recorded = (rank.collectives.end_ns - rank.collectives.start_ns - np.maximum(replay.shared.wait_ns[index], 0))[
            rows
        ]
        share = _merged(lines, rank.collectives.op[rows], size, recorded, message_bytes) / np.maximum(recorded, 1)
        merged = _with_transfer_share(program, items, np.where(size > 0, share, 1.0), recorded)
        programs.append(_spare_host(rank, merged, items, 1 - np.clip(size / message_bytes, 0, 1)))
    return replace(rebuilt(replay, programs), message_bytes=message_bytes)


def _merged(
    lines: dict[int, Fit],
    op: npt.NDArray[np.uint8],
    size: Int64s,
    now: Int64s,
    message_bytes: int,
) -> npt.NDArray[np.float64]:
    """Return what each transfer takes as part of a message of the given size; no more than it takes now."""
    share = np.clip(size / message_bytes, 0, 1)
    alpha = np.array([lines[o].alpha_ns if o in lines else 0.0 for o in op.tolist()])
    slope = np.array([lines[o].ns_per_byte if o in lines else np.inf for o in op.tolist()])
    return np.minimum(
        now, np.where(share < 1, alpha * share + np.where(size > 0, slope, 0.0) * np.maximum(size, 0), now)
    )


def _with_transfer_share(program: Program, items: Int64s, share: npt.NDArray[np.float64], recorded: Int64s) -> Program:
    """Return a program whose transfers take a share of what they take now.

    Where an earlier change laid the transfers of a step together, they shrink together.
    """
    duration = program.duration_ns.astype(float)
    if not program.also_after:
        duration[items] *= share
        return replace(program, duration_ns=np.rint(duration).astype(np.int64))
    together = float((recorded * share).sum() / max(recorded.sum(), 1))
    duration[items] *= together
    after = tuple((item, other, round(lag_ns * together)) for item, other, lag_ns in program.also_after)
    return replace(program, duration_ns=np.rint(duration).astype(np.int64), also_after=after)


def _spare_host(rank: Rank, program: Program, items: Int64s, spared: npt.NDArray[np.float64]) -> Program:
    """Return a program in which the host is spared a share of each of these calls, and of the hooks they belong to."""
    hooks = unit_overhead_ns(rank, program)
    alone = hooks[items] < _MOSTLY * np.maximum(program.host.own_ns[items], 1)
    fewer = spare_calls(rank, program, items[alone], spared[alone])
    if alone.all():
        return fewer
    own = np.maximum(fewer.host.own_ns - hooks * float(spared[~alone].mean()), 0)
    return replace(fewer, host=replace(fewer.host, own_ns=np.rint(own).astype(np.int64)))


def spare_calls(rank: Rank, program: Program, items: Int64s, spared: npt.NDArray[np.float64]) -> Program:
    """Return a program in which the host is spared a share of each of these calls.

    Without the call, the host would take the usual time from the launch before it to the launch after it. What it
    takes beyond that is the call's: part of it comes before its own launch, the rest before the next. A rank without
    a device computes between its calls: there a call takes what its operator takes.
    """
    if not len(items):
        return program
    own = program.host.own_ns.astype(float)
    if not rank.has_device:
        own[items] -= spared * np.minimum(own[items], _call_ns(rank))
        return replace(program, host=replace(program.host, own_ns=np.rint(own).astype(np.int64)))
    usual = median(own)
    following = np.minimum(items + 1, len(program) - 1)
    last_of_several = ~among(following, items)
    more_after = np.maximum(own[following] - usual, 0) * last_of_several
    own[items] -= spared * own[items]
    own[following] -= spared * more_after
    return replace(program, host=replace(program.host, own_ns=np.rint(own).astype(np.int64)))


def _call_ns(rank: Rank) -> float:
    """Return what the host takes to ask for a collective, by the median."""
    rows = rank.rows_named(lambda s: s.startswith(_CALL), EventKind.HOST_OP)
    return median(rank.trace["dur_ns"][rows]) if len(rows) else 0.0


def without_collectives(replay: Replay, dropped: Sequence[Mask]) -> Replay:
    """Return the run without some collectives, given per rank over the rows of its Collectives."""
    programs, gone = [], []
    for rank, program, rows in zip(replay.shared.run.ranks, replay.programs, dropped, strict=True):
        items = np.zeros(len(program), bool)
        is_comm = program.collective != NOTHING
        items[is_comm] = rows[program.collective[is_comm]]
        spared = spare_calls(rank, program, np.flatnonzero(items), np.ones(int(items.sum())))
        programs.append(replace(spared, duration_ns=np.where(items, 0, program.duration_ns)))
        gone.append(items)
    kept = [Meeting(m.members) for m in replay.meetings if not all(gone[r][i] for r, i in m.members)]
    return rebuilt(replay, programs, kept)


def group_items(ops: npt.NDArray[np.uint8], program: Program, only: tuple[int, ...] = ()) -> Int64s:
    """Return the items that are collectives of a group (not point-to-point)."""
    items = np.flatnonzero(program.collective != NOTHING)
    op = ops[program.collective[items]]
    keep = among(op, only) if only else ~among(op, POINT_TO_POINT)
    return items[keep]


def _with_transfers(replay: Replay, changed: Transfers, kept: Sequence[Mask] | None) -> Replay:
    """Return the run with the transfers that `changed(program, op, size, items)` gives for group collectives."""
    programs = []
    for index, (rank, program) in enumerate(zip(replay.shared.run.ranks, replay.programs, strict=True)):
        items = group_items(rank.collectives.op, program)
        rows = program.collective[items]
        known = rank.collectives.full_bytes[rows] > 0
        if kept is not None:
            known &= ~kept[index][rows]
        items, rows = items[known], rows[known]
        duration = program.duration_ns.copy()
        op, size = rank.collectives.op[rows], rank.collectives.full_bytes[rows]
        duration[items] = np.rint(changed(program, op.astype(np.int64), size, items))
        programs.append(replace(program, duration_ns=duration))
    return rebuilt(replay, programs)


def _modelled(lines: dict[int, Fit], op: npt.NDArray[np.integer], size: npt.ArrayLike) -> npt.NDArray[np.float64]:
    sizes = np.asarray(size, float)
    out = np.zeros(len(sizes))
    for one, line in lines.items():
        mine = np.flatnonzero(op == one)
        out[mine] = line.time_ns(sizes[mine])
    return out
