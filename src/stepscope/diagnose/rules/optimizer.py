"""`optimizer`: an optimizer step of many small kernels instead of a few fused ones."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import fused_work
from stepscope.contract.regions import Region
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.limits import with_work_ns
from stepscope.diagnose.rules.measures import device_ms
from stepscope.trace.classify import EventKind, by_string

_FUSED_LAUNCHES = 8
_PASSES_SAVED = 0.4
"""a fused Adam reads and writes 28 bytes per parameter; written out, its operators move about 72"""


def optimizer(account: Account) -> list[Candidate]:
    """Return optimizer work launched as many kernels that no fused implementation made."""
    chosen = []
    for view in account.ranks:
        rank, budget = view.rank, view.budget
        if budget is None or budget.regions is None:
            return []
        work = rank.work
        fused = by_string(rank.trace, work.name, lambda s: "Fused" in s or "fused_adam" in s).astype(bool)
        chosen.append(
            (budget.regions.region == Region.OPTIMIZER)
            & ~fused
            & (work.step >= 0)
            & (work.kind != EventKind.COMM_KERNEL)
        )
    per_step = float(np.mean([m.sum() / max(len(r.steps), 1) for m, r in zip(chosen, account.run.ranks, strict=True)]))
    if per_step <= _FUSED_LAUNCHES:
        return []
    spent = device_ms(account, chosen)
    return [
        Candidate(
            id="optimizer",
            title="The optimizer step is not fused",
            cause=f"{per_step:.0f} device operations per optimizer step",
            remedy="Pass fused=True to the optimizer (torch.optim.AdamW(..., fused=True)), or foreach=True where fused is not available. "
            "The saving is of a fused optimizer.",
            change=lambda replay: fused_work(replay, chosen, launches=_FUSED_LAUNCHES, device_share=_PASSES_SAVED),
            limit_ns=with_work_ns(account, spent * 1e6),
            cost_ns=spent * 1e6,
            evidence=(
                Evidence("optimizer operations per step", round(per_step), "launches", "mean rank"),
                Evidence("optimizer device time per step", round(spent, 3), "ms", "mean rank"),
            ),
            doubt=0.3,
        )
    ]
