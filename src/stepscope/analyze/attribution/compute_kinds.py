"""What was the compute time of a step spent on: matrix products in which precision, recomputation, or other kernels?

Where kernels of several kinds run at once, a matrix product counts before recomputed work, and that before the rest.
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.attribution.budget import RankBudget
from stepscope.analyze.host.calls import Mask
from stepscope.analyze.kernels.call_costs import FAMILY_CODE, PRECISIONS
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.analyze.step.layers import label_ns, painted
from stepscope.analyze.step.parts import PART_CODE
from stepscope.cost.operators.families import MATMUL_FAMILIES
from stepscope.intervals import Intervals, union
from stepscope.stats.distinct import among
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

RECOMPUTED = len(PRECISIONS)
"""column of recomputed work; the columns before it are matrix products by precision"""
OTHER = RECOMPUTED + 1
"""column of everything else"""
NUM_KINDS = OTHER + 1

COMPUTE_PARTS = [PART_CODE[part] for part in ("forward", "backward", "optimizer", "other_compute")]

_MATMUL_CODES = [FAMILY_CODE[family] for family in MATMUL_FAMILIES]


def compute_kinds_ns(budget: RankBudget, costs: KernelCosts) -> Int64s:
    """Return one row per period and one column per kind; rows sum to the budget's compute parts."""
    kind, start, end = _work(costs) if costs.rank.has_device else _host_work(costs)
    cuts = budget.periods.cuts
    layers = [(code, _union(start, end, kind == code)) for code in range(OTHER)]
    between = label_ns(painted(layers, cuts), cuts, OTHER)
    found = between[np.searchsorted(cuts, budget.periods.start_ns)]
    compute = budget.part_ns[:, COMPUTE_PARTS].sum(axis=1)
    other = compute - found.sum(axis=1)
    # Products that the budget counts elsewhere (in a data loader) are no compute: take the excess from the largest.
    found[np.arange(len(found)), found.argmax(axis=1)] += np.minimum(other, 0)
    return np.column_stack((np.maximum(found, 0), np.maximum(other, 0)))


def _work(costs: KernelCosts) -> tuple[Int64s, Int64s, Int64s]:
    """Return kind, start and end of the device's kernels."""
    work = costs.rank.work
    computes = work.kind == EventKind.KERNEL
    return _kinds(costs.precision, costs.is_matmul & computes, costs.recomputed & computes), work.start_ns, work.end_ns


def _host_work(costs: KernelCosts) -> tuple[Int64s, Int64s, Int64s]:
    """Return kind, start and end of the operators of a rank without a device."""
    calls = costs.calls
    product = calls.counted & among(calls.family, _MATMUL_CODES)
    return _kinds(calls.operand, product, calls.recomputed), calls.calls.start_ns, calls.calls.end_ns


def _kinds(precision: npt.NDArray[np.uint8], product: Mask, recomputed: Mask) -> Int64s:
    return np.where(recomputed, RECOMPUTED, np.where(product, precision, OTHER)).astype(np.int64)


def _union(start: Int64s, end: Int64s, keep: Mask) -> Intervals:
    return union(start[keep], end[keep])
