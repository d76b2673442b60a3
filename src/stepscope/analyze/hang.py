"""Who did not arrive? From the flight recorder dumps of a job that hangs or died: the rank that the others wait for.

Each group's collectives are numbered in the order its members issue them. A rank that has issued fewer than the others
is *missing* at the first one it lacks, if that one is not done on the ranks that have it. A missing rank may itself
wait in another group; the suspects are the ranks at the end of these chains, which wait for no other rank.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from math import prod

from stepscope.contract.operations import ALL_GATHER, ALL_REDUCE, BROADCAST, RECV, REDUCE, REDUCE_SCATTER, SEND
from stepscope.records import Row, dataclass
from stepscope.trace.flight_recorder import FlightDump, FlightEntry, Frame

# Collectives of each group, by rank and number.

_LIBRARY_FOLDERS = ("site-packages/", "dist-packages/", "<frozen", "<string>", "??")
_LIBRARIES = (
    *("torch/", "torchvision/", "lightning/", "pytorch_lightning/", "lightning_fabric/", "accelerate/", "deepspeed/"),
    *("transformers/", "megatron/", "stepscope/", "torchtitan/"),
)


@dataclass(frozen=True)
class GroupCalls:
    """The collectives of one group, by rank and number."""

    name: str
    desc: str
    #: all its members that the dumps show
    ranks: tuple[int, ...]
    #: whether a dump lists the members; if not they are the ranks that issued something in it
    listed: bool
    #: of each rank with a dump: number in the group -> call
    calls: Mapping[int, Mapping[int, FlightEntry]]

    @property
    def without_dump(self) -> tuple[int, ...]:
        """Return the members of which there is no dump."""
        return tuple(r for r in self.ranks if r not in self.calls)

    def last(self, rank: int) -> int:
        """Return the number of the rank's last collective, 0 where it issued none."""
        return max(self.calls[rank], default=0)

    def holds(self, rank: int, seq: int) -> bool:
        """Return whether the rank would show the collective had it issued it: older ones are overwritten."""
        return seq >= min(self.calls[rank], default=0)


def _group_calls(dumps: Mapping[int, FlightDump]) -> list[GroupCalls]:
    names: dict[str, str] = {}
    members: dict[str, set[int]] = {}
    listed: set[str] = set()
    for rank, dump in dumps.items():
        for entry in dump.entries:
            names[entry.group] = names.get(entry.group) or entry.group_desc
            members.setdefault(entry.group, set()).add(rank)
        for group in dump.groups.values():
            names[group.name] = names.get(group.name) or group.desc
            if group.ranks is not None:
                members.setdefault(group.name, set()).update(group.ranks)
                listed.add(group.name)
    for name, desc in names.items():
        if name not in listed and desc == "default_pg":
            members.setdefault(name, set()).update(dumps)
    found = []
    for name, ranks in members.items():
        calls = {
            rank: {e.seq: e for e in dumps[rank].entries if e.group == name and not e.is_p2p}
            for rank in sorted(ranks)
            if rank in dumps
        }
        found.append(GroupCalls(name, names[name] or name, tuple(sorted(ranks)), name in listed, calls))
    return sorted((g for g in found if g.ranks), key=lambda g: (-len(g.ranks), g.name))


