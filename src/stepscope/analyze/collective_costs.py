"""What did each kind of collective cost: bytes, waiting, transfer, exposed time, bandwidth, and the last rank?"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.budget import RankBudget
from stepscope.analyze.host_time import RECORDING_COST_NS, blocked_host, recorded_events, running_operators, spans
from stepscope.analyze.kernels import KernelCosts
from stepscope.analyze.phases import StepPeriods, device_window, step_periods
from stepscope.contract.operations import ALL_TO_ALL, OPS, bus_factor
from stepscope.cost.chips import Chip
from stepscope.intervals import (
    EMPTY,
    Intervals,
    clip,
    complement,
    covered_ns,
    intersect,
    intersect_each,
    subtract,
    union,
    union_by,
    union_of,
)
from stepscope.records import ArrayRecord, Row, dataclass, once_per_record
from stepscope.run.aligned import UNMATCHED, AlignedRun, recorded_facts
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.run.collectives import Group
from stepscope.run.device_work import DeviceWork
from stepscope.run.load import Run
from stepscope.run.rank import Device, Rank
from stepscope.run.steps import Steps
from stepscope.stats.robust import among, distinct, distinct_places, distinct_rows, spread
from stepscope.trace.table import DENSE, EventKind, Int64s, Trace

# Which communication stayed within a node and which went between nodes, and how much of the link did it use?
#
# A node is a machine: its boot id where the recorder noted that of all ranks, else its host name. Traces without host
# names list the devices of their machine; then ranks are taken to be numbered node by node. An operation between nodes
# shares their network, so it is held against its part of it:
#
#     within nodes    bus bandwidth                         of   the chip's links to its peers
#     between nodes   what leaves a node of the group       of   the node's interfaces x members there / ranks there
#
# A ring, or a tree, leaves each node once: at the bus bandwidth. In an all-to-all each of the m members of a node sends
# the share (P - m) / (P - 1) of its traffic to other nodes.

WITHIN, BETWEEN = "within nodes", "between nodes"
_MAX_GB_PER_S = 1e5


@dataclass(frozen=True)
class Reach:
    """The nodes of one operation's ranks; empty where one of them is unknown."""

    members: tuple[int, ...] = ()
    #: of the members on this rank's node: their share of all ranks there
    share: float | None = None

    @property
    def span(self) -> str | None:
        """Return whether it stays within a node, None where that is unknown."""
        return None if not self.members else WITHIN if len(self.members) == 1 else BETWEEN

    def leaving(self, op: str) -> float | None:
        """Return what leaves a node of the group for each byte of its bus bandwidth, where the nodes are alike."""
        size, here = sum(self.members), max(self.members, default=0)
        if min(self.members, default=0) != here:
            return None
        return here * (size - here) / (size - 1) if op == ALL_TO_ALL and size > 1 else 1.0


@once_per_record
def node_of_rank(run: Run) -> Mapping[int, str]:
    """Return the node of each rank that is known to be on one."""
    facts = recorded_facts(run)
    boots = {rank: fact["boot_id"] for rank, fact in facts.items() if isinstance(fact.get("boot_id"), str)}
    if len(boots) >= (run.world_size or len(run.ranks_read)):
        return {int(rank): boot for rank, boot in boots.items() if rank.isdecimal()}
    hosts = {int(rank): fact["host"] for rank, fact in facts.items() if rank.isdecimal() and fact.get("host")}
    hosts |= {rank.rank: rank.host for rank in run.ranks_read if rank.host}
    return hosts or _by_number(run)


def _by_number(run: Run) -> dict[int, str]:
    listed = [rank.trace.header.get("deviceProperties") for rank in run.ranks_read]
    counts = {len(found) if isinstance(found, list) else 0 for found in listed}
    per_node = counts.pop() if len(counts) == 1 else 0
    return {rank: f"node {rank // per_node}" for rank in range(run.world_size or 0)} if per_node > 1 else {}


