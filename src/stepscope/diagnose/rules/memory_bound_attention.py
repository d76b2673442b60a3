"""`memory-bound-attention`: attention written out, with its S x S matrices in memory."""

import json

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.analyze.replay.changes import with_work_times
from stepscope.cost.chips.hardware import mfu_peak
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import device_ms
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind

_MIN_SEQUENCE = 128
_REACHED = 0.4
"""share of the peak that fused attention reaches, forward and backward together"""
_BACKWARD_REPEATS = 1.2
"""fused attention computes the scores again in backward"""


def memory_bound_attention(account: Account) -> list[Candidate]:
    """Return the work on S x S matrices, where a softmax over them shows that it is attention."""
    peak = mfu_peak(account.chip.chip) if account.chip.chip else None
    if peak is None:
        return []
    by_rank = [view.costs for view in account.ranks]
    chosen = [_on_square_scores(costs) for costs in by_rank]
    spent = device_ms(account, chosen)
    if not spent or not any(_has_softmax(c, mask) for c, mask in zip(by_rank, chosen, strict=True)):
        return []
    times = []
    for costs, mask in zip(by_rank, chosen, strict=True):
        flops = float(np.nansum(costs.flops[mask & costs.is_matmul]))
        fused_ns = _BACKWARD_REPEATS * flops / (peak.flops_per_s * _REACHED) * 1e9
        total = float(costs.duration_ns[mask].sum())
        times.append(costs.duration_ns.astype(float) * min(1.0, fused_ns / total if total else 1.0))
    return [
        Candidate(
            id="memory-bound-attention",
            title="Attention writes its score matrices to memory",
            cause="scores, mask, softmax and dropout are separate kernels over tensors of sequence x sequence",
            remedy="Use torch.nn.functional.scaled_dot_product_attention (or FlashAttention); pass is_causal=True instead of a mask. "
            "The saving is of fused attention.",
            change=lambda replay: with_work_times(replay, chosen, times),
            cost_ns=spent * 1e6,
            evidence=(Evidence("device work on score matrices per step", round(spent, 3), "ms", "mean rank"),),
            doubt=0.2,
        )
    ]


def _on_square_scores(costs: KernelCosts) -> npt.NDArray[np.bool_]:
    """Return the work of operators that read or write a batch of square matrices of sequence length."""
    rank, work = costs.rank, costs.rank.work
    op = distinct(work.op_row[(work.op_row >= 0) & (work.step >= 0)])
    names, dims = rank.trace["name"][op], rank.trace.arg("input_dims").at(op, missing=-1)
    strings = rank.trace.strings
    _, first, variant = np.unique(
        names.astype(np.int64) * (len(strings) + 1) + dims, return_index=True, return_inverse=True
    )
    pairs = zip(names[first].tolist(), dims[first].tolist(), strict=True)
    verdicts = [shape >= 0 and _is_square(strings[name], strings[shape]) for name, shape in pairs]
    square = np.zeros(rank.trace.num_events + 1, bool)
    square[op] = np.array(verdicts, bool)[variant]
    return square[work.op_row] & (work.op_row >= 0) & (work.step >= 0) & (work.kind != EventKind.COMM_KERNEL)


def _is_square(name: str, dims: str) -> bool:
    try:
        found = json.loads(dims)
    except (ValueError, RecursionError):
        return False
    listed = found if isinstance(found, list) else []
    shapes = [s for s in listed if isinstance(s, list) and all(isinstance(n, int) for n in s)]
    if any(len(s) >= 3 and s[-1] == s[-2] >= _MIN_SEQUENCE for s in shapes):
        return True
    two = [s for s in shapes if len(s) >= 3][:2]
    # Scores are a product of (S, d) and (d, S) with d < S.
    return "bmm" in name and len(two) == 2 and two[0][-2] == two[1][-1] >= _MIN_SEQUENCE > 0 and two[0][-1] < two[0][-2]


def _has_softmax(costs: KernelCosts, mask: npt.NDArray[np.bool_]) -> bool:
    rank = costs.rank
    rows = distinct(rank.work.op_row[mask])
    return any("softmax" in (rank.trace.text(int(n)) or "") for n in distinct(rank.trace["name"][rows]))
