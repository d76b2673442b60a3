"""The run without one owner's work: a line's or module's host time, device work, collectives and waits.

The removed parts are given by rank (`Part`). Host time is removed item by item, as far as it is the owner's; device
work takes no time; a collective is removed on all its ranks; the host no longer waits in the owner's synchronisations.
All other dependencies stay, so the replay gives the waiting between ranks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import reduce
from math import hypot

import numpy as np

from stepscope.analyze.host_time import Activities, HostParts, activities
from stepscope.analyze.owner_costs import COLUMNS, CodeCosts, Cost, OwnerSums
from stepscope.analyze.ownership import Line, Mask, OwnedWork, OwnerName, Ownership, joined_owners, owner_name
from stepscope.analyze.replay.changes import Change
from stepscope.analyze.replay.graph import (
    NOTHING,
    CircularWaits,
    Floats,
    Graph,
    Meeting,
    Program,
    Wiring,
    end_times,
    host_activities,
    host_part_ns,
    issue_edges,
    launch_edges,
    steady_steps,
    step_edges,
    step_ends,
    without_calls,
)
from stepscope.analyze.replay.replay import Replay, rebuilt, with_factor, with_host_factor
from stepscope.intervals import EMPTY, Intervals, covered_ns, intersect
from stepscope.records import ArrayRecord, Row, dataclass, once_per_record
from stepscope.run.rank import Rank
from stepscope.stats.robust import among
from stepscope.trace.table import NO_STRING, EventKind, Int64s
from stepscope.units import printable

# What does a change save, at least and at most? One answer for findings and what-ifs.
#
# saving   = the replay's saving, scaled down by how much longer the replay takes than the step,
#            plus a formula's saving where no replay is possible;
#            never more than the step, nor than the time the change claims to remove
# interval = the modelled change's own error, the replay's misfit to the measured step, times that were estimated
#            because the recorded ones are impossible, and, where the step times do not determine the profiler's
#            overhead, every saving at another overhead; like the saving, never more than the removable time

# of the step: the typical error of a replay with perfect inputs
_MODEL_ERROR = 0.08
# of the host factor, where the step times do not determine it
_OTHER_FACTORS = (0.75, 1.25)


@dataclass(frozen=True)
class Fix:
    """A change to a run with what is known of it beforehand."""

    #: None where no replay is possible (another schedule of a pipeline)
    change: Change | None
    #: relative error of the modelled change
    doubt: float = 0.15
    #: saving per step by a formula, where no replay is possible
    formula_ns: float = 0.0
    #: the time per step that it claims to remove; None where only the step is a limit
    limit_ns: float | None = None
    #: which time that is, by name: fixes that claim the same time cannot both remove it
    claim: str = ""


@dataclass(frozen=True)
class Saving:
    """What a fix saves per step."""

    ns: float
    low_ns: float
    high_ns: float


def together(fixes: Sequence[Fix], *, doubt: float | None = None) -> Fix:
    """Return several fixes as one: made in order, as unsure as the least sure.

    Fixes that claim the same time remove it once, so the limit is the sum over different claims of the largest of each.
    """
    if len(fixes) == 1 and doubt is None:
        return fixes[0]
    changes = [f.change for f in fixes if f.change is not None]
    return Fix(
        change=(lambda replay: reduce(lambda done, change: change(done), changes, replay)) if changes else None,
        doubt=max((f.doubt for f in fixes), default=0.0) if doubt is None else doubt,
        formula_ns=sum(f.formula_ns for f in fixes),
        limit_ns=_limit_of_all(fixes),
        claim=" and ".join(sorted({f.claim for f in fixes if f.claim})),
    )


def _limit_of_all(fixes: Sequence[Fix]) -> float | None:
    by_claim: dict[str, float] = {}
    for i, fix in enumerate(fixes):
        if fix.limit_ns is None:
            return None
        claim = fix.claim or f"fix {i}"
        by_claim[claim] = max(by_claim.get(claim, 0.0), fix.limit_ns)
    return sum(by_claim.values()) if by_claim else None


def saving_of(replay: Replay | None, fix: Fix, *, step_ns: float) -> Saving:
    """Return what a fix alone saves of a step that takes `step_ns`; below zero where it makes the step longer."""
    saved = bounded(_replayed(replay, fix) * to_step(replay, step_ns) + fix.formula_ns, fix, step_ns=step_ns)
    return Saving(saved, *saving_range(replay, fix, saved, step_ns=step_ns))


def bounded(saving_ns: float, fix: Fix, *, step_ns: float) -> float:
    """Return a saving that exceeds neither the step nor the time the fix claims to remove."""
    return min(saving_ns, step_ns, step_ns if fix.limit_ns is None else max(0.0, fix.limit_ns))


def to_step(replay: Replay | None, step_ns: float) -> float:
    """Return what to multiply savings by: a replay that takes longer than the step saves too much by as much.

    That happens where the profiler slowed the job beyond what any factor on the host's time explains.
    """
    return min(1.0, step_ns / replay.period_ns) if replay is not None and replay.period_ns else 1.0


def saving_range(replay: Replay | None, fix: Fix, saving_ns: float, *, step_ns: float) -> tuple[float, float]:
    """Return the interval of a saving: the model's own error, the replay's misfit, the profiler's unknown cost."""
    misfit = abs(replay.period_ns - step_ns) if replay is not None and fix.change is not None else 0.0
    estimated = (
        sum(rank.estimated_ns for rank in replay.shared.run.ranks) / len(replay.programs) if replay is not None else 0.0
    )
    half = hypot(max(fix.doubt * abs(saving_ns), _MODEL_ERROR * step_ns), misfit, estimated)
    low, high = saving_ns - half, saving_ns + half
    if replay is not None and fix.change is not None and not replay.factor_identified:
        for other in _with_other_factors(replay):
            saved = _saved(other, fix.change)
            if saved is not None:
                within = bounded(saved * to_step(replay, step_ns) + fix.formula_ns, fix, step_ns=step_ns)
                low, high = min(low, within), max(high, within)
    if saving_ns < 0:
        return low, high
    return max(0.0, low), max(saving_ns, bounded(high, fix, step_ns=step_ns))


