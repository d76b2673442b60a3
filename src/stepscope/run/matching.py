"""Matching of collectives across ranks, and of sends with receives.

Ranks agree on the order of the collectives of a group, so the k-th of a step on one rank is the k-th of that step
on the others. Only operations launched inside the window count: how many older ones a trace still holds differs
from rank to rank. Where a rank recorded fewer (a cut file, a shifted window), its sequence is placed only where
operation and size fit in exactly one way; otherwise it stays unmatched and is counted (`sequences.py`).
"""

from dataclasses import fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OP_CODE, OPS
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.groups import Group
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.stats.robust import MAD_TO_SIGMA
from stepscope.trace.table import Int64s

# Alignment of each member's calls in a step with those of the others.
#
#     member 0   A B C D        A B C D      the longest sequence is the reference
#     member 1     B C     ->     B C        placed where it fits in exactly one way
#     member 2   A B X D                     fits nowhere: left out
#                               a column is what at least two members share
#
# All sequences are flat arrays in which an entry is one call, so that a thousand ranks take no loop over calls.

NO_STEP = -1
_UNPLACED = -1


@dataclass(frozen=True, eq=False, repr=False)
class Columns(ArrayRecord):
    """What several sequences share; column `c` has the entries `entry[first[c]:first[c + 1]]`, by member."""

    entry: Int64s
    first: Int64s
    #: of each column, NO_STEP where the members share no step number
    step: Int64s


def shared_columns(key: Int64s, *, step: Int64s, member: Int64s, signature: Int64s) -> Columns:
    """Return the columns of each key and step that at least two members share.

    Entries of one key, step and member are a sequence in the order they come. Where no two members of a key have a
    step in common, their whole sequences are compared.
    """
    order = np.lexsort((member, step, key))
    common = _common_steps(key[order], step[order], member[order])
    step = np.where(common, step[order], NO_STEP)
    if not common.all():  # whole sequences of one member have to lie together
        again = np.lexsort((member[order], step, key[order]))
        order, step = order[again], step[again]
    block = _starts(key[order], step)
    sequence = block | _starts(member[order])
    place = _places(block, sequence, signature[order])
    return _columns(order, step, np.cumsum(block), place)


def _starts(*columns: Int64s) -> npt.NDArray[np.bool_]:
    out = np.zeros(len(columns[0]), bool)
    out[:1] = True
    for column in columns:
        out[1:] |= column[1:] != column[:-1]
    return out


def _common_steps(key: Int64s, step: Int64s, member: Int64s) -> npt.NDArray[np.bool_]:
    block = _starts(key, step)
    another = _starts(member) & ~block
    of_key = np.cumsum(_starts(key)) - 1
    return (np.bincount(of_key, another) > 0)[of_key] if len(key) else another


def _places(block: npt.NDArray[np.bool_], sequence: npt.NDArray[np.bool_], signature: Int64s) -> Int64s:
    begin = np.flatnonzero(sequence)
    length = np.diff(np.append(begin, len(sequence)))
    of_sequence = np.cumsum(sequence) - 1
    place = np.arange(len(sequence)) - begin[of_sequence]
    first = np.flatnonzero(block)
    of_block = np.cumsum(block) - 1
    reference = first[of_block] + np.minimum(place, length[of_sequence[first]][of_block] - 1)
    same = (signature == signature[reference]) & (length[of_sequence] == length[of_sequence[first]][of_block])
    uneven = np.flatnonzero(np.bincount(of_block, ~same)) if len(place) else first
    bounds = np.append(first, len(sequence))
    for b in uneven.tolist():
        mine = slice(int(bounds[b]), int(bounds[b + 1]))
        place[mine] = _placed(signature[mine], np.append(np.flatnonzero(sequence[mine]), mine.stop - mine.start))
    return place


def _placed(signature: Int64s, cuts: Int64s) -> Int64s:
    longest = int(np.argmax(np.diff(cuts)))
    reference = signature[cuts[longest] : cuts[longest + 1]]
    place = np.full(len(signature), _UNPLACED, np.int64)
    for begin, end in pairwise(cuts.tolist()):
        sequence, length = signature[begin:end], end - begin
        starts = np.flatnonzero(reference[: len(reference) - length + 1] == sequence[0]).tolist()
        fits = [at for at in starts if np.array_equal(reference[at : at + length], sequence)]
        if len(fits) == 1:
            place[begin:end] = fits[0] + np.arange(length)
    return place


