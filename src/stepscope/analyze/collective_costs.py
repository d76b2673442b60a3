"""What did each kind of collective cost: bytes, waiting, transfer, exposed time, bandwidth, and who came last?"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.budget import RankBudget
from stepscope.analyze.kernel_costs import KernelCosts
from stepscope.analyze.rank_windows import RankAccount
from stepscope.analyze.step_periods import step_periods
from stepscope.contract.collectives import OPS, bus_factor
from stepscope.dataclass import dataclass
from stepscope.intervals import clip, covered_ns, subtract, union, union_by
from stepscope.records import ArrayRecord, once_per_record
from stepscope.run.aligned import UNMATCHED, AlignedRun
from stepscope.run.groups import Group
from stepscope.run.matching import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct, distinct_rows
from stepscope.stats.robust import Spread, spread
from stepscope.trace.table import Int64s


@dataclass(frozen=True)
class CollectiveRow:
    """One operation of one process group over the window; times are means over the ranks that took part."""

    op: str
    group: Group
    #: per rank
    count: int
    #: all calls of one rank
    size_bytes: int | None
    wait_ns: float | None
    #: None where the operation could not be matched across ranks
    transfer_ns: float | None
    exposed_ns: float
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    #: the rank that the others waited for the most, where the clocks allow to say
    late_rank: int | None
    #: calls that no other recorded rank could be found for
    unmatched: int


@dataclass(frozen=True)
class RankWait:
    """How a rank's communication time splits over the window."""

    wait_ns: int | None
    transfer_ns: int | None
    unmatched_ns: int
    #: what all others together waited in the collectives in which it came last; time in which a rank waited in
    #: several at once counts once
    waited_for_ns: int | None


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
    count: int
    size_bytes: int
    wait_ns: int
    transfer_ns: int
    exposed_ns: int
    #: the transfers as the rank that saw them undisturbed had them
    fastest_ns: int
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
    if not group.desc or group.desc in ("undefined", "unknown"):
        return group
    return Group(name=group.desc, desc=group.desc, ranks=None, size=group.size)


# What did one kind of communication cost each rank per step, and how do the ranks differ?


@dataclass(frozen=True)
class RankTraffic:
    """Some collectives of one rank, per step. None is unknown."""

    rank: int
    count: float
    #: full buffers; None where any size is unknown
    size_bytes: float | None
    #: time in which at least one of them ran
    time_ns: int
    #: of that, hidden neither behind compute nor behind copies
    exposed_ns: int
    #: until the last rank arrived; None where none could be matched across ranks
    wait_ns: int | None
    transfer_ns: int | None


def rank_traffic(shared: AlignedRun, index: int, rows: Int64s, account: RankAccount) -> RankTraffic:
    """Return what these collectives of a rank cost per step; `rows` are those launched in recorded steps."""
    rank = shared.run.ranks[index]
    c, steps = rank.collectives, num_steps(rank)
    sizes, wait = c.full_bytes[rows], shared.wait_ns[index][rows]
    spans = union(c.start_ns[rows], c.end_ns[rows])
    exposed = int(covered_ns(account.exposed_comm, spans.start, spans.end).sum())
    waits = union(c.start_ns[rows], c.start_ns[rows] + np.maximum(wait, 0)).total_ns
    matched = bool(len(rows)) and not (wait == UNMATCHED).any()
    return RankTraffic(
        rank=rank.rank,
        count=len(rows) / steps,
        size_bytes=float(sizes.sum()) / steps if (sizes >= 0).all() else None,
        time_ns=round(spans.total_ns / steps),
        exposed_ns=round(exposed / steps),
        wait_ns=round(waits / steps) if matched else None,
        transfer_ns=round((spans.total_ns - waits) / steps) if matched else None,
    )


def hidden_pct(traffic: RankTraffic) -> float | None:
    """Return the share of the time that lies under other work, None without any time."""
    return 100 * (1 - traffic.exposed_ns / traffic.time_ns) if traffic.time_ns else None


def share_of_step_pct(traffic: RankTraffic, rank: Rank) -> float | None:
    """Return the exposed time of the step's period, None without steps."""
    periods = step_periods(rank)
    step_ns = round(periods.median_ns) if periods is not None and len(periods) else None
    return 100 * traffic.exposed_ns / step_ns if step_ns else None


def num_steps(rank: Rank) -> int:
    """Return the number of recorded steps, 1 for a trace that marks none."""
    return max(len(rank.steps), 1)


def launched_in_steps(rank: Rank) -> Int64s:
    """Return the collectives launched in recorded steps (without steps: in the trace), as they were asked for."""
    c = rank.collectives
    asked = c.issue_ns > np.iinfo(np.int64).min
    known = c.step >= 0 if len(rank.steps) else asked
    order = np.argsort(np.where(asked, c.issue_ns, c.start_ns), kind="stable")
    return order[known[order]]


