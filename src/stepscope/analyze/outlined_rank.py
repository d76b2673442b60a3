"""What is kept of a rank whose tables are not: all that other ranks need of it.

    kept       steps, collectives, joins, the window's intervals, what its own time follows from (0.3 MB)
    dropped    events, strings, kinds and device work (7 MB of a trace with 50,000 events)

So clocks, matching, waits, late ranks and the collectives of a job are of all its ranks. Whatever asks such a rank for
events finds none: analyses of single ranks are never asked of it.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_time import RECORDING_COST_NS, blocked_host, recorded_events
from stepscope.analyze.rank_windows import RankAccount, device_busy, host_compute, rank_account
from stepscope.dataclass import dataclass
from stepscope.intervals import (
    EMPTY,
    Intervals,
    complement,
    covered_ns,
    intersect,
    intersect_each,
    subtract,
    union,
    union_by,
)
from stepscope.records import ArrayRecord
from stepscope.run.device_work import DeviceWork
from stepscope.run.rank import Device, Rank
from stepscope.run.steps import Steps
from stepscope.trace.classify import EventKind
from stepscope.trace.table import DENSE, Int64s, Trace

# Own time of a rank: its step without waiting for others.
#
# With a device: the longer of the host's time and the device's, each without waiting for other ranks. Without: the
# host's
# span less exposed waiting. When a rank waited is known once all ranks are on one clock; everything else follows from
# its
# own trace. So that much is taken from the trace alone (`own_time`), is small, and the waits come later (`own_ns`):
#
#     host    = span - recording - |blocked while the device did nothing of its own, and waiting|
#     device  = |work of the step| - |its communication alone on the device, and waiting|

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class OwnTime(ArrayRecord):
    """The steps of a rank before it is known when it waited."""

    #: per step: the host's span less what recording it cost, which differs between equal hosts
    host_ns: Int64s
    #: when the host was blocked and the device ran nothing but communication; without a device: in a collective and
    #: computing nothing. Waiting there is no own time; blocked by the device's own work is: the one cannot go on before
    #: the other
    idle: Intervals
    #: per step: the work launched in it; None without a device
    device_ns: Int64s | None
    #: communication with nothing beside it, step by step; sorted within a step only
    alone: Intervals
    #: index of the step that launched it
    alone_step: npt.NDArray[np.int64]


def _own_time(rank: Rank) -> OwnTime:
    steps = rank.steps
    span = steps.end_ns - steps.start_ns
    if not rank.has_device:
        inside = union(rank.collectives.start_ns, rank.collectives.end_ns)
        return OwnTime(span, subtract(inside, host_compute(rank)), None, EMPTY, np.empty(0, np.int64))
    work, busy = rank.work, device_busy(rank)
    launched = np.flatnonzero(work.step >= 0)
    step, each = _in_steps(rank, launched)
    device_ns = np.zeros(len(steps), np.int64)
    np.add.at(device_ns, step, each.end - each.start)
    step, each = _in_steps(rank, launched[work.kind[launched] == int(EventKind.COMM_KERNEL)])
    free = complement(busy, int(each.start.min()), int(each.end.max())) if len(each) else EMPTY
    at, alone = intersect_each(each, free)
    return OwnTime(
        host_ns=span - RECORDING_COST_NS * recorded_events(rank),
        idle=subtract(union(*blocked_host(rank)), busy),
        device_ns=device_ns,
        alone=alone,
        alone_step=step[at],
    )


def _in_steps(rank: Rank, some: npt.NDArray[np.intp]) -> tuple[Int64s, Intervals]:
    work = rank.work
    return union_by(work.step[some], work.start_ns[some], work.end_ns[some])


def own_ns(own: OwnTime, steps: Steps, waits: Intervals) -> Floats:
    """Return a rank's own time per step, given when it only waited for others."""
    host = np.maximum(own.host_ns - covered_ns(intersect(own.idle, waits), steps.start_ns, steps.end_ns), 0)
    if own.device_ns is None:
        return host.astype(float)
    idle = np.bincount(own.alone_step, covered_ns(waits, *own.alone), minlength=len(steps))
    return np.maximum(host, own.device_ns - idle)


_KEPT_OF_HEADER = ("host_name", "hostname", "trace_id", "nsight")


@dataclass(frozen=True, eq=False, repr=False)
class OutlinedRank(Rank):
    """A rank without its tables."""

    events: int
    on_device: bool
    its_device: Device
    window: RankAccount | None
    own: OwnTime

    @property
    def num_events(self) -> int:
        """Return how many events its trace had."""
        return self.events

    @property
    def has_device(self) -> bool:
        """Return whether anything ran on a device."""
        return self.on_device

    @cached_property
    def device(self) -> Device:
        """Return the device and how it is known."""
        return self.its_device


def outlined(rank: Rank) -> OutlinedRank:
    """Return what is kept of a rank."""
    return OutlinedRank(
        rank=rank.rank,
        rank_source=rank.rank_source,
        trace=_without_events(rank.trace),
        kinds=rank.kinds[:0].copy(),
        steps=rank.steps,
        work=_NO_WORK,
        collectives=rank.collectives,
        joins=rank.joins,
        events=rank.num_events,
        on_device=rank.has_device,
        its_device=rank.device,
        window=rank_account(rank),
        own=_own_time(rank),
    )


def window_of(rank: Rank) -> RankAccount | None:
    """Return the account of a rank's window, which is kept of an outlined one."""
    return rank.window if isinstance(rank, OutlinedRank) else rank_account(rank)


def own_time_of(rank: Rank) -> OwnTime:
    """Return what a rank's own time follows from, which is kept of an outlined one."""
    return rank.own if isinstance(rank, OutlinedRank) else _own_time(rank)


def _without_events(trace: Trace) -> Trace:
    header = {key: trace.header[key] for key in _KEPT_OF_HEADER if key in trace.header}
    info = trace.header.get("distributedInfo")
    if isinstance(info, dict):  # without the list of all ranks of all groups, which every rank of the job has
        header["distributedInfo"] = {key: value for key, value in info.items() if key != "pg_config"}
    columns = {c.name: np.empty(0, c.dtype) for c in DENSE}
    return Trace(trace.path, trace.raw_bytes, header, [], columns, {}, trace.quality, trace.from_cache)


_NOTHING = np.empty(0, np.int64)
_NO_WORK = DeviceWork(
    row=_NOTHING,
    kind=np.empty(0, np.uint8),
    start_ns=_NOTHING,
    end_ns=_NOTHING,
    name=np.empty(0, np.int32),
    device=_NOTHING,
    stream=_NOTHING,
    launch_row=_NOTHING,
    op_row=_NOTHING,
    step=np.empty(0, np.int32),
)
