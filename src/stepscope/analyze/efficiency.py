"""How much of what the chips could do did the job use: MFU, HFU, and how many samples and tokens per second?

    MFU = model FLOPs per step / (peak of one device x devices x step time)
    HFU = (model FLOPs + recomputed FLOPs) / the same

FLOPs and tokens are those of the whole job. The step is the unprofiled one where that is known: the profiler's own
cost is no loss of the job.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from stepscope.analyze.budget import PART_CODE, RankBudget, StepBudget, label_ns, painted
from stepscope.analyze.host_time import Floats, Mask, sum_by
from stepscope.analyze.kernels import KernelCosts
from stepscope.analyze.operators import FAMILY_CODE, PRECISIONS
from stepscope.cost.chips import Chip, Lookup, Peak, mfu_peak
from stepscope.cost.operators import MATMUL_FAMILIES
from stepscope.intervals import Intervals, union
from stepscope.records import Row, dataclass, once_per_record
from stepscope.run.load import Run
from stepscope.side_file import is_number
from stepscope.stats.robust import among, distinct, median
from stepscope.trace.table import EventKind, Int64s, by_string
from stepscope.units import NS_PER_S

# How many FLOPs does a step take, by the shapes that the trace recorded?
#
# Model FLOPs are those of the matrix products that the step's operators ran; recomputation in backward (activation
# checkpointing) is counted separately. The sum over ranks is the job's. It is given only where the shapes explain
# nearly all of the device's matrix-product time: kernels in CUDA graphs and custom kernels leave no shapes.

_MIN_COVERAGE = 0.98


def recorded_flops(costs: Sequence[KernelCosts], *, world_size: int | None = None) -> Row:
    """Return the job's FLOPs per step: the median over steps of each rank, summed over ranks.

    Where ranks are missing, those recorded stand for them. `coverage` is the share of the matrix-product time whose
    shapes are known, None without device products; FLOPs are None with a `reason` where unknown.
    """
    coverage = _coverage(costs)
    reason = _reason(costs, coverage)
    if reason:
        return Row(model=None, recomputed=None, coverage=coverage, reason=reason, notes=())
    scale = max(world_size or 0, len(costs)) / len(costs)
    model = scale * sum(_per_step(one, recomputed=False) for one in costs)
    recomputed = scale * sum(_per_step(one, recomputed=True) for one in costs)
    return Row(model=model, recomputed=recomputed, coverage=coverage, reason=None, notes=_notes(costs, scale))


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
    if unsure > 0.01 * total:
        notes.append(
            f"FLOPs are a lower bound: {unsure / total:.0%} of them are of packed sequences, taken as equally long"
        )
    return tuple(notes)


@dataclass(frozen=True)
class GivenValues:
    """Facts about the job given by the user; they override detected ones. Whole job, per step; peak of one device."""

    flops_per_step: float | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    peak_tflops: float | None = None


def efficiency(
    run: Run, costs: Sequence[KernelCosts], *, chip: Lookup, step_ns: float | None, given: GivenValues | None = None
) -> Row:
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
    return Row(
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
    """Return the number of ranks of the job: from a file, and at least those that were read."""
    return max(run.world_size or 0, len(run.ranks), 1)


def _flops(run: Run, given: GivenValues, recorded: Row) -> tuple[float | None, str | None]:
    sources = (
        (given.flops_per_step, "given"),
        (_number(run.description.get("flops_per_step")), "run.json"),
        (recorded.model, "recorded shapes"),
    )
    return next(((flops, source) for flops, source in sources if flops), (None, None))


def _recomputed(run: Run, recorded: Row) -> float | None:
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
    recorded: Row,
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


# From peak to achieved.

# What was the compute time of a step spent on: matrix products in which precision, recomputation, or other kernels?
#
# Where kernels of several kinds run at once, a matrix product counts before recomputed work, and that before the rest.

# column of recomputed work; the columns before it are matrix products by precision
RECOMPUTED = len(PRECISIONS)
# column of everything else
OTHER = RECOMPUTED + 1

COMPUTE_PARTS = [PART_CODE[part] for part in ("forward", "backward", "optimizer", "other_compute")]

_MATMUL_CODES = [FAMILY_CODE[family] for family in MATMUL_FAMILIES]


def compute_kinds_ns(budget: RankBudget, costs: KernelCosts) -> Int64s:
    """Return one row per period and one column per kind; rows sum to the budget's compute parts."""
    kind, start, end = _work(costs) if costs.rank.has_device else _host_work(costs)
    cuts = budget.periods.cuts
    layers = [(code, _kept_union(start, end, kind == code)) for code in range(OTHER)]
    found = label_ns(painted(layers, cuts), cuts, OTHER)[np.searchsorted(cuts, budget.periods.start_ns)]
    other = budget.part_ns[:, COMPUTE_PARTS].sum(axis=1) - found.sum(axis=1)
    # Products that the budget counts elsewhere (in a data loader) are no compute: take the excess from the largest.
    found[np.arange(len(found)), found.argmax(axis=1)] += np.minimum(other, 0)
    return np.column_stack((np.maximum(found, 0), np.maximum(other, 0)))