def _replayed(replay: Replay | None, fix: Fix) -> float:
    if replay is None or fix.change is None:
        return 0.0
    return replay.period_ns - fix.change(replay).period_ns


@once_per_record
def _with_other_factors(replay: Replay) -> tuple[Replay, ...]:
    """Return the replay as it would be if the profiler cost other shares of the host's time.

    The run itself, where the limits leave its own factor, widens no interval around what it saves.
    """
    factors = (float(np.clip(replay.host_factor * times, 0.3, 1.0)) for times in _OTHER_FACTORS)
    return tuple(with_factor(replay, factor) for factor in factors if factor != replay.host_factor)


def _saved(replay: Replay, change: Change) -> float | None:
    try:
        return replay.period_ns - change(replay).period_ns
    except CircularWaits:
        return None


# Predicted step time with several changes.


def predict(
    replay: Replay, changes: Sequence[tuple[str, Fix]], *, doubt: float | None = None, step_ns: float | None = None
) -> Row:
    """Return the step of a run with all these changes, applied in order.

    Predictions are the measured step (`step_ns`) less the saving; savings of a longer replay are scaled down to it.
    """
    whole_ns = step_ns or replay.period_ns
    all_of_them = together([fix for _, fix in changes], doubt=doubt)
    if all_of_them.change is not None:
        all_of_them = replace(all_of_them, change=once_per_record(all_of_them.change))  # used twice on the same run
    saving = saving_of(replay, all_of_them, step_ns=whole_ns)
    scale = to_step(replay, whole_ns)
    apart_ns = whole_ns - replay.period_ns * scale - all_of_them.formula_ns
    by_rank = _by_rank(replay if all_of_them.change is None else all_of_them.change(replay))
    return Row(
        step_ns=max(0.0, whole_ns - saving.ns),
        low_ns=max(0.0, whole_ns - saving.high_ns),
        high_ns=max(0.0, whole_ns - saving.low_ns),
        # without the changes: the measured step, the replay's where none was measured
        baseline_ns=whole_ns,
        rank_step_ns={rank: max(0.0, ns * scale + apart_ns) for rank, ns in by_rank.items()},
        changes=tuple(name for name, _ in changes),
    )


