"""How many FLOPs does a step take, by the shapes that the trace recorded?

Model FLOPs are those of the matrix products that the step's operators ran; what backward ran again (activation
checkpointing) is counted apart. The sum over ranks is the job's. It is given only where the shapes explain nearly
all of the device's matrix-product time: kernels in CUDA graphs and custom kernels leave no shapes.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from stepscope.analyze.host.calls import Mask, sum_by
from stepscope.analyze.kernels.call_costs import PRECISIONS
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.dataclass import dataclass
from stepscope.records import once_per_record
from stepscope.stats.middle import median
from stepscope.trace.classify import by_string
from stepscope.trace.table import Int64s

_MIN_COVERAGE = 0.98
_MAX_UNSURE_SHARE = 0.01


@dataclass(frozen=True)
class RecordedFlops:
    """FLOPs of the whole job per step; None with a reason where the trace does not tell."""

    model: float | None
    recomputed: float | None
    coverage: float | None
    """share of the matrix-product time in recorded steps whose shapes are known; None without device products"""
    reason: str | None = None
    notes: tuple[str, ...] = ()


def recorded_flops(costs: Sequence[KernelCosts], *, world_size: int | None = None) -> RecordedFlops:
    """Return the job's FLOPs per step: the median over steps of each rank, summed over ranks.

    Where ranks are missing, those recorded stand for them.
    """
    coverage = _coverage(costs)
    reason = _reason(costs, coverage)
    if reason:
        return RecordedFlops(None, None, coverage, reason)
    scale = max(world_size or 0, len(costs)) / len(costs)
    model = scale * sum(_per_step(one, recomputed=False) for one in costs)
    recomputed = scale * sum(_per_step(one, recomputed=True) for one in costs)
    return RecordedFlops(model, recomputed, coverage, notes=_notes(costs, scale))


def precision_shares(costs: Iterable[KernelCosts]) -> dict[str, float]:
    """Return how the matrix products divide over operand types, largest first: by FLOPs, or by time without shapes.

    Empty where there are none, or none whose type is known.
    """
    flops, time = np.zeros(len(PRECISIONS)), np.zeros(len(PRECISIONS))
    for one in costs:
        if one.rank.has_device:
            flops += sum_by(one.precision, np.nan_to_num(one.flops), len(PRECISIONS))
            time += sum_by(one.precision, one.duration_ns.astype(np.float64), len(PRECISIONS))
        else:
            flops += sum_by(one.calls.operand, one.calls.flops, len(PRECISIONS))
    weight = flops if flops[1:].any() else time
    total = weight[1:].sum()
    shares = {name: float(w / total) for name, w in zip(PRECISIONS[1:], weight[1:], strict=True) if w > 0}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


@once_per_record
def _products(costs: KernelCosts) -> Int64s:
    """Return the calls in recorded steps that multiplied, on the device where the rank has one."""
    calls = costs.calls
    ours = np.flatnonzero(calls.flops > 0)
    ours = ours[costs.rank.steps.of(calls.calls.start_ns[ours]) >= 0]
    if costs.rank.has_device:
        launched = np.zeros(len(calls.calls), bool)
        launched[costs.call[costs.call >= 0]] = True
        ours = ours[launched[ours]]
    return ours


def _per_step(costs: KernelCosts, *, recomputed: bool) -> float:
    calls = _products(costs)
    calls = calls[costs.calls.recomputed[calls] == recomputed]
    step = costs.rank.steps.of(costs.calls.calls.start_ns[calls])
    return median(sum_by(step, costs.calls.flops[calls], len(costs.rank.steps)))


def _coverage(costs: Sequence[KernelCosts]) -> float | None:
    known = total = 0
    for one in costs:
        products = _device_products(one)
        total += int(one.duration_ns[products].sum())
        known += int(one.duration_ns[products & (one.flops > 0)].sum())
    return known / total if total else None


def _device_products(costs: KernelCosts) -> Mask:
    """Return the kernels of recorded steps that multiply; those that only serve a product have no operand type."""
    return costs.is_matmul & (costs.rank.work.step >= 0) & ((costs.precision > 0) | (costs.tensor_core != 0))


def _reason(costs: Sequence[KernelCosts], coverage: float | None) -> str | None:
    """Return why the FLOPs are unknown, None where they are known."""
    give = "give --flops-per-step"
    if any(not one.rank.steps.known for one in costs) or not costs:
        return f"FLOPs unknown: the trace has no recorded steps; {give}"
    if not any(len(_products(one)) for one in costs) or (coverage or 1.0) < _MIN_COVERAGE:
        return f"FLOPs unknown: {_what_is_missing(costs, coverage)}; {give}"
    return None


def _what_is_missing(costs: Sequence[KernelCosts], coverage: float | None) -> str:
    if not any(len(one.rank.trace.arg("input_dims").rows) for one in costs):
        return "shapes were not recorded (record_shapes=True records them)"
    if coverage is None:
        return "no matrix products with recorded shapes"
    graphs = sum(_graph_ns(one) for one in costs) / sum(
        int(one.duration_ns[_device_products(one)].sum()) for one in costs
    )
    if graphs > 1 - _MIN_COVERAGE:
        return f"{graphs:.0%} of the matrix-product time is in CUDA graphs, whose kernels have no shapes"
    return f"the shapes of {1 - coverage:.0%} of the matrix-product time are not recorded"


def _graph_ns(costs: KernelCosts) -> int:
    """Return the time of matrix products that a graph launched."""
    trace, work = costs.rank.trace, costs.rank.work
    launched = np.flatnonzero(_device_products(costs) & (work.launch_row >= 0))
    names = trace["name"][work.launch_row[launched]]
    by_graph = by_string(trace, names, lambda s: "GraphLaunch" in s).astype(bool)
    return int(costs.duration_ns[launched[by_graph]].sum())


def _notes(costs: Sequence[KernelCosts], scale: float) -> tuple[str, ...]:
    notes = []
    if scale > 1:
        notes.append(f"FLOPs of ranks that were not recorded are taken as the mean of the {len(costs)} recorded")
    unsure = total = 0.0
    for one in costs:
        products = _products(one)
        flops = one.calls.flops[products]
        unsure += float(flops[one.calls.lower_bound[products]].sum())
        total += float(flops.sum())
    if unsure > _MAX_UNSURE_SHARE * total:
        notes.append(
            f"FLOPs are a lower bound: {unsure / total:.0%} of them are of packed sequences, taken as equally long"
        )
    return tuple(notes)