def reaches(run: Run, index: int) -> tuple[list[Reach], Int64s]:
    """Return the reaches of a rank's collectives, and the number of each one's."""
    rank, nodes = run.ranks[index], node_of_rank(run)
    c, there = rank.collectives, Counter(nodes.values())
    pairs = np.where(among(c.op, POINT_TO_POINT), c.peer, -1).astype(np.int64) + 1
    codes, number = distinct_places(pairs * len(c.groups) + c.group)
    found = []
    for code in codes.tolist():
        peer, group = divmod(code, len(c.groups))
        members = (rank.rank, peer - 1) if peer else _members(run, c.groups[group])
        on = Counter(nodes.get(one) for one in members)
        alone = None in on or len(members) < 2
        share = on[nodes.get(rank.rank)] / there[nodes[rank.rank]] if not alone else None
        found.append(Reach() if alone else Reach(tuple(sorted(on.values())), share))
    return found, number


def _members(run: Run, group: Group) -> tuple[int, ...]:
    whole = group.size is not None and group.size == run.world_size
    return group.ranks or (tuple(range(run.world_size or 0)) if whole else ())


# The link of an operation, from the chip's data sheet, the recorder's note of the interfaces, or NCCL's log.


def with_links(rows: Iterable[Row], run: Run, chip: Chip | None) -> list[Row]:
    """Return the rows of collectives with the link that each used, its bandwidth, and how much of it."""
    network, over_chips = _network(run), _network_of_chips(run)
    out = []
    for row in rows:
        name, rated, factor = None, None, 1.0
        if row.span == WITHIN or (row.span == BETWEEN and over_chips):
            name, rated = (chip.link, chip.link_gb_per_s) if chip else (None, None)
        elif row.span == BETWEEN:
            name, whole = network
            rated = whole * row.share if whole and row.share else None
            factor = row.leaving
        used = row.busbw_gb_per_s * factor if row.busbw_gb_per_s is not None and factor is not None else None
        pct = 100 * used / rated if rated and used is not None else None
        out.append(Row(row, link=name, link_gb_per_s=rated, used_gb_per_s=used, link_pct=pct))
    return out


_SUMMED = ("count", "size_bytes", "wait_ns", "transfer_ns", "exposed_ns")


def link_rows(rows: Iterable[Row]) -> list[Row]:
    """Return communication by process group and by the nodes that it spans, the most expensive first."""
    parts: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        parts[row.span, row.group.desc or row.group.name, row.group.size, row.nodes].append(row)
    table = []
    for (span, group, size, nodes), listed in parts.items():
        timed = [r for r in listed if r.used_gb_per_s is not None]
        took = sum(r.fastest_ns for r in timed)
        used = sum(r.used_gb_per_s * r.fastest_ns for r in timed) / took if took else None
        rated = listed[0].link_gb_per_s
        table.append(
            Row(
                span=span,
                process_group=group,
                group_size=size,
                nodes=nodes,
                **{name: _sum(listed, name) for name in _SUMMED},
                link=listed[0].link,
                used_gb_per_s=used,
                link_gb_per_s=rated,
                link_pct=100 * used / rated if used is not None and rated else None,
            )
        )
    return sorted(table, key=lambda r: (r.span is None, -(r.transfer_ns or 0) - (r.wait_ns or 0) - r.exposed_ns))


def _sum(rows: list[Row], name: str) -> Any:
    values = [row[name] for row in rows]
    return None if None in values else sum(values)


def _network(run: Run) -> tuple[str | None, float | None]:
    """Return the name and the bandwidth of the slowest node's interfaces together."""
    noted = [found for fact in recorded_facts(run).values() if (found := _interfaces(fact.get("network")))]
    if noted:
        slowest = min(noted, key=lambda one: sum(one.values()))
        return f"network ({', '.join(slowest)})", sum(slowest.values())
    logged = [(log.links["NET"], log.interfaces) for log in run.beside.nccl if "NET" in log.links]
    if not logged:
        return "network", None
    speed, interfaces = min(logged)
    return "network", speed * max(1, *(len(re.findall(r"\[\d+\]", one)) for one in interfaces), 1)