def _work(costs: KernelCosts) -> tuple[Int64s, Int64s, Int64s]:
    work = costs.rank.work
    computes = work.kind == EventKind.KERNEL
    return _kinds(costs.precision, costs.is_matmul & computes, costs.recomputed & computes), work.start_ns, work.end_ns


def _host_work(costs: KernelCosts) -> tuple[Int64s, Int64s, Int64s]:
    calls = costs.calls
    product = calls.counted & among(calls.family, _MATMUL_CODES)
    return _kinds(calls.operand, product, calls.recomputed), calls.calls.start_ns, calls.calls.end_ns


def _kinds(precision: npt.NDArray[np.uint8], product: Mask, recomputed: Mask) -> Int64s:
    return np.where(recomputed, RECOMPUTED, np.where(product, precision, OTHER)).astype(np.int64)


def _kept_union(start: Int64s, end: Int64s, keep: Mask) -> Intervals:
    return union(start[keep], end[keep])


# Error of each loss of the waterfall, at about 95 %, in points of the peak.
#
# Two errors add up. Steps differ: two standard errors of the mean over the recorded steps, and over ranks if some were
# not recorded (the mean over all ranks is exact). And the order in which the profiler's overhead was subtracted from
# the host's losses is a model: time subtracted from one of them may belong to another, at most as much as that other
# holds; half of it counts.


def _loss_errors(
    budgets: Sequence[RankBudget],
    measured: Sequence[Floats],
    *,
    corrected_ns: Floats,
    host: Mask,
    num_ranks: int,
) -> Floats | None:
    """Return the error of each loss, None where a rank has fewer than two complete steps.

    `measured` has the losses of each rank's periods in ns, `corrected_ns` those of the run's step with the profiler's
    overhead subtracted; `host` marks the losses that a slower host makes.
    """
    used = [np.flatnonzero(budget.periods.complete) for budget in budgets]
    if min(len(use) for use in used) < 2:
        return None
    shares = [
        100 * losses[use] / budget.periods.dur_ns[use, None]
        for budget, losses, use in zip(budgets, measured, used, strict=True)
    ]
    typical = [losses[budget.periods.typical].mean(axis=0) for budget, losses in zip(budgets, measured, strict=True)]
    before = np.mean(typical, axis=0)
    taken = np.maximum(before - corrected_ns, 0) * host
    left = np.maximum(corrected_ns, 0) * host
    misplaced = np.minimum(taken, left.sum() - left) + np.minimum(left, taken.sum() - taken)
    doubt: Floats = 0.5 * np.where(host & (corrected_ns <= before), misplaced, np.abs(corrected_ns - before))
    return _spread(shares, num_ranks) + 100 * doubt / corrected_ns.sum()


def _spread(shares: Sequence[Floats], num_ranks: int) -> Floats:
    n = len(shares)
    of_steps = np.mean([share.var(axis=0, ddof=1) / len(share) for share in shares], axis=0) / n
    means = np.array([share.mean(axis=0) for share in shares])
    of_ranks = means.var(axis=0, ddof=1) / n if n > 1 else np.zeros_like(of_steps)
    spread: Floats = 2.0 * np.sqrt(of_steps + (1 - n / num_ranks) * of_ranks)
    return spread


ACHIEVED = "achieved"

_PARTS_OF_LOSS = {
    "wait_for_stragglers": ("wait",),
    "exposed_transfer": ("exposed_transfer",),
    "pipeline_bubble": ("pipeline_bubble",),
    "data_loading": ("data_loading",),
    "launch_gaps": ("launch_gap",),
    "host_sync": ("host_sync",),
    "copies": ("copy",),
    "other_idle": ("allocator", "host_stall", "unknown"),
}
# rows of the waterfall, in order; the last is what is left
LOSSES = (*_PARTS_OF_LOSS, "non_matmul_kernels", "recomputation", "precision", "matmul_below_peak", ACHIEVED)

# losses that a slower host makes, and so the profiler
_HOSTS = ("wait_for_stragglers", "pipeline_bubble", "data_loading", "launch_gaps", "host_sync", "other_idle")


