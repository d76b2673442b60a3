"""Which slices does an exported timeline show? What the user asked for, and no more than a viewer can open.

Where everything is too much, things are left out in this order until it fits, except those the user chose himself:
python frames, the host, all but two steps in the middle, short slices. Steps and collectives always stay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.report.timeline.limit import MAX_SLICES
from stepscope.run.collectives.gloo import span_rows
from stepscope.run.device_work import DEVICE_KINDS
from stepscope.run.quality import rank_ranges
from stepscope.run.rank import Rank
from stepscope.run.steps import PROFILER_STEP
from stepscope.trace.classify import EventKind, rows_named
from stepscope.units import NS_PER_US

_MIN_DURATIONS_US = (5, 20, 100, 500)
_ON_DEVICE = (*DEVICE_KINDS, EventKind.DEVICE_ANNOTATION, EventKind.DEVICE_SYNC)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Filter:
    """What to show. None is no limit."""

    ranks: frozenset[int] | None = None
    steps: range | None = None
    """numbers of the steps; device work belongs to the step that launched it"""
    gpu_only: bool = False
    python: bool = True
    min_ns: int | None = None

    def words(self) -> list[str]:
        """Return what is left out, one phrase each."""
        said = []
        if self.ranks is not None:
            said.append(f"ranks other than {rank_ranges(sorted(self.ranks))}")
        if not self.python and not self.gpu_only:
            said.append("python frames")
        if self.gpu_only:
            said.append("the host's threads")
        if self.steps is not None:
            said.append(f"steps outside {self.steps.start}:{self.steps.stop}")
        if self.min_ns is not None:
            said.append(f"slices below {self.min_ns / NS_PER_US:g} us")
        return said


def shown_rows(rank: Rank, chosen: Filter) -> npt.NDArray[np.intp]:
    """Return the event rows of a rank that are shown: complete events that pass the filter."""
    if chosen.ranks is not None and rank.rank not in chosen.ranks:
        return np.empty(0, np.intp)
    shown = rank.trace["ph"] == ord("X")
    steps, collectives = step_rows(rank), collective_rows(rank)
    if not chosen.python:
        shown &= rank.kinds != EventKind.PYTHON
    if chosen.gpu_only:
        shown &= _with(np.isin(rank.kinds, _ON_DEVICE), steps, collectives)
    if chosen.min_ns is not None:
        shown &= _with(rank.trace["dur_ns"] >= chosen.min_ns, steps, collectives)
    if chosen.steps is not None:
        shown &= _in_steps(rank, chosen.steps)
    return np.flatnonzero(shown)


def step_rows(rank: Rank) -> npt.NDArray[np.intp]:
    """Return the rows in which the host marks whole steps."""
    ranges = np.flatnonzero(rank.kinds == EventKind.ANNOTATION)
    return rows_named(rank.trace, ranges, lambda s: s.startswith(PROFILER_STEP))


def collective_rows(rank: Rank) -> npt.NDArray[np.intp]:
    """Return the event row of each of the rank's collectives, in their order."""
    if rank.has_device:
        return rank.work.row[rank.collectives.device_index]
    return np.array(span_rows(rank.trace, rank.kinds), np.intp)


def fitted(ranks: Sequence[Rank], given: Filter, *, most: int | None = MAX_SLICES) -> tuple[Filter, int]:
    """Return the filter that leaves at most `most` slices, and how many complete events it leaves out.

    Only what the user did not choose is tightened; where that does not suffice the tightest is returned.
    """
    total = sum(int((rank.trace["ph"] == ord("X")).sum()) for rank in ranks)
    for chosen in _tighter(ranks, given):
        count = sum(len(shown_rows(rank, chosen)) for rank in ranks)
        if most is None or count <= most:
            break
    return chosen, total - count


def _tighter(ranks: Sequence[Rank], given: Filter) -> Iterator[Filter]:
    """Yield the given filter and then ever tighter ones."""
    yield given
    chosen = replace(given, python=False)
    yield chosen
    if not given.gpu_only and any(rank.has_device for rank in ranks):
        chosen = replace(chosen, gpu_only=True)
        yield chosen
    middle = _two_steps(ranks)
    if given.steps is None and middle is not None:
        chosen = replace(chosen, steps=middle)
        yield chosen
    if given.min_ns is None:
        for shortest_us in _MIN_DURATIONS_US:
            yield replace(chosen, min_ns=shortest_us * NS_PER_US)


def _two_steps(ranks: Sequence[Rank]) -> range | None:
    """Return two steps in the middle of those that most ranks have, None where there are no more."""
    numbers = np.concatenate([rank.steps.number for rank in ranks])
    each, count = np.unique(numbers, return_counts=True)
    common = each[count == count.max()] if len(each) else each
    if len(common) < 3:
        return None
    first = int(common[(len(common) - 1) // 2])
    return range(first, first + 2)


def _in_steps(rank: Rank, numbers: range) -> Mask:
    """Return the rows that belong to these steps: by launch on the device, by start on the host.

    Ranges and waits of the device have no launch: those that begin while the steps' own work runs are theirs.
    """
    trace = rank.trace
    index = rank.steps.of(trace["ts_ns"])
    index[rank.work.row] = rank.work.step
    known = np.append(rank.steps.number, -1)  # -1 as an index: no step
    number = known[index]
    mine = (index >= 0) & (number >= numbers.start) & (number < numbers.stop)
    work = np.flatnonzero(mine[rank.work.row])
    if len(work):
        first, last = rank.work.start_ns[work].min(), rank.work.end_ns[work].max()
        beside = np.isin(rank.kinds, (EventKind.DEVICE_ANNOTATION, EventKind.DEVICE_SYNC))
        mine[beside] = (trace["ts_ns"][beside] >= first) & (trace["ts_ns"][beside] < last)
    return mine


def _with(mask: Mask, *rows: npt.NDArray[np.intp]) -> Mask:
    for more in rows:
        mask[more] = True
    return mask