def _by_rank(replay: Replay) -> dict[int, float]:
    graph = replay.graph
    ends = step_ends(graph, end_times(graph, with_host_factor(graph, replay.host_factor)))
    half, last = steady_steps(graph)
    per_step = (ends[:, last] - ends[:, half]) / max(last - half, 1) + replay.recurring.total_ns
    ranks = zip(replay.shared.run.ranks, replay.programs, per_step.tolist(), strict=True)
    return {rank.rank: ns for rank, program, ns in ranks if len(program)}


_MIN_FACTOR = 0.3
# kind of an item that is no more: no device takes time between it and the next
_GONE = 255


@dataclass(frozen=True, eq=False, repr=False)
class Part(ArrayRecord):
    """What one rank did for an owner."""

    #: when its host worked for it
    host: Intervals
    #: of that: Python which the profiler does not stretch
    python: Intervals
    #: over the rows of its DeviceWork
    work: Mask
    #: over the rows of its Collectives
    collectives: Mask
    #: event rows of calls into the device's runtime
    calls: Int64s


NO_PART = Part(EMPTY, EMPTY, np.empty(0, bool), np.empty(0, bool), np.empty(0, np.int64))


def taken_out(
    replay: Replay, parts: Sequence[Part], *, factor: float = 0.0, collectives: bool = True, waits: bool = True
) -> Replay:
    """Return the run in which these parts take `factor` of their time; 0 removes them.

    Without `collectives` those stay as they are: ranks that still run theirs would wait for ever. Without `waits` the
    host no longer waits in them, whatever the factor.
    """
    ranks = replay.shared.run.ranks
    chosen = [
        _items(rank, p, part) & ((p.collective == NOTHING) | collectives)
        for rank, p, part in zip(ranks, replay.programs, parts, strict=True)
    ]
    meetings = _with_partners(replay.meetings, chosen, gone=not factor) if collectives else replay.meetings
    programs = []
    for rank, program, part, mask in zip(ranks, replay.programs, parts, chosen, strict=True):
        shorter = _shorter_host(rank, program, part, replay.steps, factor)
        duration = np.where(mask, np.rint(program.duration_ns * factor), program.duration_ns).astype(np.int64)
        shorter = replace(shorter, duration_ns=duration)
        gone = mask & (not factor)
        programs.append(shorter if factor and waits else _without_waits(rank, shorter, part, gone, replay.steps))
    return rebuilt(replay, programs, None if factor else meetings)


def _with_plain_python(replay: Replay, python: Sequence[Intervals]) -> Replay:
    """Return the same run in which Python (when each rank's host ran it) takes what it was recorded to take, and the
    host factor is on the rest alone, so that the hosts' time in all stays what it was.

    The profiler stretches what it records. Python between two operators it does not, so one factor on all of the host's
    time would make the one too short and the other too long.
    """
    if replay.host_factor >= 1:
        return replay
    programs = []
    for rank, program, spans in zip(replay.shared.run.ranks, replay.programs, python, strict=True):
        if not len(program):
            programs.append(program)
            continue
        edges, did = recorded_host(rank, program, replay.steps)
        python_ns = did.parts_within(spans, edges[:-1], edges[1:]).own_ns
        # Where the last item is the end of the last step nothing comes after it.
        after = np.zeros(len(program) + 1 - len(python_ns), np.int64)
        programs.append(replace(program, python_ns=np.append(python_ns, after)))
    own = sum(host_part_ns(p, "own_ns") for p in programs)
    plain = sum(
        float(np.minimum(p.python_ns, np.append(p.host.own_ns, p.tail.own_ns)).sum())
        for p in programs
        if p.python_ns is not None
    )
    rest = own - plain
    factor = float(np.clip((replay.host_factor * own - plain) / rest, _MIN_FACTOR, 1.0)) if rest > 0 else 1.0
    return rebuilt(replace(replay, host_factor=factor), programs)


