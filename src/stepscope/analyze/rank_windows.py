"""How long did each rank compute, communicate, copy and idle in the recorded window, and what was hidden?

The window's figures describe the file: device work is clipped to the window whichever step launched it. On a rank
without a device the host's operators are the compute and the collective's execution spans are the communication
(`docs/metrics/step.md`, "The account of a CPU rank").
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from stepscope.analyze.host_calls import running_operators, spans
from stepscope.analyze.step_periods import StepPeriods, step_periods
from stepscope.dataclass import dataclass
from stepscope.intervals import EMPTY, Intervals, clip, covered_ns, intersect, intersect_each, subtract, union, union_of
from stepscope.records import ArrayRecord, once_per_record
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s


@dataclass(frozen=True)
class RankAccount:
    """The window of one rank. Parts overlap; `busy + idle` is the window."""

    start_ns: int
    end_ns: int
    compute: Intervals
    comm: Intervals
    #: None on a CPU rank: its copies are operators like any other
    memory: Intervals | None
    exposed_comm: Intervals
    #: communication under compute
    hidden_comm_ns: int
    idle_ns: int
    #: True where a device worked unseen: then compute is what the host ran, and the device's is unknown
    host_only: bool
    warnings: tuple[str, ...]

    @property
    def window_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def overlap_pct(self) -> float | None:
        """Return the share of communication that lies under compute, None without communication."""
        total = self.comm.total_ns
        return 100 * self.hidden_comm_ns / total if total else None

    @property
    def overlap_efficiency(self) -> float | None:
        """Return |compute and comm together| / min(compute, comm), None where either is nothing."""
        smaller = min(self.compute.total_ns, self.comm.total_ns)
        return self.hidden_comm_ns / smaller if smaller else None


def rank_account(rank: Rank) -> RankAccount | None:
    """Return the account of a rank's window, None for a trace with neither steps nor work."""
    window = _window(rank)
    if window is None:
        return None
    start, end, warnings = window
    compute, comm, memory = (clip(x, start, end) for x in _device_activity(rank))
    busy = clip(device_busy(rank), start, end)
    exposed = subtract(comm, busy)
    return RankAccount(
        start_ns=start,
        end_ns=end,
        compute=compute,
        comm=comm,
        memory=memory if rank.has_device else None,
        exposed_comm=exposed,
        hidden_comm_ns=intersect(comm, compute).total_ns,
        idle_ns=end - start - busy.total_ns - exposed.total_ns,
        host_only=rank.device_unseen,
        warnings=warnings,
    )


@once_per_record
def _device_activity(rank: Rank) -> tuple[Intervals, Intervals, Intervals]:
    if rank.has_device:
        return (
            rank.work.intervals(EventKind.KERNEL),
            rank.work.intervals(EventKind.COMM_KERNEL),
            rank.work.intervals(EventKind.COPY, EventKind.SET),
        )
    return host_compute(rank), union(rank.collectives.start_ns, rank.collectives.end_ns), EMPTY


@once_per_record
def device_busy(rank: Rank) -> Intervals:
    """Return when anything but communication ran."""
    compute, _, memory = _device_activity(rank)
    return union_of(compute, memory)


def host_compute(rank: Rank) -> Intervals:
    """Return the time in which any thread ran an operator that computes: no communication call, and none around one."""
    return spans(rank, running_operators(rank))


def _window(rank: Rank) -> tuple[int, int, tuple[str, ...]] | None:
    steps, work = rank.steps, rank.work
    if len(steps) and steps.by_profiler:
        end = max(int(steps.end_ns.max()), int(work.end_ns.max()) if len(work) else 0)
        return int(steps.start_ns.min()), end, ()
    if len(work):
        return int(work.start_ns.min()), int(work.end_ns.max()), (_no_steps(rank, "the device operations"),)
    busy = union_of(host_compute(rank), union(rank.collectives.start_ns, rank.collectives.end_ns))
    if not len(busy):
        return None
    return int(busy.start[0]), int(busy.end[-1]), (_no_steps(rank, "the host's operators"),)


def _no_steps(rank: Rank, spanned: str) -> str:
    steps = rank.steps
    known = "steps are unknown" + (", and what is said per step is of all of it" if steps.is_window else "")
    if rank.trace.quality.truncated and not steps.known:
        return f"cut off before a step was complete: the window is the span of {spanned}, {known}"
    if steps.told_by and not steps.is_window:
        known = f"{len(steps)} step{'s are' if len(steps) > 1 else ' is'} told by {steps.told_by}, counted from 0"
    elif steps.known:
        known = f"steps are the ranges named {steps.named!r}{'' if steps.numbered else ', counted from 0'}"
    return f"no ProfilerStep# in the trace: the window is the span of {spanned}, {known}"


# How much of the communication hid behind compute, step by step?
#
#     compute   ======   =======          together  under both                 exposed  comm outside compute and copies
#     comm         ------------           hidden    comm less exposed          efficiency  together / min(compute,
#     comm)
#
# Efficiency is 1 where the step is as long as the larger of the two and 0 where they follow one another. Times are of
# the steps' periods (`step_periods.py`), so work from before the window does not count.


@dataclass(frozen=True, eq=False, repr=False)
class Overlap(ArrayRecord):
    """Compute and communication of one rank, one value per period."""

    periods: StepPeriods
    compute: Intervals
    comm: Intervals
    #: copies and sets
    memory: Intervals

    @cached_property
    def compute_ns(self) -> Int64s:
        return _per_period(self.compute, self.periods)

    @cached_property
    def comm_ns(self) -> Int64s:
        return _per_period(self.comm, self.periods)

    @cached_property
    def together_ns(self) -> Int64s:
        """Return the time of each period under both: what compute covers of the few pieces of communication."""
        period, comm = intersect_each(Intervals(self.periods.start_ns, self.periods.end_ns), self.comm)
        out = np.zeros(len(self.periods), np.int64)
        np.add.at(out, period, covered_ns(self.compute, comm.start, comm.end))
        return out

    @cached_property
    def exposed_ns(self) -> Int64s:
        return _per_period(subtract(subtract(self.comm, self.compute), self.memory), self.periods)

    @property
    def hidden_ns(self) -> Int64s:
        return self.comm_ns - self.exposed_ns

    @property
    def efficiency(self) -> float | None:
        return overlap_efficiency([self])


def rank_overlap(rank: Rank) -> Overlap | None:
    """Return how compute and communication of a rank's steps overlap, None for a trace without steps or work."""
    periods = step_periods(rank)
    return Overlap(periods, *_device_activity(rank)) if periods is not None else None


def overlap_efficiency(overlaps: Sequence[Overlap | None]) -> float | None:
    """Return the overlap efficiency of all these ranks' steps taken together.

    The smaller of compute and communication is that of each rank: both add up within it.
    """
    known = [o for o in overlaps if o is not None]
    together = sum(int(o.together_ns.sum()) for o in known)
    smaller = sum(min(int(o.compute_ns.sum()), int(o.comm_ns.sum())) for o in known)
    return together / smaller if smaller else None


def _per_period(x: Intervals, periods: StepPeriods) -> Int64s:
    return covered_ns(x, periods.start_ns, periods.end_ns) if len(x) else np.zeros(len(periods), np.int64)
