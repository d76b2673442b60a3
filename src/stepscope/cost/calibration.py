"""A machine's collectives as measured: a curve of time against size per operation and world size, with its error.

    points --fit_pieces--> curves --predict--> time, low, high

The interval is conformal: each size is left out in turn, its error compared with the errors around it, and the factor
that holds 90 % of them is the one that every prediction uses. It is wider where the curve bends and narrow elsewhere.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import ceil, log, log2, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.contract.operations import OPERATIONS, bus_factor, ring_steps
from stepscope.contract.run_folder import SCHEMA
from stepscope.cost.alpha_beta import Curve, Floats, LeftOutErrors, Pieces
from stepscope.errors import InputError, UsageError
from stepscope.records import ArrayRecord, dataclass
from stepscope.side_file import is_number, read_side_json
from stepscope.stats.robust import median, quantiles
from stepscope.units import NS_PER_US, readable_bytes

# Collective times at a world size that was not measured, from those that were.
#
# A ring works in steps, and what a step takes depends on its chunk, n / P. So the time among P ranks follows from the
# measured time among P0 at the size that has the same chunk, times the number of steps:
#
#     t_P(n) = fixed + (t_P0(n P0 / P) - fixed) steps(P) / steps(P0)
#
# `fixed` is what a call costs however many ranks take part: the latency less `steps` times the latency of a hop. The
# hop shows in the difference between operations or world sizes: an all-reduce has twice the hops of an all-gather.
# Among more ranks than measured a tree is the other candidate (for gathers and scatters only among many); the faster
# one counts.
#
# Where several world sizes were measured, what the law misses between them (ranks that share a machine or a link) goes
# on as the same power of the world size, up to twice the range that was measured.

# log error at twice the world size, where a single one was measured; it grows with the root of the doublings
_TYPICAL_DOUBT = 0.25
# log error at twice the largest measured size; it grows with the doublings. Larger sizes of measured NCCL collectives,
# left out from 64 KB, 256 KB, 1 MB or 8 MB on, are in the interval in 99 % of cases; broadcasts slow down by six.
_SIZE_DOUBT = 0.5
# of the latency, without another measurement
_HOP_SHARE = 0.5
_CHUNKED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# passes over the tree
_TREES = {"all_reduce": 2, "broadcast": 1, "reduce": 1, "all_gather": 1, "reduce_scatter": 1}
# beyond this number of ranks libraries gather and scatter in log2(P) steps as well
_MANY = 32


class WorldSizes:
    """The curves of one operation, to be carried to other world sizes."""

    def __init__(self, curves: Sequence[Curve], latencies: Mapping[tuple[str, int], float]) -> None:
        self._curves = sorted(curves, key=lambda c: c.world_size)
        self._latencies = latencies

    def nearest(self, world_size: int) -> Curve:
        return min(self._curves, key=lambda c: abs(log(c.world_size / world_size)))

    def time_ns(self, size_bytes: float, world_size: int) -> tuple[float, float, str]:
        """Return the time, how far its logarithm may be off for the world size's sake, and how it came about."""
        near = self.nearest(world_size)
        time = float(self._carried(near, np.array([size_bytes]), world_size)[0])
        power, doubt = self._missed(near)
        ratio = min(max(world_size / near.world_size, 0.5), 2.0)
        octaves = abs(log2(world_size / near.world_size))
        if near.op == "send_recv":  # a message between two ranks does not know how many others there are
            octaves = min(octaves, 1.0)
        how = f"from world size {near.world_size} by the steps of a ring or tree"
        return time * ratio**power, doubt * sqrt(octaves), how

    def _missed(self, near: Curve) -> tuple[float, float]:
        others = [c for c in self._curves if c is not near]
        if not others:
            return 0.0, _TYPICAL_DOUBT
        other = min(others, key=lambda c: abs(log(c.world_size / near.world_size)))
        sizes, times = (np.array(column, float) for column in zip(*near.points, strict=True))
        distance = log(near.world_size / other.world_size)
        missed = np.log(times / self._carried(other, sizes, near.world_size))
        power = float(np.clip(median(missed) / distance, -1, 1))
        rest = float(quantiles(np.abs(missed - power * distance), 0.9)) / sqrt(abs(distance / log(2)))
        return power, max(rest, 0.1, 0.5 * abs(power) * log(2))

    def _carried(self, curve: Curve, sizes: Floats, world_size: int) -> Floats:
        op, measured = curve.op, curve.world_size
        hop, latency = self._hop_ns(curve), self._latencies[curve.op, curve.world_size]
        fixed = max(latency - ring_steps(op, measured) * hop, 0.0)
        if op == "send_recv":
            return curve.pieces.time_ns(sizes)
        if op in _CHUNKED:
            steps = ring_steps(op, world_size) / ring_steps(op, measured)
            ring = fixed + (curve.pieces.time_ns(sizes * measured / world_size) - fixed) * steps
        else:
            here = curve.pieces.time_ns(sizes)
            ring = np.maximum(here + (world_size - measured) * hop, 0.5 * here)
        scattered = op in ("all_gather", "reduce_scatter")
        if op not in _TREES or world_size <= max(measured, _MANY if scattered else 0):
            return ring
        volume = bus_factor(op, world_size) if scattered else _TREES[op]
        moving = np.maximum(curve.pieces.time_ns(sizes) - latency, 0) * volume / bus_factor(op, measured)
        tree = fixed + _TREES[op] * ceil(log2(world_size)) * hop + moving
        return np.minimum(ring, tree)

    def _hop_ns(self, curve: Curve) -> float:
        op, world = curve.op, curve.world_size
        latency, steps = self._latencies[op, world], ring_steps(op, world)
        if len(self._curves) > 1:
            hops = np.array([ring_steps(op, c.world_size) for c in self._curves], float)
            times = np.array([self._latencies[op, c.world_size] for c in self._curves])
            found = float(np.polyfit(hops, times, 1)[0]) if np.ptp(hops) else latency * _HOP_SHARE / steps
        else:
            found = self._hop_between_operations(world) or latency * _HOP_SHARE / steps
        return min(max(found, 0.0), latency / steps)

    def _hop_between_operations(self, world: int) -> float | None:
        single = [
            self._latencies[op, world] for op in ("all_gather", "reduce_scatter") if (op, world) in self._latencies
        ]
        double = self._latencies.get(("all_reduce", world))
        if double is None or not single:
            return None
        return max(double - sum(single) / len(single), 0.0) / (world - 1)


