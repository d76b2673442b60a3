"""What ran on one rank between two moments: kernels, collectives, copies, and what the host said it was doing."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.step.phases import Phase
from stepscope.contract.collectives import OPS
from stepscope.contract.regions import Region
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.report.html.data import KINDS, LANE_OF_KIND, NO_MATCH, Codes
from stepscope.report.html.idle_spans import idle_spans
from stepscope.run.aligned import UNMATCHED
from stepscope.run.rank import Rank
from stepscope.run.steps import PROFILER_STEP
from stepscope.trace.classify import EventKind, rows_named
from stepscope.trace.table import Int64s

_CODE = {kind: code for code, kind in enumerate(KINDS)}
_OF_REGION = {Region.FORWARD: "forward", Region.BACKWARD: "backward", Region.OPTIMIZER: "optimizer"}
_OF_PHASE = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}
_COLUMNS = ("kind", "start_ns", "end_ns", "wait_ns", "match", "name", "work")

Names = npt.NDArray[np.object_]


@dataclass(frozen=True, eq=False, repr=False)
class RankSlices(ArrayRecord):
    """Slices of one rank by lane and start, on its own clock."""

    kind: Codes
    start_ns: Int64s
    end_ns: Int64s
    wait_ns: Int64s
    match: Int64s
    name: Names
    work: Int64s
    """row of the rank's work, -1 for what no device ran"""

    def __len__(self) -> int:
        return len(self.start_ns)

    def kept(self, most: int) -> "RankSlices":
        """Return the longest `most` of them, still in order."""
        if len(self) <= most:
            return self
        return self.rows(np.sort(np.argsort(self.start_ns - self.end_ns, kind="stable")[:most]))

    def rows(self, rows: npt.NDArray[np.intp]) -> "RankSlices":
        """Return these rows."""
        return RankSlices(*(getattr(self, column)[rows] for column in _COLUMNS))


def rank_slices(account: Account, index: int, *, start_ns: int, end_ns: int) -> RankSlices:
    """Return what overlaps the time from `start_ns` to `end_ns` on a rank's own clock, clipped to it."""
    rank = account.run.ranks[index]
    work = _kernels(account, index) if rank.has_device else _operators(account, index)
    found = [_overlapping(part, start_ns, end_ns) for part in (work, _collectives(account, index))]
    found.append(_overlapping(_ranges(rank, start_ns, end_ns), start_ns, end_ns))
    found.append(_idle(account, index, start_ns, end_ns))
    joined = RankSlices(*(np.concatenate([getattr(p, column) for p in found]) for column in _COLUMNS))
    return joined.rows(np.lexsort((joined.start_ns, np.array(LANE_OF_KIND)[joined.kind])))


def innermost(start: Int64s, end: Int64s) -> list[tuple[int, int, int]]:
    """Return `(row, start, end)` of pieces that do not overlap: at each instant the latest range to begin.

    >>> innermost(np.array([0, 2]), np.array([10, 5]))
    [(0, 0, 2), (1, 2, 5), (0, 5, 10)]
    """
    order = np.lexsort((-end, start)).tolist()
    pieces: list[tuple[int, int, int]] = []
    stack: list[int] = []
    at = 0

    def advance(to: int) -> None:
        nonlocal at
        while stack and end[stack[-1]] <= to:
            top = stack.pop()
            if end[top] > at:
                pieces.append((top, at, int(end[top])))
                at = int(end[top])
        if stack and to > at:
            pieces.append((stack[-1], at, to))
        at = max(at, to)

    for row in order:
        advance(int(start[row]))
        at = int(start[row])
        stack.append(row)
    if len(end):
        advance(int(end.max()))
    return pieces


def _kernels(account: Account, index: int) -> RankSlices:
    """Return kernels by region of training, and copies."""
    rank, budget = account.ranks[index].rank, account.ranks[index].budget
    work = rank.work
    rows = np.flatnonzero(work.kind != EventKind.COMM_KERNEL)
    kind = np.full(len(work), _CODE["other"], np.uint8)
    if budget is not None and budget.regions is not None:
        for region, name in _OF_REGION.items():
            kind[budget.regions.region == region] = _CODE[name]
    kind[work.kind == EventKind.COPY] = _CODE["copy"]
    found = _plain(rank, kind[rows], work.start_ns[rows], work.end_ns[rows], work.name[rows])
    return replace(found, work=rows)


