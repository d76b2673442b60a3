"""What a calibration is made of: the curves through measured points, its JSON, and points from a recorded run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.contract.operations import OPERATIONS, OPS
from stepscope.contract.run_folder import SCHEMA
from stepscope.cost.alpha_beta import Curve, fit_pieces
from stepscope.cost.calibration import KIND, Calibration
from stepscope.errors import InputError
from stepscope.lab.predict.measured_collectives import Point
from stepscope.stats.robust import median
from stepscope.units import NS_PER_US

if TYPE_CHECKING:
    from stepscope.run.aligned import AlignedRun


def calibrate(points: Iterable[Point], *, about: Mapping[str, Any] | None = None) -> Calibration:
    """Return the curves through the points."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.op, point.world_size), []).append(point)
    curves = [_curve_of(op, world, group) for (op, world), group in groups.items()]
    curves.sort(key=lambda c: (OPERATIONS.index(c.op), c.world_size))
    return Calibration(tuple(curves), dict(about or {}))


def _curve_of(op: str, world_size: int, points: Sequence[Point]) -> Curve:
    ordered = sorted(points, key=lambda p: p.size_bytes)
    sizes = np.array([p.size_bytes for p in ordered], float)
    times = np.array([p.time_ns for p in ordered])
    pieces, left_out = fit_pieces(sizes, times)
    ratio = pieces.time_ns(sizes) / times
    logs = np.log(times)
    total = float(((logs - logs.mean()) ** 2).sum())
    return Curve(
        op=op,
        world_size=world_size,
        pieces=pieces,
        left_out=left_out,
        r2=1 - float((np.log(ratio) ** 2).sum()) / total if total else 1.0,
        mean_error=float(np.abs(ratio - 1).mean()),
        max_error=float(np.abs(ratio - 1).max()),
        points=tuple((p.size_bytes, p.time_ns) for p in ordered),
    )


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """Return the calibration as plain data; times in microseconds."""
    return {
        "schema": SCHEMA,
        "kind": KIND,
        **calibration.about,
        "curves": [_curve_json(c) for c in calibration.curves],
    }


def _curve_json(curve: Curve) -> dict[str, Any]:
    return {
        "op": curve.op,
        "world_size": curve.world_size,
        "r2": round(curve.r2, 6),
        "mean_error": round(curve.mean_error, 6),
        "max_error": round(curve.max_error, 6),
        "left_out_error": None if curve.left_out_error is None else round(curve.left_out_error, 6),
        "pieces": [
            {
                "from_bytes": int(p.from_bytes),
                "alpha_us": round(p.alpha_ns / NS_PER_US, 3),
                "gb_per_s": round(1 / p.ns_per_byte, 4) if p.ns_per_byte else None,
            }
            for p in curve.pieces.lines()
        ],
        "knots": [[b, t / NS_PER_US] for b, t in zip(curve.pieces.knot_bytes, curve.pieces.knot_ns, strict=True)],
        "left_out": [
            [int(b), r if math.isfinite(r) else None]
            for b, r in zip(curve.left_out.size_bytes.tolist(), curve.left_out.log_ratio.tolist(), strict=True)
        ],
        "points": [[b, t / NS_PER_US] for b, t in curve.points],
    }


# Points from a recorded run.


def points_from_run(shared: "AlignedRun") -> list[Point]:
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
