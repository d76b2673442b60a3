"""Which operations of different ranks are the same collective, and which send meets which receive?

Ranks agree on the order of the collectives of a group, so the k-th of a step on one rank is the k-th of that step
on the others. Only operations launched inside the window count: how many older ones a trace still holds differs
from rank to rank. Where a rank recorded fewer (a cut file, a shifted window), its sequence is placed only where
operation and size fit in exactly one way; otherwise it stays unmatched and is counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.run.collective_names import OP_CODE, OPS
from stepscope.run.groups import Group
from stepscope.run.rank import Rank
from stepscope.trace.table import Int64s

POINT_TO_POINT = (OP_CODE["send"], OP_CODE["recv"], OP_CODE["send_recv"])
# Every rank of these gives and takes, so none can end before all have started.
SYMMETRIC = tuple(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
# Their size is the same on every rank.
_SAME_SIZE = frozenset(OP_CODE[op] for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"))
_NO_STEP = -1

Signature = tuple[int, int]
"""operation and size (0 where sizes differ between ranks)"""


@dataclass(frozen=True)
class Matches:
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


@dataclass(frozen=True)
class _Found:
    op: int
    size_bytes: int
    group: Group
    step: int
    members: tuple[tuple[int, int], ...]


def match_collectives(ranks: tuple[Rank, ...]) -> Matches:
    """Return everything that could be matched between these ranks."""
    found = [*_group_matches(ranks), *_message_matches(ranks)]
    groups: dict[Group, int] = {}
    members = [member for f in found for member in f.members]
    return Matches(
        op=np.array([f.op for f in found], np.uint8),
        size_bytes=np.array([f.size_bytes for f in found], np.int64),
        group=np.array([groups.setdefault(f.group, len(groups)) for f in found], np.int32),
        step=np.array([f.step for f in found], np.int64),
        first=np.cumsum([0, *(len(f.members) for f in found)], dtype=np.int64),
        rank_index=np.array([m[0] for m in members], np.int32),
        row=np.array([m[1] for m in members], np.int64),
        groups=tuple(groups),
    )


def _group_matches(ranks: tuple[Rank, ...]) -> Iterable[_Found]:
    """Yield the collectives of each group."""
    sequences: dict[tuple[str, tuple[int, ...] | None], dict[int, list[int]]] = {}
    named: dict[tuple[str, tuple[int, ...] | None], Group] = {}
    for index, rank in enumerate(ranks):
        c = rank.collectives
        for row in _issued(rank, ~np.isin(c.op, POINT_TO_POINT)):
            group = c.groups[c.group[row]]
            key = (group.name, group.ranks)
            named.setdefault(key, group)
            sequences.setdefault(key, {}).setdefault(index, []).append(row)
    for key, by_rank in sequences.items():
        for step, lists in _by_step(ranks, by_rank):
            signed = {i: [_signature(ranks[i], row) for row in rows] for i, rows in lists.items()}
            for members in _columns(signed, lists):
                c, row = ranks[members[0][0]].collectives, members[0][1]
                size = max(int(ranks[i].collectives.full_bytes[r]) for i, r in members)
                yield _Found(int(c.op[row]), size, named[key], step, members)


def _message_matches(ranks: tuple[Rank, ...]) -> Iterable[_Found]:
    """Yield the point-to-point messages of each pair of ranks."""
    numbers = {rank.rank: index for index, rank in enumerate(ranks)}
    ends: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for index, rank in enumerate(ranks):
        messages = rank.collectives.messages
        issued = set(_issued(rank, np.isin(rank.collectives.op, POINT_TO_POINT)))
        for m in range(len(messages)):
            peer = numbers.get(int(messages.peer[m]))
            if peer is None or int(messages.collective[m]) not in issued:
                continue
            is_send = bool(messages.is_send[m])
            pair = ends.setdefault((index, peer) if is_send else (peer, index), ([], []))
            pair[0 if is_send else 1].append(m)
    for (sender, receiver), (sends, receives) in ends.items():
        yield from _pair_matches(ranks, sender, receiver, sends, receives)


def _pair_matches(
    ranks: tuple[Rank, ...], sender: int, receiver: int, sends: list[int], receives: list[int]
) -> Iterable[_Found]:
    ends = {0: (sender, sends), 1: (receiver, receives)}
    tables = {end: ranks[index].collectives for end, (index, _) in ends.items()}
    by_end: dict[int, dict[int, list[int]]] = {}
    for end, (index, listed) in ends.items():
        for m in listed:
            step = _step_number(ranks[index], int(tables[end].messages.collective[m]))
            by_end.setdefault(step, {}).setdefault(end, []).append(m)
    for step, lists in _common(by_end):
        signed = {e: [(0, int(tables[e].messages.size_bytes[m])) for m in listed] for e, listed in lists.items()}
        for members in _columns(signed, lists):
            if len(members) < 2:
                continue
            (_, sent), (_, got) = sorted(members)
            rows = (int(tables[0].messages.collective[sent]), int(tables[1].messages.collective[got]))
            c = tables[0]
            yield _Found(
                op=OP_CODE["send"],
                size_bytes=int(c.messages.size_bytes[sent]),
                group=c.groups[c.group[rows[0]]],
                step=step,
                members=((sender, rows[0]), (receiver, rows[1])),
            )


def _issued(rank: Rank, wanted: npt.NDArray[np.bool_]) -> list[int]:
    """Return the rows that were launched inside the window, in the order they were asked for."""
    c = rank.collectives
    known = c.issue_ns > np.iinfo(np.int64).min
    rows = np.flatnonzero(wanted & known & ((c.step >= 0) | (len(rank.steps) == 0)))
    return rows[np.argsort(c.issue_ns[rows], kind="stable")].tolist()


def _signature(rank: Rank, row: int) -> Signature:
    c = rank.collectives
    op = int(c.op[row])
    return op, int(c.full_bytes[row]) if op in _SAME_SIZE else 0


def _step_number(rank: Rank, row: int) -> int:
    step = int(rank.collectives.step[row])
    return int(rank.steps.number[step]) if step >= 0 else _NO_STEP


def _by_step(ranks: tuple[Rank, ...], by_rank: dict[int, list[int]]) -> Iterable[tuple[int, dict[int, list[int]]]]:
    """Yield the sequences step by step, or whole where the ranks share no step number."""
    by_step: dict[int, dict[int, list[int]]] = {}
    for index, rows in by_rank.items():
        for row in rows:
            by_step.setdefault(_step_number(ranks[index], row), {}).setdefault(index, []).append(row)
    return _common(by_step)


def _common(by_step: dict[int, dict[int, list[int]]]) -> Iterable[tuple[int, dict[int, list[int]]]]:
    """Yield the steps that at least two ranks share; without any, each rank's whole sequence as one."""
    shared = [(step, lists) for step, lists in sorted(by_step.items()) if len(lists) > 1]
    if shared:
        yield from shared
        return
    whole: dict[int, list[int]] = {}
    for _, lists in sorted(by_step.items()):
        for index, rows in lists.items():
            whole.setdefault(index, []).extend(rows)
    if len(whole) > 1:
        yield _NO_STEP, whole


def _columns(signed: dict[int, list[Signature]], lists: dict[int, list[int]]) -> Iterable[tuple[tuple[int, int], ...]]:
    """Yield `((rank index, row), ...)` for each position that at least two sequences share."""
    reference = max(signed.values(), key=lambda s: (len(s), sum(x == len(s) for x in map(len, signed.values()))))
    placed = {index: _place(reference, signature) for index, signature in signed.items()}
    for position in range(len(reference)):
        members = tuple(
            (index, lists[index][position - offset])
            for index, offset in placed.items()
            if offset is not None and 0 <= position - offset < len(lists[index])
        )
        if len(members) > 1:
            yield members


def _place(reference: list[Signature], sequence: list[Signature]) -> int | None:
    """Return where `sequence` lies in `reference`, None where it fits nowhere or in several ways."""
    room = len(reference) - len(sequence)
    fits = [o for o in range(room + 1) if reference[o : o + len(sequence)] == sequence]
    return fits[0] if len(fits) == 1 else None


def op_text(matches: Matches, m: int) -> str:
    """Return the name of a match's operation."""
    return OPS[matches.op[m]]