def _items(rank: Rank, program: Program, part: Part) -> Mask:
    of_rank = part.work if rank.has_device else part.collectives
    if not len(of_rank) or not len(program):
        return np.zeros(len(program), bool)
    return of_rank[program.device_index] & (program.device_index >= 0)


def _with_partners(meetings: Sequence[Meeting], chosen: list[Mask], *, gone: bool) -> list[Meeting]:
    kept = []
    for meeting in meetings:
        if any(chosen[rank][item] for rank, item in meeting):
            for rank, item in meeting:
                chosen[rank][item] = True
            if gone:
                continue
        kept.append(meeting)
    return kept


def recorded_host(rank: Rank, program: Program, numbers: Int64s) -> tuple[Int64s, Activities]:
    """Return the moments that bound the host's time before each item, and what it did."""
    if rank.has_device:
        return launch_edges(rank, program.device_index, numbers), activities(rank)
    alone = not (program.device_index >= 0).all()
    edges = step_edges(rank, numbers) if alone else issue_edges(rank, program.device_index, numbers)
    return edges, host_activities(rank, alone=alone)


def _shorter_host(rank: Rank, program: Program, part: Part, numbers: Int64s, factor: float) -> Program:
    """Return a program whose host takes `factor` of its time for the part.

    By shares of what was recorded: an earlier change may have shortened it already.
    """
    if not len(program) or not len(part.host):
        return program
    edges, did = recorded_host(rank, program, numbers)
    whole = did.parts(edges[:-1], edges[1:])
    mine = did.parts_within(part.host, edges[:-1], edges[1:])
    python = program.python_ns
    kept = {}
    for name in (f.name for f in fields(HostParts)):
        share = np.clip(getattr(mine, name) / np.maximum(getattr(whole, name), 1), 0.0, 1.0)
        kept[name] = 1 - (1 - factor) * share
    count = len(program)

    def shortened(parts: HostParts, which: slice) -> HostParts:
        values = {n: np.rint(getattr(parts, n) * kept[n][which]).astype(np.int64) for n in kept}
        return HostParts(**values)

    host = shortened(program.host, slice(count))
    tail = shortened(program.tail, slice(count, None)) if len(edges) - 1 > count else program.tail
    if python is not None:
        gone = did.parts_within(part.python, edges[:-1], edges[1:]).own_ns
        gone = np.append(gone, np.zeros(len(python) - len(gone), np.int64))
        python = np.maximum(python - np.rint((1 - factor) * gone).astype(np.int64), 0)
    return replace(program, host=host, tail=tail, python_ns=python)


def _without_waits(rank: Rank, program: Program, part: Part, gone: Mask, numbers: Int64s) -> Program:
    if not len(program):
        return program
    if rank.has_device:
        program = without_calls(program, rank, numbers, part.calls)
    released_by, tail = program.released_by, program.tail_released_by
    if not rank.has_device:
        released_by = np.where((released_by >= 0) & gone[np.maximum(released_by, 0)], NOTHING, released_by)
        tail = NOTHING if tail >= 0 and gone[tail] else tail
    return replace(
        program,
        kind=np.where(gone, _GONE, program.kind).astype(np.uint8),
        released_by=released_by,
        tail_released_by=tail,
        waits=_stream_waits(rank, program, part, gone),
        also_after=tuple(entry for entry in program.also_after if not gone[entry[0]] and not gone[entry[1]]),
    )


