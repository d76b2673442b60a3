"""`precision`: matrix products off the tensor cores, or wider than they need to be."""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.abilities import Abilities, abilities
from stepscope.analyze.kernels.call_costs import PRECISION_CODE
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.analyze.replay.changes import with_work_times
from stepscope.analyze.step.phases import trains
from stepscope.cost.chips.hardware import mfu_peak
from stepscope.cost.chips.table import Chip
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import device_ms
from stepscope.stats.distinct import among

_WIDE = (PRECISION_CODE["fp64"], PRECISION_CODE["fp32"], PRECISION_CODE["tf32"])
_REACHED = 0.6
"""share of the peak that 16-bit products of a size worth the name reach"""
_NARROW = (PRECISION_CODE["fp16"], PRECISION_CODE["bf16"])
_MIN_SHARE_OF_STEP = 0.5
"""changing the precision is no small thing: proposed where such products are most of the step; below that the
waterfall shows what they cost"""
_MIN_SHARE_BESIDE_NARROW = 0.05
"""where the job computes in 16 bit already, what is left in 32 bit was left out rather than decided on"""
_MIN_KERNEL_NS = 3_000.0


def precision(account: Account) -> list[Candidate]:
    """Return 32-bit matrix products on a chip whose 16-bit units are faster."""
    chip = account.chip.chip
    peak = mfu_peak(chip) if chip else None
    if chip is None or peak is None:
        return []
    costs = [view.costs for view in account.ranks]
    chosen = [c.is_matmul & among(c.precision, _WIDE) & (c.rank.work.step >= 0) for c in costs]
    spent = device_ms(account, chosen)
    narrow = device_ms(account, [c.is_matmul & among(c.precision, _NARROW) & (c.rank.work.step >= 0) for c in costs])
    mixed = narrow > spent / 2
    needed = _MIN_SHARE_BESIDE_NARROW if mixed else _MIN_SHARE_OF_STEP
    if account.step is None or spent * 1e6 < needed * account.step.step_ns:
        return []
    times = [_sixteen_bit_ns(c, mask, chip, peak.flops_per_s) for c, mask in zip(costs, chosen, strict=True)]
    off = [c.is_matmul & (c.tensor_core == 0) & mask for c, mask in zip(costs, chosen, strict=True)]
    can = abilities(account.run.ranks, chip)
    return [
        Candidate(
            id="precision",
            title="Some matrix products run in 32 bit beside others in 16"
            if mixed
            else "Matrix products run in 32 bit",
            cause="products off the tensor cores"
            if device_ms(account, off) > spent / 2
            else f"products in {'TF32 or FP32' if can.tf32 is not False else 'FP32'}",
            remedy=_remedy_of_the_rest(can) if mixed else _remedy(can, trains=bool(trains(account.strategy.passes))),
            change=lambda replay: with_work_times(replay, chosen, times),
            cost_ns=spent * 1e6,
            evidence=(
                Evidence("32-bit matrix products per step", round(spent, 3), "ms", "mean rank"),
                Evidence("of it off the tensor cores", round(device_ms(account, off), 3), "ms", "mean rank"),
            ),
            doubt=0.2,
        )
    ]


def _remedy_of_the_rest(can: Abilities) -> str:
    """Return what to do where most products are in 16 bit already."""
    return (
        f"Bring these layers under the autocast region as well (or cast their inputs and weights to torch.{can.narrow}): "
        "the rest of the job computes in 16 bit. Keep the loss and the statistics that need it in 32 bit, after the "
        "product. The saving is of 16-bit products at the rate such shapes reach."
    )


def _remedy(can: Abilities, *, trains: bool) -> str:
    """Return what to write on this chip: the 16-bit type it has, and TF32 only where it has that."""
    scaler = " with torch.amp.GradScaler, because its range is small" if can.narrow == "float16" and trains else ""
    around = "forward and loss" if trains else "the forward pass"
    least = "; at least torch.set_float32_matmul_precision('high') for TF32" if can.tf32 is not False else ""
    return (
        f"Use torch.autocast('cuda', torch.{can.narrow}) around {around}{scaler} (or load the model in {can.narrow}){least}. "
        "The saving is of 16-bit products at the rate such shapes reach."
    )


def _sixteen_bit_ns(
    costs: KernelCosts, mask: npt.NDArray[np.bool_], chip: Chip, peak_flops: float
) -> npt.NDArray[np.float64]:
    """Return what each product would take in 16 bit: its FLOPs at a reachable rate, or half its bytes."""
    by_flops = costs.flops / (peak_flops * _REACHED) * 1e9
    by_bytes = costs.bytes / 2 / chip.memory_gb_per_s if chip.memory_gb_per_s else np.zeros(len(mask))
    # Without shapes the ratio of the units' peaks stands in.
    own = chip.peak_flops("fp32") or peak_flops
    unknown = costs.duration_ns * min(1.0, own / (peak_flops * _REACHED))
    best = np.where(np.isnan(by_flops), unknown, np.fmax(by_flops, by_bytes))
    return np.minimum(np.maximum(best, _MIN_KERNEL_NS), costs.duration_ns)
