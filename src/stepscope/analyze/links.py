"""Which communication stayed within a node and which went between nodes, and how much of the link did it use?

A node is a machine: its boot id where the recorder noted that of all ranks, else its host name. Traces without host
names list the devices of their machine; then ranks are taken to be numbered node by node. An operation between nodes
shares their network, so it is held against its part of it:

    within nodes    bus bandwidth                         of   the chip's links to its peers
    between nodes   what leaves a node of the group       of   the node's interfaces x members there / ranks there

A ring, or a tree, leaves each node once: at the bus bandwidth. In an all-to-all each of the m members of a node sends
the share (P - m) / (P - 1) of its traffic to other nodes.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stepscope.contract.operations import ALL_TO_ALL
from stepscope.cost.chips import Chip
from stepscope.records import Row, dataclass, once_per_record
from stepscope.run.aligned import recorded_facts
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.run.collectives import Group
from stepscope.run.load import Run
from stepscope.stats.robust import among, distinct_places
from stepscope.trace.table import Int64s

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