def _operators(account: Account, index: int) -> RankSlices:
    """Return the outermost operators of a rank without a device, by phase."""
    rank = account.run.ranks[index]
    trace = rank.trace
    rows = np.flatnonzero(rank.kinds == EventKind.HOST_OP)
    start, end, thread = trace["ts_ns"][rows], trace["ts_ns"][rows] + trace["dur_ns"][rows], trace["tid"][rows]
    order = np.lexsort((-end, start, thread))
    outermost = np.zeros(len(rows), bool)
    for tid in np.unique(thread):
        mine = order[thread[order] == tid]
        until = np.maximum.accumulate(end[mine])
        outermost[mine] = np.concatenate(([True], start[mine][1:] >= until[:-1]))
    rows, start, end, thread = rows[outermost], start[outermost], end[outermost], thread[outermost]
    phase = account.strategy.passes[index].at(start, thread)
    kind = np.full(len(rows), _CODE["other"], np.uint8)
    for code, name in _OF_PHASE.items():
        kind[phase == code] = _CODE[name]
    return _plain(rank, kind, start, end, trace["name"][rows])


def _collectives(account: Account, index: int) -> RankSlices:
    """Return the collectives with their waits and matches."""
    rank, shared = account.run.ranks[index], account.shared
    c, wait = rank.collectives, shared.wait_ns[index]
    matched = wait != UNMATCHED
    match = np.full(len(c), NO_MATCH, np.int64)
    mine = np.flatnonzero(shared.matches.rank_index == index)
    match[shared.matches.row[mine]] = shared.matches.of_member[mine]
    names = np.array(OPS, object)[c.op]
    on_device = np.flatnonzero(c.device_index >= 0)
    names[on_device] = _names(rank, rank.work.name[c.device_index[on_device]])
    kind = np.where(matched, _CODE["transfer"], _CODE["unmatched"]).astype(np.uint8)
    return RankSlices(kind, c.start_ns, c.end_ns, np.where(matched, wait, 0), match, names, c.device_index)


def _idle(account: Account, index: int, start_ns: int, end_ns: int) -> RankSlices:
    """Return the long times in which nothing ran, named by what the host did."""
    start, end, names = idle_spans(account, index, start_ns=start_ns, end_ns=end_ns)
    none = np.full(len(start), NO_MATCH, np.int64)
    kind = np.full(len(start), _CODE["idle"], np.uint8)
    return RankSlices(kind, start, end, np.zeros(len(start), np.int64), none, np.array(names, object), none)


def _ranges(rank: Rank, start_ns: int, end_ns: int) -> RankSlices:
    """Return the ranges of the host's busiest annotated thread, innermost first; the profiler's own steps aside."""
    trace = rank.trace
    rows = np.flatnonzero(rank.kinds == EventKind.ANNOTATION)
    inside = (trace["ts_ns"][rows] < end_ns) & (trace["ts_ns"][rows] + trace["dur_ns"][rows] > start_ns)
    rows = rows_named(trace, rows[inside], lambda text: not text.startswith(PROFILER_STEP))
    if len(rows):
        threads, count = np.unique(trace["tid"][rows], return_counts=True)
        rows = rows[trace["tid"][rows] == threads[np.argmax(count)]]
    start = trace["ts_ns"][rows]
    pieces = innermost(start, start + trace["dur_ns"][rows])
    at = np.array([p[0] for p in pieces], np.int64)
    begin, end = (np.array([p[k] for p in pieces], np.int64) for k in (1, 2))
    return _plain(rank, np.full(len(at), _CODE["range"], np.uint8), begin, end, trace["name"][rows[at]])


def _plain(rank: Rank, kind: Codes, start: Int64s, end: Int64s, name: npt.NDArray[np.int32]) -> RankSlices:
    none = np.full(len(kind), NO_MATCH, np.int64)
    return RankSlices(kind, start, end, np.zeros(len(kind), np.int64), none, _names(rank, name), none)


def _names(rank: Rank, ids: npt.NDArray[np.int32]) -> Names:
    return np.array([*rank.trace.strings, "?"], object)[ids]  # NO_STRING is -1: the extra last one


def _overlapping(s: RankSlices, start_ns: int, end_ns: int) -> RankSlices:
    """Return the slices that lie in the window, clipped to it; a clipped wait is shortened."""
    kept = s.rows(np.flatnonzero((s.end_ns > start_ns) & (s.start_ns < end_ns)))
    start, end = np.maximum(kept.start_ns, start_ns), np.minimum(kept.end_ns, end_ns)
    wait = np.clip(kept.start_ns + kept.wait_ns - start, 0, end - start)
    return replace(kept, start_ns=start, end_ns=end, wait_ns=wait)