def _columns(order: Int64s, step: Int64s, block: Int64s, place: Int64s) -> Columns:
    by_place = np.lexsort((place, block))
    by_place = by_place[place[by_place] != _UNPLACED]
    start = _starts(block[by_place], place[by_place])
    count = np.diff(np.append(np.flatnonzero(start), len(start)))
    kept = by_place[np.repeat(count > 1, count)]
    first = np.concatenate(([0], np.cumsum(count[count > 1])))
    return Columns(order[kept], first, step[kept[first[:-1]]])


# Medians of the segments of a flat array: segment `i` is `values[first[i]:first[i + 1]]`.

Floats = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.int64, np.float64)


def _middle_values(values: npt.NDArray[_Number], first: Int64s) -> tuple[npt.NDArray[_Number], npt.NDArray[_Number]]:
    count = np.diff(first)
    low, high = np.zeros(len(count), values.dtype), np.zeros(len(count), values.dtype)
    for n in distinct(count[count > 0]).tolist():
        alike = np.flatnonzero(count == n)
        block = np.partition(values[first[alike][:, None] + np.arange(n)], ((n - 1) // 2, n // 2), axis=1)
        low[alike], high[alike] = block[:, (n - 1) // 2], block[:, n // 2]
    return low, high


def median_times(times_ns: Int64s, first: Int64s) -> Int64s:
    """Return the median of each segment in whole nanoseconds: since 1970 they are more than a float holds."""
    low, high = _middle_values(times_ns, first)
    return low + (high - low) // 2


def medians(values: Floats, first: Int64s) -> Floats:
    """Return the median of each segment, 0 for empty ones.

    >>> medians(np.array([1.0, 9.0, 2.0, 4.0, 6.0]), np.array([0, 3, 3, 5]))
    array([2., 0., 5.])
    """
    low, high = _middle_values(values, first)
    return (low + high) / 2


def mad_sigmas(values: Floats, first: Int64s) -> Floats:
    """Return the standard deviation of each segment as its median absolute deviation gives it."""
    middle = np.repeat(medians(values, first), np.diff(first))
    return MAD_TO_SIGMA * medians(np.abs(values - middle), first)


POINT_TO_POINT = (OP_CODE["send"], OP_CODE["recv"], OP_CODE["send_recv"])
# Every rank of these gives and takes, so none can end before all have started.
SYMMETRIC = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
# Their size is the same on every rank.
_SAME_SIZE = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"))

# keys of messages, one per pair of ranks, lie above those of groups
_MESSAGES = 1 << 40


@dataclass(frozen=True, eq=False, repr=False)
class Matches(ArrayRecord):
    """Collectives that at least two recorded ranks took part in.

    Match `m` has the members `first[m]:first[m + 1]` of the flat arrays `rank_index` and `row`.
    """

    #: code in `collective_names.OPS`; `send` for a point-to-point message, whose first member is the sender
    op: npt.NDArray[np.uint8]
    #: full buffer or message, -1 unknown
    size_bytes: Int64s
    #: index into `groups`
    group: npt.NDArray[np.int32]
    #: step number, -1 where steps are unknown
    step: Int64s
    first: Int64s
    rank_index: npt.NDArray[np.int32]
    #: in that rank's Collectives
    row: Int64s
    groups: tuple[Group, ...]

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def of_member(self) -> Int64s:
        return np.repeat(np.arange(len(self)), np.diff(self.first))

    @cached_property
    def by_rank(self) -> tuple[Int64s, Int64s]:
        """Return the flat members rank by rank, and where those of each rank begin."""
        order = np.argsort(self.rank_index, kind="stable")
        last = int(self.rank_index[order[-1]]) if len(order) else -1
        return order, np.searchsorted(self.rank_index[order], np.arange(last + 2))

    def members_of(self, rank_index: int) -> Int64s:
        """Return the flat members of one rank, in the order of the matches."""
        order, cuts = self.by_rank
        return order[cuts[rank_index] : cuts[rank_index + 1]] if rank_index + 1 < len(cuts) else order[:0]

    def among(self, ranks: Int64s) -> tuple["Matches", Int64s]:
        """Return the matches that at least two of these ranks took part in, numbered by their place among them, and
        which of the flat members are left.
        """
        place = np.full(max(int(self.rank_index.max(initial=-1)), int(ranks.max(initial=-1))) + 1, -1, np.int32)
        place[ranks] = np.arange(len(ranks))
        there = place[self.rank_index] >= 0
        count = np.bincount(self.of_member[there], minlength=len(self))
        kept = np.flatnonzero(count > 1)
        members = np.flatnonzero(there & (count > 1)[self.of_member])
        found = replace(
            self,
            **{name: getattr(self, name)[kept] for name in ("op", "size_bytes", "group", "step")},
            first=np.concatenate(([0], np.cumsum(count[kept]))),
            rank_index=place[self.rank_index[members]],
            row=self.row[members],
        )
        return found, members


def match_collectives(ranks: tuple[Rank, ...]) -> Matches:
    """Return everything that could be matched between these ranks."""
    calls, groups = _calls(ranks)
    found = shared_columns(calls.key, step=calls.step, member=calls.member, signature=calls.signature)
    first_member = found.entry[found.first[:-1]]
    size = calls.size_bytes[found.entry]
    return Matches(
        op=calls.op[first_member].astype(np.uint8),
        size_bytes=np.maximum.reduceat(size, found.first[:-1]) if len(size) else size,
        group=calls.group[first_member].astype(np.int32),
        step=found.step,
        first=found.first,
        rank_index=calls.rank_index[found.entry].astype(np.int32),
        row=calls.row[found.entry],
        groups=groups,
    )


@dataclass(frozen=True, eq=False, repr=False)
class _Calls(ArrayRecord):
    #: process group, or pair of ranks
    key: Int64s
    #: rank index in a group; of a message 0 for the sender and 1 for the receiver
    member: Int64s
    step: Int64s
    #: equal on all members of one collective: operation and size (0 where sizes differ between ranks)
    signature: Int64s
    rank_index: Int64s
    row: Int64s
    op: Int64s
    size_bytes: Int64s
    group: Int64s


def _calls(ranks: tuple[Rank, ...]) -> tuple[_Calls, tuple[Group, ...]]:
    numbers = {rank.rank: index for index, rank in enumerate(ranks)}
    groups: dict[tuple[str, tuple[int, ...] | None], tuple[int, Group]] = {}
    parts = []
    for index, rank in enumerate(ranks):
        named = rank.collectives.groups
        known = [groups.setdefault((g.name, g.ranks), (len(groups), g))[0] for g in named]
        group = np.array(known, np.int64)[rank.collectives.group] if known else np.empty(0, np.int64)
        parts += [_collective_calls(rank, index, group), _message_calls(rank, index, group, numbers)]
    columns = (np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(_Calls))
    return _Calls(*columns), tuple(group for _, group in groups.values())


def _collective_calls(rank: Rank, index: int, group: Int64s) -> _Calls:
    c = rank.collectives
    rows = _issued(rank, ~np.isin(c.op, POINT_TO_POINT))
    op, size = c.op[rows].astype(np.int64), c.full_bytes[rows]
    return _Calls(
        key=group[rows],
        member=np.full(len(rows), index),
        step=_step_numbers(rank, rows),
        signature=np.where(np.isin(op, _SAME_SIZE), size, 0) * len(OPS) + op,
        rank_index=np.full(len(rows), index),
        row=rows,
        op=op,
        size_bytes=size,
        group=group[rows],
    )


def _message_calls(rank: Rank, index: int, group: Int64s, numbers: dict[int, int]) -> _Calls:
    c = rank.collectives
    peers = np.array([numbers.get(peer, -1) for peer in c.messages.peer.tolist()], np.int64)
    issued = np.isin(c.messages.collective, _issued(rank, np.isin(c.op, POINT_TO_POINT)))
    kept = np.flatnonzero(issued & (peers >= 0))
    rows, peer, sends = c.messages.collective[kept], peers[kept], c.messages.is_send[kept]
    pair = np.where(sends, index * len(numbers) + peer, peer * len(numbers) + index)
    return _Calls(
        key=_MESSAGES + pair,
        member=(~sends).astype(np.int64),
        step=_step_numbers(rank, rows),
        signature=c.messages.size_bytes[kept],
        rank_index=np.full(len(rows), index),
        row=rows,
        op=np.full(len(rows), OP_CODE["send"]),
        size_bytes=c.messages.size_bytes[kept],
        group=group[rows],
    )


def _issued(rank: Rank, wanted: npt.NDArray[np.bool_]) -> Int64s:
    c = rank.collectives
    known = c.issue_ns > np.iinfo(np.int64).min
    rows = np.flatnonzero(wanted & known & ((c.step >= 0) | (len(rank.steps) == 0)))
    return rows[np.argsort(c.issue_ns[rows], kind="stable")]


def _step_numbers(rank: Rank, rows: Int64s) -> Int64s:
    step = rank.collectives.step[rows]
    return np.where(step >= 0, rank.steps.number[step], NO_STEP) if len(rank.steps) else np.full(len(rows), NO_STEP)
