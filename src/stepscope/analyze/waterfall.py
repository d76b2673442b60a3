"""From the chips' peak down to what was achieved: which loss takes how much of it?

The peak is every device multiplying at its peak rate for the whole step. Time in which a device does not multiply is
lost whole. Of the time in which it does, the model's FLOPs at peak rate are `achieved`; the rest is lost to precision
(a unit slower than the best) or to products that run below their unit's peak. Losses and achieved sum to 100 %.

    |-- waits, transfer, bubbles, idle, copies --|-- other kernels --|-- recomputed --|-- products ---------------|
                                                                                      | precision | below | achieved |
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.budget import RankBudget
from stepscope.analyze.efficiency import Efficiency
from stepscope.analyze.host_calls import Floats, Mask
from stepscope.analyze.kernel_costs import FAMILY_CODE, PRECISIONS, KernelCosts
from stepscope.analyze.layers import PART_CODE, label_ns, painted
from stepscope.analyze.unprofiled_budget import StepBudget
from stepscope.cost.chips import Chip, mfu_peak
from stepscope.cost.kernel_names import MATMUL_FAMILIES
from stepscope.dataclass import dataclass
from stepscope.intervals import Intervals, union
from stepscope.stats.distinct import among
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

# What was the compute time of a step spent on: matrix products in which precision, recomputation, or other kernels?
#
# Where kernels of several kinds run at once, a matrix product counts before recomputed work, and that before the rest.

# column of recomputed work; the columns before it are matrix products by precision
RECOMPUTED = len(PRECISIONS)
# column of everything else
OTHER = RECOMPUTED + 1
_NUM_KINDS = OTHER + 1

COMPUTE_PARTS = [PART_CODE[part] for part in ("forward", "backward", "optimizer", "other_compute")]

_MATMUL_CODES = [FAMILY_CODE[family] for family in MATMUL_FAMILIES]


def compute_kinds_ns(budget: RankBudget, costs: KernelCosts) -> Int64s:
    """Return one row per period and one column per kind; rows sum to the budget's compute parts."""
    kind, start, end = _work(costs) if costs.rank.has_device else _host_work(costs)
    cuts = budget.periods.cuts
    layers = [(code, _union(start, end, kind == code)) for code in range(OTHER)]
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


def _union(start: Int64s, end: Int64s, keep: Mask) -> Intervals:
    return union(start[keep], end[keep])


# How sure is each loss of the waterfall? About 95 %, in points of the peak.
#
# Two doubts add up. Steps differ: two standard errors of the mean over the recorded steps, and over ranks as far as
# ranks were not recorded (those that all were are no sample: their mean is exact). And the profiler's cost was taken
# from the host's losses in an order that is a model: what went from one of them may belong to another, at most as much
# as that other holds; half of it counts.

_STANDARD_ERRORS = 2.0
_DOUBT = 0.5


def _loss_errors(
    budgets: Sequence[RankBudget],
    measured: Sequence[Floats],
    *,
    corrected_ns: Floats,
    host: Mask,
    num_ranks: int,
) -> Floats | None:
    """Return the error of each loss, None where a rank has fewer than two complete steps.

    `measured` has the losses of each rank's periods in ns, `corrected_ns` those of the run's step with the profiler
    taken out; `host` marks the losses that a slower host makes.
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
    doubt: Floats = _DOUBT * np.where(host & (corrected_ns <= before), misplaced, np.abs(corrected_ns - before))
    return _spread(shares, num_ranks) + 100 * doubt / corrected_ns.sum()


def _spread(shares: Sequence[Floats], num_ranks: int) -> Floats:
    n = len(shares)
    of_steps = np.mean([share.var(axis=0, ddof=1) / len(share) for share in shares], axis=0) / n
    means = np.array([share.mean(axis=0) for share in shares])
    of_ranks = means.var(axis=0, ddof=1) / n if n > 1 else np.zeros_like(of_steps)
    spread: Floats = _STANDARD_ERRORS * np.sqrt(of_steps + (1 - n / num_ranks) * of_ranks)
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


@dataclass(frozen=True)
class Loss:
    """One row of the waterfall."""

    loss: str
    #: None where it cannot be told from the next row, which holds it
    pct_of_peak: float | None
    ns_per_step: float | None
    #: points of `pct_of_peak`, about 95 %; None where a single step was recorded
    plus_minus: float | None


@dataclass(frozen=True)
class Waterfall:
    """The losses in the order of LOSSES; None with a reason where FLOPs, peak or step are unknown."""

    rows: tuple[Loss, ...] | None
    notes: tuple[str, ...]


def waterfall(
    budgets: Sequence[RankBudget | None],
    costs: Sequence[KernelCosts],
    *,
    step: StepBudget | None,
    efficiency: Efficiency,
    chip: Chip | None,
) -> Waterfall:
    """Return the waterfall of a run. `budgets` and `costs` are in the order of the run's ranks."""
    if efficiency.mfu is None or step is None:
        known = "; ".join(efficiency.notes) or "no steps were recorded"
        return Waterfall(None, (f"waterfall unknown, the step's budget has the losses in time: {known}",))
    pairs = [(budget, cost) for budget, cost in zip(budgets, costs, strict=True) if budget is not None]
    kinds = [compute_kinds_ns(budget, cost).astype(float) for budget, cost in pairs]
    slower = _slower(efficiency, chip)
    achieved_ns = efficiency.mfu * step.step_ns
    measured = _measured(pairs, kinds, slower, achieved_ns)
    mean_ns = _losses(step.rank_part_ns, _corrected_kinds(pairs, kinds, step), slower, achieved_ns).mean(axis=0)
    error = _loss_errors(
        [budget for budget, _ in pairs],
        measured,
        corrected_ns=mean_ns,
        host=np.array([loss in _HOSTS for loss in LOSSES]),
        num_ranks=efficiency.num_ranks,
    )
    unknown = {"precision"} if chip is None else set()
    rows = tuple(
        Loss(loss, None, None, None)
        if loss in unknown
        else Loss(loss, 100 * float(ns) / step.step_ns, float(ns), None if error is None else float(error[i]))
        for i, (loss, ns) in enumerate(zip(LOSSES, mean_ns, strict=True))
    )
    return Waterfall(rows, _notes(mean_ns, step, chip, error))


def step_losses_ns(
    budgets: Sequence[RankBudget | None],
    costs: Sequence[KernelCosts],
    *,
    step: StepBudget | None,
    efficiency: Efficiency,
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


def _slower(efficiency: Efficiency, chip: Chip | None) -> Floats:
    best = _reference_flops(efficiency, chip)
    rates = [chip.peak_flops(precision) if chip else None for precision in PRECISIONS]
    return np.array([max(0.0, 1 - rate / best) if best and rate else 0.0 for rate in rates])


def _reference_flops(efficiency: Efficiency, chip: Chip | None) -> float | None:
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


def _notes(mean_ns: Floats, step: StepBudget, chip: Chip | None, error: Floats | None) -> tuple[str, ...]:
    notes = []
    below = float(mean_ns[LOSSES.index("matmul_below_peak")])
    if below < 0:
        notes.append(
            f"matrix products took {-below / step.step_ns:.1%} of the step less than their FLOPs need at peak: "
            "the FLOPs per step are too many (causal attention is counted in full) or the peak is too low"
        )
    if chip is None:
        notes.append("loss to precision unknown: the chip is not in the hardware table; it is in matmul_below_peak")
    if error is None:
        notes.append("waterfall without error bars: fewer than two complete steps were recorded on a rank")
    return tuple(notes)
