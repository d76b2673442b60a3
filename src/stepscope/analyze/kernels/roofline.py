"""What holds each kernel back: arithmetic, memory bandwidth, or the time it takes to start and drain?

Held against the chip's roofline, a kernel needs at least `flops / peak` and `bytes / bandwidth`. The larger of the two
names its bound. A short kernel that takes more than twice that is bound by latency. Without shapes or without a known
chip, matrix products are taken as compute-bound and all others as memory-bound.

Where Nsight Compute measured a kernel, what it used of the multiprocessors and of the memory decides instead: the
larger of the two, and latency where both are below MIN_BUSY_PCT, as in Nsight Compute's own rule (Speed of Light).
"""

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import Floats, Mask
from stepscope.analyze.kernels.call_costs import PRECISIONS
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.cost.chips.table import Chip
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.trace.classify import EventKind

if TYPE_CHECKING:
    from stepscope.analyze.kernels.measured import MeasuredRows

SHORT_NS = 10_000
"""Kernels below this are short: about what it takes a host to launch the next one."""
_LATENCY_FACTOR = 2.0
MIN_BUSY_PCT = 60.0


class Bound(IntEnum):
    """What holds a kernel back."""

    NONE = 0
    """no kernel, or communication: bound by the link and by other ranks"""
    COMPUTE = 1
    MEMORY = 2
    LATENCY = 3

    @property
    def text(self) -> str | None:
        """Return the name in reports."""
        return (None, "compute-bound", "memory-bound", "latency")[self]


@dataclass(frozen=True, eq=False, repr=False)
class KernelBounds(ArrayRecord):
    """What holds each row of a rank's work back, and how that is known."""

    bound: npt.NDArray[np.uint8]
    from_shapes: Mask
    """shapes and chip decided it"""
    measured: Mask
    """what Nsight Compute measured decided it"""


def kernel_bounds(costs: KernelCosts, *, chip: Chip | None, measured: "MeasuredRows | None" = None) -> KernelBounds:
    """Return the `Bound` of each row of the rank's work."""
    duration = costs.duration_ns
    compute_ns, memory_ns = _least_ns(costs, chip)
    known = ~np.isnan(compute_ns + memory_ns)
    computes = np.where(known, compute_ns >= memory_ns, costs.is_matmul)
    bound = np.where(computes, np.uint8(Bound.COMPUTE), np.uint8(Bound.MEMORY))
    least_ns = np.where(known, np.maximum(compute_ns, memory_ns), 0.0)
    np.putmask(bound, (duration < SHORT_NS) & (duration > _LATENCY_FACTOR * least_ns), Bound.LATENCY)
    metered = np.zeros(len(bound), bool)
    if measured is not None:
        by_meter = _measured_bounds(measured)
        metered = by_meter != Bound.NONE
        bound[metered] = by_meter[metered]
    np.putmask(bound, costs.rank.work.kind != int(EventKind.KERNEL), Bound.NONE)
    return KernelBounds(bound, known & ~metered, metered)


def bounds_of_use(compute_pct: Floats, memory_pct: Floats) -> npt.NDArray[np.int64]:
    """Return the `Bound` of kernels by what they used of the multiprocessors and of the memory; NONE where unknown."""
    bound = np.where(compute_pct >= memory_pct, Bound.COMPUTE, Bound.MEMORY)
    bound[np.fmax(compute_pct, memory_pct) < MIN_BUSY_PCT] = Bound.LATENCY
    bound[np.isnan(compute_pct + memory_pct)] = Bound.NONE
    return bound.astype(np.int64)


def _measured_bounds(measured: "MeasuredRows") -> npt.NDArray[np.int64]:
    """Return the bounds that were measured, NONE where there is none."""
    compute, memory = measured.values("sm_pct"), measured.values("memory_pct")
    memory = np.where(np.isnan(memory), measured.values("dram_pct"), memory)
    return bounds_of_use(compute, memory)


def _least_ns(costs: KernelCosts, chip: Chip | None) -> tuple[Floats, Floats]:
    """Return the least time that each row's FLOPs and bytes take on the chip, NaN where unknown."""
    peaks = np.array([(chip.peak_flops(precision) if chip else None) or np.nan for precision in PRECISIONS])
    bandwidth = (chip.memory_gb_per_s if chip else None) or np.nan
    compute = np.where(costs.flops == 0, 0.0, costs.flops / peaks.take(costs.precision) * 1e9)
    return compute, costs.bytes / bandwidth  # bytes / (GB/s) is ns
