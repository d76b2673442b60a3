"""Collective times from a recorded run: what each matched collective took once the last rank had arrived."""

from stepscope.contract.collectives import OPS
from stepscope.cost.measured_collectives import OPERATIONS, Point
from stepscope.errors import InputError
from stepscope.run.aligned import AlignedRun
from stepscope.stats.robust import median


def points_from_run(shared: AlignedRun) -> list[Point]:
    """Return one point per matched collective: its shortest transfer over the ranks, waiting removed.

    All ranks share one transfer; the one that arrived last saw nothing but it.
    """
    matches, ranks = shared.matches, shared.run.ranks
    points = []
    for m in range(len(matches)):
        size, op = int(matches.size_bytes[m]), _calibrated(OPS[matches.op[m]])
        members = range(int(matches.first[m]), int(matches.first[m + 1]))
        world = 2 if op == "send_recv" else matches.groups[matches.group[m]].size or len(members)
        if op is None or size <= 0 or world < 2:
            continue
        transfers = []
        for j in members:
            index, row = int(matches.rank_index[j]), int(matches.row[j])
            c = ranks[index].collectives
            transfers.append(int(c.end_ns[row] - c.start_ns[row] - max(shared.wait_ns[index][row], 0)))
        shortest = min(transfers)
        if shortest > 0:
            points.append(Point(op, world, size, float(shortest)))
    if not points:
        raise InputError(
            f"{shared.run.name}: no collective could be matched across ranks with its size; record two ranks or more, "
            "with --shapes on gloo"
        )
    return _usual(points)


def _calibrated(op: str) -> str | None:
    op = "send_recv" if op in ("send", "recv") else op
    return op if op in OPERATIONS else None


def _usual(points: list[Point]) -> list[Point]:
    groups: dict[tuple[str, int, int], list[float]] = {}
    for p in points:
        groups.setdefault((p.op, p.world_size, p.size_bytes), []).append(p.time_ns)
    return [Point(*key, median(times)) for key, times in groups.items()]