def user_frame(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, of a library where there is none; None without a stack."""
    lines = [f for f in stack if f.line > 0]
    for frame in lines:
        if frame.file and not frame.file.startswith(_LIBRARIES) and not any(x in frame.file for x in _LIBRARY_FOLDERS):
            return frame
    return lines[0] if lines else None


def _elements(sizes: Sequence[Sequence[int]]) -> int:
    return sum(prod(shape) for shape in sizes)


# Unpaired sends and receives.


def _unpaired_calls(dumps: Mapping[int, FlightDump], *, members: Mapping[str, tuple[int, ...]]) -> list[Row]:
    """Return what is waited for between two ranks: unfinished calls beyond the unfinished ones of the other side.

    The numbers in a pair are ranks of the group; `members` turns them into ranks of the job.
    """
    open_calls: dict[tuple[str, int, int, str], list[FlightEntry]] = {}
    for dump in dumps.values():
        for call in dump.entries:
            if call.is_p2p and not call.completed and call.peers is not None and call.op in (SEND, RECV):
                ranks = members.get(call.group, ())
                a, b = (ranks[p] if p < len(ranks) else p for p in call.peers)
                open_calls.setdefault((call.group, a, b, call.op), []).append(call)
    found = []
    for (group, sender, receiver, op), calls in open_calls.items():
        other_side = open_calls.get((group, sender, receiver, RECV if op == SEND else SEND), [])
        rank, peer = (sender, receiver) if op == SEND else (receiver, sender)
        if len(calls) > len(other_side) and peer in dumps:
            found.append(Row(group=group, rank=rank, peer=peer, call=calls[len(other_side)]))
    return found


# Mismatched collectives: wrong order, missing calls, wrong shapes.
#
# Ranks match their collectives by order alone. One call more or less on a rank, two in another order, or tensors of
# another size, and ranks wait for what will never come, or exchange the wrong data.

ORDER, LEFT_OUT, EXTRA, SHAPE, DTYPE = "wrong-order", "left-out", "extra-call", "wrong-shape", "wrong-type"
_ALWAYS_EQUAL = (ALL_REDUCE, BROADCAST, REDUCE, REDUCE_SCATTER)
# others may differ from rank to rank by design
_EQUAL_TO_HANG = (*_ALWAYS_EQUAL, ALL_GATHER)

Signature = tuple[str, int, tuple[str, ...]]


def _first_mismatch(group: GroupCalls) -> Row | None:
    held = list(group.calls.values())
    if len(held) < 2:
        return None
    for seq in sorted(set.union(*(set(h) for h in held))):
        here = {rank: calls[seq] for rank, calls in group.calls.items() if seq in calls}
        kind = _difference(list(here.values())) if len(here) > 1 else None
        if kind is not None:
            return _explained(group, seq, here, kind)
    return None


def _difference(calls: Sequence[FlightEntry]) -> str | None:
    if len({c.op for c in calls}) > 1:
        return ORDER
    if calls[0].op in (_ALWAYS_EQUAL if all(c.completed for c in calls) else _EQUAL_TO_HANG):
        if len({_elements(c.input_sizes) for c in calls if c.input_sizes}) > 1:
            return SHAPE
        if len({c.input_dtypes for c in calls if c.input_dtypes}) > 1:
            return DTYPE
    return None


def _explained(group: GroupCalls, seq: int, here: dict[int, FlightEntry], kind: str) -> Row:
    signatures = {rank: _signature(call) for rank, call in here.items()}
    most = Counter(signatures.values()).most_common(1)[0][0]
    odd = tuple(rank for rank, s in signatures.items() if s != most)
    right = next(rank for rank, s in signatures.items() if s == most)
    reference, other = (
        [_signature(calls[n]) for n in sorted(calls) if n >= seq] for calls in (group.calls[right], group.calls[odd[0]])
    )

    def found(kind: str, shift: int = 0, rank: int = right) -> Row:
        # `missed`: calls left out or made too often; with two ranks it is unknown which of them is odd
        missed = tuple(_entries(group, rank, seq, shift))
        return Row(kind=kind, seq=seq, odd_ranks=odd, calls=here, shift=shift, missed=missed)

    for shift in range(1, 9):
        if _fits(reference[shift:], other):
            return found(LEFT_OUT, shift)
        if _fits(other[shift:], reference):
            return found(EXTRA, shift, odd[0])
    return found(kind)


def _fits(a: list[Signature], b: list[Signature]) -> bool:
    both = min(len(a), len(b))
    return both >= 2 and a[:both] == b[:both] and len(set(a[:both])) > 1


def _entries(group: GroupCalls, rank: int, seq: int, count: int) -> list[FlightEntry]:
    return [group.calls[rank][n] for n in range(seq, seq + count) if n in group.calls[rank]]


def _signature(call: FlightEntry) -> Signature:
    return call.op, _elements(call.input_sizes), call.input_dtypes


MISSING, MISMATCH, STUCK, BEHIND, DONE = "missing-rank", "mismatch", "not-finished", "behind", "finished"


def hang_of(dumps: Mapping[int, FlightDump]) -> Row:
    """Return who is waited for, by the dumps of each rank."""
    found = _group_calls(dumps)
    states = tuple(_state(group) for group in found)
    unpaired = tuple(_unpaired_calls(dumps, members={g.name: g.ranks for g in found}))
    world = {rank for group in found if group.listed for rank in group.ranks} | set(dumps)
    waits_for = _waits_for(states, unpaired)
    waited_for = {rank for peers in waits_for.values() for rank in peers}
    suspects = {rank for rank in waited_for if not waits_for.get(rank)}
    for found_odd in (state.mismatch for state in states if state.mismatch is not None):
        if len(found_odd.odd_ranks) * 2 < len(found_odd.calls):
            suspects |= set(found_odd.odd_ranks)
    return Row(
        # whether anything is wrong
        found=bool(unpaired) or any(state.verdict in (MISSING, MISMATCH, STUCK) for state in states),
        # of which there is a dump
        ranks=tuple(sorted(dumps)),
        world_size=max(world) + 1 if any(g.listed for g in found) else None,
        without_dump=tuple(r for r in range(max(world, default=-1) + 1) if r not in dumps),
        groups=states,
        unpaired=unpaired,
        # waited for, and waiting for no other rank
        suspects=tuple(sorted(suspects)),
        # waiting for each other
        circle=_circle(waits_for),
        last_calls={rank: dump.entries[-1] for rank, dump in dumps.items() if dump.entries},
    )


def _state(group: GroupCalls) -> Row:
    last = {rank: group.last(rank) for rank in group.calls}
    mismatch = _first_mismatch(group)
    at, waiting = _waiting(group)
    missing = tuple(r for r in group.calls if at is not None and at not in group.calls[r] and group.last(r) < at)
    common = min(last.values(), default=0)
    verdicts = (
        (mismatch is not None, MISMATCH),
        (missing, MISSING),
        (at is not None, STUCK),
        (len(set(last.values())) > 1, BEHIND),
    )
    return Row(
        name=group.name,
        desc=group.desc,
        ranks=group.ranks,
        without_dump=group.without_dump,
        last_by_rank=last,
        last_common=_last_common(group, up_to=min(common, mismatch.seq - 1) if mismatch else common),
        verdict=next((verdict for applies, verdict in verdicts if applies), DONE),
        waiting_at=at,
        waiting=waiting,
        missing=missing,
        mismatch=mismatch,
    )


def _waiting(group: GroupCalls) -> tuple[int | None, dict[int, FlightEntry]]:
    unfinished = [seq for calls in group.calls.values() for seq, call in calls.items() if not call.completed]
    if not unfinished:
        return None, {}
    at = min(unfinished)
    return at, {rank: c[at] for rank, c in group.calls.items() if at in c and not c[at].completed}


def _last_common(group: GroupCalls, *, up_to: int) -> FlightEntry | None:
    for seq in range(up_to, 0, -1):
        here = [calls.get(seq) for calls in group.calls.values()]
        if not here or all(call is None for call in here):
            return None
        if all(call is not None and call.completed for call in here):
            return here[0]
    return None


def _waits_for(states: Sequence[Row], unpaired: Sequence[Row]) -> dict[int, set[int]]:
    edges: dict[int, set[int]] = {}
    for state in states:
        absent = {*state.missing, *(state.without_dump if state.waiting else ())}
        for rank in state.waiting:
            edges.setdefault(rank, set()).update(absent - {rank})
    for one in unpaired:
        edges.setdefault(one.rank, set()).add(one.peer)
    return edges


def _circle(waits_for: Mapping[int, set[int]]) -> tuple[int, ...]:
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        return tuple(error.args[1][1:])
    return ()
