"""The run without what some of it was done for: one line's or module's host time, device work, collectives and waits.

What is taken out is given by rank (`Part`). The host's time goes item by item, each part of it as far as it is the
owner's; device work takes nothing any more; a collective that is taken out is taken out on all its ranks; the host no
longer waits in synchronisations that are the owner's. What remains waits for each other as before, so waiting between
ranks is what the replay says it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace

import numpy as np

from stepscope.analyze.host_time import Activities, HostParts, activities
from stepscope.analyze.owner_costs import COLUMNS, CodeCosts, Cost, LineCost, ModuleCost, OwnerSums
from stepscope.analyze.ownership import OwnedWork, OwnerName, Ownership, owner_name
from stepscope.analyze.replay.graph import CircularWaits, Meeting
from stepscope.analyze.replay.program import (
    NOTHING,
    Program,
    host_activities,
    host_part_ns,
    issue_edges,
    launch_edges,
    step_edges,
    without_calls,
)
from stepscope.analyze.replay.replay import Replay, rebuilt
from stepscope.analyze.replay.saving import Fix, bounded, to_step
from stepscope.analyze.stacks import Mask
from stepscope.dataclass import dataclass
from stepscope.intervals import EMPTY, Intervals, intersect
from stepscope.records import ArrayRecord, once_per_record
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

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


def taken_out(replay: Replay, parts: Sequence[Part], *, factor: float = 0.0, collectives: bool = True) -> Replay:
    """Return the run in which these parts take `factor` of their time; with 0 they are gone.

    Without `collectives` those stay as they are: other ranks that keep theirs would wait for ever.
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
        programs.append(shorter if factor else _without_waits(rank, shorter, part, mask, replay.steps))
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
    """Return the moments between which the host's time before each item lies, and what it did."""
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

_TIMES = [COLUMNS.index(name) for name in ("host_ns", "blocked_ns", "device_ns", "comm_ns")]


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
    """Return all the time per step that an owner takes on a rank, host and device together: it saves no more."""
    return float(sums.amount[name.chosen(owned, sums.owner)][:, _TIMES].sum())


def owned_replay(replay: Replay, ownership: Sequence[Ownership | None]) -> Replay:
    """Return the replay of a run whose long stretches of Python are known: the profiler did not stretch them."""
    return _with_plain_python(replay, [EMPTY if one is None else one.long_python for one in ownership])


# Savings of removed lines and modules, one replay each.

MAX_REPLAYED = 10
# share of the host's and of the device's owned time from which a line is around the step (`main()`), not in it
_WHOLE_STEP = 0.95


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


def worth_replaying(code: CodeCosts, of: Iterable[LineCost | ModuleCost]) -> list[str]:
    """Return the first owners that the user can change: lines of the user's own and modules, none around the step."""
    owners = [one.owner for one in of if not is_around_step(code, one) and (isinstance(one, ModuleCost) or one.is_user)]
    return owners[:MAX_REPLAYED]


def is_around_step(code: CodeCosts, one: LineCost | ModuleCost) -> bool:
    """Return whether a line or module holds nearly all that ranks did: without it there is no step."""

    def held(cost: Cost) -> tuple[float, float]:
        return cost.host_ns + cost.blocked_ns, cost.device_ns + cost.comm_ns

    each = zip(held(one.inclusive), held(code.total), held(code.unowned), strict=True)
    return all(own >= _WHOLE_STEP * (total - unowned) for own, total, unowned in each)
