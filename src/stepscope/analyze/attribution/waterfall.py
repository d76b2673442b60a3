"""From the chips' peak down to what was achieved: which loss takes how much of it?

The peak is every device multiplying at its peak rate for the whole step. Time in which a device does not multiply is
lost whole. Of the time in which it does, the model's FLOPs at peak rate are `achieved`; the rest is lost to precision
(a unit slower than the best) or to products that run below their unit's peak. Losses and achieved sum to 100 %.

    |-- waits, transfer, bubbles, idle, copies --|-- other kernels --|-- recomputed --|-- products ---------------|
                                                                                      | precision | below | achieved |
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.attribution.budget import RankBudget
from stepscope.analyze.attribution.compute_kinds import COMPUTE_PARTS, OTHER, RECOMPUTED, compute_kinds_ns
from stepscope.analyze.attribution.loss_errors import loss_errors
from stepscope.analyze.attribution.without_profiler import StepBudget
from stepscope.analyze.host.calls import Floats
from stepscope.analyze.kernels.call_costs import PRECISIONS
from stepscope.analyze.kernels.efficiency import Efficiency
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.analyze.step.parts import PART_CODE
from stepscope.cost.chips.hardware import mfu_peak
from stepscope.cost.chips.table import Chip
from stepscope.dataclass import dataclass

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
LOSSES = (*_PARTS_OF_LOSS, "non_matmul_kernels", "recomputation", "precision", "matmul_below_peak", ACHIEVED)
"""rows of the waterfall, in order; the last is what is left"""

_HOSTS = ("wait_for_stragglers", "pipeline_bubble", "data_loading", "launch_gaps", "host_sync", "other_idle")
"""losses that a slower host makes, and so the profiler"""


@dataclass(frozen=True)
class Loss:
    """One row of the waterfall."""

    loss: str
    pct_of_peak: float | None
    """None where it cannot be told from the next row, which holds it"""
    ns_per_step: float | None
    plus_minus: float | None
    """points of `pct_of_peak`, about 95 %; None where a single step was recorded"""


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
    ranks = _losses(step.rank_part_ns, _corrected_kinds(pairs, kinds, step), slower, achieved_ns)
    mean_ns = ranks.mean(axis=0)
    error = loss_errors(
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
    """Return for each precision how much of the reference peak its unit lacks: 0 for the best, 0.9 for a tenth."""
    best = _reference_flops(efficiency, chip)
    rates = [chip.peak_flops(precision) if chip else None for precision in PRECISIONS]
    return np.array([max(0.0, 1 - rate / best) if best and rate else 0.0 for rate in rates])


def _reference_flops(efficiency: Efficiency, chip: Chip | None) -> float | None:
    """Return the chip's rate in the precision of the peak; where the peak was given, its 16-bit rate."""
    if chip is None:
        return None
    if efficiency.peak_precision:
        return chip.peak_flops(efficiency.peak_precision)
    sixteen_bit = mfu_peak(chip)
    return sixteen_bit.flops_per_s if sixteen_bit else None


def _losses(part_ns: Floats, kind_ns: Floats, slower: Floats, achieved_ns: float) -> Floats:
    """Return one row of losses, in the order of LOSSES, per row of parts."""
    in_time = [part_ns[:, [PART_CODE[part] for part in parts]].sum(axis=1) for parts in _PARTS_OF_LOSS.values()]
    products = kind_ns[:, :RECOMPUTED]
    precision = products @ slower
    achieved = np.full(len(part_ns), achieved_ns)
    below = products.sum(axis=1) - precision - achieved
    return np.column_stack((*in_time, kind_ns[:, OTHER], kind_ns[:, RECOMPUTED], precision, below, achieved))


def _corrected_kinds(
    pairs: Sequence[tuple[RankBudget, KernelCosts]], kinds: Sequence[Floats], step: StepBudget
) -> Floats:
    """Return each rank's compute kinds in its typical steps, brought to the compute time of its corrected step."""
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
