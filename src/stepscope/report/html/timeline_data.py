"""What ran on each rank during one step, on one clock, within a budget of slices?

The first step shown is the one nearest to the median. Everything that overlaps it is shown, whichever step launched it,
because that is what the device did at the time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.budget import CAUSE_NAMES, Cause, Timeline as Labelled
from stepscope.analyze.host_time import call_stacks, host_calls
from stepscope.analyze.ownership import NOBODY
from stepscope.analyze.phases import NO_STEP, Phase, marks_of
from stepscope.contract.names import CAUSES
from stepscope.contract.operations import OPS
from stepscope.contract.step_line import Region
from stepscope.intervals import complement, union
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
)
from stepscope.run.aligned import UNMATCHED
from stepscope.run.rank import Rank
from stepscope.run.steps import PROFILER_STEP
from stepscope.trace.table import NO_STRING, EventKind, Int64s, rows_named
from stepscope.units import readable_bytes

# What ran on one rank between two moments, on its own clock: kernels, collectives, copies, what the host was doing by
# its own account, and where nothing ran.

_ROW = np.dtype(
    [
        ("kind", np.uint8), ("start_ns", np.int64), ("end_ns", np.int64), ("wait_ns", np.int64), ("match", np.int64),
        ("work", np.int64), ("name", object),
    ]
)  # fmt: skip
Rows = npt.NDArray[np.void]
_OF_REGION = {Region.FORWARD: "forward", Region.BACKWARD: "backward", Region.OPTIMIZER: "optimizer"}
_OF_PHASE = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}


def _rank_slices(account: Account, index: int, *, start_ns: int, end_ns: int) -> Rows:
    rank = account.run.ranks[index]
    parts = [
        _kernels(account, index, start_ns, end_ns) if rank.has_device else _operators(account, index),
        _collectives(account, index),
        _ranges(rank, start_ns, end_ns),
        _idle(account, index, start_ns, end_ns),
    ]
    out = np.concatenate([part[(part["end_ns"] > start_ns) & (part["start_ns"] < end_ns)] for part in parts])
    turn = out["start_ns"] + out["wait_ns"]
    out["start_ns"], out["end_ns"] = np.maximum(out["start_ns"], start_ns), np.minimum(out["end_ns"], end_ns)
    out["wait_ns"] = np.clip(turn - out["start_ns"], 0, out["end_ns"] - out["start_ns"])
    return out[np.lexsort((out["start_ns"], np.array(LANE_OF_KIND)[out["kind"]]))]


def _table(
    kind: Codes | str, start: Int64s, end: Int64s, name: Any, *, wait: Int64s | int = 0, match: Int64s | int = NO_MATCH,
    work: npt.NDArray[np.integer[Any]] | int = NO_MATCH,
) -> Rows:  # fmt: skip
    out = np.empty(len(start), _ROW)
    code = KINDS.index(kind) if isinstance(kind, str) else kind
    for column, values in zip(_ROW.names or (), (code, start, end, wait, match, work, name), strict=True):
        out[column] = values
    return out


def _kernels(account: Account, index: int, start_ns: int, end_ns: int) -> Rows:
    rank, budget = account.ranks[index].rank, account.ranks[index].budget
    work = rank.work
    near = (work.end_ns > start_ns) & (work.start_ns < end_ns)
    rows = np.flatnonzero(near & (work.kind != EventKind.COMM_KERNEL))
    regions = budget.regions if budget else None
    other = np.full(len(rows), KINDS.index("other"), np.uint8)
    kind = other if regions is None else _kinds(regions.region[rows], _OF_REGION)
    kind[work.kind[rows] == EventKind.COPY] = KINDS.index("copy")
    return _table(kind, work.start_ns[rows], work.end_ns[rows], _names(rank, work.name[rows]), work=rows)


def _operators(account: Account, index: int) -> Rows:
    rank = account.run.ranks[index]
    calls = host_calls(rank)
    top = np.flatnonzero(calls.parent < 0)
    start = calls.start_ns[top]
    phase = account.strategy.passes[index].at(start, calls.thread[top])
    return _table(_kinds(phase, _OF_PHASE), start, calls.end_ns[top], _names(rank, calls.name[top]))


def _kinds(codes: npt.NDArray[np.integer[Any]], names: Mapping[Any, str]) -> Codes:
    kind = np.full(len(codes), KINDS.index("other"), np.uint8)
    for code, name in names.items():
        kind[codes == code] = KINDS.index(name)
    return kind


def _collectives(account: Account, index: int) -> Rows:
    rank, shared = account.run.ranks[index], account.shared
    c, wait = rank.collectives, shared.wait_ns[index]
    matched = wait != UNMATCHED
    match = np.full(len(c), NO_MATCH, np.int64)
    mine = np.flatnonzero(shared.matches.rank_index == index)
    match[shared.matches.row[mine]] = shared.matches.of_member[mine]
    names = np.array(OPS, object)[c.op]
    on_device = np.flatnonzero(c.device_index >= 0)
    names[on_device] = _names(rank, rank.work.name[c.device_index[on_device]])
    kind = np.where(matched, KINDS.index("transfer"), KINDS.index("unmatched")).astype(np.uint8)
    wait = np.where(matched, wait, 0)
    return _table(kind, c.start_ns, c.end_ns, names, wait=wait, match=match, work=c.device_index)


def _ranges(rank: Rank, start_ns: int, end_ns: int) -> Rows:
    """Return the ranges of the thread that has most of them, at each moment the innermost."""
    trace = rank.trace
    rows = np.flatnonzero(rank.kinds == EventKind.ANNOTATION)
    inside = (trace["ts_ns"][rows] < end_ns) & (trace["ts_ns"][rows] + trace["dur_ns"][rows] > start_ns)
    rows = rows_named(trace, rows[inside], lambda text: not text.startswith(PROFILER_STEP))
    threads, count = np.unique(trace["tid"][rows], return_counts=True)
    calls = call_stacks(trace, rows[trace["tid"][rows] == threads[np.argmax(count)]] if len(rows) else rows)
    edges = np.unique(np.concatenate((calls.start_ns, calls.end_ns)))
    innermost = calls.innermost_at(np.full(len(edges), calls.thread[0] if len(rows) else 0), edges + 1)[:-1]
    some = np.flatnonzero(innermost >= 0)
    return _table("range", edges[:-1][some], edges[1:][some], _names(rank, calls.name[innermost[some]]))


def _names(rank: Rank, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.object_]:
    return np.array([*rank.trace.strings, "?"], object)[ids]  # NO_STRING is -1: the extra last one


# Where did a rank's device, or a rank without one, do nothing for long, and what was the host doing meanwhile?
#
# Each span is named by its cause and, where known, by the place: `host stalled: train.py:42`,
# `data loading`, `host stalled: after aten::add_` where no owner was recorded.

# of the step; shorter holes are no wider than a pixel
_MIN_SHARE = 1 / 1000
_MIN_NS = 10_000
# of one rank and step; the longest are shown
_MAX_IDLE = 300
_HOSTS = (
    Cause.LAUNCH, Cause.SYNC, Cause.COPY, Cause.AFTER_SYNC, Cause.ALLOCATOR, Cause.DATA, Cause.GC, Cause.STALL,
    Cause.SLOW_CALL,
)  # fmt: skip


def _idle(account: Account, index: int, start_ns: int, end_ns: int) -> Rows:
    view = account.ranks[index]
    if view.budget is None:
        return np.empty(0, _ROW)
    idle = view.budget.idle
    begun, ended, label = _holes(view.rank, start_ns, end_ns) if idle is None else idle.slices
    start, end = np.maximum(begun, start_ns), np.minimum(ended, end_ns)
    long = end - start >= max(_MIN_NS, _MIN_SHARE * (end_ns - start_ns))
    rows = np.flatnonzero(long & (label < len(Cause)))
    rows = np.sort(rows[np.argsort(start[rows] - end[rows], kind="stable")[:_MAX_IDLE]])
    places = _places(account, index, (start[rows] + end[rows]) // 2)
    names = [
        f"{CAUSES[CAUSE_NAMES[cause]]}{f': {place}' if place and cause in _HOSTS else ''}"
        for cause, place in zip(map(Cause, label[rows].tolist()), places, strict=True)
    ]
    return _table("idle", start[rows], end[rows], names)


def _holes(rank: Rank, start_ns: int, end_ns: int) -> Labelled:
    trace, c = rank.trace, rank.collectives
    rows = np.flatnonzero(np.isin(rank.kinds, (EventKind.HOST_OP, EventKind.RUNTIME)))
    begun, ended = trace["ts_ns"][rows], trace["ts_ns"][rows] + trace["dur_ns"][rows]
    near = (begun < end_ns) & (ended > start_ns)
    busy = union(np.concatenate((begun[near], c.start_ns)), np.concatenate((ended[near], c.end_ns)))
    holes = complement(busy, start_ns, end_ns)
    return Labelled(holes.start, holes.end, np.full(len(holes), Cause.STALL, np.uint8))


def _places(account: Account, index: int, moments: Int64s) -> list[str | None]:
    """Return the line that the host was at, else the range that it was in, else its last operator."""
    rank, owned = account.run.ranks[index], account.ownership[index]
    trace, main = rank.trace, marks_of(rank).main_thread
    thread = np.full(len(moments), main, np.int64)
    lines: list[str | None] = [None] * len(moments)
    if owned is not None:
        stacks = owned.host.owner.at(owned.host.at(thread, moments)).stack
        lines = [_user_line(account, index, s) for s in stacks.tolist()]
    if all(lines):
        return lines
    rows = np.flatnonzero(rank.kinds == EventKind.ANNOTATION)
    ranges = call_stacks(
        trace, rows_named(trace, rows, lambda text: not text.startswith((PROFILER_STEP, "PyTorch Profiler")))
    )
    around = ranges.innermost_at(thread, moments).tolist()
    calls = account.ranks[index].costs.calls.calls
    first = calls.of_thread(main).start
    last = first + np.searchsorted(calls.start_ns[calls.of_thread(main)], moments, side="right") - 1
    return [
        line
        or (f"in {trace.strings[ranges.name[inside]]}" if inside >= 0 else None)
        or (
            f"{'in' if calls.end_ns[at] > moment else 'after'} {trace.strings[calls.name[at]]}" if at >= first else None
        )
        for line, inside, at, moment in zip(lines, around, last.tolist(), moments.tolist(), strict=True)
    ]


# Who launched a kernel: which operator with which shapes, in which module, at which line, on which stream, how long
# before it began?

_MAX_SHAPES_LENGTH = 120
_UNKNOWN = -1


def _user_line(account: Account, index: int, stack: int) -> str | None:
    """Return `train.py:42`, the innermost line of a stack that is the user's; None where it has none."""
    owned = account.ownership[index]
    line = owned.stacks.user_line(stack) if owned and stack != NOBODY else None
    return None if line is None else f"{line[0]}:{line[1]}"


