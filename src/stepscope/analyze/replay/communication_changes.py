"""Changes to what a run communicates: fewer bytes, larger messages, no repeats.

A transfer is modelled as latency + bytes / bandwidth, fitted on the run's own collectives of the same operation.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.replay.changes import Change, at_any_factor
from stepscope.analyze.replay.program import NOTHING, Program, by_item
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.contract.collectives import OP_CODE
from stepscope.cost.alpha_beta import Fit, fit
from stepscope.intervals import covered_ns, union
from stepscope.run.aligned import AlignedRun
from stepscope.run.matching import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.stats.robust import median, quantiles
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

# Host overhead of hooks around collectives.
#
# A sharded module gathers its parameters, copies them out, and packs and scatters its gradients in hooks that
# FullyShardedDataParallel marks (`FSDP::pre_forward`, `FSDP::post_backward_reduce`). They run once per sharded unit,
# so
# messages put together take their hooks with them.


def _unit_overhead_ns(rank: Rank, program: Program) -> npt.NDArray[np.float64]:
    out = np.zeros(len(program))
    if not rank.has_device or not len(program):
        return out
    hooks = rank.rows_named(lambda s: s.startswith("FSDP::"), EventKind.ANNOTATION, EventKind.HOST_OP)
    if not len(hooks):
        return out
    start = rank.trace["ts_ns"][hooks]
    launched = rank.trace["ts_ns"][rank.work.launch_row[program.device_index]]
    before = np.concatenate((launched[:1], launched[:-1]))
    inside = covered_ns(union(start, start + rank.trace["dur_ns"][hooks]), before, np.maximum(launched, before))
    return np.minimum(inside, program.host.own_ns).astype(float)


GOOD_MESSAGE_BYTES = 4 * 2**20
GRADIENT_OPS = tuple(OP_CODE[op] for op in ("all_reduce", "reduce_scatter"))

Mask = npt.NDArray[np.bool_]
# `(program, operations, sizes, items) -> transfer times` of those items
Transfers = Callable[[Program, Int64s, Int64s, Int64s], npt.NDArray[np.float64]]


def _transfer_lines(replay: Replay, *, bulk_only: bool = False) -> dict[int, Fit]:
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
        if bulk_only:
            ordered = np.sort(x)
            keep = x >= ordered[np.searchsorted(np.cumsum(ordered), 0.05 * ordered.sum())]
            x, y = x[keep], y[keep]
        lines[op] = fit(x, y)
    return lines


def fewer_bytes(replay: Replay, share: float, *, kept: Sequence[Mask] | None = None) -> Replay:
    """Return the run with every collective moving `share` of its bytes; latency stays.

    `kept` marks collectives that stay as they are, one mask per rank over the rows of its Collectives.
    """
    lines = _transfer_lines(replay)

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
    lines = _transfer_lines(replay, bulk_only=True)
    programs = []
    for index, (rank, program) in enumerate(zip(replay.shared.run.ranks, replay.programs, strict=True)):
        items = _group_items(rank.collectives.op, program)
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
    together = float((recorded * share).sum() / max(recorded.sum(), 1))
    duration[items] *= together if program.also_after else share
    after = tuple((item, other, round(lag_ns * together)) for item, other, lag_ns in program.also_after)
    return replace(program, duration_ns=np.rint(duration).astype(np.int64), also_after=after)


def _spare_host(rank: Rank, program: Program, items: Int64s, spared: npt.NDArray[np.float64]) -> Program:
    hooks = _unit_overhead_ns(rank, program)
    alone = hooks[items] < 0.5 * np.maximum(program.host.own_ns[items], 1)
    fewer = _spare_calls(rank, program, items[alone], spared[alone])
    if alone.all():
        return fewer
    own = np.maximum(fewer.host.own_ns - hooks * float(spared[~alone].mean()), 0)
    return fewer.with_own_ns(own)


def _spare_calls(rank: Rank, program: Program, items: Int64s, spared: npt.NDArray[np.float64]) -> Program:
    """Return a program in which the host is spared a share of each of these calls.

    Without the call, the host would take the usual time from the launch before it to the launch after it. What it
    takes beyond that is the call's: part of it comes before its own launch, the rest before the next. A rank without
    a device computes between its calls: there a call takes what its operator takes.
    """
    if not len(items):
        return program
    own = program.host.own_ns.astype(float)
    if not rank.has_device:
        rows = rank.rows_named(lambda s: s.startswith("c10d::"), EventKind.HOST_OP)
        own[items] -= spared * np.minimum(own[items], median(rank.trace["dur_ns"][rows]) if len(rows) else 0.0)
        return program.with_own_ns(own)
    usual = median(own)
    following = np.minimum(items + 1, len(program) - 1)
    more_after = np.maximum(own[following] - usual, 0) * (~among(following, items))
    own[items] -= spared * own[items]
    own[following] -= spared * more_after
    return program.with_own_ns(own)


def without_collectives(replay: Replay, dropped: Sequence[Mask]) -> Replay:
    """Return the run without some collectives, given per rank over the rows of its Collectives."""
    programs, gone = [], []
    for rank, program, rows in zip(replay.shared.run.ranks, replay.programs, dropped, strict=True):
        items = np.zeros(len(program), bool)
        is_comm = program.collective != NOTHING
        items[is_comm] = rows[program.collective[is_comm]]
        spared = _spare_calls(rank, program, np.flatnonzero(items), np.ones(int(items.sum())))
        programs.append(replace(spared, duration_ns=np.where(items, 0, program.duration_ns)))
        gone.append(items)
    return rebuilt(replay, programs, [m for m in replay.meetings if not all(gone[r][i] for r, i in m)])


def _group_items(ops: npt.NDArray[np.uint8], program: Program, only: tuple[int, ...] = ()) -> Int64s:
    items = np.flatnonzero(program.collective != NOTHING)
    op = ops[program.collective[items]]
    keep = among(op, only) if only else ~among(op, POINT_TO_POINT)
    return items[keep]


def _with_transfers(replay: Replay, changed: Transfers, kept: Sequence[Mask] | None) -> Replay:
    programs = []
    for index, (rank, program) in enumerate(zip(replay.shared.run.ranks, replay.programs, strict=True)):
        items = _group_items(rank.collectives.op, program)
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


# The run with its gradient collectives started while the backward pass still runs.
#
# The bytes of a step travel in n equal pieces, each ready when its share of the backward pass is done. With a total
# transfer T the last piece ends at
#
#     max(end of backward + T/n,  1/n of backward + T)
#
# because either the last piece is what remains, or the link was busy all the time. Transfer and compute beside each
# other share cores and memory, so both take longer.

# of the time that transfer and compute share: what each of the two takes longer
_CONTENTION = 0.1


def overlapped(
    replay: Replay, backward: Sequence[Mask], *, message_bytes: int = GOOD_MESSAGE_BYTES, exactly: bool = False
) -> Replay:
    """Return the run with the gradients of a step sent in pieces of at most `message_bytes` beside backward.

    Pieces that were recorded smaller stay so, unless they are to be `exactly` that large. `backward` marks the
    backward pass's work per rank, over the rows of its DeviceWork.
    """
    latency = max((line.alpha_ns for op, line in _transfer_lines(replay).items() if op in GRADIENT_OPS), default=0.0)
    programs = []
    for index, (program, mask) in enumerate(zip(replay.programs, backward, strict=True)):
        c = replay.shared.run.ranks[index].collectives
        items = _group_items(c.op, program, GRADIENT_OPS)
        pieces = _pieces(program, items, np.maximum(c.full_bytes, 0), message_bytes, exactly=exactly)
        computes = program.collective == NOTHING
        computes &= mask[program.device_index] if len(mask) else False
        hidden = _hidden_transfers(replay.shared, index)
        programs.append(_overlapped(program, items, computes, pieces, latency, hidden))
    return rebuilt(replay, programs)


def perfectly_overlapped(backward: Sequence[Mask]) -> Change:
    """Return the change in which gradients travel beside backward as far as dependencies allow, in good messages."""
    return at_any_factor(lambda replay: overlapped(larger_messages(replay), backward, exactly=True))


def _hidden_transfers(shared: AlignedRun, index: int) -> Int64s:
    rank = shared.run.ranks[index]
    work, c = rank.work, rank.collectives
    computes = np.ones(len(work), bool)
    if rank.has_device:
        computes[c.device_index] = False
    start = c.start_ns + np.maximum(shared.wait_ns[index], 0)
    return covered_ns(union(work.start_ns[computes], work.end_ns[computes]), start, np.maximum(start, c.end_ns))


def _pieces(program: Program, items: Int64s, size: Int64s, message_bytes: int, *, exactly: bool) -> dict[int, int]:
    out = {}
    for step in distinct(program.step[items]).tolist():
        mine = items[program.step[items] == step]
        total = int(size[program.collective[mine]].sum())
        out[step] = max(1 if exactly else len(mine), -(-total // message_bytes))
    return out


def _overlapped(
    program: Program, items: Int64s, computes: Mask, pieces_of: dict[int, int], latency_ns: float, hidden_ns: Int64s
) -> Program:
    duration, after = program.duration_ns.copy(), list(program.also_after)
    kept, added = np.ones(len(program), bool), []
    before = program.stream_predecessor.copy()
    for step in distinct(program.step):
        mine = items[program.step[items] == step]
        if not len(mine):
            continue
        last = int(mine[-1])
        back = np.flatnonzero(computes & (program.step == step))
        back = back[back < last]  # what comes later (copies out of a bucket) waits for the collective itself
        if not len(back):
            continue
        pieces, busy = pieces_of[int(step)], int(duration[back].sum())
        total = int(duration[mine].sum() + latency_ns * max(0, pieces - len(mine)))
        share = int(np.searchsorted(np.cumsum(duration[back]), busy / pieces))
        first_ready = int(back[min(len(back) - 1, share)])
        more_hidden = min(total - total // pieces, busy) - int(hidden_ns[program.collective[mine]].sum())
        total = max(0, total + round(_CONTENTION * more_hidden))
        duration[back] = np.rint(duration[back] * max(0.0, 1 + _CONTENTION * more_hidden / max(busy, 1)))
        duration[mine] = 0
        duration[last] = total // pieces
        after.append((last, first_ready, total - total // pieces))
        # The other collectives of the step wait for nothing any more; the last one for the end of backward.
        kept[mine] = False
        added.append((int(back[-1]), last))
        if before[last] in set(back.tolist()):
            before[last] = NOTHING
    waits = np.concatenate(
        (program.waits[:, kept[program.waits[1]]], np.array(added, np.int64).reshape(-1, 2).T), axis=1
    )
    return replace(
        program,
        duration_ns=duration,
        also_after=tuple(after),
        waits=by_item(waits),
        stream_predecessor=before,
    )


# The run with several collectives in one call, where the trace does not say how large they are.
#
# Whatever its size, a call takes the latency of the operation: what the shortest of them take. Put together,
# `together`
# calls pay it once, on the network and on the host; the rest of their time stays.


def fewer_calls(replay: Replay, together: int) -> Replay:
    """Return the run with its group collectives put together by so many."""
    spared = 1 - 1 / together
    programs = []
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        items = _group_items(rank.collectives.op, program)
        if len(items):
            latency = float(quantiles(program.duration_ns[items], 0.05))
            duration = program.duration_ns.astype(float)
            duration[items] = np.maximum(duration[items] - spared * latency, 0)
            shorter = replace(program, duration_ns=np.rint(duration).astype(np.int64))
            program = _spare_calls(rank, shorter, items, np.full(len(items), spared))
        programs.append(program)
    return rebuilt(replay, programs)
