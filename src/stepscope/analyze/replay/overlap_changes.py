"""The run with its gradient collectives started while the backward pass still runs.

The bytes of a step travel in n equal pieces, each ready when its share of the backward pass is done. With a total
transfer T the last piece ends at

    max(end of backward + T/n,  1/n of backward + T)

because either the last piece is what remains, or the link was busy all the time. Transfer and compute beside each
other share cores and memory, so both take longer.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.analyze.replay.changes import Change, at_any_factor
from stepscope.analyze.replay.communication_changes import (
    GOOD_MESSAGE_BYTES,
    GRADIENT_OPS,
    Mask,
    group_items,
    larger_messages,
    transfer_lines,
)
from stepscope.analyze.replay.program import NOTHING, Program, by_item
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.intervals import covered_ns, union
from stepscope.run.aligned import AlignedRun
from stepscope.stats.distinct import distinct
from stepscope.trace.table import Int64s

_CONTENTION = 0.1
"""of the time that transfer and compute share: what each of the two takes longer"""


def overlapped(
    replay: Replay, backward: Sequence[Mask], *, message_bytes: int = GOOD_MESSAGE_BYTES, exactly: bool = False
) -> Replay:
    """Return the run with the gradients of a step sent in pieces of at most `message_bytes` beside backward.

    Pieces that were recorded smaller stay so, unless they are to be `exactly` that large. `backward` marks the
    backward pass's work per rank, over the rows of its DeviceWork.
    """
    latency = max((line.alpha_ns for op, line in transfer_lines(replay).items() if op in GRADIENT_OPS), default=0.0)
    programs = []
    for index, (program, mask) in enumerate(zip(replay.programs, backward, strict=True)):
        c = replay.shared.run.ranks[index].collectives
        items = group_items(c.op, program, GRADIENT_OPS)
        pieces = _pieces(program, items, np.maximum(c.full_bytes, 0), message_bytes, exactly=exactly)
        computes = program.collective == NOTHING
        computes &= mask[program.device_index] if len(mask) else False
        hidden = hidden_transfers(replay.shared, index)
        programs.append(_overlapped(program, items, computes, pieces, latency, hidden))
    return rebuilt(replay, programs)


def perfectly_overlapped(backward: Sequence[Mask]) -> Change:
    """Return the change in which gradients travel beside backward as far as dependencies allow, in good messages."""
    return at_any_factor(lambda replay: overlapped(larger_messages(replay), backward, exactly=True))


def hidden_transfers(shared: AlignedRun, index: int) -> Int64s:
    """Return how much of each collective's transfer ran beside compute when it was recorded."""
    rank = shared.run.ranks[index]
    work, c = rank.work, rank.collectives
    computes = np.ones(len(work), bool)
    if rank.has_device:
        computes[c.device_index] = False
    start = c.start_ns + np.maximum(shared.wait_ns[index], 0)
    return covered_ns(union(work.start_ns[computes], work.end_ns[computes]), start, np.maximum(start, c.end_ns))


def _pieces(program: Program, items: Int64s, size: Int64s, message_bytes: int, *, exactly: bool) -> dict[int, int]:
    """Return in how many pieces the gradients of each step travel."""
    out = {}
    for step in distinct(program.step[items]).tolist():
        mine = items[program.step[items] == step]
        total = int(size[program.collective[mine]].sum())
        out[step] = max(1 if exactly else len(mine), -(-total // message_bytes))
    return out


def _overlapped(
    program: Program, items: Int64s, computes: Mask, pieces_of: dict[int, int], latency_ns: float, hidden_ns: Int64s
) -> Program:
    """Return one rank's program with its gradient collectives of each step as one overlapped transfer."""
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
