"""Which lines hold the time that a fix removes?

The run before and after the fix is compared item by item: the time saved by device operations and the host before them
is attributed to their owners. The location of a finding thus follows from its saving, for any rule.

    where[0]   the innermost line that at least half of that time has in its stack: "mostly wild.py:113", unless that
               is one that only calls the step as a whole
    where[1]   where that line is called by another of the step: the outermost of those, below the lines that call the
               step as a whole
    others     the lines at work (innermost of the user's) with most of it

What recurs in some steps only is not in the replayed ones: it is where the other steps take more (`rare_places`).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.host_time import Activities, HostParts
from stepscope.analyze.kernels import SHORT_NS
from stepscope.analyze.owner_lines import skipped_line
from stepscope.analyze.ownership import Line, OwnedWork, Ownership
from stepscope.analyze.replay.graph import NOTHING, Program
from stepscope.analyze.replay.removal import recorded_host
from stepscope.analyze.replay.replay import Replay
from stepscope.intervals import covered_ns
from stepscope.records import dataclass
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.stats.robust import among, distinct
from stepscope.trace.table import EventKind

Floats = npt.NDArray[np.float64]
MAX_PLACES = 3
# of a cost: a line that holds as much is what it is mostly about
MOSTLY = 0.5
_MIN_SHARE = 0.05
# of the owned time has a line in its stack: it calls the whole step
_ALWAYS = 0.99
# ... or a pass of the model
_PASS = 0.3
_PARTS = ("own_ns", "data_ns", "allocator_ns", "stall_ns")

# ns by stack, caller and module of one rank
Costs = dict[tuple[int, int, int], float]


@dataclass(frozen=True)
class Where:
    """A line of the user's code, or a module, with its share of what a finding is about."""

    file: str | None
    line: int | None
    module: str | None = None
    #: of the time that the fix takes out, 0 to 1; what a line calls is its own
    share: float = 1.0
    #: the line itself was not seen at work: it ran after this one, before the next that was
    after: bool = False

    @property
    def text(self) -> str:
        """Return the place as reports show it: `train.py:42`, or the module where no line is known."""
        if self.file is None:
            return f"module {self.module}"
        return f"{'after ' if self.after else ''}{self.file}:{self.line}"


def where_of(account: Account, before: Replay, after: Replay, *, ranks: Sequence[int] = ()) -> tuple[Where, ...]:
    """Return the lines that hold what a fix takes out; nothing where no owner is known or no item changed.

    `ranks` are those the finding is about, all where none is named.
    """
    rare_ns = before.recurring.total_ns - after.recurring.total_ns
    costs = []
    for owned, old, new in zip(account.ownership, before.programs, after.programs, strict=False):
        if owned is not None and len(old) and len(old) == len(new):
            costs.append((owned, _lost(owned, old, new, before)))
    found = places(costs)
    if rare_ns <= 0:
        return found
    steady_ns = max((sum(cost.values()) for _, cost in costs), default=0.0) / max(len(before.steps), 1)
    return _joined(rare_places(account, before, ranks=ranks), rare_ns, found, steady_ns)


def _joined(rare: tuple[Where, ...], rare_ns: float, steady: tuple[Where, ...], steady_ns: float) -> tuple[Where, ...]:
    part = rare_ns / (rare_ns + steady_ns)
    merged: dict[tuple[str | None, int | None], Where] = {}
    for one, weight in [*((w, part) for w in rare), *((w, 1 - part) for w in steady)]:
        known = merged.get((one.file, one.line))
        share = one.share * weight + (known.share if known else 0.0)
        merged[one.file, one.line] = replace(known or one, share=min(1.0, share))
    return tuple(sorted(merged.values(), key=lambda w: -w.share))[:MAX_PLACES]


