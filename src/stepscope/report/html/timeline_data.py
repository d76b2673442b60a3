"""What ran on each rank during one step, on one clock, within a budget of slices?

The first step shown is the one nearest to the median. Everything that overlaps it is shown, whichever step launched it,
because that is what the device did at the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.budget import CAUSE_NAMES, Cause
from stepscope.analyze.ownership import NOBODY, Ownership
from stepscope.analyze.phases import NO_STEP, Phase, marks_of
from stepscope.contract.collectives import OPS
from stepscope.contract.names import CAUSES
from stepscope.contract.step_line import Region
from stepscope.intervals import complement, union
from stepscope.records import ArrayRecord, dataclass
from stepscope.report.html.page_data import (
    KINDS,
    LANE_OF_KIND,
    NO_MATCH,
    Codes,
    Grid,
    Launch,
    MatchedCollectives,
    Slices,
    Timeline,
    grid_of,
    launches,
    user_line,
)
from stepscope.run.aligned import UNMATCHED
from stepscope.run.rank import PROFILER_STEP, Rank
from stepscope.trace.table import EventKind, Int64s, rows_named
from stepscope.units import readable_bytes

# Where did a rank's device, or a rank without one, do nothing for long, and what was the host doing meanwhile?
#
# Each span is named by its cause and, where known, by the place: `host stalled: train.py:42`,
# `data loading`, `host stalled: after aten::add_` where no owner was recorded.

# of the step; shorter holes are no wider than a pixel
_MIN_SHARE = 1 / 1000
_MIN_NS = 10_000

_HOSTS = (
    Cause.LAUNCH, Cause.SYNC, Cause.COPY, Cause.AFTER_SYNC, Cause.ALLOCATOR, Cause.DATA, Cause.GC, Cause.STALL,
    Cause.SLOW_CALL,
)  # fmt: skip

# start, end and name of each
Spans = tuple[Int64s, Int64s, list[str]]


def _idle_spans(account: Account, index: int, *, start_ns: int, end_ns: int) -> Spans:
    view = account.ranks[index]
    if view.budget is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), []
    idle = view.budget.idle
    found = _of_host(view.rank, start_ns, end_ns) if idle is None else idle.slices
    start, end = np.maximum(found[0], start_ns), np.minimum(found[1], end_ns)
    label = found[2]
    long = end - start >= max(_MIN_NS, _MIN_SHARE * (end_ns - start_ns))
    rows = np.flatnonzero(long & (label < len(Cause)))
    # of one rank and step: the longest are shown
    rows = np.sort(rows[np.argsort(start[rows] - end[rows], kind="stable")[:300]])
    places = _places(account, index, (start[rows] + end[rows]) // 2)
    names = [_name(Cause(int(c)), place) for c, place in zip(label[rows], places, strict=True)]
    return start[rows], end[rows], names


def _name(cause: Cause, place: str | None) -> str:
    what = CAUSES[CAUSE_NAMES[cause]]
    return f"{what}: {place}" if place and cause in _HOSTS else what


def _of_host(rank: Rank, start_ns: int, end_ns: int) -> tuple[Int64s, Int64s, Int64s]:
    trace, c = rank.trace, rank.collectives
    rows = np.flatnonzero(np.isin(rank.kinds, (EventKind.HOST_OP, EventKind.RUNTIME)))
    begun, ended = trace["ts_ns"][rows], trace["ts_ns"][rows] + trace["dur_ns"][rows]
    near = (begun < end_ns) & (ended > start_ns)
    busy = union(np.concatenate((begun[near], c.start_ns)), np.concatenate((ended[near], c.end_ns)))
    holes = complement(busy, start_ns, end_ns)
    return holes.start, holes.end, np.full(len(holes), Cause.STALL, np.int64)


def _places(account: Account, index: int, moments: Int64s) -> list[str | None]:
    rank, owned = account.run.ranks[index], account.ownership[index]
    thread = np.full(len(moments), marks_of(rank).main_thread, np.int64)
    nowhere: list[str | None] = [None] * len(moments)
    lines = _lines(owned, thread, moments) if owned is not None else nowhere
    if all(lines):
        return lines
    calls = account.ranks[index].costs.calls.calls
    out: list[str | None] = []
    for one, moment in zip(thread.tolist(), moments.tolist(), strict=True):
        low, high = np.searchsorted(calls.thread, [one, one + 1])
        at = low + int(np.searchsorted(calls.start_ns[low:high], moment, side="right")) - 1
        if at < low:
            out.append(None)
            continue
        word = "in" if calls.end_ns[at] > moment else "after"
        out.append(f"{word} {rank.trace.strings[calls.name[at]]}")
    after = out
    around = _ranges(rank, thread, moments)
    return [line or inside or last for line, inside, last in zip(lines, around, after, strict=True)]


def _lines(owned: Ownership, thread: Int64s, moments: Int64s) -> list[str | None]:
    stack = owned.host.owner.at(owned.host.at(thread, moments)).stack
    return [None if s == NOBODY else user_line(owned, int(s)) for s in stack.tolist()]


def _ranges(rank: Rank, thread: Int64s, moments: Int64s) -> list[str | None]:
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


# What ran on one rank between two moments: kernels, collectives, copies, and what the host said it was doing.

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
    #: row of the rank's work, -1 for what no device ran
    work: Int64s

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


def _rank_slices(account: Account, index: int, *, start_ns: int, end_ns: int) -> RankSlices:
    rank = account.run.ranks[index]
    work = _kernels(account, index) if rank.has_device else _operators(account, index)
    found = [_overlapping(part, start_ns, end_ns) for part in (work, _collectives(account, index))]
    found.append(_overlapping(_rank_slices_ranges(rank, start_ns, end_ns), start_ns, end_ns))
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
    rank = account.run.ranks[index]
    trace = rank.trace
    rows = np.flatnonzero(rank.kinds == EventKind.HOST_OP)
    start, end, thread = trace["ts_ns"][rows], trace["ts_ns"][rows] + trace["dur_ns"][rows], trace["tid"][rows]
    order = np.lexsort((-end, start, thread))
    outermost = np.zeros(len(rows), bool)
    for tid in np.unique(thread):
        mine = order[thread[order] == tid]
        outermost[mine] = np.concatenate(([True], start[mine][1:] >= np.maximum.accumulate(end[mine])[:-1]))
    rows, start, end, thread = rows[outermost], start[outermost], end[outermost], thread[outermost]
    phase = account.strategy.passes[index].at(start, thread)
    kind = np.full(len(rows), _CODE["other"], np.uint8)
    for code, name in _OF_PHASE.items():
        kind[phase == code] = _CODE[name]
    return _plain(rank, kind, start, end, trace["name"][rows])


def _collectives(account: Account, index: int) -> RankSlices:
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
    start, end, names = _idle_spans(account, index, start_ns=start_ns, end_ns=end_ns)
    none = np.full(len(start), NO_MATCH, np.int64)
    kind = np.full(len(start), _CODE["idle"], np.uint8)
    return RankSlices(kind, start, end, np.zeros(len(start), np.int64), none, np.array(names, object), none)


def _rank_slices_ranges(rank: Rank, start_ns: int, end_ns: int) -> RankSlices:
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
    kept = s.rows(np.flatnonzero((s.end_ns > start_ns) & (s.start_ns < end_ns)))
    start, end = np.maximum(kept.start_ns, start_ns), np.minimum(kept.end_ns, end_ns)
    wait = np.clip(kept.start_ns + kept.wait_ns - start, 0, end - start)
    return replace(kept, start_ns=start, end_ns=end, wait_ns=wait)


MAX_SLICES = 60_000
# of all steps that the page can show
MAX_SLICES_OF_STEPS = 90_000
MAX_STEPS = 8
MAX_RANKS = 128
_MAX_NAME_LENGTH = 160


@dataclass(frozen=True, eq=False, repr=False)
class _Window(ArrayRecord):
    step: int | None
    start_ns: Int64s
    end_ns: Int64s
    origin_ns: Int64s


def timeline_of(account: Account, document: Mapping[str, Any]) -> Timeline:
    """Return the grid of a run and the slices of its steps; ranks that findings name come first."""
    grid = grid_of(account)
    wanted = [r for f in document["findings"] for r in f["ranks"]] + [s["rank"] for s in document["stragglers"]]
    slices = slices_of(account, grid, wanted=wanted)
    return Timeline(grid, slices, slices_of_other_steps(account, grid, slices, wanted=wanted))


def slices_of(
    account: Account,
    grid: Grid | None,
    *,
    step: int | None = None,
    wanted: Sequence[int] = (),
    most: int = MAX_SLICES,
) -> Slices | None:
    """Return the slices of one step, by default the typical one. None if nothing ran.

    Ranks in `wanted` come first where not all fit.
    """
    window = _window(account, _typical_step(grid) if grid and step is None else step)
    if window is None:
        return None
    ranks = account.run.ranks
    first = [i for i, r in enumerate(ranks) if r.rank in set(wanted)]
    spread = np.linspace(0, len(ranks) - 1, min(len(ranks), MAX_RANKS)).round().astype(int).tolist()
    chosen = list(dict.fromkeys([*first, *spread]))[:MAX_RANKS]
    taken: list[tuple[int, RankSlices]] = []
    total = 0
    for index in chosen:
        found = _rank_slices(account, index, start_ns=int(window.start_ns[index]), end_ns=int(window.end_ns[index]))
        if taken and total + len(found) > most:
            continue
        taken.append((index, found))
        total += len(found)
    taken.sort(key=lambda pair: pair[0])
    return _joined(account, window, taken, most=most)


def slices_of_other_steps(
    account: Account, grid: Grid | None, first: Slices | None, *, wanted: Sequence[int] = ()
) -> tuple[Slices, ...]:
    """Return the slices of further steps in their order: the longest and the shortest, then the others that fit."""
    if grid is None or first is None:
        return ()
    by_length = np.argsort(np.nan_to_num(grid.group_ns.sum(axis=0)).mean(axis=0), kind="stable").tolist()
    wanted_steps = dict.fromkeys([by_length[-1], by_length[0], *range(len(by_length))])
    numbers = [grid.steps[i] for i in wanted_steps if grid.steps[i] != first.step]
    found: list[Slices] = []
    left = MAX_SLICES_OF_STEPS - len(first)
    for number in numbers[: MAX_STEPS - 1]:
        if left < len(first) / 2:
            break
        one = slices_of(account, grid, step=number, wanted=wanted, most=min(left, MAX_SLICES))
        if one is not None:
            found.append(one)
            left -= len(one)
    return tuple(sorted(found, key=lambda s: s.step or 0))


def _typical_step(grid: Grid) -> int:
    step_ns = grid.group_ns.sum(axis=0)
    ranks = (~np.isnan(step_ns)).sum(axis=0)
    mean = np.nansum(step_ns, axis=0) / np.maximum(ranks, 1)
    whole = np.flatnonzero(ranks == ranks.max())
    return grid.steps[int(whole[np.argmin(np.abs(mean[whole] - np.median(mean[whole])))])]


def _window(account: Account, number: int | None) -> _Window | None:
    clocks, num = account.shared.clocks, len(account.run.ranks)
    start, end, has = np.zeros(num, np.int64), np.zeros(num, np.int64), np.zeros(num, bool)
    for i, view in enumerate(account.ranks):
        rank, periods = view.rank, view.budget.periods if view.budget else None
        at = np.arange(len(periods)) if periods else np.empty(0, int)
        if periods and number is not None:
            at = at[periods.step != NO_STEP]
            at = at[rank.steps.number[periods.step[at]] == number]
        if periods and len(at):
            start[i], end[i], has[i] = periods.start_ns[at[0]], periods.end_ns[at[0]], True
    if not has.any():
        return None
    each = np.arange(num)
    shared_start, shared_end = clocks.shared(each, start), clocks.shared(each, end)
    tied = has & clocks.known if (has & clocks.known).any() else has & (each == np.flatnonzero(has)[0])
    first, last = int(shared_start[tied].min()), int(shared_end[tied].max())
    # A rank whose clock nothing ties to the others' begins its step where they begin theirs.
    shift = np.where(tied, shared_start - start, first - start)
    return _Window(number, np.where(has, first - shift, 0), np.where(has, last - shift, 0), first - shift)


def _joined(account: Account, window: _Window, taken: list[tuple[int, RankSlices]], *, most: int) -> Slices:
    names: dict[str, int] = {}
    by_launch: dict[Launch, int] = {}
    parts = [found.kept(most) for _, found in taken]
    matches = np.concatenate([p.match for p in parts])
    used = np.unique(matches[matches != NO_MATCH])
    made = [launches(account, i, p.work) for (i, _), p in zip(taken, parts, strict=True)]
    launch = [by_launch.setdefault(one, len(by_launch)) if one else NO_MATCH for each, _ in made for one in each]
    span = max(int(window.end_ns[i] - window.start_ns[i]) for i, _ in taken)
    whole = [f for _, f in taken]
    notes = []
    if len(parts) < len(account.run.ranks):
        notes.append(f"{len(parts)} of {len(account.run.ranks)} ranks are drawn, those that findings name first")
    left_out = sum(len(w) - len(p) for w, p in zip(whole, parts, strict=True))
    if left_out:
        notes.append(f"the {left_out:,} shortest slices are left out")
    return Slices(
        step=window.step,
        ranks=tuple(account.run.ranks[i].rank for i, _ in taken),
        span_ns=span,
        rank=np.repeat(np.arange(len(parts)), [len(p) for p in parts]),
        kind=np.concatenate([p.kind for p in parts]),
        start_ns=np.concatenate([p.start_ns - window.origin_ns[i] for (i, _), p in zip(taken, parts, strict=True)]),
        dur_ns=np.concatenate([p.end_ns - p.start_ns for p in parts]),
        wait_ns=np.concatenate([p.wait_ns for p in parts]),
        name=np.array(
            [
                names.setdefault((n if len(n) <= _MAX_NAME_LENGTH else n[: _MAX_NAME_LENGTH - 1] + "…"), len(names))
                for p in parts
                for n in p.name
            ],
            np.int64,
        ),
        match=np.where(matches == NO_MATCH, NO_MATCH, np.searchsorted(used, matches)),
        launch=np.array(launch, np.int64),
        delay_ns=np.concatenate([delay for _, delay in made]),
        names=tuple(names),
        launches=tuple(by_launch),
        matched=_matched(account, used),
        notes=tuple(notes),
        origin_ns=int(window.origin_ns[taken[0][0]]),
    )


def _matched(account: Account, used: Int64s) -> MatchedCollectives:
    matches, arrival = account.shared.matches, account.shared.arrival_ns
    what, last = [], []
    for m in used.tolist():
        group = matches.groups[matches.group[m]]
        size = int(matches.size_bytes[m])
        words = [OPS[matches.op[m]], group.desc or group.name, readable_bytes(size) if size >= 0 else "size unknown"]
        what.append(" · ".join(words))
        first, end = int(matches.first[m]), int(matches.first[m + 1])
        latest = first + int(np.argmax(arrival[first:end]))
        last.append(account.run.ranks[int(matches.rank_index[latest])].rank)
    return MatchedCollectives(tuple(what), np.array(last, np.int64))
