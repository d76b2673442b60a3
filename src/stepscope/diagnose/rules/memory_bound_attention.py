"""`memory-bound-attention`: attention written out, with its S x S matrices in memory."""

import json
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.analyze.replay.changes import with_work_times
from stepscope.cost.chips.hardware import mfu_peak
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import device_ms
from stepscope.trace.classify import EventKind, by_string
from stepscope.trace.schema import NO_STRING

_MIN_SEQUENCE = 128
_REACHED = 0.4
"""share of the peak that fused attention reaches, forward and backward together"""
_BACKWARD_REPEATS = 1.2
"""fused attention computes the scores again in backward"""
_SQUARE, _MULTIPLIED_TO_SQUARE = 1, 2
"""an input is square; the product of the first two inputs is"""


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
    trace, work = costs.rank.trace, costs.rank.work
    rows = np.flatnonzero((work.op_row >= 0) & (work.step >= 0) & (work.kind != int(EventKind.COMM_KERNEL)))
    op = work.op_row[rows]
    dims = trace.arg("input_dims").at(op, missing=NO_STRING).astype(np.int32)
    shapes = by_string(trace, dims, _square_shapes)
    multiplied = np.flatnonzero(shapes == _MULTIPLIED_TO_SQUARE)
    multiplies = by_string(trace, trace["name"][op[multiplied]], lambda name: "bmm" in name).astype(bool)
    found = np.zeros(len(work), bool)
    found[rows] = shapes == _SQUARE
    found[rows[multiplied]] = multiplies
    return found


@lru_cache(maxsize=256)  # texts may have 64 kB each
def _square_shapes(dims: str) -> int:
    """Return which square matrices of sequence length the shapes of an operator's inputs tell of; 0 for none."""
    try:
        found = json.loads(dims)
    except (ValueError, RecursionError):
        return 0
    listed = found if isinstance(found, list) else []
    shapes = [s for s in listed if isinstance(s, list) and len(s) >= 3 and all(isinstance(n, int) for n in s)]
    if any(s[-1] == s[-2] >= _MIN_SEQUENCE for s in shapes):
        return _SQUARE
    if len(shapes) < 2:
        return 0
    # Scores are a product of (S, d) and (d, S) with d < S.
    (*_, rows, inner), (*_, columns) = shapes[:2]
    return _MULTIPLIED_TO_SQUARE if rows == columns >= _MIN_SEQUENCE and inner < rows else 0


def _has_softmax(costs: KernelCosts, mask: npt.NDArray[np.bool_]) -> bool:
    trace, work = costs.rank.trace, costs.rank.work
    return bool(by_string(trace, trace["name"][work.op_row[mask]], lambda name: "softmax" in name).any())