def _interfaces(found: Any) -> dict[str, float]:
    listed = found.items() if isinstance(found, dict) else ()
    return {str(k)[:40]: float(v) for k, v in list(listed)[:64] if type(v) in (int, float) and 0 < v < _MAX_GB_PER_S}


def _network_of_chips(run: Run) -> bool:
    """Return whether NCCL connected the nodes without a network interface: by links between the chips of a rack."""
    logs = [log for log in run.beside.nccl if log.transports and (log.num_nodes or 0) > 1]
    return bool(logs) and not any(name.startswith("NET/") for log in logs for name in log.transports)


# How long did each rank compute, communicate, copy and idle in the recorded window, and what was hidden?
#
# The window's figures describe the file: device work is clipped to the window whichever step launched it. On a rank
# without a device the host's operators are the compute and the collective's execution spans are the communication
# (`docs/metrics/step.md`, "The account of a CPU rank").


@dataclass(frozen=True)
class RankAccount:
    """The window of one rank. Parts overlap; `busy + idle` is the window."""

    start_ns: int
    end_ns: int
    compute: Intervals
    comm: Intervals
    #: None on a CPU rank: its copies are operators like any other
    memory: Intervals | None
    exposed_comm: Intervals
    #: communication under compute
    hidden_comm_ns: int
    idle_ns: int
    #: True where a device worked unseen: then compute is what the host ran, and the device's is unknown
    host_only: bool
    warnings: tuple[str, ...]

    @property
    def window_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def overlap_pct(self) -> float | None:
        """Return the share of communication that is overlapped by compute, None without communication."""
        total = self.comm.total_ns
        return 100 * self.hidden_comm_ns / total if total else None

    @property
    def overlap_efficiency(self) -> float | None:
        """Return |compute and comm together| / min(compute, comm), None where either is nothing."""
        smaller = min(self.compute.total_ns, self.comm.total_ns)
        return self.hidden_comm_ns / smaller if smaller else None


def rank_account(rank: Rank) -> RankAccount | None:
    """Return the account of a rank's window, None for a trace with neither steps nor work."""
    window = _window(rank)
    if window is None:
        return None
    start, end, warnings = window
    compute, comm, memory = (clip(x, start, end) for x in _device_activity(rank))
    busy = clip(device_busy(rank), start, end)
    exposed = subtract(comm, busy)
    return RankAccount(
        start_ns=start,
        end_ns=end,
        compute=compute,
        comm=comm,
        memory=memory if rank.has_device else None,
        exposed_comm=exposed,
        hidden_comm_ns=intersect(comm, compute).total_ns,
        idle_ns=end - start - busy.total_ns - exposed.total_ns,
        host_only=rank.device_unseen,
        warnings=warnings,
    )


@once_per_record
def _device_activity(rank: Rank) -> tuple[Intervals, Intervals, Intervals]:
    if rank.has_device:
        return (
            rank.work.intervals(EventKind.KERNEL),
            rank.work.intervals(EventKind.COMM_KERNEL),
            rank.work.intervals(EventKind.COPY, EventKind.SET),
        )
    return host_compute(rank), union(rank.collectives.start_ns, rank.collectives.end_ns), EMPTY


@once_per_record
def device_busy(rank: Rank) -> Intervals:
    """Return when anything but communication ran."""
    compute, _, memory = _device_activity(rank)
    return union_of(compute, memory)


def host_compute(rank: Rank) -> Intervals:
    """Return the time in which any thread ran an operator that computes: no communication call, and none around one."""
    return spans(rank, running_operators(rank))


def _window(rank: Rank) -> tuple[int, int, tuple[str, ...]] | None:
    steps, work = rank.steps, rank.work
    if len(steps) and steps.by_profiler:
        end = max(int(steps.end_ns.max()), int(work.end_ns.max()) if len(work) else 0)
        return int(steps.start_ns.min()), end, ()
    if len(work):
        spanned = f"the range {steps.named!r}" if steps.bound_window else "the device operations"
        return *device_window(rank), (_no_steps(rank, spanned),)
    busy = union_of(host_compute(rank), union(rank.collectives.start_ns, rank.collectives.end_ns))
    if not len(busy):
        return None
    return int(busy.start[0]), int(busy.end[-1]), (_no_steps(rank, "the host's operators"),)


