"""`memory-bound-kernels`: elementwise and normalisation kernels in a row, each of which reads and writes memory."""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.call_costs import FAMILY_CODE
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.analyze.replay.changes import with_work_times
from stepscope.cost.operators.families import Family
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import device_ms
from stepscope.trace.classify import EventKind

_FUSIBLE = [FAMILY_CODE[f] for f in (Family.ELEMENTWISE, Family.NORMALISATION, Family.COPY)]


def memory_bound_kernels(account: Account) -> list[Candidate]:
    """Return runs of fusible kernels, fused into one pass each."""
    chosen = [
        np.isin(c.family, _FUSIBLE) & (c.rank.work.kind == EventKind.KERNEL) & (c.rank.work.step >= 0)
        for c in account.costs
    ]
    spent = device_ms(account, chosen)
    if not spent:
        return []
    times = [_fused_ns(c, mask) for c, mask in zip(account.costs, chosen, strict=True)]
    return [
        Candidate(
            id="memory-bound-kernels",
            title="Elementwise kernels in a row could be one",
            cause="each reads its inputs from memory and writes its result back for the next",
            remedy="torch.compile(model) fuses them; or use fused layers (fused norms, fused SwiGLU). The saving is of each run of such "
            "kernels as one pass over its largest one.",
            change=lambda replay: with_work_times(replay, chosen, times),
            cost_ns=spent * 1e6,
            evidence=(Evidence("elementwise and normalisation kernels per step", round(spent, 3), "ms", "mean rank"),),
            doubt=0.5,
            sureness=0.7,
        )
    ]


def _fused_ns(costs: KernelCosts, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return times in which each run of consecutive chosen kernels takes what its longest one takes."""
    work = costs.rank.work
    order = np.lexsort((work.start_ns, work.stream, work.device))
    run = np.cumsum(~mask[order] | np.concatenate(([True], ~mask[order][:-1])))
    duration = costs.duration_ns[order].astype(float)
    longest = np.zeros(int(run.max()) + 1 if len(run) else 1)
    total = np.zeros_like(longest)
    np.maximum.at(longest, run[mask[order]], duration[mask[order]])
    np.add.at(total, run[mask[order]], duration[mask[order]])
    share = np.where(total > 0, longest / np.maximum(total, 1), 1.0)
    out = np.empty(len(order))
    out[order] = np.where(mask[order], duration * share[run], duration)
    return out