def over_ranks(records: Sequence[Any]) -> dict[str, Spread]:
    """Return mean, min, max and std over ranks of every numeric field of one record per rank but `rank` itself."""
    if not records:
        return {}
    names = [f.name for f in fields(records[0]) if f.name != "rank"]
    columns = {name: [getattr(r, name) for r in records] for name in names}
    numeric = {name: _numbers(values) for name, values in columns.items()}
    spreads = {name: spread(values) for name, values in numeric.items() if values}
    return {name: s for name, s in spreads.items() if s is not None}


def _numbers(values: Sequence[Any]) -> list[float]:
    return [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


# What is known of one rank of a run: its window and its waits; in full also its budget and what its kernels cost.


@dataclass(frozen=True, eq=False, repr=False)
class RankWindow(ArrayRecord):
    """One rank of an account as far as it is known of all of them."""

    rank: Rank
    #: None where the trace holds neither steps nor work
    window: RankAccount | None
    #: waits in collectives, None where there is no window
    wait: RankWait | None


@dataclass(frozen=True, eq=False, repr=False)
class RankView(RankWindow):
    """One rank of an account in full."""

    #: None without a window, and without a complete step where other ranks have some
    budget: RankBudget | None
    costs: KernelCosts

    @property
    def on_device(self) -> bool:
        return self.budget is not None and self.budget.on_device


# Which rank waits for which, and which sends how much to which, per step?
#
# Waiting is measured: from a rank's own arrival at a collective to that of the last one. Of what is sent, messages
# from
# rank to rank are known; a collective's bytes are counted as a ring sends them, each rank to the next of its group,
# because no trace says which way they took.

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class RankMatrix(ArrayRecord):
    """Rows are the rank that waits or sends, columns the rank it waits for or sends to; per step."""

    ranks: tuple[int, ...]
    waited_ns: Floats
    #: point-to-point messages, as recorded
    message_bytes: Floats
    #: collectives, as a ring would send them
    ring_bytes: Floats


def rank_matrix(shared: AlignedRun) -> RankMatrix | None:
    """Return who waits for whom and who sends to whom, None where ranks neither matched nor sent anything."""
    ranks = shared.run.ranks
    if len(ranks) < 2:
        return None
    sent = [_sent(rank, ranks) for rank in ranks]
    found = RankMatrix(
        ranks=tuple(rank.rank for rank in ranks),
        waited_ns=_waited(shared),
        message_bytes=np.array([messages for messages, _ in sent]),
        ring_bytes=np.array([ring for _, ring in sent]),
    )
    some = found.waited_ns.any() or found.message_bytes.any() or found.ring_bytes.any()
    return found if some else None


def _waited(shared: AlignedRun) -> Floats:
    num, matches = len(shared.run.ranks), shared.matches
    out = np.zeros((num, num))
    if not len(matches):
        return out
    last = shared.last_arrivals
    blamed = last.waited_ns > 0  # where the last two came within the clocks' doubt nobody is to blame
    of = matches.of_member
    waited = np.maximum(shared.last_arrival_ns()[of] - shared.arrival_ns, 0)
    keep = blamed[of] & (matches.rank_index != last.rank_index[of])
    np.add.at(out, (matches.rank_index[keep], last.rank_index[of[keep]]), waited[keep])
    return out / np.array([num_steps(rank) for rank in shared.run.ranks])[:, None]


def _sent(rank: Rank, ranks: tuple[Rank, ...]) -> tuple[Floats, Floats]:
    index = {one.rank: i for i, one in enumerate(ranks)}
    messages, ring = np.zeros(len(ranks)), np.zeros(len(ranks))
    c, steps = rank.collectives, num_steps(rank)
    sends = c.messages.is_send & (c.messages.size_bytes > 0)
    for peer in distinct(c.messages.peer[sends]).tolist():
        if peer in index:
            messages[index[peer]] = float(c.messages.size_bytes[sends & (c.messages.peer == peer)].sum())
    codes = np.stack((c.op, c.group), axis=1) if len(c) else np.empty((0, 2), int)
    for op, group in distinct_rows(codes).tolist():
        following = _next_in_group(rank.rank, c.groups[group], index)
        if op in POINT_TO_POINT or following is None:
            continue
        mine = (c.op == op) & (c.group == group) & (c.full_bytes > 0)
        ring[following] += float(c.full_bytes[mine].sum()) * bus_factor(OPS[op], c.groups[group].size or len(ranks))
    return messages / steps, ring / steps


def _next_in_group(rank: int, group: Group, index: dict[int, int]) -> int | None:
    members = list(group.ranks) if group.ranks else list(index) if group.size == len(index) else []
    if rank not in members or len(members) < 2:
        return None
    return index.get(members[(members.index(rank) + 1) % len(members)])