def _no_steps(rank: Rank, spanned: str) -> str:
    steps = rank.steps
    known = "steps are unknown" + ("; the whole window counts as one step" if steps.is_window else "")
    if rank.trace.quality.truncated and not steps.known:
        return f"cut off before a step was complete: the window is the span of {spanned}, {known}"
    if steps.told_by and not steps.is_window:
        known = f"{len(steps)} step{'s are' if len(steps) > 1 else ' is'} found by {steps.told_by}, counted from 0"
    elif steps.known:
        known = f"steps are the ranges named {steps.named!r}{'' if steps.numbered else ', counted from 0'}"
    return f"no ProfilerStep# in the trace: the window is the span of {spanned}, {known}"


# How much of the communication hid behind compute, step by step?
#
#     compute   ======   =======          together  under both                 exposed  comm outside compute and copies
#     comm         ------------           hidden    comm less exposed          efficiency  together / min(compute,
#     comm)
#
# Efficiency is 1 where the step is as long as the larger of the two and 0 where they follow one another. Times are of
# the steps' periods, so work from before the window does not count.


@dataclass(frozen=True, eq=False, repr=False)
class Overlap(ArrayRecord):
    """Compute and communication of one rank, one value per period."""

    periods: StepPeriods
    compute: Intervals
    comm: Intervals
    #: copies and sets
    memory: Intervals

    @cached_property
    def compute_ns(self) -> Int64s:
        return _per_period(self.compute, self.periods)

    @cached_property
    def comm_ns(self) -> Int64s:
        return _per_period(self.comm, self.periods)

    @cached_property
    def together_ns(self) -> Int64s:
        """Return the time of each period under both: what compute covers of the few pieces of communication."""
        period, comm = intersect_each(Intervals(self.periods.start_ns, self.periods.end_ns), self.comm)
        out = np.zeros(len(self.periods), np.int64)
        np.add.at(out, period, covered_ns(self.compute, comm.start, comm.end))
        return out

    @cached_property
    def exposed_ns(self) -> Int64s:
        return _per_period(subtract(subtract(self.comm, self.compute), self.memory), self.periods)


def rank_overlap(rank: Rank) -> Overlap | None:
    """Return how compute and communication of a rank's steps overlap, None for a trace without steps or work."""
    periods = step_periods(rank)
    return Overlap(periods, *_device_activity(rank)) if periods is not None else None


def overlap_efficiency(overlaps: Sequence[Overlap | None]) -> float | None:
    """Return the overlap efficiency of all these ranks' steps taken together.

    The smaller of compute and communication is that of each rank: both add up within it.
    """
    known = [o for o in overlaps if o is not None]
    together = sum(int(o.together_ns.sum()) for o in known)
    smaller = sum(min(int(o.compute_ns.sum()), int(o.comm_ns.sum())) for o in known)
    return together / smaller if smaller else None


def _per_period(x: Intervals, periods: StepPeriods) -> Int64s:
    return covered_ns(x, periods.start_ns, periods.end_ns) if len(x) else np.zeros(len(periods), np.int64)


# Outline of a rank whose tables are not in memory: all that other ranks need of it.
#
#     retained   steps, collectives, joins, the window's intervals, the inputs of its own time (0.3 MB)
#     dropped    events, strings, kinds and device work (7 MB of a trace with 50,000 events)
#
# So clocks, matching, waits, late ranks and the collectives cover all ranks of the job. An outlined rank has no
# events: analyses of single ranks never run on it.

# Own time of a rank: its step without waiting for others.
#
# With a device: the longer of the host's time and the device's, each without waiting for other ranks. Without: the
# host's span less exposed waiting. Waits are known once all ranks are on one clock; everything else follows from the
# rank's own trace. So `own_time` computes a small summary from the trace alone, and `own_ns` adds the waits:
#
#     host    = span - recording - |blocked while the device did nothing of its own, and waiting|
#     device  = |work of the step| - |its communication alone on the device, and waiting|

