"""Do the ranks of a group call the same collective under the same number? Wrong orders, calls left out, wrong shapes.

Ranks match their collectives by order alone. One call more or less on a rank, two in another order, or tensors of
another size, and ranks wait for what will never come, or exchange the wrong data.
"""

from collections.abc import Mapping, Sequence

from stepscope.analyze.hang.groups import GroupCalls, elements, usual
from stepscope.contract.collectives import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE, REDUCE_SCATTER
from stepscope.dataclass import dataclass
from stepscope.trace.pickles.flight_recorder import FlightEntry

ORDER, LEFT_OUT, EXTRA, SHAPE, DTYPE = "wrong-order", "left-out", "extra-call", "wrong-shape", "wrong-type"
_MAX_SHIFT = 8
_MIN_OVERLAP = 2
_ALWAYS_EQUAL = (ALL_REDUCE, BROADCAST, REDUCE, REDUCE_SCATTER)
_EQUAL_TO_HANG = (*_ALWAYS_EQUAL, ALL_GATHER)
"""others may differ from rank to rank by design"""

Signature = tuple[str, int, tuple[str, ...]]


@dataclass(frozen=True)
class Mismatch:
    """The first number under which ranks of a group call different things."""

    kind: str
    seq: int
    odd_ranks: tuple[int, ...]
    """those that differ from most; with two ranks nobody can tell which of them is wrong"""
    calls: Mapping[int, FlightEntry]
    """what each rank calls under that number"""
    shift: int
    """calls left out or added"""
    missed: tuple[FlightEntry, ...]
    """of `left-out` and `extra-call`: what they were"""


def first_mismatch(group: GroupCalls) -> Mismatch | None:
    """Return the first collective that does not fit together, None where all do that can be compared."""
    held = list(group.calls.values())
    if len(held) < 2:
        return None
    numbers = sorted(set.union(*(set(h) for h in held)))
    for seq in numbers:
        here = {rank: calls[seq] for rank, calls in group.calls.items() if seq in calls}
        kind = _difference(list(here.values())) if len(here) > 1 else None
        if kind is not None:
            return _explained(group, seq, here, kind)
    return None


def _difference(calls: Sequence[FlightEntry]) -> str | None:
    """Return how calls under one number differ."""
    if len({c.op for c in calls}) > 1:
        return ORDER
    op = calls[0].op
    finished = all(c.completed for c in calls)
    if op in (_ALWAYS_EQUAL if finished else _EQUAL_TO_HANG):
        if len({elements(c.input_sizes) for c in calls if c.input_sizes}) > 1:
            return SHAPE
        if len({c.input_dtypes for c in calls if c.input_dtypes}) > 1:
            return DTYPE
    return None


def _explained(group: GroupCalls, seq: int, here: dict[int, FlightEntry], kind: str) -> Mismatch:
    signatures = {rank: _signature(call) for rank, call in here.items()}
    most = usual(list(signatures.values()))
    odd = tuple(rank for rank, s in signatures.items() if s != most)
    right = next(rank for rank, s in signatures.items() if s == most)
    reference, other = (_following(group.calls[rank], seq) for rank in (right, odd[0]))
    for shift in range(1, _MAX_SHIFT + 1):
        if _fits(reference[shift:], other):
            return Mismatch(LEFT_OUT, seq, odd, here, shift, tuple(_entries(group, right, seq, shift)))
        if _fits(other[shift:], reference):
            return Mismatch(EXTRA, seq, odd, here, shift, tuple(_entries(group, odd[0], seq, shift)))
    return Mismatch(kind, seq, odd, here, 0, ())


def _following(calls: Mapping[int, FlightEntry], seq: int) -> list[Signature]:
    return [_signature(calls[n]) for n in sorted(calls) if n >= seq]


def _fits(a: list[Signature], b: list[Signature]) -> bool:
    """Return whether two sequences go on alike, over enough calls and kinds of call to be no accident."""
    both = min(len(a), len(b))
    return both >= _MIN_OVERLAP and a[:both] == b[:both] and len(set(a[:both])) > 1


def _entries(group: GroupCalls, rank: int, seq: int, count: int) -> list[FlightEntry]:
    return [group.calls[rank][n] for n in range(seq, seq + count) if n in group.calls[rank]]


def _signature(call: FlightEntry) -> Signature:
    return call.op, elements(call.input_sizes), call.input_dtypes