def places(costs: Sequence[tuple[Ownership, Costs]]) -> tuple[Where, ...]:
    """Return the lines that hold most of some cost, the innermost that holds half of it first."""
    total = sum(sum(cost.values()) for _, cost in costs)
    if total <= 0:
        return ()
    held: dict[Line, float] = defaultdict(float)
    at_work: dict[Line, float] = defaultdict(float)
    depth: dict[Line, int] = {}
    for owned, cost in costs:
        _add_lines(owned, cost, held, depth)
        for (stack, _, _), ns in cost.items():
            if line := owned.stacks.user_line(stack):
                at_work[line] += ns
    mostly = [line for line, ns in held.items() if ns >= MOSTLY * total and line in depth]
    first = max(mostly, key=lambda line: (depth[line], held[line]), default=None)
    whole = set[tuple[str, int]]().union(*(whole_step_lines(owned) for owned, _ in costs))
    passes = set[tuple[str, int]]().union(*(whole_step_lines(owned, _PASS) for owned, _ in costs))
    # it calls the step, or the model and does nothing itself: lines below it share the cost
    if first is not None and at_work[first] < (MOSTLY if first in whole else _MIN_SHARE * (first in passes)) * total:
        first = None
    calls_it = [line for line in mostly if line not in whole and first is not None and depth[line] < depth[first]]
    found = [] if first is None else [(first, held[first])]
    found += [(line, held[line]) for line in sorted(calls_it, key=lambda line: depth[line])[:1]]
    taken = {line for line, _ in found}
    rest = sorted((line for line in at_work if line not in taken), key=lambda line: -at_work[line])
    found += [(line, at_work[line]) for line in rest[: MAX_PLACES - len(found)] if at_work[line] >= _MIN_SHARE * total]
    return tuple(
        Where(*line, module=_one_module(_modules_of(costs, line), held[line]), share=min(1.0, ns / total))
        for line, ns in found
    )


def _add_lines(owned: Ownership, cost: Costs, held: dict[Line, float], depth: dict[Line, int]) -> None:
    sets = owned.stacks.user_lines
    stack, caller, _ = np.array(list(cost), np.int64).reshape(-1, 3).T
    ns = np.array(list(cost.values()), float)
    mine = np.zeros(len(owned.stacks) + 1, bool)
    mine[stack[stack >= 0]] = True
    level = owned.stacks.levels_of_lines(sets, mine, np.ones(len(owned.frames), bool))
    for n, rows in sets.things(stack, caller):
        held[sets.lines[n]] += float(ns[rows].sum())
        if level[n] >= 0:
            depth[sets.lines[n]] = max(depth.get(sets.lines[n], 0), int(level[n]))


def _modules_of(costs: Sequence[tuple[Ownership, Costs]], line: Line) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for owned, cost in costs:
        number = owned.stacks.user_lines.ids.get(line)
        if number is None:
            continue
        holds = owned.stacks.user_lines.mask(number)
        for (stack, caller, module), ns in cost.items():
            if (holds[stack] or holds[caller]) and module >= 0 and owned.modules[module]:
                found[owned.modules[module]] += ns
    return found


def user_lines(owned: Ownership, stack: int) -> list[tuple[str, int]]:
    """Return the user's lines of a stack, outermost first."""
    if stack < 0:
        return []
    frames = [owned.frames[f] for f in owned.stacks[stack]]
    return [(f.file, f.line) for f in frames if f.is_user]


def _one_module(of_line: dict[str, float], held: float) -> str | None:
    path, ns = max(of_line.items(), key=lambda item: item[1], default=("", 0.0))
    return path if path and ns >= MOSTLY * held else None