Floats = npt.NDArray[np.float64]


def _own_time(rank: Rank) -> Row:
    """Return the steps of a rank before it is known when it waited."""
    steps = rank.steps
    span = steps.end_ns - steps.start_ns
    if not rank.has_device:
        inside = union(rank.collectives.start_ns, rank.collectives.end_ns)
        idle, none = subtract(inside, host_compute(rank)), np.empty(0, np.int64)
        return Row(host_ns=span, idle=idle, device_ns=None, alone=EMPTY, alone_step=none)
    work, busy = rank.work, device_busy(rank)
    launched = np.flatnonzero(work.step >= 0)
    step, each = _in_steps(rank, launched)
    device_ns = np.zeros(len(steps), np.int64)
    np.add.at(device_ns, step, each.end - each.start)
    step, each = _in_steps(rank, launched[work.kind[launched] == int(EventKind.COMM_KERNEL)])
    free = complement(busy, int(each.start.min()), int(each.end.max())) if len(each) else EMPTY
    at, alone = intersect_each(each, free)
    return Row(
        # the host's span of each step less what recording it cost, which differs between equal hosts
        host_ns=span - RECORDING_COST_NS * recorded_events(rank),
        # when the host was blocked and the device ran nothing but communication; without a device: in a collective and
        # computing nothing. Waiting there is no own time; blocked by the device's own work is: the one cannot go on
        # before the other
        idle=subtract(union(*blocked_host(rank)), busy),
        # the work launched in each step; None without a device
        device_ns=device_ns,
        # communication that overlaps nothing, step by step; sorted within a step only
        alone=alone,
        alone_step=step[at],
    )


def _in_steps(rank: Rank, some: npt.NDArray[np.intp]) -> tuple[Int64s, Intervals]:
    work = rank.work
    return union_by(work.step[some], work.start_ns[some], work.end_ns[some])


def own_ns(own: Row, steps: Steps, waits: Intervals) -> Floats:
    """Return a rank's own time per step, given when it only waited for others."""
    host = np.maximum(own.host_ns - covered_ns(intersect(own.idle, waits), steps.start_ns, steps.end_ns), 0)
    if own.device_ns is None:
        return host.astype(float)
    idle = np.bincount(own.alone_step, covered_ns(waits, *own.alone), minlength=len(steps))
    return np.maximum(host, own.device_ns - idle)


_KEPT_OF_HEADER = ("host_name", "hostname", "deviceProperties", "trace_id", "nsight")


@dataclass(frozen=True, eq=False, repr=False)
class OutlinedRank(Rank):
    """A rank without its tables."""

    events: int
    on_device: bool
    its_device: Device
    window: RankAccount | None
    own: Row

    @property
    def num_events(self) -> int:
        """Return how many events its trace had."""
        return self.events

    @property
    def has_device(self) -> bool:
        """Return whether anything ran on a device."""
        return self.on_device

    @cached_property
    def device(self) -> Device:
        """Return the device and how it is known."""
        return self.its_device


def outlined(rank: Rank) -> OutlinedRank:
    """Return the outline of a rank."""
    return OutlinedRank(
        rank=rank.rank,
        rank_source=rank.rank_source,
        trace=_without_events(rank.trace),
        kinds=rank.kinds[:0].copy(),
        steps=rank.steps,
        work=_NO_WORK,
        collectives=rank.collectives,
        joins=rank.joins,
        cut=rank.cut[:0],
        moved=rank.moved[:0],
        without_device=rank.without_device,
        events=rank.num_events,
        on_device=rank.has_device,
        its_device=rank.device,
        window=rank_account(rank),
        own=_own_time(rank),
    )


def window_of(rank: Rank) -> RankAccount | None:
    """Return the account of a rank's window, also for an outlined rank."""
    return rank.window if isinstance(rank, OutlinedRank) else rank_account(rank)


