"""What do collectives take on this machine, and what did they take in this run? Curves and points for one picture."""

from typing import Any

import numpy as np

from stepscope.analyze.account import Account
from stepscope.cost.collectives.calibration import Calibration
from stepscope.cost.collectives.curve import Curve
from stepscope.cost.collectives.recorded_run import points_from_run
from stepscope.errors import InputError
from stepscope.units import NS_PER_US

_SAMPLES = 40


def calibration_curves(account: Account, calibration: Calibration) -> dict[str, Any]:
    """Return measured points, fitted line and interval per operation and world size, and this run's own points.

    Times in microseconds. Only the operations that the run used are there; all of them where it used none.
    """
    seen = _seen(account)
    used = {(p["op"], p["world_size"]) for p in seen}
    ops = {op for op, _ in used}
    kept = [c for c in calibration.curves if c.op in ops] or list(calibration.curves)
    nearest = [c for c in kept if (c.op, c.world_size) in used] or kept
    return {"curves": [_curve(calibration, c) for c in nearest], "run": seen}


def _seen(account: Account) -> list[dict[str, Any]]:
    """Return the usual transfer of each operation, group size and size in the run, without waiting."""
    try:
        points = points_from_run(account.shared)
    except InputError:
        return []  # nothing matched with its size: the curves stand alone
    return [
        {"op": p.op, "world_size": p.world_size, "bytes": p.size_bytes, "us": round(p.time_ns / NS_PER_US, 3)}
        for p in sorted(points)
    ]


def _curve(calibration: Calibration, curve: Curve) -> dict[str, Any]:
    first, last = curve.points[0][0], curve.points[-1][0]
    sizes = np.geomspace(first, max(last, first + 1), _SAMPLES)
    found = [calibration.predict(curve.op, size_bytes=s, world_size=curve.world_size) for s in sizes]
    start, end = curve.pieces.lines()[0], curve.pieces.lines()[-1]
    return {
        "op": curve.op,
        "world_size": curve.world_size,
        "alpha_us": round(start.alpha_ns / NS_PER_US, 3),
        "algbw_gb_per_s": round(1 / end.ns_per_byte, 4) if end.ns_per_byte else None,
        "r2": round(curve.r2, 4),
        "left_out_error": curve.left_out_error,
        "points": [[b, round(t / NS_PER_US, 3)] for b, t in curve.points],
        "line": [
            [round(s), *(round(t / NS_PER_US, 3) for t in (e.time_ns, e.low_ns, e.high_ns))]
            for s, e in zip(sizes.tolist(), found, strict=True)
        ],
    }