def _lost(owned: Ownership, old: Program, new: Program, replay: Replay) -> Costs:
    rank = owned.rank
    by_item = owned.by_work if rank.has_device else owned.by_collective
    owner = by_item.at(np.where(old.device_index < len(by_item), old.device_index, -1))
    # What a wrapper sends in backward is of many modules: its place is the line that called backward.
    sent = old.collective != NOTHING
    owner = OwnedWork(np.where(sent & (owner.caller >= 0), owner.caller, owner.stack), *_rest(owner))
    found: Costs = defaultdict(
        float, costs_by_owner(owner, np.maximum(old.duration_ns - new.duration_ns, 0).astype(float))
    )
    edges, did = recorded_host(rank, old, replay.steps)
    count = len(edges) - 1
    host = owned.host
    item = np.searchsorted(edges, (host.start_ns + host.end_ns) // 2, side="right") - 1
    inside = np.flatnonzero(host.runs & (item >= 0) & (item < count))
    item = item[inside]
    lost = _host_lost(old, new, count)
    mine = _span_parts(did, host.start_ns[inside], host.end_ns[inside])
    ns = np.zeros(len(inside))
    for name in (*_PARTS, "blocked_ns"):
        whole = np.bincount(item, mine[name], minlength=count)
        ns += (lost[name] / np.maximum(whole, 1) * (whole > 0))[item] * mine[name]
    released = np.append(old.released_by != new.released_by, old.tail_released_by != new.tail_released_by)[:count]
    ns += np.where(released[item], mine["blocked_ns"], 0.0)
    for key, more in costs_by_owner(host.owner.at(inside), ns).items():
        found[key] += more
    return found


def _rest(owner: OwnedWork) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    return owner.caller, owner.module, owner.backward


def _host_lost(old: Program, new: Program, count: int) -> dict[str, Floats]:
    lost = {"blocked_ns": np.zeros(count)}
    for name in _PARTS:
        less = [getattr(o, name) - getattr(n, name) for o, n in ((old.host, new.host), (old.tail, new.tail))]
        lost[name] = np.maximum(np.concatenate(less)[:count], 0).astype(float)
    return lost


def _span_parts(did: Activities, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> dict[str, Floats]:
    parts: HostParts = did.parts(start, end)
    found = {name: getattr(parts, name).astype(float) for name in _PARTS}
    found["blocked_ns"] = covered_ns(did.blocked, start, end).astype(float)
    return found


def costs_by_owner(owner: OwnedWork, ns: Floats) -> Costs:
    """Return times of some things summed by their owners."""
    took = np.flatnonzero(ns > 0)
    keys = np.stack((owner.stack[took], owner.caller[took], owner.module[took]), axis=1)
    owners, at = np.unique(keys, axis=0, return_inverse=True)
    sums = np.bincount(at.reshape(-1), ns[took], minlength=len(owners))
    return {(s, c, m): ns for (s, c, m), ns in zip(owners.tolist(), sums.tolist(), strict=True)}


def top_modules(costs: Sequence[tuple[Ownership, Costs]], *, most: int, depth: int | None = None) -> tuple[Where, ...]:
    """Return the modules with most of some cost, their paths cut to `depth` names."""
    by_module: dict[str, float] = defaultdict(float)
    total = 0.0
    for owned, cost in costs:
        for (_, _, module), ns in cost.items():
            total += ns
            if module >= 0 and (path := owned.modules[module]):
                by_module[".".join(path.split(".")[:depth])] += ns
    largest = sorted(by_module.items(), key=lambda item: -item[1])[:most]
    return tuple(Where(None, None, path, ns / total) for path, ns in largest)


# What recurs in some steps only -------------------------------------------------------------------------------------

# file, line, and whether it is the line after which it ran: a line that the step with frames never met has no owner,
# and its operators stand between those of two lines that have one
Place = tuple[str, int, bool]


def rare_places(account: Account, replay: Replay, *, ranks: Sequence[int] = ()) -> tuple[Where, ...]:
    """Return the lines of what the steps outside the replay take more than those in it, on some ranks or all."""
    more: dict[Place, float] = defaultdict(float)
    for owned in account.ownership:
        if owned is not None and (not ranks or owned.rank.rank in ranks):
            for place, ns in _excess(owned, replay).items():
                more[place] += ns
    total = sum(ns for ns in more.values() if ns > 0)
    found = [
        _named(account, Where(file, line, share=float(ns / total), after=after))
        for (file, line, after), ns in more.items()
        if ns > 0 and ns >= 0.25 * total
    ]
    return tuple(sorted(found, key=lambda place: -place.share))


def _named(account: Account, place: Where) -> Where:
    """Return the block that the source has after a line, where the step with frames skipped it."""
    if not place.after or place.file is None or place.line is None:
        return place
    seen = {f.line for one in account.ownership if one is not None for f in one.frames if f.file == place.file}
    skipped = skipped_line(account.run.source, (place.file, place.line), seen)
    return place if skipped is None else replace(place, line=skipped, after=False)


def _excess(owned: Ownership, replay: Replay) -> dict[Place, float]:
    host, steps = owned.host, owned.rank.steps
    ordinary = np.isin(steps.number, replay.steps)
    if ordinary.all() or not ordinary.any():
        return {}
    trivial = whole_step_lines(owned)
    step = steps.of(host.start_ns)
    mine = np.flatnonzero((host.thread == _busiest(owned)) & (step >= 0))
    stacks, usual_ones = (distinct(host.owner.stack[some]).tolist() for some in (mine, mine[ordinary[step[mine]]]))
    lines = {k: [x for x in user_lines(owned, k) if x not in trivial] for k in stacks}
    seen = {x for k in usual_ones for x in lines[k]}
    usual: dict[Place, float] = defaultdict(float)
    unusual: dict[Place, float] = defaultdict(float)
    before: tuple[str, int] | None = None
    for i in mine.tolist():
        stack = lines[int(host.owner.stack[i])]
        before = stack[0] if stack else before
        if before is not None and host.runs[i]:
            # the outermost line that ordinary steps do not run, else the innermost
            place = (*next((x for x in stack if x not in seen), stack[-1] if stack else before), not stack)
            into = usual if ordinary[step[i]] else unusual
            into[place] += float(host.end_ns[i] - host.start_ns[i])
    share = (~ordinary).sum() / ordinary.sum()
    return {place: ns - share * usual.get(place, 0.0) for place, ns in unusual.items()}


def _busiest(owned: Ownership) -> int:
    threads, count = np.unique(owned.host.thread[owned.host.is_python], return_counts=True)
    return int(threads[count.argmax()]) if len(threads) else -1


def whole_step_lines(owned: Ownership, share: float = _ALWAYS) -> set[tuple[str, int]]:
    """Return the lines that so much of the owned time has in its stack: those that call the step as a whole."""
    host = owned.host
    took = (host.end_ns - host.start_ns) * (host.runs & (host.owner.stack >= 0))
    by_stack = np.bincount(np.maximum(host.owner.stack, 0), took, minlength=len(owned.stacks))
    sets = owned.stacks.user_lines
    held = sets.sums(by_stack)
    return {sets.lines[n] for n in np.flatnonzero((held > 0) & (held >= share * by_stack.sum())).tolist()}


# Where is a fault that no replay can place? By counting what it is made of: messages, short kernels, recorded events.
#
# A pipeline's bubble is where its messages are issued: the line that runs the schedule. Too little work per kernel is
# where most short kernels are launched, and profiler overhead where most events were recorded.


def schedule_lines(account: Account) -> tuple[Where, ...]:
    """Return the lines that issue messages between stages; each rank may have a different one."""
    asked: dict[tuple[str, int], float] = defaultdict(float)
    for owned in _known(account):
        c = owned.rank.collectives
        messages = (c.step >= 0) & among(c.op, POINT_TO_POINT)
        for (stack, caller, _), count in costs_by_owner(owned.by_collective, messages.astype(float)).items():
            lines = user_lines(owned, caller if caller >= 0 else stack)
            if lines:
                asked[lines[-1]] += count
    total = sum(asked.values())
    largest = sorted(asked.items(), key=lambda item: -item[1])[:MAX_PLACES]
    return tuple(Where(*line, share=count / total) for line, count in largest)


def short_kernel_places(account: Account) -> tuple[Where, ...]:
    """Return the lines that launch most of the short kernels."""
    return places([(owned, _short_kernels(owned)) for owned in _known(account)])


def recorded_event_places(account: Account) -> tuple[Where, ...]:
    """Return the lines in which most host events were recorded."""
    return places([(owned, _operators(owned)) for owned in _known(account)])


def _known(account: Account) -> list[Ownership]:
    return [one for one in account.ownership if one is not None]


def _short_kernels(owned: Ownership) -> Costs:
    work = owned.rank.work
    short = (work.kind == EventKind.KERNEL) & (work.step >= 0) & (work.end_ns - work.start_ns < SHORT_NS)
    return costs_by_owner(owned.by_work, short.astype(float))


def _operators(owned: Ownership) -> Costs:
    return costs_by_owner(owned.by_call, (owned.rank.steps.of(owned.calls.start_ns) >= 0).astype(float))