def _launches(account: Account, index: int, work: Int64s) -> tuple[list[Launch | None], Int64s]:
    """Return the launch of each of these rows of a rank's work (-1: none), and from the call to the start in ns.

    The delay is UNKNOWN where the call was not recorded.
    """
    rank = account.run.ranks[index]
    table, trace, strings = rank.work, rank.trace, (*rank.trace.strings, None)  # NO_STRING is -1: the last one
    known = np.flatnonzero(work >= 0)
    rows = work[known]
    call, op = table.launch_row[rows], table.op_row[rows]
    delay = np.full(len(work), _UNKNOWN, np.int64)
    delay[known] = np.where(call >= 0, np.maximum(table.start_ns[rows] - trace["ts_ns"][call], 0), _UNKNOWN)
    shapes = np.where(op >= 0, trace.arg("input_dims").at(np.maximum(op, 0), missing=NO_STRING), NO_STRING)
    names = np.where(op >= 0, trace["name"][op], NO_STRING)
    modules, lines = _owners(account, index, rows)
    out: list[Launch | None] = [None] * len(work)
    columns = (known, names, shapes, modules, lines, table.stream[rows])
    for at, name, shape, module, line, stream in zip(*(np.asarray(c).tolist() for c in columns), strict=True):
        text = _cut(strings[shape] or "", _MAX_SHAPES_LENGTH) or None
        out[at] = Launch(strings[name], text, module, line, stream if stream >= 0 else None)
    return out, delay


