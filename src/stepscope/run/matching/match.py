"""Which operations of different ranks are the same collective, and which send meets which receive?

Ranks agree on the order of the collectives of a group, so the k-th of a step on one rank is the k-th of that step
on the others. Only operations launched inside the window count: how many older ones a trace still holds differs
from rank to rank. Where a rank recorded fewer (a cut file, a shifted window), its sequence is placed only where
operation and size fit in exactly one way; otherwise it stays unmatched and is counted (`sequences.py`).
"""

from dataclasses import fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OP_CODE, OPS
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.collectives.groups import Group
from stepscope.run.matching.sequences import NO_STEP, shared_columns
from stepscope.run.rank import Rank
from stepscope.trace.table import Int64s

POINT_TO_POINT = (OP_CODE["send"], OP_CODE["recv"], OP_CODE["send_recv"])
# Every rank of these gives and takes, so none can end before all have started.
SYMMETRIC = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
# Their size is the same on every rank.
_SAME_SIZE = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"))

_MESSAGES = 1 << 40
"""keys of messages, one per pair of ranks, lie above those of groups"""


@dataclass(frozen=True, eq=False, repr=False)
class Matches(ArrayRecord):
    """Collectives that at least two recorded ranks took part in.

    Match `m` has the members `first[m]:first[m + 1]` of the flat arrays `rank_index` and `row`.
    """

    op: npt.NDArray[np.uint8]
    """code in `collective_names.OPS`; `send` for a point-to-point message, whose first member is the sender"""
    size_bytes: Int64s
    """full buffer or message, -1 unknown"""
    group: npt.NDArray[np.int32]
    """index into `groups`"""
    step: Int64s
    """step number, -1 where steps are unknown"""
    first: Int64s
    rank_index: npt.NDArray[np.int32]
    row: Int64s
    """in that rank's Collectives"""
    groups: tuple[Group, ...]

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def of_member(self) -> Int64s:
        """Return the match that each flat member belongs to."""
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
            op=self.op[kept],
            size_bytes=self.size_bytes[kept],
            group=self.group[kept],
            step=self.step[kept],
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
    """Operations that were issued inside the window, those of each rank in the order it asked for them."""

    key: Int64s
    """process group, or pair of ranks"""
    member: Int64s
    """rank index in a group; of a message 0 for the sender and 1 for the receiver"""
    step: Int64s
    signature: Int64s
    """equal on all members of one collective: operation and size (0 where sizes differ between ranks)"""
    rank_index: Int64s
    row: Int64s
    op: Int64s
    size_bytes: Int64s
    group: Int64s


def _calls(ranks: tuple[Rank, ...]) -> tuple[_Calls, tuple[Group, ...]]:
    """Return the operations of all ranks and the groups they name."""
    numbers = {rank.rank: index for index, rank in enumerate(ranks)}
    groups: dict[tuple[str, tuple[int, ...] | None], Group] = {}
    number: dict[tuple[str, tuple[int, ...] | None], int] = {}
    parts = []
    for index, rank in enumerate(ranks):
        named = rank.collectives.groups
        known = [number.setdefault((g.name, g.ranks), len(number)) for g in named]
        groups |= {(g.name, g.ranks): groups.get((g.name, g.ranks), g) for g in named}
        group = np.array(known, np.int64)[rank.collectives.group] if known else np.empty(0, np.int64)
        parts += [_collective_calls(rank, index, group), _message_calls(rank, index, group, numbers)]
    columns = (np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(_Calls))
    return _Calls(*columns), tuple(groups.values())


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
    """Return the messages of a rank to and from others that were recorded too."""
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
    """Return the rows that were launched inside the window, in the order they were asked for."""
    c = rank.collectives
    known = c.issue_ns > np.iinfo(np.int64).min
    rows = np.flatnonzero(wanted & known & ((c.step >= 0) | (len(rank.steps) == 0)))
    return rows[np.argsort(c.issue_ns[rows], kind="stable")]


def _step_numbers(rank: Rank, rows: Int64s) -> Int64s:
    step = rank.collectives.step[rows]
    return np.where(step >= 0, rank.steps.number[step], NO_STEP) if len(rank.steps) else np.full(len(rows), NO_STEP)


def op_text(matches: Matches, m: int) -> str:
    """Return the name of a match's operation."""
    return OPS[matches.op[m]]
