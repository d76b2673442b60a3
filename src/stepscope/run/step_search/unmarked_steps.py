"""Which steps has a run whose traces mark none? Those that all ranks show alike.

The loader's batches and the optimizer's steps, else the period of the kernels' sequence, on every rank as many: a step
is the same step everywhere. Else the whole window of each rank is one stretch, so that what was lost in it is found;
how often the loop went round in it is unknown, and a window of more than MAX_ITEMS is too long to be replayed.

A trace that was cut off holds the host's events first and the device's after them. So as far as launches have device
work it is complete, and only that far it is looked at; without any device work nothing tells how far that is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from stepscope.run.collectives.table import Collectives
from stepscope.run.device_work import device_work
from stepscope.run.rank import Rank
from stepscope.run.step_search.marks import steps_between_marks
from stepscope.run.step_search.period import kernel_period
from stepscope.run.steps import Steps, unnamed_steps
from stepscope.trace.classify import EventKind, of_kinds

MAX_ITEMS = 60_000
"""of device work and collectives on all ranks: a longer window is no stretch"""


def with_derived_steps(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks with steps where none of them has any and all tell the same number of them."""
    if any(len(rank.steps) for rank in ranks):
        return list(ranks)
    for tell in _ways(ranks):
        found = [_as_far_as_known(rank, tell(rank)) for rank in ranks]
        steps = [one for one in found if one is not None]
        if len(steps) == len(ranks) and len({len(one) for one in steps}) == 1:
            return [with_steps(rank, one) for rank, one in zip(ranks, steps, strict=True)]
    return list(ranks)


def _as_far_as_known(rank: Rank, steps: Steps | None) -> Steps | None:
    """Return the steps of a rank, of one that was cut off those whose device work is there; None where none is."""
    if steps is None or not rank.trace.quality.truncated:
        return steps
    launches = rank.work.launch_row[rank.work.launch_row >= 0]
    if not rank.has_device or not len(launches):
        return None
    known_until_ns = (rank.trace["ts_ns"][launches] + rank.trace["dur_ns"][launches]).max()
    keep = steps.end_ns <= known_until_ns + 1
    whole = replace(steps, number=steps.number[keep], start_ns=steps.start_ns[keep], end_ns=steps.end_ns[keep])
    return whole if len(whole) else None


def _marked(rank: Rank) -> Steps | None:
    found = steps_between_marks(rank.trace, rank.kinds)
    return None if found is None else unnamed_steps(*found)


def _periodic(rank: Rank) -> Steps | None:
    found = kernel_period(rank.trace, rank.work)
    if found is None:
        return None
    told_by = f"the period of the sequence of kernels (confidence {found.confidence:.2f})"
    return unnamed_steps(found.start_ns, found.end_ns, told_by)


def _whole(rank: Rank) -> Steps | None:
    rows = rank.work.launch_row[rank.work.launch_row >= 0]
    rows = rows if rank.has_device else np.flatnonzero(rank.kinds == EventKind.HOST_OP)
    if not len(rows):
        return None
    start = rank.trace["ts_ns"][rows]
    end = start + rank.trace["dur_ns"][rows]
    first, last = np.array([_begin_ns(rank, int(start.min()))], np.int64), np.array([end.max() + 1], np.int64)
    return unnamed_steps(first, last, "the whole window", is_window=True)


def _begin_ns(rank: Rank, first_ns: int) -> int:
    """Return where a window begins: with the first launch, or before it where the device is busy with earlier work and
    the host is seen: what the host does then is part of the window.
    """
    host = np.flatnonzero(of_kinds(rank.kinds, (EventKind.HOST_OP, EventKind.ANNOTATION, EventKind.RUNTIME)))
    if not rank.has_device or not len(host):
        return first_ns
    return min(first_ns, max(int(rank.work.start_ns.min()), int(rank.trace["ts_ns"][host].min())))


def _ways(ranks: Sequence[Rank]) -> tuple[Callable[[Rank], Steps | None], ...]:
    """Return how steps may be told, the best way first."""
    is_short = sum(len(rank.work) or len(rank.collectives) for rank in ranks) <= MAX_ITEMS
    return (_marked, _periodic, _whole) if is_short else (_marked, _periodic)


def with_steps(rank: Rank, steps: Steps) -> Rank:
    """Return the rank with everything that belongs to a step put into these."""
    work, joins = device_work(rank.trace, rank.kinds, steps)
    return replace(rank, steps=steps, work=work, joins=joins, collectives=_in_steps(rank, steps))


def _in_steps(rank: Rank, steps: Steps) -> Collectives:
    c = rank.collectives
    asked = c.issue_ns > np.iinfo(np.int64).min
    step = steps.of(np.where(asked, c.issue_ns, c.start_ns))
    if rank.has_device:
        step = np.where(asked, step, -1).astype(np.int32)
    return replace(c, step=step)