def _stream_waits(rank: Rank, program: Program, part: Part, gone: Mask) -> Int64s:
    if not rank.has_device:
        return program.waits
    asks = _stream_wait_calls(rank)
    launched = rank.trace["ts_ns"][rank.work.launch_row[program.device_index]]
    latest = np.searchsorted(rank.trace["ts_ns"][asks], launched, side="right") - 1
    own = among(asks, part.calls)
    theirs = (latest >= 0) & own[np.maximum(latest, 0)] if len(asks) else np.zeros(len(launched), bool)
    other, item = program.waits
    dropped = gone | (theirs & (np.bincount(item[gone[other]], minlength=len(program)) > 0))
    return program.waits[:, ~dropped[item]]


@once_per_record
def _stream_wait_calls(rank: Rank) -> Int64s:
    asks = rank.rows_named(lambda s: "StreamWaitEvent" in s, EventKind.RUNTIME)
    return asks[np.argsort(rank.trace["ts_ns"][asks], kind="stable")]


# What each rank did for a line or a module, as the part that a replay can take out or scale.

_HOST, _DEVICE = (list(map(COLUMNS.index, names)) for names in (("host_ns", "blocked_ns"), ("device_ns", "comm_ns")))


# which of some owned things belong to a part
Choose = Callable[[Ownership, OwnedWork], Mask]


def part_of(owned: Ownership, name: OwnerName) -> Part:
    """Return what a rank did for an owner."""
    return part_for(owned, name.chosen)


def part_for(owned: Ownership, choose: Choose, *, device: bool = True) -> Part:
    """Return what a rank did for the chosen owners; without `device` kernels and copies stay."""
    rank = owned.rank
    calls, callers = owned.runtime_calls
    host = owned.running(choose(owned, owned.host.owner))
    work = choose(owned, owned.by_work)
    return Part(
        host=host,
        python=intersect(host, owned.long_python),
        work=work if device else work & (rank.work.kind == EventKind.COMM_KERNEL),
        collectives=choose(owned, owned.by_collective),
        calls=calls[choose(owned, callers)],
    )


def claimed_ns(owned: Ownership, sums: OwnerSums, name: OwnerName) -> float:
    """Return all the recorded time that an owner takes per step on a rank, on host and device: it saves no more."""
    host, device = (
        float(sums.amount[name.chosen(owned, sums.owner)][:, columns].sum()) for columns in (_HOST, _DEVICE)
    )
    return host / max(sums.host_share, 1e-3) + device


def owned_replay(replay: Replay, ownership: Sequence[Ownership | None]) -> Replay:
    """Return the replay of a run whose long stretches of Python are known: the profiler did not stretch them."""
    return _with_plain_python(replay, [EMPTY if one is None else one.long_python for one in ownership])


# Savings of removed lines and modules, one replay each.

MAX_REPLAYED = 10
# share of the host's and of the device's owned time from which a line is around the step (`main()`), not in it
_WHOLE_STEP, _MOSTLY = 0.95, 0.5


def owner_savings(
    replay: Replay,
    owners: Iterable[str],
    *,
    ownership: Sequence[Ownership | None],
    sums: Sequence[OwnerSums | None],
    step_ns: float,
) -> dict[str, float]:
    """Return what the step saves without each owner, on all ranks, in ns; those that cannot be replayed are missing.

    `replay` is `owned_replay`'s; the numbers are those of `stepscope whatif --without`, without the interval.
    """
    known = [one for one in ownership if one is not None]
    found = {}
    for owner in owners:
        name = owner_name(owner, known)
        parts = [NO_PART if one is None else part_of(one, name) for one in ownership]
        each = [claimed_ns(o, s, name) for o, s in zip(ownership, sums, strict=True) if o is not None and s is not None]
        fix = Fix(change=None, limit_ns=max(each, default=0.0))
        try:
            saved = replay.period_ns - taken_out(replay, parts).period_ns
        except CircularWaits:
            continue
        found[owner] = max(0.0, bounded(saved * to_step(replay, step_ns), fix, step_ns=step_ns))
    return found


