"""A calibration as `calibration.json`: what was measured, where, and the curves through it."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.contract.run_folder import SCHEMA
from stepscope.cost.collectives.alpha_beta_pieces import LeftOutErrors, Pieces
from stepscope.cost.collectives.calibration import Calibration
from stepscope.cost.collectives.curve import Curve
from stepscope.errors import InputError
from stepscope.side_file import is_number, read_side_json
from stepscope.units import NS_PER_US

KIND = "stepscope calibration"


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """Return the calibration as plain data; times in microseconds."""
    return {
        "schema": SCHEMA,
        "kind": KIND,
        **calibration.about,
        "curves": [_curve_json(c) for c in calibration.curves],
    }


def load_calibration(path: str | Path) -> Calibration:
    """Return the calibration in a file that `stepscope calibrate` wrote."""
    try:
        document = read_side_json(path).value
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot read the calibration: {error}; `stepscope calibrate` makes one") from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise InputError(f"{path}: not a file of `stepscope calibrate`")
    if document.get("schema") != SCHEMA:
        raise InputError(f"{path}: has schema {document.get('schema')!r}, not {SCHEMA}; calibrate again")
    try:
        curves = tuple(_curve(c) for c in document["curves"])
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise InputError(f"{path}: a curve is incomplete ({error!r}); calibrate again") from error
    about = {k: v for k, v in document.items() if k not in ("schema", "kind", "curves")}
    return Calibration(curves, about)


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


MAX_WORLD_SIZE = 1 << 20
_MAX_BYTES = 1e18
_MAX_TIME_US = 1e15


def _curve(data: dict[str, Any]) -> Curve:
    knots, left_out = data["knots"], data["left_out"]
    world_size = int(data["world_size"])
    if not 0 < world_size <= MAX_WORLD_SIZE:
        raise ValueError(f"world_size of {world_size}")
    return Curve(
        op=str(data["op"]),
        world_size=world_size,
        pieces=_pieces(knots),
        left_out=LeftOutErrors(
            np.array([b for b, _ in left_out], float),
            np.array([math.nan if r is None else r for _, r in left_out], float),
        ),
        r2=float(data["r2"]),
        mean_error=float(data["mean_error"]),
        max_error=float(data["max_error"]),
        points=_points(data["points"]),
    )


def _points(points: list[list[float]]) -> tuple[tuple[int, float], ...]:
    """Return what was measured; sizes start at one byte, since curves are drawn over their logarithm."""
    sound = all(is_number(b, low=1, high=_MAX_BYTES) and is_number(t, low=0, high=_MAX_TIME_US) for b, t in points)
    if not points or not sound:
        raise ValueError("points should be pairs of bytes, one or more, and times in us")
    return tuple((int(b), float(t) * NS_PER_US) for b, t in points)


def _pieces(knots: list[list[float]]) -> Pieces:
    """Return joined lines; their sizes have to rise, or the slope between two would be none."""
    sizes, times = [b for b, _ in knots], [t for _, t in knots]
    rising = all(a < b for a, b in itertools.pairwise(sizes))
    sound = all(is_number(b, low=0, high=_MAX_BYTES) for b in sizes)
    sound = sound and all(is_number(t, low=0, high=_MAX_TIME_US) for t in times)
    if len(knots) < 2 or not sound or not rising:
        raise ValueError("knots should be two or more pairs of rising bytes and times in us")
    return Pieces(tuple(map(float, sizes)), tuple(float(t) * NS_PER_US for t in times))