def own_time_of(rank: Rank) -> Row:
    """Return the inputs of a rank's own time, also for an outlined rank."""
    return rank.own if isinstance(rank, OutlinedRank) else _own_time(rank)


def _without_events(trace: Trace) -> Trace:
    header = {key: trace.header[key] for key in _KEPT_OF_HEADER if key in trace.header}
    info = trace.header.get("distributedInfo")
    if isinstance(info, dict):  # without the list of all ranks of all groups, which every rank of the job has
        header["distributedInfo"] = {key: value for key, value in info.items() if key != "pg_config"}
    columns = {c.name: np.empty(0, c.dtype) for c in DENSE}
    return Trace(trace.path, trace.raw_bytes, header, [], columns, {}, trace.quality, trace.from_cache)


_NOTHING = np.empty(0, np.int64)
_NO_WORK = DeviceWork(
    row=_NOTHING,
    kind=np.empty(0, np.uint8),
    start_ns=_NOTHING,
    end_ns=_NOTHING,
    name=np.empty(0, np.int32),
    device=_NOTHING,
    stream=_NOTHING,
    launch_row=_NOTHING,
    op_row=_NOTHING,
    step=np.empty(0, np.int32),
)


def rank_wait(shared: AlignedRun, index: int, account: RankAccount) -> Row:
    """Return how a rank's communication splits over the window: the union of its waits, the rest, and the unmatched."""
    c, wait = shared.run.ranks[index].collectives, shared.wait_ns[index]
    unmatched = wait == UNMATCHED
    waits = clip(union(c.start_ns, c.start_ns + np.maximum(wait, 0)), account.start_ns, account.end_ns)
    # Where both run at once, what is known counts.
    known = union(c.start_ns[~unmatched], c.end_ns[~unmatched])
    lost = clip(subtract(union(c.start_ns[unmatched], c.end_ns[unmatched]), known), account.start_ns, account.end_ns)
    nothing = bool(len(c) and unmatched.all())
    return Row(
        wait_ns=None if nothing else waits.total_ns,
        transfer_ns=None if nothing else account.comm.total_ns - waits.total_ns - lost.total_ns,
        unmatched_comm_ns=lost.total_ns,
        # what all others together waited in the collectives in which it came last; each instant of a rank once
        waited_for_ns=None if nothing else int(waited_for_ns(shared)[index]),
    )


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
    """Return the rank that the others waited for most in all collectives; None where clock uncertainty hides it."""
    return _latest(shared, np.ones(len(shared.matches), bool))


#: operation, process group on all ranks, and whether it stays within a node
_Kind = tuple[str, Group, str | None]


def collective_rows(shared: AlignedRun, accounts: Sequence[RankAccount | None]) -> list[Row]:
    """Return one row per operation and process group over the window, the most expensive first; of a group whose
    operations are within nodes and between nodes one row of each.
    """
    parts: dict[_Kind, list[Row]] = defaultdict(list)
    fastest = _fastest_transfers(shared)
    for index, (rank, account) in enumerate(zip(shared.run.ranks, accounts, strict=True)):
        c = rank.collectives
        if account is None or not len(c):
            continue
        exposed, wait = covered_ns(account.exposed_comm, c.start_ns, c.end_ns), shared.wait_ns[index]
        inside = (c.step >= 0) | (len(rank.steps) == 0)
        reach, reached = reaches(shared.run, index)
        kinds = np.stack((c.op, c.group, reached), axis=1).astype(np.int64)
        for code, group, at in distinct_rows(kinds[inside]).tolist():
            rows = np.flatnonzero(inside & (kinds == (code, group, at)).all(axis=1))
            sizes, matched = c.full_bytes[rows], rows[wait[rows] >= 0]
            part = Row(
                count=len(rows),
                size_bytes=int(sizes.sum()) if (sizes >= 0).all() else np.nan,
                wait_ns=int(wait[matched].sum()),
                transfer_ns=int((c.end_ns - c.start_ns - wait)[matched].sum()),
                exposed_ns=int(exposed[rows].sum()),
                # as the rank that saw the transfer undisturbed had it
                fastest_ns=int(fastest[index][matched].sum()),
                matched=len(matched),
                reach=reach[at],
            )
            parts[OPS[code], _across_ranks(c.groups[group]), reach[at].span].append(part)
    late = _late_ranks(shared)
    table = [_row(*kind, listed, late.get(kind)) for kind, listed in parts.items()]
    return sorted(table, key=lambda r: -((r.transfer_ns or 0) + (r.wait_ns or 0) + r.exposed_ns))


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


