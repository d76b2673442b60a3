"""In which of some calls of the host was each piece of device work launched?

As `enclosing` tells it, from the calls alone: a launch climbs from the last call that began before it to the first that
is still open. That holds as long as no launch outlasts a call that it began in; where one does, all are stacked.
"""

import numpy as np

from stepscope.analyze.host.calls import HostCalls
from stepscope.run.device_work import enclosing, lookup
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.trace.table import Int64s


def launched_within(rank: Rank, calls: HostCalls, work: Int64s) -> Int64s:
    """Return the innermost of the calls around the launch of each piece of work, given by its index and launched, as an
    index into `calls`; -1 where there is none.
    """
    trace, launch = rank.trace, rank.work.launch_row.take(work)
    start = trace["ts_ns"].take(launch)
    end = start + trace["dur_ns"].take(launch)
    out = _last_begun(calls, trace["tid"].take(launch), start)
    inside = np.flatnonzero(out >= 0)
    while len(inside):
        call, begun, ended = out.take(inside), start.take(inside), end.take(inside)
        until = calls.end_ns.take(call)
        left = np.flatnonzero((ended > until) | (begun >= until))
        inside, call, begun, ended, until = (values.take(left) for values in (inside, call, begun, ended, until))
        if (begun < until).any():
            row = calls.row.astype(np.int64)
            return lookup(row, np.arange(len(row)), enclosing(trace, row, launch))
        stays = (ended <= until) & (begun == calls.start_ns.take(call))  # both take no time
        above = np.where(stays, call, calls.parent.take(call))
        out[inside] = above
        inside = inside[(above >= 0) & ~stays]
    return out


def _last_begun(calls: HostCalls, thread: Int64s, moment_ns: Int64s) -> Int64s:
    """Return the last call that began on a thread by a moment, -1 where there is none."""
    out = np.full(len(thread), -1, np.int64)
    for one in distinct(calls.thread).tolist():
        mine, there = np.flatnonzero(thread == one), calls.of_thread(one)
        begun = np.searchsorted(calls.start_ns[there], moment_ns.take(mine), side="right")
        out[mine] = np.where(begun > 0, there.start + begun - 1, -1)
    return out
