"""What does a rank need for a step when it waits for nobody?

With a device: the longer of the host's time and the device's, each without waiting for other ranks. Without: the host's
span less exposed waiting. When a rank waited is known once all ranks are on one clock; everything else follows from its
own trace. So that much is taken from the trace alone (`own_time`), is small, and the waits come later (`own_ns`):

    host    = span - recording - |blocked while the device did nothing of its own, and waiting|
    device  = |work of the step| - |its communication alone on the device, and waiting|
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.time import RECORDING_COST_NS, blocked_host, recorded_events
from stepscope.analyze.ranks.window import device_busy, host_compute
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
from stepscope.run.rank import Rank
from stepscope.run.steps import Steps
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class OwnTime(ArrayRecord):
    """The steps of a rank before it is known when it waited."""

    host_ns: Int64s
    """per step: the host's span less what recording it cost, which differs between equal hosts"""
    idle: Intervals
    """when the host was blocked and the device ran nothing but communication; without a device: in a collective and
    computing nothing. Waiting there is no own time; blocked by the device's own work is: the one cannot go on before
    the other"""
    device_ns: Int64s | None
    """per step: the work launched in it; None without a device"""
    alone: Intervals
    """communication with nothing beside it, step by step; sorted within a step only"""
    alone_step: npt.NDArray[np.int64]
    """index of the step that launched it"""


def own_time(rank: Rank) -> OwnTime:
    """Return what a rank's trace alone says of its own time."""
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
    """Return when some of the device's work ran, step by step, and the step of each interval."""
    work = rank.work
    return union_by(work.step[some], work.start_ns[some], work.end_ns[some])


def own_ns(own: OwnTime, steps: Steps, waits: Intervals) -> Floats:
    """Return a rank's own time per step, given when it only waited for others."""
    waited = intersect(own.idle, waits)
    host = np.maximum(own.host_ns - covered_ns(waited, steps.start_ns, steps.end_ns), 0)
    if own.device_ns is None:
        return host.astype(float)
    idle = np.bincount(own.alone_step, covered_ns(waits, *own.alone), minlength=len(steps))
    return np.maximum(host, own.device_ns - idle)