# 90 % bound / mean of |error| of a normal distribution, for calibrations too small to measure it
_TYPICAL_FACTOR = 2.1
# mean |log error| where nothing could be left out
_TYPICAL_ERROR = 0.2
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
    #: source, backend, machine, software, created
    about: Mapping[str, Any] = field(default_factory=dict)

    def predict(self, op: str, *, size_bytes: float, world_size: int) -> Estimate:
        """Return the time of one operation, from its own curve or from those of other world sizes."""
        curves = self._of(op, size_bytes, world_size)
        exact = next((c for c in curves if c.world_size == world_size), None)
        if exact is not None:
            time = float(exact.pieces.time_ns(size_bytes))
            return _estimate(time, self._half_width(exact, size_bytes), exact, size_bytes, _source(exact))
        worlds = WorldSizes(curves, self._latencies)
        time, doubt, how = worlds.time_ns(size_bytes, world_size)
        near = worlds.nearest(world_size)
        return _estimate(time, float(np.hypot(self._half_width(near, size_bytes), doubt)), near, size_bytes, how)

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
        return {(c.op, c.world_size): float(c.pieces.time_ns(0)) for c in self.curves}

    def _half_width(self, curve: Curve, size_bytes: float) -> float:
        near = np.clip(np.array([size_bytes]), curve.points[0][0], curve.points[-1][0])
        return self._factor * float(_local_error(curve.left_out, near, self._mean_error)[0])

    @cached_property
    def _mean_error(self) -> float:
        errors = np.concatenate([np.abs(c.left_out.log_ratio) for c in self.curves])
        errors = errors[np.isfinite(errors)]
        return float(errors.mean()) if len(errors) >= _MIN_ERRORS else _TYPICAL_ERROR

    @cached_property
    def _factor(self) -> float:
        shares = np.concatenate([_share_of_local(c.left_out, self._mean_error) for c in self.curves])
        if len(shares) < _MIN_ERRORS:
            return _TYPICAL_FACTOR
        level = min(1.0, np.ceil((len(shares) + 1) * 0.9) / len(shares))
        return float(quantiles(shares, level))


def _source(curve: Curve) -> str:
    return f"measured at world size {curve.world_size}"


