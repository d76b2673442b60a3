"""What did each kind of collective cost: bytes, waiting, transfer, exposed time, bandwidth, and who came last?"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.ranks.window import RankAccount
from stepscope.contract.collectives import OPS, bus_factor
from stepscope.dataclass import dataclass
from stepscope.intervals import clip, covered_ns, subtract, union, union_by
from stepscope.records import once_per_record
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.collectives.groups import Group
from stepscope.stats.distinct import among, distinct_rows
from stepscope.trace.table import Int64s


@dataclass(frozen=True)
class CollectiveRow:
    """One operation of one process group over the window; times are means over the ranks that took part."""

    op: str
    group: Group
    count: int
    """per rank"""
    size_bytes: int | None
    """all calls of one rank"""
    wait_ns: float | None
    transfer_ns: float | None
    """None where the operation could not be matched across ranks"""
    exposed_ns: float
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    late_rank: int | None
    """the rank that the others waited for the most, where the clocks allow to say"""
    unmatched: int
    """calls that no other recorded rank could be found for"""


@dataclass(frozen=True)
class RankWait:
    """How a rank's communication time splits over the window."""

    wait_ns: int | None
    transfer_ns: int | None
    unmatched_ns: int
    waited_for_ns: int | None
    """what all others together waited in the collectives in which it came last; time in which a rank waited in
    several at once counts once"""


def rank_wait(shared: AlignedRun, index: int, account: RankAccount) -> RankWait:
    """Return the union of a rank's waits, what is left as transfer, and what nobody could match."""
    c, wait = shared.run.ranks[index].collectives, shared.wait_ns[index]
    unmatched = wait == UNMATCHED
    waits = clip(union(c.start_ns, c.start_ns + np.maximum(wait, 0)), account.start_ns, account.end_ns)
    # Where both run at once, what is known counts.
    known = union(c.start_ns[~unmatched], c.end_ns[~unmatched])
    lost = clip(subtract(union(c.start_ns[unmatched], c.end_ns[unmatched]), known), account.start_ns, account.end_ns)
    if len(c) and unmatched.all():
        return RankWait(None, None, lost.total_ns, None)
    transfer = account.comm.total_ns - waits.total_ns - lost.total_ns
    return RankWait(waits.total_ns, transfer, lost.total_ns, int(waited_for_ns(shared)[index]))


@once_per_record
def waited_for_ns(shared: AlignedRun) -> Int64s:
    """Return how long the other ranks together waited where each one came last, each instant of a rank once."""
    matches, last, ranks = shared.matches, shared.last_arrivals, shared.run.ranks
    total = np.zeros(len(ranks), np.int64)
    for other, rank in enumerate(ranks if len(matches) else ()):
        members = matches.members_of(other)
        of = matches.of_member[members]
        waits = (last.rank_index[of] != other) & (last.waited_ns[of] > 0)
        rows, by = matches.row[members[waits]], last.rank_index[of[waits]]
        start = rank.collectives.start_ns[rows]
        late, covered = union_by(by, start, start + np.maximum(shared.wait_ns[other][rows], 0))
        np.add.at(total, late, covered.end - covered.start)
    return total


def late_rank(shared: AlignedRun) -> int | None:
    """Return the rank that the others waited for the most over all collectives, None where the clocks do not tell."""
    return _latest(shared, np.ones(len(shared.matches), bool))


def collective_rows(shared: AlignedRun, accounts: Sequence[RankAccount | None]) -> list[CollectiveRow]:
    """Return one row per operation and process group, the most expensive first."""
    parts: dict[tuple[str, Group], list[_Part]] = {}
    fastest = _fastest_transfers(shared)
    for index, (rank, account) in enumerate(zip(shared.run.ranks, accounts, strict=True)):
        c = rank.collectives
        if account is None or not len(c):
            continue
        exposed = covered_ns(account.exposed_comm, c.start_ns, c.end_ns)
        inside = (c.step >= 0) | (len(rank.steps) == 0)
        for code, group in {(int(o), int(g)) for o, g in zip(c.op[inside], c.group[inside], strict=True)}:
            rows = np.flatnonzero(inside & (c.op == code) & (c.group == group))
            key = (OPS[code], _across_ranks(c.groups[group]))
            parts.setdefault(key, []).append(_part(shared, index, rows, int(exposed[rows].sum()), fastest[index]))
    late = _late_ranks(shared)
    table = [_row(op, group, listed, late.get((op, group))) for (op, group), listed in parts.items()]
    return sorted(table, key=lambda r: -((r.transfer_ns or 0) + (r.wait_ns or 0) + r.exposed_ns))


