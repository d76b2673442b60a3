"""Collective times at a world size that was not measured, from those that were.

A ring works in steps, and what a step takes depends on its chunk, n / P. So the time among P ranks follows from the
measured time among P0 at the size that has the same chunk, times the number of steps:

    t_P(n) = fixed + (t_P0(n P0 / P) - fixed) steps(P) / steps(P0)

`fixed` is what a call costs however many ranks take part: the latency less `steps` times the latency of a hop. The hop
shows in the difference between operations or world sizes: an all-reduce has twice the hops of an all-gather. Among more
ranks than measured a tree is the other candidate (for gathers and scatters only among many); the faster one counts.

Where several world sizes were measured, what the law misses between them (ranks that share a machine or a link) goes
on as the same power of the world size, up to twice the range that was measured.
"""

from collections.abc import Mapping, Sequence
from math import ceil, log, log2, sqrt

import numpy as np

from stepscope.contract.collectives import bus_factor
from stepscope.cost.collectives.alpha_beta import Floats
from stepscope.cost.collectives.closed_form import ring_steps
from stepscope.cost.collectives.curve import Curve
from stepscope.stats.middle import median, quantiles

_TYPICAL_DOUBT = 0.25
"""log error at twice the world size, where a single one was measured; it grows with the root of the doublings"""
_MIN_DOUBT = 0.1
_HOP_SHARE = 0.5
"""of the latency, where no other measurement tells"""
_CHUNKED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_TREES = {"all_reduce": 2, "broadcast": 1, "reduce": 1, "all_gather": 1, "reduce_scatter": 1}
"""passes over the tree"""
_MANY = 32
"""beyond so many ranks libraries gather and scatter in log2(P) steps as well"""


class WorldSizes:
    """The curves of one operation, to be carried to other world sizes."""

    def __init__(self, curves: Sequence[Curve], latencies: Mapping[tuple[str, int], float]) -> None:
        self._curves = sorted(curves, key=lambda c: c.world_size)
        self._latencies = latencies

    def nearest(self, world_size: int) -> Curve:
        """Return the curve whose world size is nearest, by ratio."""
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
        """Return the power of the world size that the law misses, and the error left at twice the size."""
        others = [c for c in self._curves if c is not near]
        if not others:
            return 0.0, _TYPICAL_DOUBT
        other = min(others, key=lambda c: abs(log(c.world_size / near.world_size)))
        sizes, times = (np.array(column, float) for column in zip(*near.points, strict=True))
        distance = log(near.world_size / other.world_size)
        missed = np.log(times / self._carried(other, sizes, near.world_size))
        power = float(np.clip(median(missed) / distance, -1, 1))
        rest = float(quantiles(np.abs(missed - power * distance), 0.9)) / sqrt(abs(distance / log(2)))
        return power, max(rest, _MIN_DOUBT, 0.5 * abs(power) * log(2))

    def _carried(self, curve: Curve, sizes: Floats, world_size: int) -> Floats:
        """Return the law's times at another world size."""
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
        """Return the latency of one hop: from world sizes, from operations, or as a share of the latency."""
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