def worth_replaying(code: CodeCosts, of: Iterable[Row]) -> list[str]:
    """Return the first owners that the user can change: lines of the user's own and modules, none around the step."""
    owners = [one.owner for one in of if one.is_user and not is_around_step(code, one)]
    return owners[:MAX_REPLAYED]


def is_around_step(code: CodeCosts, one: Row) -> bool:
    """Return whether a line or module holds nearly all that ranks did, and calls it: without it there is no step."""

    def held(cost: Cost) -> tuple[float, float]:
        return cost.host_ns + cost.blocked_ns, cost.device_ns + cost.comm_ns

    if one.file and sum(held(one.own)) >= _MOSTLY * sum(held(one.inclusive)):
        return False
    each = zip(held(one.inclusive), held(code.total), held(code.unowned), strict=True)
    return all(all_ns >= _WHOLE_STEP * (total - unowned) for all_ns, total, unowned in each)


# What decides the step? The critical path of host work, launches, kernels and collectives.
#
# Found on the replay: from the end of the last step back through the longest wait of each item.

_MAX_SEGMENTS = 30
_KINDS: dict[int, str] = {
    EventKind.KERNEL: "kernel",
    EventKind.COMM_KERNEL: "collective",
    EventKind.COPY: "copy",
    EventKind.SET: "set",
}

_LAUNCH = ("launch", "latency and gaps between operations")
_PARTS = ("host", "arrival", "device")
_HOST_PARTS = ("own_ns", "data_ns", "allocator_ns", "stall_ns")
_HOST_PARTS_NAMED = ("operators, launches and python", "loading data", "allocating device memory", "stalled")


def critical_path(replay: Replay, *, step_ns: float | None = None) -> Row:
    """Return the critical path of a replay, per step; one that is longer than the step, if given, is brought to it."""
    duration, end, begin_ns, steps = _critical_path_replayed(replay)
    totals = _totals(replay, begin_ns, *_walk(replay.graph, duration, end, begin_ns))
    whole = sum(totals.values()) or 1.0
    per_step = 1 / steps if step_ns is None else min(1 / steps, step_ns / whole)
    segments = [
        Row(rank=rank, what=what, name=name, ns_per_step=value * per_step, pct=100 * value / whole)
        for (rank, what, name), value in sorted(totals.items(), key=lambda one: -one[1])[:_MAX_SEGMENTS]
        if value > 0
    ]
    by_what: dict[str, float] = defaultdict(float)
    for (_, what, _), value in totals.items():
        by_what[what] += value * per_step
    return Row(segments=tuple(segments), ns_per_step=whole * per_step, what_ns=dict(by_what))


def _critical_path_replayed(replay: Replay) -> tuple[Floats, Floats, float, int]:
    """Return what each node takes and when it ends, from when on steps are steady, and how many of those there are."""
    graph = replay.graph
    duration = with_host_factor(graph, replay.host_factor)
    end = end_times(graph, duration)
    half, last = steady_steps(graph)
    begin_ns = float(step_ends(graph, end)[:, half].max()) if last else 0.0
    return duration, end, begin_ns, max(last - half, 1)


