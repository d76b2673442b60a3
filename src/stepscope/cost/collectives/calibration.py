"""A machine's collectives as measured: a curve of time against size per operation and world size, with its error.

    points --fit_pieces--> curves --predict--> time, low, high

The interval is conformal: each size is left out in turn, its error compared with the errors around it, and the factor
that holds 90 % of them is the one that every prediction uses. It is wider where the curve bends and narrow elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from stepscope.cost.collectives.alpha_beta import Floats
from stepscope.cost.collectives.alpha_beta_pieces import LeftOutErrors, fit_pieces
from stepscope.cost.collectives.curve import Curve
from stepscope.cost.collectives.points import OPERATIONS, Point
from stepscope.cost.collectives.worlds import WorldSizes
from stepscope.dataclass import dataclass
from stepscope.errors import UsageError
from stepscope.records import ArrayRecord
from stepscope.stats.middle import median, quantiles
from stepscope.units import readable_bytes

COVERAGE = 0.9
_TYPICAL_FACTOR = 2.1
"""90 % bound / mean of |error| of a normal distribution, for calibrations too small to measure it"""
_TYPICAL_ERROR = 0.2
"""mean |log error| where nothing could be left out"""
_MIN_ERRORS = 5


@dataclass(frozen=True)
class Estimate:
    """A predicted time and the interval that holds 90 % of measured ones."""

    time_ns: float
    low_ns: float
    high_ns: float
    how: str


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(ArrayRecord):
    """All curves of a machine."""

    curves: tuple[Curve, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    """source, backend, machine, software, created"""

    def predict(self, op: str, *, size_bytes: float, world_size: int) -> Estimate:
        """Return the time of one operation, from its own curve or from those of other world sizes."""
        curves = self._of(op, size_bytes, world_size)
        exact = next((c for c in curves if c.world_size == world_size), None)
        if exact is not None:
            time = float(exact.pieces.time_ns(size_bytes))
            return _estimate(time, self._half_width(exact, size_bytes), _source(exact, size_bytes))
        worlds = WorldSizes(curves, self._latencies)
        time, doubt, how = worlds.time_ns(size_bytes, world_size)
        return _estimate(time, float(np.hypot(self._half_width(worlds.nearest(world_size), size_bytes), doubt)), how)

    def _of(self, op: str, size_bytes: float, world_size: int) -> list[Curve]:
        if op not in OPERATIONS:
            raise UsageError(f"unknown operation {op!r}; use one of {', '.join(OPERATIONS)}")
        if not size_bytes > 0:
            raise UsageError(f"the size has to be above 0 bytes, not {size_bytes:g}")
        if world_size < 2:
            raise UsageError(
                f"the world size has to be 2 or more, not {world_size}: a single rank does not communicate"
            )
        curves = [c for c in self.curves if c.op == op]
        if not curves:
            known = ", ".join(sorted({c.op for c in self.curves}))
            raise UsageError(f"the calibration has no {op}; it has {known}; calibrate that operation too")
        return curves

    @cached_property
    def _latencies(self) -> dict[tuple[str, int], float]:
        """Return what each operation and world size takes before the first byte."""
        return {(c.op, c.world_size): float(c.pieces.time_ns(0)) for c in self.curves}

    def _half_width(self, curve: Curve, size_bytes: float) -> float:
        return self._factor * float(_local_error(curve.left_out, np.array([size_bytes]), self._mean_error)[0])

    @cached_property
    def _mean_error(self) -> float:
        errors = np.concatenate([np.abs(c.left_out.log_ratio) for c in self.curves])
        errors = errors[np.isfinite(errors)]
        return float(errors.mean()) if len(errors) >= _MIN_ERRORS else _TYPICAL_ERROR

    @cached_property
    def _factor(self) -> float:
        """Return the multiple of the local error that holds 90 % of the left-out sizes."""
        shares = np.concatenate([_share_of_local(c.left_out, self._mean_error) for c in self.curves])
        if len(shares) < _MIN_ERRORS:
            return _TYPICAL_FACTOR
        level = min(1.0, np.ceil((len(shares) + 1) * COVERAGE) / len(shares))
        return float(quantiles(shares, level))


def calibrate(points: Iterable[Point], *, about: Mapping[str, Any] | None = None) -> Calibration:
    """Return the curves through the points."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.op, point.world_size), []).append(point)
    curves = [curve_of(op, world, group) for (op, world), group in groups.items()]
    curves.sort(key=lambda c: (OPERATIONS.index(c.op), c.world_size))
    return Calibration(tuple(curves), dict(about or {}))


def curve_of(op: str, world_size: int, points: Sequence[Point]) -> Curve:
    """Return the curve through the points of one operation and world size."""
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


def _source(curve: Curve, size_bytes: float) -> str:
    """Return what an estimate stands on: a size outside the measured ones is extrapolated."""
    smallest, largest = curve.points[0][0], curve.points[-1][0]
    if smallest <= size_bytes <= largest:
        return f"measured at world size {curve.world_size}"
    nearest = readable_bytes(largest if size_bytes > largest else smallest)
    return f"extrapolated from {nearest}, measured at world size {curve.world_size}"


def _estimate(time_ns: float, half_width: float, how: str) -> Estimate:
    return Estimate(time_ns, time_ns * float(np.exp(-half_width)), time_ns * float(np.exp(half_width)), how)


def _share_of_local(left_out: LeftOutErrors, mean_error: float) -> Floats:
    """Return each left-out error as a multiple of the error expected around it, itself not counted."""
    known = np.isfinite(left_out.log_ratio)
    if not known.any():
        return np.empty(0)
    expected = _local_error(left_out, left_out.size_bytes, mean_error, itself=False)
    return (np.abs(left_out.log_ratio) / expected)[known]


def _local_error(left_out: LeftOutErrors, sizes: Floats, mean_error: float, *, itself: bool = True) -> Floats:
    """Return the error expected at sizes: that of the sizes around them, with the mean of all as one more of them."""
    if not np.isfinite(left_out.log_ratio).all():
        return np.full(len(sizes), mean_error)
    measured = np.log2(left_out.size_bytes)
    distance = np.log2(sizes)[:, None] - measured
    spacing = median(np.diff(measured)) if len(measured) > 1 else 1.0
    weight = np.exp(-0.5 * (distance / spacing) ** 2)
    if not itself:
        weight = weight * (distance != 0)
    return (weight @ np.abs(left_out.log_ratio) + mean_error) / (weight.sum(axis=1) + 1)