def _row(op: str, group: Group, span: str | None, parts: list[Row], late_rank: int | None) -> Row:
    """Return means over the ranks that took part."""
    found = [part.pop("reach") for part in parts]
    mean = Row({name: float(np.mean([part[name] for part in parts])) for name in parts[0]})
    known, whole = not np.isnan(mean.size_bytes), mean.matched == mean.count
    algbw = mean.size_bytes / mean.fastest_ns if known and mean.size_bytes and mean.fastest_ns and whole else None
    return Row(
        op=op,
        group=group,
        count=round(mean.count),  # per rank
        size_bytes=round(mean.size_bytes) if known else None,  # all calls of one rank
        wait_ns=mean.wait_ns if mean.matched else None,
        transfer_ns=mean.transfer_ns if mean.matched else None,
        exposed_ns=mean.exposed_ns,
        algbw_gb_per_s=algbw,  # bytes per ns
        busbw_gb_per_s=None if algbw is None else algbw * bus_factor(op, group.size or len(parts)),
        late_rank=late_rank,  # the rank that the others waited for the most, where the clocks allow to say
        unmatched=sum(part.count - part.matched for part in parts),
        fastest_ns=mean.fastest_ns,
        span=span,
        nodes=max(len(reach.members) for reach in found) or None,
        share=float(np.mean([reach.share for reach in found])) if span else None,
        leaving=found[0].leaving(op) if len({reach.members for reach in found}) == 1 else None,
    )


def _late_ranks(shared: AlignedRun) -> dict[_Kind, int | None]:
    matches, reached = shared.matches, [reaches(shared.run, index) for index in range(len(shared.run.ranks))]
    chosen: dict[_Kind, list[int]] = defaultdict(list)
    first = matches.first[:-1]
    each = (matches.op, matches.group, matches.rank_index[first], matches.row[first])
    for n, (op, group, index, row) in enumerate(np.stack(each, axis=1).tolist()):
        reach, number = reached[index]
        chosen[OPS[op], _across_ranks(matches.groups[group]), reach[number[row]].span].append(n)
    every = np.arange(len(matches))
    return {kind: _latest(shared, among(every, listed)) for kind, listed in chosen.items()}


def _latest(shared: AlignedRun, chosen: npt.NDArray[np.bool_]) -> int | None:
    last = shared.last_arrivals
    waited = np.bincount(last.rank_index[chosen], last.waited_ns[chosen])
    return shared.run.ranks[int(np.argmax(waited))].rank if waited.any() else None


def _across_ranks(group: Group) -> Group:
    if not group.desc or group.desc in ("undefined", "unknown"):
        return group
    return Group(name=group.desc, desc=group.desc, ranks=None, size=group.size)


# What did one kind of communication cost each rank per step, and how do the ranks differ?


def rank_traffic(shared: AlignedRun, index: int, rows: Int64s, account: RankAccount) -> Row:
    """Return what these collectives of a rank cost per step; `rows` are those launched in recorded steps."""
    rank = shared.run.ranks[index]
    c, steps = rank.collectives, num_steps(rank)
    sizes, wait = c.full_bytes[rows], shared.wait_ns[index][rows]
    spans = union(c.start_ns[rows], c.end_ns[rows])
    exposed = int(covered_ns(account.exposed_comm, spans.start, spans.end).sum())
    waits = union(c.start_ns[rows], c.start_ns[rows] + np.maximum(wait, 0)).total_ns
    matched = bool(len(rows)) and not (wait == UNMATCHED).any()
    return Row(
        rank=rank.rank,
        count=len(rows) / steps,
        size_bytes=float(sizes.sum()) / steps if (sizes >= 0).all() else None,  # full buffers
        time_ns=round(spans.total_ns / steps),  # in which at least one of them ran
        exposed_ns=round(exposed / steps),  # of that, hidden neither behind compute nor behind copies
        wait_ns=round(waits / steps) if matched else None,  # until the last rank arrived
        transfer_ns=round((spans.total_ns - waits) / steps) if matched else None,
    )