def _owners(account: Account, index: int, rows: Int64s) -> tuple[Sequence[str | None], Sequence[str | None]]:
    owned = account.ownership[index]
    if owned is None:
        return [None] * len(rows), [None] * len(rows)
    mine = owned.by_work.at(rows)
    lines = {s: _user_line(account, index, s) for s in np.unique(mine.stack).tolist()}
    modules = [None if m == NOBODY else owned.modules[m] for m in mine.module.tolist()]
    return modules, [lines[s] for s in mine.stack.tolist()]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


MAX_SLICES = 60_000
# of all steps that the page can show
MAX_SLICES_OF_STEPS = 90_000
MAX_STEPS = 8
MAX_RANKS = 128
_MAX_NAME_LENGTH = 160


class _Window(NamedTuple):
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
    taken: dict[int, Rows] = {}
    total = 0
    for index in list(dict.fromkeys([*first, *spread]))[:MAX_RANKS]:
        found = _rank_slices(account, index, start_ns=int(window.start_ns[index]), end_ns=int(window.end_ns[index]))
        if not taken or total + len(found) <= most:
            taken[index] = found
            total += len(found)
    return _joined(account, window, dict(sorted(taken.items())), most=most)


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


def _joined(account: Account, window: _Window, taken: Mapping[int, Rows], *, most: int) -> Slices:
    longest = {
        i: np.sort(np.argsort(found["start_ns"] - found["end_ns"], kind="stable")[:most]) for i, found in taken.items()
    }
    parts = [found[longest[i]] for i, found in taken.items()]
    rows, rank = np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    origin = window.origin_ns[list(taken)]
    names: dict[str, int] = {}
    by_launch: dict[Launch, int] = {}
    used = np.unique(rows["match"][rows["match"] != NO_MATCH])
    made = [_launches(account, i, p["work"]) for i, p in zip(taken, parts, strict=True)]
    launch = [by_launch.setdefault(one, len(by_launch)) if one else NO_MATCH for each, _ in made for one in each]
    notes = []
    if len(parts) < len(account.run.ranks):
        notes.append(f"{len(parts)} of {len(account.run.ranks)} ranks are drawn, those that findings name first")
    if left_out := sum(map(len, taken.values())) - len(rows):
        notes.append(f"the {left_out:,} shortest slices are left out")
    return Slices(
        step=window.step,
        ranks=tuple(account.run.ranks[i].rank for i in taken),
        span_ns=int((window.end_ns - window.start_ns)[list(taken)].max()),
        rank=rank,
        kind=rows["kind"],
        start_ns=rows["start_ns"] - origin[rank],
        dur_ns=rows["end_ns"] - rows["start_ns"],
        wait_ns=rows["wait_ns"],
        name=np.array([names.setdefault(_cut(n, _MAX_NAME_LENGTH), len(names)) for n in rows["name"]], np.int64),
        match=np.where(rows["match"] == NO_MATCH, NO_MATCH, np.searchsorted(used, rows["match"])),
        launch=np.array(launch, np.int64),
        delay_ns=np.concatenate([delay for _, delay in made]),
        names=tuple(names),
        launches=tuple(by_launch),
        matched=_matched(account, used),
        notes=tuple(notes),
        origin_ns=int(origin[0]),
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
