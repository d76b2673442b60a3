"""Whose is each moment of the host? Operators are their owners'; Python between them goes to the stacks that ran there.

Inside an autograd node Python that runs between two operators of a hook is the hook's.

The training thread waits while the autograd engine's thread works for it: that time is the engine's operators', and
only what is left of it (`runs`) is the line's that called backward.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_calls import HostCalls
from stepscope.analyze.ownership import HostTime, OwnedWork, joined_owners
from stepscope.analyze.phases import Marks
from stepscope.analyze.stacks import Mask
from stepscope.dataclass import dataclass
from stepscope.intervals import Intervals, covered_ns, intersect, subtract, union
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

# a shorter gap goes to whoever had most of it
_MIN_SHARED_GAP_NS = 5_000


@dataclass(frozen=True, eq=False, repr=False)
class GapShares(ArrayRecord):
    """Stacks that ran in the gaps before calls, with their shares: gap g has the entries `first[g]:first[g + 1]`."""

    #: the gap before each call, -1 where nothing is known of it
    gap_of_call: Int64s
    first: Int64s
    stack: npt.NDArray[np.int32]
    share: npt.NDArray[np.float64]
    #: the gap after the training thread's last call, -1 where nothing is known of it
    last: int = -1


def host_time(
    rank: Rank,
    marks: Marks,
    calls: HostCalls,
    by_call: OwnedWork,
    gaps: GapShares | None,
    between: Callable[[Int64s, Int64s], OwnedWork],
    *,
    python: Mask | None = None,
) -> HostTime:
    """Return the time of the training thread and the autograd engine's, by owner.

    `between(previous, following)` gives the owners of Python between two calls of which nothing else is known. Where
    `python` tells which of the calls are Python frames, their time is Python's and their own.
    """
    if not len(rank.steps):
        return _joined([])
    begin, end = int(rank.steps.start_ns.min()), int(rank.steps.end_ns.max())
    is_range = rank.kinds[calls.row] == EventKind.ANNOTATION
    is_range = is_range if python is None else is_range | python
    is_range &= calls.nearest(~is_range) < 0  # inside an operator a range is part of it
    on_engine = np.isin(calls.thread, marks.autograd_threads) & ~is_range
    engine = union(calls.start_ns[on_engine], calls.end_ns[on_engine])
    order = np.argsort(calls.start_ns[on_engine])
    engine_calls = calls.start_ns[on_engine][order], by_call.caller[on_engine][order]
    parts = []
    for thread in sorted({int(marks.main_thread), *marks.autograd_threads.tolist()}):
        spans = _thread_spans(calls, thread, begin, end)
        call = spans[2]
        in_python = (call < 0) | is_range[call] if len(calls) else np.ones(len(call), bool)
        if thread == marks.main_thread:
            part = _owned(calls, thread, spans, in_python, by_call, gaps, between, engine_calls)
            parts.append(_without_engine(part, engine))
        else:
            spans = spans[:, ~in_python]
            parts.append(_owned(calls, thread, spans, in_python[~in_python], by_call, gaps, between, None))
    return _joined(parts)


def _owned(
    calls: HostCalls,
    thread: int,
    spans: Int64s,
    python: Mask,
    by_call: OwnedWork,
    gaps: GapShares | None,
    between: Callable[[Int64s, Int64s], OwnedWork],
    engine_calls: tuple[Int64s, npt.NDArray[np.int32]] | None,
) -> HostTime:
    start_ns, end_ns, call = spans
    low, high = np.searchsorted(calls.thread, [thread, thread + 1])
    after = low + np.searchsorted(calls.start_ns[low:high], start_ns, side="right")
    following, previous = np.where(after < high, after, -1), np.where(after > low, after - 1, -1)
    own = by_call.at(call)
    owner = own.where(~python | ((own.stack >= 0) & (gaps is None)), between(previous, following))
    owner = owner.where(~_inside_hook(calls, by_call, call, previous, following) | python, by_call.at(previous))
    whole = HostTime(np.full(len(call), thread), start_ns, end_ns, owner, python, np.ones(len(call), bool))
    if gaps is None or not len(gaps.stack):
        return whole
    gap = np.where(python, np.append(gaps.gap_of_call, gaps.last)[following], -1)
    if engine_calls is not None and len(engine_calls[0]):
        whole, gap, gaps = _around_backward(whole, gap, gaps, *engine_calls)
    return _cut(whole, gaps, gap)


def _inside_hook(calls: HostCalls, by_call: OwnedWork, call: Int64s, previous: Int64s, following: Int64s) -> Mask:
    if not len(calls):
        return np.zeros(len(call), bool)
    stack = by_call.stack
    same = (stack[previous] == stack[following]) & (stack[previous] >= 0) & (stack[previous] != stack[call])
    within = (call >= 0) & (previous > call) & (following > call) & (calls.start_ns[following] < calls.end_ns[call])
    return same & within & by_call.backward[call]


def _around_backward(
    whole: HostTime, gap: Int64s, gaps: GapShares, called_ns: Int64s, callers: npt.NDArray[np.int32]
) -> tuple[HostTime, Int64s, GapShares]:
    """Return spans cut where the engine began and ended working for them, with the gap of each piece.

    How long backward took in the step with frames says nothing of its time here. What came before it ran before the
    engine began, what came after it later: also in the spans beside, where a range cuts the gap.
    """
    begun, ended = np.searchsorted(called_ns, whole.start_ns), np.searchsorted(called_ns, whole.end_ns)
    hit = np.flatnonzero((ended > begun) & (gap >= 0))
    if not len(hit):
        return whole, gap, gaps
    gap = gap.copy()
    same_gap = np.append(gap[1:] == gap[:-1], False)  # as the next span
    pieces: list[tuple[int, int, int, int]] = []  # span, start, end, gap
    first, stack, share = gaps.first.tolist(), gaps.stack.tolist(), gaps.share.tolist()
    worked = set(hit.tolist())
    for i in hit.tolist():
        low, high = first[gap[i]], first[gap[i] + 1]
        at = next((k for k in range(low, high) if stack[k] == callers[begun[i]]), None)
        if at is None:
            pieces.append((i, int(whole.start_ns[i]), int(whole.end_ns[i]), int(gap[i])))
            continue
        cuts = (int(whole.start_ns[i]), int(called_ns[begun[i]]), int(called_ns[ended[i] - 1]))
        numbers = range(len(first) - 1, len(first) + 2)
        for one, other in ((low, at), (at, at + 1), (at + 1, high)):
            if one == other:
                one, other = at, at + 1
            stack += stack[one:other]
            share += [part / max(sum(share[one:other]), 1e-9) for part in share[one:other]]
            first.append(len(stack))
        pieces += [(i, *piece) for piece in zip(cuts, (*cuts[1:], int(whole.end_ns[i])), numbers, strict=True)]
        for beside in _beside(i, same_gap, worked):
            gap[beside] = numbers[0 if beside < i else 2]
    kept = np.setdiff1d(np.arange(len(whole)), hit, assume_unique=True)
    span, start, end, number = np.array(pieces, np.int64).T
    every, begin = np.concatenate((kept, span)), np.concatenate((whole.start_ns[kept], start))
    order = np.argsort(begin, kind="stable")
    every, until = every[order], np.concatenate((whole.end_ns[kept], end))[order]
    cut = HostTime(
        whole.thread[every], begin[order], until, whole.owner.at(every), whole.is_python[every], whole.runs[every]
    )
    grown = replace(gaps, first=np.array(first), stack=np.array(stack, np.int32), share=np.array(share, float))
    return cut, np.concatenate((gap[kept], number))[order], grown


def _beside(span: int, same_gap: Mask, worked: set[int]) -> list[int]:
    before = takewhile(lambda k: same_gap[k] and k not in worked, range(span - 1, -1, -1))
    after = takewhile(lambda k: same_gap[k - 1] and k not in worked, range(span + 1, len(same_gap)))
    return [*before, *after]


def _cut(whole: HostTime, gaps: GapShares, gap: Int64s) -> HostTime:
    count = np.where(gap >= 0, np.diff(gaps.first)[gap], 0)
    duration = whole.end_ns - whole.start_ns
    short = (duration < _MIN_SHARED_GAP_NS) & (count > 0)
    order = np.lexsort((gaps.share, np.repeat(np.arange(len(gaps.first) - 1), np.diff(gaps.first))))
    largest = np.append(order[gaps.first[1:] - 1] if len(order) else order, 0)
    pieces = np.where(short | (count == 0), 1, count)
    span = np.repeat(np.arange(len(whole)), pieces)
    nth = np.arange(len(span)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    known = count[span] > 0
    entry = np.where(known, np.where(short[span], largest[gap[span]], gaps.first[gap[span]] + nth), 0)
    share = np.where(known & ~short[span], gaps.share[entry] if len(gaps.share) else 1.0, 1.0)
    start = whole.start_ns[span]
    end = start + np.rint(duration[span] * _running_share(share, pieces)).astype(np.int64)
    begin = np.where(nth == 0, start, np.concatenate(([0], end[:-1])))
    owner = whole.owner.at(span)
    stack = gaps.stack[entry] if len(gaps.stack) else np.full(len(entry), -1, np.int32)
    cut = OwnedWork(stack, stack, owner.module, owner.backward).where(known, owner)
    return HostTime(whole.thread[span], begin, end, cut, whole.is_python[span], whole.runs[span])


def _running_share(share: npt.NDArray[np.float64], pieces: Int64s) -> npt.NDArray[np.float64]:
    total = np.cumsum(share)
    before = np.repeat(np.concatenate(([0.0], total[np.cumsum(pieces)[:-1] - 1])), pieces) if len(pieces) else total
    until = total - before
    until[np.cumsum(pieces) - 1] = 1.0
    return np.clip(until, 0.0, 1.0)


def _without_engine(part: HostTime, engine: Intervals) -> HostTime:
    waits = part.is_python & (covered_ns(engine, part.start_ns, part.end_ns) > 0)
    if not waits.any():
        return part
    own = Intervals(part.start_ns[waits], part.end_ns[waits])
    pieces = [(subtract(own, engine), True), (intersect(own, engine), False)]
    start = np.concatenate([x.start for x, _ in pieces])
    index = np.flatnonzero(waits)[np.searchsorted(own.start, start, side="right") - 1]
    kept = np.flatnonzero(~waits)
    begin = np.concatenate((part.start_ns[kept], start))
    order = np.argsort(begin, kind="stable")
    every = np.concatenate((kept, index))[order]
    runs = np.concatenate((part.runs[kept], *(np.full(len(x), r) for x, r in pieces)))
    end = np.concatenate((part.end_ns[kept], *(x.end for x, _ in pieces)))
    return HostTime(
        part.thread[every], begin[order], end[order], part.owner.at(every), part.is_python[every], runs[order]
    )


def _joined(parts: list[HostTime]) -> HostTime:
    no_time, no_mask = np.empty(0, np.int64), np.empty(0, bool)
    return HostTime(
        thread=np.concatenate([no_time, *(p.thread for p in parts)]),
        start_ns=np.concatenate([no_time, *(p.start_ns for p in parts)]),
        end_ns=np.concatenate([no_time, *(p.end_ns for p in parts)]),
        owner=joined_owners([part.owner for part in parts]),
        is_python=np.concatenate([no_mask, *(p.is_python for p in parts)]),
        runs=np.concatenate([no_mask, *(p.runs for p in parts)]),
    )


def _thread_spans(calls: HostCalls, thread: int, start_ns: int, end_ns: int) -> Int64s:
    """Return start, end and innermost call (-1 for none) of a thread's time, cut wherever anything begins or ends."""
    low, high = np.searchsorted(calls.thread, [thread, thread + 1])
    own = np.arange(low, high)
    end = np.minimum(calls.end_ns[own], _next_beside(calls, own))
    own, end = own[end > calls.start_ns[own]], end[end > calls.start_ns[own]]
    when = np.concatenate((calls.start_ns[own], end))
    innermost = np.concatenate((own, calls.parent[own]))
    begins = np.repeat([True, False], len(own))
    # At one moment ends come before beginnings, inner ends before outer ones, outer beginnings before inner ones.
    order = np.lexsort((np.concatenate((own, -own)), begins, when))
    cuts = np.concatenate(([start_ns], np.clip(when[order], start_ns, end_ns), [end_ns]))
    inside = np.concatenate(([-1], innermost[order]))
    keep = cuts[1:] > cuts[:-1]
    return np.stack((cuts[:-1], cuts[1:], inside))[:, keep]


def _next_beside(calls: HostCalls, own: Int64s) -> Int64s:
    out = np.full(len(own), np.iinfo(np.int64).max)
    order = np.lexsort((own, calls.parent[own]))
    parent, start = calls.parent[own][order], calls.start_ns[own][order]
    same = np.flatnonzero(parent[1:] == parent[:-1])
    out[order[same]] = start[same + 1]
    return out