def critical_work(replay: Replay, ownership: Sequence[Ownership | None]) -> list[tuple[OwnedWork, Floats] | None]:
    """Return per rank the owners of its work and their time on the critical path per step, in ns.

    The path is one through all ranks: the times of all ranks together are those of one step.
    """
    duration, end, begin_ns, steps = _critical_path_replayed(replay)
    nodes, start, stop, _ = _walk(replay.graph, duration, end, begin_ns)
    took = np.zeros(len(replay.graph))
    took[nodes] = np.maximum(0.0, stop - np.maximum(start, begin_ns)) / steps
    found: list[tuple[OwnedWork, Floats] | None] = []
    for index, (rank, owned) in enumerate(zip(replay.shared.run.ranks, ownership, strict=True)):
        program = replay.programs[index]
        if owned is None or not len(program):
            found.append(None)
            continue
        items = np.arange(len(replay.graph.device[index])) % len(program)
        on_device = np.bincount(items, took[replay.graph.device[index]], minlength=len(program))
        by_item = owned.by_work if rank.has_device else owned.by_collective
        # The host's time before an item is that of the lines which ran then, each shortened as the replay shortens it.
        edges, _ = recorded_host(rank, program, replay.steps)
        before = np.bincount(np.arange(len(replay.graph.host[index])) % len(program), took[replay.graph.host[index]])
        passed = np.append(0.0, np.cumsum(before))
        passed = np.append(passed, np.full(max(0, len(edges) - len(passed)), passed[-1]))[: len(edges)]
        host, factor = owned.host, min(1.0, replay.host_factor)
        times = (np.maximum(at, edges[0]) for at in (edges, host.start_ns, host.end_ns))
        clock = [_unstretched(at, int(edges[0]), owned.long_python, factor) for at in times]
        spent = np.interp(clock[2], clock[0], passed) - np.interp(clock[1], clock[0], passed)
        owners = joined_owners([by_item.at(program.device_index), host.owner])
        found.append((owners, np.append(on_device, spent * host.runs)))
    return found


def _unstretched(at_ns: Int64s, since_ns: int, python: Intervals, factor: float) -> Floats:
    """Return times on a clock that runs slower by the factor, but not in the stretches of Python."""
    in_python = covered_ns(python, np.full(len(at_ns), since_ns), at_ns)
    return factor * (at_ns - since_ns) + (1 - factor) * in_python


def critical_lines(
    ownership: Sequence[Ownership | None], critical: Sequence[tuple[OwnedWork, Floats] | None]
) -> dict[Line, float]:
    """Return the time on the critical path per step by the user's innermost line, in ns."""
    found: dict[Line, float] = defaultdict(float)
    for owned, work in zip(ownership, critical, strict=True):
        if owned is None or work is None:
            continue
        by_stack = np.zeros(len(owned.stacks) + 1)
        np.add.at(by_stack, work[0].stack, work[1])
        for stack in np.flatnonzero(by_stack[:-1]).tolist():
            if line := owned.stacks.user_line(stack):
                found[line] += float(by_stack[stack])
    return dict(found)


def _walk(graph: Graph, duration: Floats, end: Floats, begin_ns: float) -> tuple[Int64s, Floats, Floats, Floats]:
    """Return the nodes of the path, when each starts and ends, and the lag between what it waited for and its start."""
    start = end - duration
    source, lag = _held_by(graph.wiring, start, end, begin_ns)
    path, ahead = np.array([np.argmax(end)], np.int64), np.append(source, NOTHING)  # in the last place: of nothing
    while path[-1] != NOTHING:
        path = np.append(path, ahead[path])  # twice as long each time
        ahead = ahead.take(ahead)
    path = path[path != NOTHING]
    return path, start[path], end[path], lag[path]


def _held_by(wiring: Wiring, start: Floats, end: Floats, begin_ns: float) -> tuple[Int64s, Floats]:
    """Return per node that starts after `begin_ns` what it waited for longest, with the lag between; NOTHING for others
    and where it waited for nothing.
    """
    source, lag = np.full(len(start), NOTHING, np.int64), np.zeros(len(start))
    count = np.diff(wiring.first_edge)
    waiting = np.flatnonzero((count > 0) & (start > begin_ns))
    if not len(waiting):
        return source, lag
    count = count[waiting]
    first = np.cumsum(count) - count
    edges = np.arange(int(count.sum())) + np.repeat(wiring.first_edge[waiting] - first, count)
    edge_from, edge_lag = wiring.edge_from[edges], wiring.edge_lag_ns[edges]
    ready = end[edge_from] + edge_lag
    latest = np.maximum.reduceat(ready, first)
    into = np.repeat(np.arange(len(first)), count)
    latest_edges = np.flatnonzero(ready == latest[into])
    into = into[latest_edges]
    binding = latest_edges[np.append(True, into[1:] != into[:-1])]  # the first of those that end last
    held = np.flatnonzero(latest >= start[waiting] - 1)
    waiting, binding = waiting[held], binding[held]
    source[waiting], lag[waiting] = edge_from[binding], edge_lag[binding]
    return source, lag