def waterfall(
    budgets: Sequence[RankBudget | None],
    costs: Sequence[KernelCosts],
    *,
    step: StepBudget | None,
    efficiency: Row,
    chip: Chip | None,
) -> Row:
    """Return the waterfall of a run. `budgets` and `costs` are in the order of the run's ranks."""
    if efficiency.mfu is None or step is None:
        return Row(rows=None, notes=tuple(efficiency.notes) or ("no waterfall: no steps were recorded",))
    pairs = [(budget, cost) for budget, cost in zip(budgets, costs, strict=True) if budget is not None]
    kinds = [compute_kinds_ns(budget, cost).astype(float) for budget, cost in pairs]
    slower = _slower(efficiency, chip)
    achieved_ns = efficiency.mfu * step.step_ns
    measured = _measured(pairs, kinds, slower, achieved_ns)
    mean_ns = _losses(step.rank_part_ns, _corrected_kinds(pairs, kinds, step), slower, achieved_ns).mean(axis=0)
    if (below := float(mean_ns[LOSSES.index("matmul_below_peak")])) < 0:
        why = (
            f"no waterfall: matrix products took {-below / step.step_ns:.1%} of the step less than their FLOPs need at "
            "peak: the FLOPs are too many (causal attention is counted in full), the peak is too low, or kernels "
            "are missing"
        )
        return Row(rows=None, notes=(why,))
    error = _loss_errors(
        [budget for budget, _ in pairs],
        measured,
        corrected_ns=mean_ns,
        host=np.array([loss in _HOSTS for loss in LOSSES]),
        num_ranks=efficiency.num_ranks,
    )
    unknown = {"precision"} if chip is None else set()
    rows = tuple(
        Row(loss=loss, **dict.fromkeys(("pct_of_peak", "ns_per_step", "plus_minus")))
        if loss in unknown
        else Row(
            loss=loss,
            pct_of_peak=100 * float(ns) / step.step_ns,
            ns_per_step=float(ns),
            plus_minus=None if error is None else float(error[i]),
        )
        for i, (loss, ns) in enumerate(zip(LOSSES, mean_ns, strict=True))
    )
    return Row(rows=rows, notes=_waterfall_notes(chip, error))


def step_losses_ns(
    budgets: Sequence[RankBudget | None],
    costs: Sequence[KernelCosts],
    *,
    step: StepBudget | None,
    efficiency: Row,
    chip: Chip | None,
) -> list[Floats] | None:
    """Return the losses of every period of every rank with a budget, as profiled, one column per entry of LOSSES;
    None where the waterfall is unknown.
    """
    if efficiency.mfu is None or step is None:
        return None
    pairs = [(budget, cost) for budget, cost in zip(budgets, costs, strict=True) if budget is not None]
    kinds = [compute_kinds_ns(budget, cost).astype(float) for budget, cost in pairs]
    return _measured(pairs, kinds, _slower(efficiency, chip), efficiency.mfu * step.step_ns)


def _measured(
    pairs: Sequence[tuple[RankBudget, KernelCosts]], kinds: Sequence[Floats], slower: Floats, achieved_ns: float
) -> list[Floats]:
    return [
        _losses(budget.part_ns.astype(float), kind, slower, achieved_ns)
        for (budget, _), kind in zip(pairs, kinds, strict=True)
    ]


def _slower(efficiency: Row, chip: Chip | None) -> Floats:
    best = _reference_flops(efficiency, chip)
    rates = [chip.peak_flops(precision) if chip else None for precision in PRECISIONS]
    return np.array([max(0.0, 1 - rate / best) if best and rate else 0.0 for rate in rates])


def _reference_flops(efficiency: Row, chip: Chip | None) -> float | None:
    if chip is None:
        return None
    if efficiency.peak_precision:
        return chip.peak_flops(efficiency.peak_precision)
    sixteen_bit = mfu_peak(chip)
    return sixteen_bit.flops_per_s if sixteen_bit else None


def _losses(part_ns: Floats, kind_ns: Floats, slower: Floats, achieved_ns: float) -> Floats:
    in_time = [part_ns[:, [PART_CODE[part] for part in parts]].sum(axis=1) for parts in _PARTS_OF_LOSS.values()]
    products = kind_ns[:, :RECOMPUTED]
    precision = products @ slower
    achieved = np.full(len(part_ns), achieved_ns)
    below = products.sum(axis=1) - precision - achieved
    return np.column_stack((*in_time, kind_ns[:, OTHER], kind_ns[:, RECOMPUTED], precision, below, achieved))


def _corrected_kinds(
    pairs: Sequence[tuple[RankBudget, KernelCosts]], kinds: Sequence[Floats], step: StepBudget
) -> Floats:
    out = []
    for (budget, _), kind, parts in zip(pairs, kinds, step.rank_part_ns, strict=True):
        mean = kind[budget.periods.typical].mean(axis=0)
        total = mean.sum()
        out.append(mean * (parts[COMPUTE_PARTS].sum() / total) if total else mean)
    return np.array(out)


def _waterfall_notes(chip: Chip | None, error: Floats | None) -> tuple[str, ...]:
    notes = []
    if chip is None:
        notes.append("loss to precision unknown: the chip is not in the hardware table; it is in matmul_below_peak")
    if error is None:
        notes.append("waterfall without error bars: fewer than two complete steps were recorded on a rank")
    return tuple(notes)
