"""What is left of the host's time without the profiler, by the regions of the step log?

The log times forward, backward and optimizer step in steps without the profiler too. Where the device decides the step,
the host waits in them for room in the queue, but not in all: after a pause the queue is empty. The quickest of each
region are thus the host's own work, and so is what the trace has of them in profiled steps without waiting.

    factor = quickest unprofiled / own profiled, summed over regions and ranks

Waiting only makes it larger: it is a bound from above.
"""

import numpy as np

from stepscope.analyze.host.time import Activities, activities
from stepscope.analyze.step.logged_steps import WORK_REGIONS, Floats, region_times
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.run.step_log import StepLog
from stepscope.stats.distinct import among
from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind, rows_named
from stepscope.trace.table import Int64s

_MIN_STEPS = 8
_QUICK = 1.5
"""times the quickest: so much do regions differ in which the host does not wait"""


def logged_factor(run: Run, steps: Int64s) -> float | None:
    """Return the largest that the host's factor can be, None where the logs do not tell."""
    logs = {log.rank: log for log in run.logs}
    own = quick = 0.0
    for rank in run.ranks:
        log = logs.get(rank.rank)
        if log is None or not rank.has_device:
            continue
        times = region_times(log)
        regions = [name for name in WORK_REGIONS if name in times]
        did = activities(rank) if regions else None
        for name in regions:
            unprofiled = _quick_ns(log, times[name])
            recorded = _own_ns(rank, did, name, steps) if did is not None and unprofiled else None
            if recorded and unprofiled:
                own, quick = own + recorded, quick + unprofiled
    return quick / own if own else None


def _own_ns(rank: Rank, did: Activities, region: str, steps: Int64s) -> float:
    """Return the host's own time in a region of the recorded steps, per step."""
    rows = np.flatnonzero(rank.kinds == EventKind.ANNOTATION)
    rows = rows_named(rank.trace, rows, lambda name: name == region)
    start = rank.trace["ts_ns"][rows]
    at = rank.steps.of(start)
    kept = (at >= 0) & among(rank.steps.number[np.maximum(at, 0)], steps)
    start, took = start[kept], rank.trace["dur_ns"][rows[kept]]
    own = did.parts(start, start + took).own_ns
    return float(own.sum()) / max(len(steps), 1)


def _quick_ns(log: StepLog, took: Floats) -> float | None:
    """Return how long a region takes in steps without the profiler in which the host did not wait."""
    known = took[log.unprofiled & (took > 0)]
    if len(known) < _MIN_STEPS:
        return None
    return median(known[known <= _QUICK * known.min()])