@dataclass(frozen=True)
class _Part:
    """One rank's share of a row."""

    count: int
    size_bytes: int
    wait_ns: int
    transfer_ns: int
    exposed_ns: int
    fastest_ns: int
    """the transfers as the rank that saw them undisturbed had them"""
    unmatched: int


def _fastest_transfers(shared: AlignedRun) -> list[Int64s]:
    """Return per rank and collective the shortest transfer among its ranks: all of them share one transfer, and
    the one that arrived last saw nothing but it.
    """
    matches, ranks = shared.matches, shared.run.ranks
    own = [
        r.collectives.end_ns - r.collectives.start_ns - np.maximum(w, 0)
        for r, w in zip(ranks, shared.wait_ns, strict=True)
    ]
    out = [transfer.copy() for transfer in own]
    if len(matches):
        each = np.empty(len(matches.row), np.int64)
        for index in range(len(ranks)):
            mine = matches.members_of(index)
            each[mine] = own[index][matches.row[mine]]
        shortest = np.minimum.reduceat(each, matches.first[:-1])[matches.of_member]
        for index in range(len(ranks)):
            mine = matches.members_of(index)
            np.minimum.at(out[index], matches.row[mine], shortest[mine])
    return out


def _part(shared: AlignedRun, index: int, rows: Int64s, exposed_ns: int, fastest: Int64s) -> _Part:
    c, wait = shared.run.ranks[index].collectives, shared.wait_ns[index][rows]
    matched = wait >= 0
    sizes = c.full_bytes[rows]
    return _Part(
        count=len(rows),
        size_bytes=int(sizes.sum()) if (sizes >= 0).all() else -1,
        wait_ns=int(wait[matched].sum()),
        transfer_ns=int(((c.end_ns - c.start_ns)[rows] - wait)[matched].sum()),
        exposed_ns=exposed_ns,
        fastest_ns=int(fastest[rows][matched].sum()),
        unmatched=int((~matched).sum()),
    )


def _row(op: str, group: Group, parts: list[_Part], late_rank: int | None) -> CollectiveRow:
    matched = sum(p.count - p.unmatched for p in parts)
    size = float(np.mean([p.size_bytes for p in parts])) if all(p.size_bytes >= 0 for p in parts) else None
    transfer = float(np.mean([p.transfer_ns for p in parts])) if matched else None
    fastest = float(np.mean([p.fastest_ns for p in parts]))
    whole = matched == sum(p.count for p in parts)
    algbw = size / fastest if size and fastest and whole else None  # bytes per ns = GB per s
    ranks = group.size or len(parts)
    return CollectiveRow(
        op=op,
        group=group,
        count=round(float(np.mean([p.count for p in parts]))),
        size_bytes=None if size is None else round(size),
        wait_ns=float(np.mean([p.wait_ns for p in parts])) if matched else None,
        transfer_ns=transfer,
        exposed_ns=float(np.mean([p.exposed_ns for p in parts])),
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=None if algbw is None else algbw * bus_factor(op, ranks),
        late_rank=late_rank,
        unmatched=sum(p.unmatched for p in parts),
    )


def _late_ranks(shared: AlignedRun) -> dict[tuple[str, Group], int | None]:
    """Return the late rank of each operation and group."""
    matches = shared.matches
    rows: dict[tuple[str, Group], list[tuple[int, int]]] = {}
    for op, group in distinct_rows(np.stack((matches.op, matches.group), axis=1)).tolist():
        rows.setdefault((OPS[op], _across_ranks(matches.groups[group])), []).append((op, group))
    kind = matches.op.astype(np.int64) * len(matches.groups) + matches.group
    codes = {key: [op * len(matches.groups) + group for op, group in listed] for key, listed in rows.items()}
    return {key: _latest(shared, among(kind, listed)) for key, listed in codes.items()}


def _latest(shared: AlignedRun, chosen: npt.NDArray[np.bool_]) -> int | None:
    last = shared.last_arrivals
    waited = np.bincount(last.rank_index[chosen], last.waited_ns[chosen])
    return shared.run.ranks[int(np.argmax(waited))].rank if waited.any() else None


def _across_ranks(group: Group) -> Group:
    """Return the group without its per-rank identity: `mesh_dp` of ranks (0, 2) and of (1, 3) is one row."""
    if not group.desc or group.desc in ("undefined", "unknown"):
        return group
    return Group(name=group.desc, desc=group.desc, ranks=None, size=group.size)
