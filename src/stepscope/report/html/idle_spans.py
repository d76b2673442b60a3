"""Where did a rank's device, or a rank without one, do nothing for long, and what was the host doing meanwhile?

Each span is named by its cause and, where the recording tells, by the place: `host: train.py:42`, `data loading`,
`host: after aten::add_` where no owner was recorded.
"""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.attribution.idle import Cause
from stepscope.analyze.host.calls import HostCalls
from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.stacks import NOBODY
from stepscope.analyze.step.regions import marks_of
from stepscope.intervals import complement, union
from stepscope.report.html.frames import user_line
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind, rows_named
from stepscope.trace.table import Int64s

MAX_SPANS = 300
"""of one rank and step: the longest are kept"""
MIN_SHARE = 1 / 1000
"""of the step; shorter holes are no wider than a pixel"""
MIN_NS = 10_000

_WHAT = {
    Cause.LAUNCH: "launching", Cause.SYNC: "host sync", Cause.ALLOCATOR: "allocator", Cause.DATA: "data loading",
    Cause.GC: "garbage collector", Cause.STALL: "host", Cause.OTHER_STREAM: "queued behind another stream",
    Cause.QUEUED: "queued, not started", Cause.PROFILER: "profiler", Cause.UNKNOWN: "idle, cause unknown",
    Cause.SHARED: "another rank on this device", Cause.TURNAROUND: "between two operations",
}  # fmt: skip
_HOSTS = (Cause.LAUNCH, Cause.SYNC, Cause.ALLOCATOR, Cause.DATA, Cause.GC, Cause.STALL)

Spans = tuple[Int64s, Int64s, list[str]]
"""start, end and name of each"""


def idle_spans(account: Account, index: int, *, start_ns: int, end_ns: int) -> Spans:
    """Return the long idle times of a rank between two moments of its own clock, by start."""
    view = account.ranks[index]
    if view.budget is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), []
    idle = view.budget.idle
    found = _of_host(view.rank, start_ns, end_ns) if idle is None else idle.slices
    start, end = np.maximum(found[0], start_ns), np.minimum(found[1], end_ns)
    label = found[2]
    long = end - start >= max(MIN_NS, MIN_SHARE * (end_ns - start_ns))
    rows = np.flatnonzero(long & (label < len(Cause)))
    rows = np.sort(rows[np.argsort(start[rows] - end[rows], kind="stable")[:MAX_SPANS]])
    places = _places(account, index, (start[rows] + end[rows]) // 2)
    names = [_name(Cause(int(c)), place) for c, place in zip(label[rows], places, strict=True)]
    return start[rows], end[rows], names


def _name(cause: Cause, place: str | None) -> str:
    return f"{_WHAT[cause]}: {place}" if place and cause in _HOSTS else _WHAT[cause]


def _of_host(rank: Rank, start_ns: int, end_ns: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return the holes in what a rank without a device recorded: operators, calls and collectives."""
    trace, c = rank.trace, rank.collectives
    rows = np.flatnonzero(np.isin(rank.kinds, (EventKind.HOST_OP, EventKind.RUNTIME)))
    begun, ended = trace["ts_ns"][rows], trace["ts_ns"][rows] + trace["dur_ns"][rows]
    near = (begun < end_ns) & (ended > start_ns)
    busy = union(np.concatenate((begun[near], c.start_ns)), np.concatenate((ended[near], c.end_ns)))
    holes = complement(busy, start_ns, end_ns)
    return holes.start, holes.end, np.full(len(holes), Cause.STALL, np.int64)


def _places(account: Account, index: int, moments: Int64s) -> list[str | None]:
    """Return where the training loop's thread was: the user's line, else the named range, else the last operator."""
    rank, owned = account.run.ranks[index], account.ownership[index]
    thread = np.full(len(moments), marks_of(rank).main_thread, np.int64)
    nowhere: list[str | None] = [None] * len(moments)
    lines = _lines(owned, thread, moments) if owned is not None else nowhere
    if all(lines):
        return lines
    calls = account.ranks[index].costs.calls.calls
    after = _last_operators(rank, calls, thread, moments)
    around = _ranges(rank, thread, moments)
    return [line or inside or last for line, inside, last in zip(lines, around, after, strict=True)]


def _lines(owned: Ownership, thread: Int64s, moments: Int64s) -> list[str | None]:
    stack = owned.host.owner.at(owned.host.at(thread, moments)).stack
    return [None if s == NOBODY else user_line(owned, int(s)) for s in stack.tolist()]


def _last_operators(rank: Rank, calls: HostCalls, thread: Int64s, moments: Int64s) -> list[str | None]:
    """Return `after aten::add_`: the operator of the thread that began last, `in` where it is still open."""
    out: list[str | None] = []
    for one, moment in zip(thread.tolist(), moments.tolist(), strict=True):
        low, high = np.searchsorted(calls.thread, [one, one + 1])
        at = low + int(np.searchsorted(calls.start_ns[low:high], moment, side="right")) - 1
        if at < low:
            out.append(None)
            continue
        word = "in" if calls.end_ns[at] > moment else "after"
        out.append(f"{word} {rank.trace.strings[calls.name[at]]}")
    return out


def _ranges(rank: Rank, thread: Int64s, moments: Int64s) -> list[str | None]:
    """Return the innermost range that a user opened around each moment, but for the profiler's own steps."""
    trace = rank.trace
    rows = np.flatnonzero(rank.kinds == EventKind.ANNOTATION)
    rows = rows_named(trace, rows, lambda text: not text.startswith(("ProfilerStep#", "PyTorch Profiler")))
    start, tid = trace["ts_ns"][rows], trace["tid"][rows]
    end = start + trace["dur_ns"][rows]
    out: list[str | None] = []
    for one, moment in zip(thread.tolist(), moments.tolist(), strict=True):
        inside = np.flatnonzero((tid == one) & (start <= moment) & (end > moment))
        last = rows[inside[np.argmax(start[inside])]] if len(inside) else None
        out.append(None if last is None else f"in {trace.strings[trace['name'][last]]}")
    return out