def _estimate(time_ns: float, half_width: float, curve: Curve, size_bytes: float, how: str) -> Estimate:
    """Return the interval around a time, wider with the distance to the measured sizes.

    Larger sizes are predicted at no more than the largest measured bandwidth; the low end follows the last line, which
    is right where the largest measured size was still short of the link's bandwidth.
    """
    smallest, largest = curve.points[0][0], curve.points[-1][0]
    octaves = max(log2(size_bytes / largest), log2(smallest / size_bytes), 0.0)
    if octaves:
        nearest = "largest" if size_bytes > largest else "smallest"
        beyond = f"extrapolated {2**octaves:.3g} times beyond the {nearest} measured size"
        bound = ", at no more than the largest measured bandwidth" if size_bytes > largest else ""
        how = f"{how}, {beyond}, {readable_bytes(largest if bound else smallest)}{bound}"
    width = float(np.hypot(half_width, _SIZE_DOUBT * octaves))
    below = float(curve.pieces.line_ns(size_bytes) / curve.pieces.time_ns(size_bytes))
    return Estimate(time_ns, time_ns * below * math.exp(-width), time_ns * math.exp(width), how)


def _share_of_local(left_out: LeftOutErrors, mean_error: float) -> Floats:
    known = np.isfinite(left_out.log_ratio)
    if not known.any():
        return np.empty(0)
    expected = _local_error(left_out, left_out.size_bytes, mean_error, itself=False)
    return (np.abs(left_out.log_ratio) / expected)[known]


def _local_error(left_out: LeftOutErrors, sizes: Floats, mean_error: float, *, itself: bool = True) -> Floats:
    if not np.isfinite(left_out.log_ratio).all():
        return np.full(len(sizes), mean_error)
    measured = np.log2(left_out.size_bytes)
    distance = np.log2(sizes)[:, None] - measured
    spacing = median(np.diff(measured)) if len(measured) > 1 else 1.0
    weight = np.exp(-0.5 * (distance / spacing) ** 2)
    if not itself:
        weight = weight * (distance != 0)
    return (weight @ np.abs(left_out.log_ratio) + mean_error) / (weight.sum(axis=1) + 1)


# A calibration as `calibration.json`: what was measured, where, and the curves through it.

KIND = "stepscope calibration"


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
    return Calibration(curves, {k: v for k, v in document.items() if k not in ("schema", "kind", "curves")})


_MAX_WORLD_SIZE = 1 << 20
_MAX_BYTES = 1e18
_MAX_TIME_US = 1e15
# a picosecond: no link is that quick, and pictures take logarithms of times
_MIN_TIME_US = 1e-6


def _curve(data: dict[str, Any]) -> Curve:
    knots, left_out = data["knots"], data["left_out"]
    world_size = int(data["world_size"])
    if not 0 < world_size <= _MAX_WORLD_SIZE:
        raise ValueError(f"world_size of {world_size}")
    points = _points(data["points"])
    return Curve(
        op=str(data["op"]),
        world_size=world_size,
        pieces=_pieces(knots, points),
        left_out=LeftOutErrors(
            np.array([b for b, _ in left_out], float),
            np.array([math.nan if r is None else r for _, r in left_out], float),
        ),
        r2=float(data["r2"]),
        mean_error=float(data["mean_error"]),
        max_error=float(data["max_error"]),
        points=points,
    )


def _points(points: list[list[float]]) -> tuple[tuple[int, float], ...]:
    sound = all(
        is_number(b, low=1, high=_MAX_BYTES) and is_number(t, low=_MIN_TIME_US, high=_MAX_TIME_US) for b, t in points
    )
    if not points or not sound:
        raise ValueError("points should be pairs of bytes, one or more, and times in us")
    return tuple((int(b), float(t) * NS_PER_US) for b, t in points)


def _pieces(knots: list[list[float]], points: Sequence[tuple[int, float]]) -> Pieces:
    sizes, times = [b for b, _ in knots], [t for _, t in knots]
    rising = all(a < b for a, b in itertools.pairwise(sizes))
    sound = all(is_number(b, low=0, high=_MAX_BYTES) for b in sizes)
    sound = sound and all(is_number(t, low=0, high=_MAX_TIME_US) for t in times)
    if len(knots) < 2 or not sound or not rising:
        raise ValueError("knots should be two or more pairs of rising bytes and times in us")
    least = min(time_ns / size for size, time_ns in points)
    return Pieces(tuple(map(float, sizes)), tuple(float(t) * NS_PER_US for t in times), least)
