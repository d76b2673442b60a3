"""Who did not arrive? From the flight recorder dumps of a job that hangs or died: the rank that the others wait for.

Each group's collectives are numbered in the order its members issue them. A rank that has issued fewer than the others
is *missing* at the first one it lacks, if that one is not done on the ranks that have it. A missing rank may itself
wait in another group; following who waits for whom leads to the ranks that wait for nobody: they are where to look.
"""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from stepscope.analyze.hang.groups import GroupCalls, group_calls
from stepscope.analyze.hang.mismatch import Mismatch, first_mismatch
from stepscope.analyze.hang.pairs import UnpairedCall, unpaired_calls
from stepscope.dataclass import dataclass
from stepscope.trace.pickles.flight_recorder import FlightDump, FlightEntry

MISSING, MISMATCH, STUCK, BEHIND, DONE = "missing-rank", "mismatch", "not-finished", "behind", "finished"
NEVER = 1 << 62


@dataclass(frozen=True)
class GroupState:
    """How far one group came, and what is wrong with it."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    without_dump: tuple[int, ...]
    last_by_rank: dict[int, int]
    """number of the last collective that each rank with a dump issued"""
    last_common: FlightEntry | None
    """the last one that all ranks with a dump issued and finished; None where there is none or it is overwritten"""
    verdict: str
    """`missing-rank`, `mismatch`, `not-finished`, `behind` (no harm: the dump is older) or `finished`"""
    waiting_at: int | None
    """number of the collective that is waited in"""
    waiting: dict[int, FlightEntry]
    """the ranks that wait in it"""
    missing: tuple[int, ...]
    """ranks with a dump that did not issue it"""
    mismatch: Mismatch | None


@dataclass(frozen=True)
class Hang:
    """What the dumps of a job say."""

    ranks: tuple[int, ...]
    """of which there is a dump"""
    world_size: int | None
    without_dump: tuple[int, ...]
    """ranks of the job, as far as it is known, that left no dump"""
    groups: tuple[GroupState, ...]
    unpaired: tuple[UnpairedCall, ...]
    suspects: tuple[int, ...]
    """the ranks to look at: waited for, and waiting for nobody"""
    circle: tuple[int, ...]
    """ranks that wait for each other in a circle"""
    last_calls: dict[int, FlightEntry]
    """the last that each rank issued, in any group"""

    @property
    def found(self) -> bool:
        """Return whether anything is wrong."""
        return bool(self.unpaired) or any(g.verdict in (MISSING, MISMATCH, STUCK) for g in self.groups)


def hang_of(dumps: Mapping[int, FlightDump]) -> Hang:
    """Return who is waited for, by the dumps of each rank."""
    found = group_calls(dumps)
    states = tuple(_state(group) for group in found)
    unpaired = tuple(unpaired_calls(dumps, members={g.name: g.ranks for g in found}))
    world = {rank for group in found if group.listed for rank in group.ranks} | set(dumps)
    waits_for = _waits_for(states, unpaired)
    circle = _circle(waits_for)
    waited_for = {rank for peers in waits_for.values() for rank in peers}
    suspects = {rank for rank in waited_for if not waits_for.get(rank)} | {r for s in states for r in _odd(s)}
    return Hang(
        ranks=tuple(sorted(dumps)),
        world_size=max(world) + 1 if any(g.listed for g in found) else None,
        without_dump=tuple(r for r in range(max(world, default=-1) + 1) if r not in dumps),
        groups=states,
        unpaired=unpaired,
        suspects=tuple(sorted(suspects)),
        circle=circle,
        last_calls={rank: dump.entries[-1] for rank, dump in dumps.items() if dump.entries},
    )


def _state(group: GroupCalls) -> GroupState:
    last = {rank: group.last(rank) for rank in group.calls}
    mismatch = first_mismatch(group)
    at, waiting = _waiting(group)
    missing = tuple(r for r in group.calls if at is not None and at not in group.calls[r] and group.last(r) < at)
    ahead = len(set(last.values())) > 1
    if mismatch is not None:
        verdict = MISMATCH
    elif missing:
        verdict = MISSING
    elif at is not None:
        verdict = STUCK
    else:
        verdict = BEHIND if ahead else DONE
    return GroupState(
        name=group.name,
        desc=group.desc,
        ranks=group.ranks,
        without_dump=group.without_dump,
        last_by_rank=last,
        last_common=_last_common(
            group, up_to=min(min(last.values(), default=0), mismatch.seq - 1 if mismatch else NEVER)
        ),
        verdict=verdict,
        waiting_at=at,
        waiting=waiting,
        missing=missing,
        mismatch=mismatch,
    )


def _waiting(group: GroupCalls) -> tuple[int | None, dict[int, FlightEntry]]:
    """Return the first collective that a rank has not finished, and the ranks that have issued it and wait."""
    unfinished = [seq for calls in group.calls.values() for seq, call in calls.items() if not call.completed]
    if not unfinished:
        return None, {}
    at = min(unfinished)
    return at, {rank: c[at] for rank, c in group.calls.items() if at in c and not c[at].completed}


def _last_common(group: GroupCalls, *, up_to: int) -> FlightEntry | None:
    """Return the last collective up to a number that every rank with a dump issued and finished."""
    for seq in range(up_to, 0, -1):
        here = [calls.get(seq) for calls in group.calls.values()]
        if not here or all(call is None for call in here):
            return None
        if all(call is not None and call.completed for call in here):
            return here[0]
    return None


def _waits_for(states: Sequence[GroupState], unpaired: Sequence[UnpairedCall]) -> dict[int, set[int]]:
    """Return for each rank the ranks that it waits for."""
    edges: dict[int, set[int]] = {}
    for state in states:
        absent = {*state.missing, *(state.without_dump if state.waiting else ())}
        for rank in state.waiting:
            edges.setdefault(rank, set()).update(absent - {rank})
    for one in unpaired:
        edges.setdefault(one.rank, set()).add(one.peer)
    return edges


def _odd(state: GroupState) -> tuple[int, ...]:
    """Return the ranks that call something else than most; nobody where two ranks differ."""
    found = state.mismatch
    return found.odd_ranks if found is not None and len(found.odd_ranks) * 2 < len(found.calls) else ()


def _circle(waits_for: Mapping[int, set[int]]) -> tuple[int, ...]:
    """Return ranks of which each waits for the next and the last for the first, none where there is no such circle."""
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        return tuple(error.args[1][1:])
    return ()
