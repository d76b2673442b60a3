"""How much of what the chips could do did the job use: MFU, HFU, and how many samples and tokens per second?

    MFU = model FLOPs per step / (peak of one device x devices x step time)
    HFU = (model FLOPs + recomputed FLOPs) / the same

FLOPs and tokens are those of the whole job. The step is the unprofiled one where that is known: the profiler's own
cost is no loss of the job.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from stepscope.analyze.host_calls import Mask, sum_by
from stepscope.analyze.kernel_costs import PRECISIONS, KernelCosts
from stepscope.cost.chips import Lookup, Peak, mfu_peak
from stepscope.dataclass import dataclass
from stepscope.records import once_per_record
from stepscope.run.load import Run
from stepscope.side_file import is_number
from stepscope.stats.distinct import distinct
from stepscope.stats.robust import median
from stepscope.trace.classify import by_string
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_S

# How many FLOPs does a step take, by the shapes that the trace recorded?
#
# Model FLOPs are those of the matrix products that the step's operators ran; what backward ran again (activation
# checkpointing) is counted apart. The sum over ranks is the job's. It is given only where the shapes explain nearly
# all of the device's matrix-product time: kernels in CUDA graphs and custom kernels leave no shapes.

_MIN_COVERAGE = 0.98
_MAX_UNSURE_SHARE = 0.01


@dataclass(frozen=True)
class RecordedFlops:
    """FLOPs of the whole job per step; None with a reason where the trace does not tell."""

    model: float | None
    recomputed: float | None
    #: share of the matrix-product time in recorded steps whose shapes are known; None without device products
    coverage: float | None
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
    return costs.is_matmul & (costs.rank.work.step >= 0) & ((costs.precision > 0) | (costs.tensor_core != 0))


def _reason(costs: Sequence[KernelCosts], coverage: float | None) -> str | None:
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


# To be said next to FLOPs.
_ATTENTION_COUNTED = "attention counted in full, not halved for causality"


@dataclass(frozen=True)
class GivenValues:
    """What the user says of the job; it goes before what is found. Whole job, per step; peak of one device."""

    flops_per_step: float | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    peak_tflops: float | None = None


@dataclass(frozen=True)
class Efficiency:
    """How well the job used its devices. What is None has its reason in `notes`."""

    mfu: float | None
    hfu: float | None
    #: model FLOPs of the whole job
    flops_per_step: float | None
    #: `given`, `run.json` or `recorded shapes`
    flops_source: str | None
    recomputed_flops_per_step: float | None
    #: of one device
    peak_tflops: float | None
    peak_source: str | None
    #: operand type that the peak is of; None where it was given
    peak_precision: str | None
    #: operand type of most matrix products
    precision: str | None
    #: of the job, recorded or not
    num_ranks: int
    num_devices: int
    samples_per_s: float | None
    tokens_per_s: float | None
    notes: tuple[str, ...]


def efficiency(
    run: Run, costs: Sequence[KernelCosts], *, chip: Lookup, step_ns: float | None, given: GivenValues | None = None
) -> Efficiency:
    """Return the job's efficiency. `step_ns` is the unprofiled step where known, else the profiled one."""
    said = given or GivenValues()
    recorded = recorded_flops(costs, world_size=run.world_size)
    shares = precision_shares(costs)
    flops, flops_source = _flops(run, said, recorded)
    recomputed = _recomputed(run, recorded)
    peak, peak_reason = _peak(chip, said, shares)
    devices = max((max(len(distinct(rank.work.device)), 1) for rank in run.ranks), default=1) * num_ranks(run)
    available = peak.flops_per_s * devices * step_ns / NS_PER_S if peak and step_ns else None
    mfu = flops / available if flops and available else None
    return Efficiency(
        mfu=mfu,
        hfu=(flops + recomputed) / available if flops and available and recomputed is not None else None,
        flops_per_step=flops,
        flops_source=flops_source,
        recomputed_flops_per_step=recomputed,
        peak_tflops=peak.flops_per_s / 1e12 if peak else None,
        peak_source=peak.source if peak else None,
        peak_precision=peak.precision if peak and said.peak_tflops is None else None,
        precision=next(iter(shares), None),
        num_ranks=num_ranks(run),
        num_devices=devices,
        samples_per_s=_per_second(_first(said.samples_per_step, run.description.get("samples_per_step")), step_ns),
        tokens_per_s=_per_second(_first(said.tokens_per_step, run.description.get("tokens_per_step")), step_ns),
        notes=_efficiency_notes(recorded, flops_source, peak_reason, step_ns=step_ns, mfu=mfu, recomputed=recomputed),
    )


def num_ranks(run: Run) -> int:
    """Return how many ranks the job had: as a file says it, at least those that were read."""
    return max(run.world_size or 0, len(run.ranks), 1)


def _flops(run: Run, given: GivenValues, recorded: RecordedFlops) -> tuple[float | None, str | None]:
    sources = (
        (given.flops_per_step, "given"),
        (_number(run.description.get("flops_per_step")), "run.json"),
        (recorded.model, "recorded shapes"),
    )
    return next(((flops, source) for flops, source in sources if flops), (None, None))


def _recomputed(run: Run, recorded: RecordedFlops) -> float | None:
    if recorded.recomputed is not None:
        return recorded.recomputed
    model, hardware = (_number(run.description.get(key)) for key in ("flops_per_step", "hardware_flops_per_step"))
    return hardware - model if hardware and model else None


def _peak(chip: Lookup, given: GivenValues, shares: dict[str, float]) -> tuple[Peak | None, str | None]:
    if given.peak_tflops:
        return Peak(given.peak_tflops * 1e12, "given", "given"), None
    if chip.chip is None:
        return None, f"peak unknown: {chip.reason}"
    peak = mfu_peak(chip.chip, eight_bit_share=shares.get("fp8", 0.0))
    return peak, None if peak else f"peak unknown: {chip.chip.name} has no 16-bit matrix unit; give --peak-tflops"


def _efficiency_notes(
    recorded: RecordedFlops,
    flops_source: str | None,
    peak_reason: str | None,
    *,
    step_ns: float | None,
    mfu: float | None,
    recomputed: float | None,
) -> tuple[str, ...]:
    notes = list(recorded.notes) if flops_source == "recorded shapes" else []
    if flops_source is None and recorded.reason:
        notes.append(recorded.reason)
    if peak_reason:
        notes.append(peak_reason)
    if not step_ns:
        notes.append("MFU unknown: the step time is not known")
    if mfu is not None and recomputed is None:
        notes.append(f"HFU unknown: how much was recomputed is not known ({recorded.reason})")
    if mfu is not None and mfu > 1:
        notes.append(f"MFU is {mfu:.0%}: the FLOPs per step or the peak cannot be right")
    return tuple(notes)


def _per_second(count: float | None, step_ns: float | None) -> float | None:
    return count * NS_PER_S / step_ns if count and step_ns else None


def _first(said: float | None, described: object) -> float | None:
    return said if said is not None else _number(described)


def _number(value: object) -> float | None:
    return float(cast(float, value)) if is_number(value, low=0) else None