def share_of_step_pct(traffic: Row, rank: Rank) -> float | None:
    """Return the exposed time of the step's period, None without steps."""
    periods = step_periods(rank)
    step_ns = round(periods.median_ns) if periods is not None and len(periods) else None
    return 100 * traffic.exposed_ns / step_ns if step_ns else None


def num_steps(rank: Rank) -> int:
    """Return the number of recorded steps, 1 for a trace that marks none."""
    return max(len(rank.steps), 1)


def launched_in_steps(rank: Rank) -> Int64s:
    """Return the collectives launched in recorded steps (without steps: in the trace), in issue order."""
    c = rank.collectives
    asked = c.issue_ns > np.iinfo(np.int64).min
    known = c.step >= 0 if len(rank.steps) else asked
    order = np.argsort(np.where(asked, c.issue_ns, c.start_ns), kind="stable")
    return order[known[order]]


def over_ranks(rows: Sequence[Row]) -> dict[str, Row]:
    """Return mean, min, max and std over ranks of every numeric column of one row per rank but `rank` itself."""
    found = {}
    for name in rows[0] if rows else ():
        known = [row[name] for row in rows if isinstance(row[name], int | float) and not isinstance(row[name], bool)]
        if name != "rank" and (over := spread(known)) is not None:
            found[name] = over
    return found


# What is known of one rank of a run: its window and its waits; in full also its budget and what its kernels cost.


@dataclass(frozen=True, eq=False, repr=False)
class RankWindow(ArrayRecord):
    """The part of an account that is known of every rank."""

    rank: Rank
    #: None where the trace holds neither steps nor work
    window: RankAccount | None
    #: waits in collectives, None where there is no window
    wait: Row | None


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
# Waiting is measured: from a rank's own arrival at a collective to that of the last one. Messages from rank to rank are
# recorded. Routes of collectives are not: their bytes are counted as a ring sends them, each rank to the next of its
# group, and those of an all-to-all in equal shares.


def rank_matrix(shared: AlignedRun) -> Row | None:
    """Return who waits for whom and who sends to whom, None where ranks neither matched nor sent anything.

    Rows are the rank that waits or sends, columns the rank it waits for or sends to; per step.
    """
    ranks = shared.run.ranks
    if len(ranks) < 2:
        return None
    sent = [_sent(rank, ranks) for rank in ranks]
    found = Row(
        ranks=tuple(rank.rank for rank in ranks),
        waited_ns=_waited(shared),
        # point-to-point messages, as recorded
        message_bytes=np.array([messages for messages, _ in sent]),
        # collectives, as a ring would send them; an all-to-all in equal shares
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
    blamed = last.waited_ns > 0  # 0 where the last two arrived within the clock uncertainty
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
        receivers = _receivers(OPS[op], rank.rank, c.groups[group], index)
        if op in POINT_TO_POINT or not receivers:
            continue
        mine = (c.op == op) & (c.group == group) & (c.full_bytes > 0)
        sent = float(c.full_bytes[mine].sum()) * bus_factor(OPS[op], c.groups[group].size or len(ranks))
        ring[receivers] += sent / len(receivers)
    return messages / steps, ring / steps


def _receivers(op: str, rank: int, group: Group, index: dict[int, int]) -> list[int]:
    members = list(group.ranks) if group.ranks else list(index) if group.size == len(index) else []
    if rank not in members or len(members) < 2:
        return []
    at = members.index(rank)
    following = members[at + 1 :] + members[:at]
    return [index[one] for one in (following if op == "all_to_all" else following[:1]) if one in index]