# rank, kind and name of a node
Owner = tuple[int, str, str]


def _totals(
    replay: Replay, begin_ns: float, nodes: Int64s, start: Floats, end: Floats, lag: Floats
) -> dict[Owner, float]:
    owners, owner, launch = _owners(replay, nodes)
    named = np.flatnonzero(owner != NOTHING)  # where ranks meet takes no time
    start, end, lag = start[named], end[named], lag[named]
    took = np.maximum(0.0, end - np.maximum(start, begin_ns))
    waited = np.maximum(0.0, np.minimum(lag, start - begin_ns))
    each = np.stack((owner[named], launch[named]), axis=1).reshape(-1)  # a node, then its launch, then the next node
    sums = np.bincount(each, np.stack((took, waited), axis=1).reshape(-1), minlength=len(owners)).tolist()
    there, first = np.unique(each, return_index=True)
    return {owners[i]: sums[i] for i in there[np.argsort(first)].tolist()}


def _owners(replay: Replay, nodes: Int64s) -> tuple[list[Owner], Int64s, Int64s]:
    graph = replay.graph
    rank_of, place_of = np.full(len(graph), NOTHING, np.int32), np.zeros(len(graph), np.int64)
    for index, parts in enumerate(zip(graph.host, graph.arrival, graph.device, strict=True)):
        for code, of_part in enumerate(parts):
            rank_of[of_part] = index
            place_of[of_part] = len(_PARTS) * np.arange(len(of_part)) + code
    known: defaultdict[Owner, int] = defaultdict()
    known.default_factory = known.__len__  # the next number for an owner that comes for the first time
    owner, launch = np.full(len(nodes), NOTHING, np.int64), np.full(len(nodes), NOTHING, np.int64)
    for index, rank in enumerate(replay.shared.run.ranks):
        mine = np.flatnonzero(rank_of[nodes] == index)
        if not len(mine):
            continue
        names = _Names(rank, replay.programs[index])
        place, part = np.divmod(place_of[nodes[mine]], len(_PARTS))
        _, first, alike = np.unique(names.codes(place, part), return_index=True, return_inverse=True)
        distinct = zip(place[first].tolist(), part[first].tolist(), strict=True)
        said = [(rank.rank, *names.of(at, _PARTS[code])) for at, code in distinct]
        owner[mine] = np.array([known[one] for one in said])[alike]
        launch[mine] = known[(rank.rank, *_LAUNCH)]
    return list(known), owner, launch


class _Names:
    def __init__(self, rank: Rank, program: Program) -> None:
        self._num_items = len(program)
        self._doing = np.argmax(np.stack([getattr(program.host, part) for part in _HOST_PARTS]), axis=0)
        self._kind = program.kind
        self._name = rank.work.name[program.device_index] if rank.has_device else None
        self._strings = rank.trace.strings

    def codes(self, place: Int64s, part: Int64s) -> Int64s:
        item = place % self._num_items
        name = NO_STRING if self._name is None else self._name[item].astype(np.int64)
        operation = (name + 1) * 256 + self._kind[item]
        of_part = np.where(part == _PARTS.index("host"), self._doing[item], operation)
        return len(_PARTS) * np.where(part == _PARTS.index("arrival"), 0, of_part) + part

    def of(self, place: int, part: str) -> tuple[str, str]:
        item = place % self._num_items
        if part == "host":
            return part, _HOST_PARTS_NAMED[self._doing[item]]
        return _LAUNCH if part == "arrival" else self._operation(item)

    def _operation(self, item: int) -> tuple[str, str]:
        name = int(self._name[item]) if self._name is not None else NO_STRING
        text = "gloo" if self._name is None else "?" if name == NO_STRING else self._strings[name] or "?"
        return _KINDS.get(int(self._kind[item]), "other"), printable(text, width=120)
