"""`optimizer`: an optimizer step of many small kernels instead of a few fused ones."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import fused_work
from stepscope.contract.regions import Region
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.limits import with_work_ns
from stepscope.diagnose.rules.measures import device_ms
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind, by_string

_FUSED_LAUNCHES = 8
_FUSED_CALL = ("aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad")
_PASSES_SAVED = 0.4
"""a fused Adam reads and writes 28 bytes per parameter; written out, its operators move about 72"""


def optimizer(account: Account) -> list[Candidate]:
    """Return optimizer work launched as many kernels: of no fused implementation, or of one called for each group."""
    calls = [_fused_calls(rank) / max(len(rank.steps), 1) for rank in account.run.ranks]
    by_group = min(calls, default=0.0) > _FUSED_LAUNCHES
    chosen = []
    for view in account.ranks:
        rank, budget = view.rank, view.budget
        if budget is None or budget.regions is None:
            return []
        work = rank.work
        mine = (budget.regions.region == Region.OPTIMIZER) & (work.step >= 0) & (work.kind != EventKind.COMM_KERNEL)
        if not by_group:
            mine &= ~by_string(rank.trace, work.name, lambda s: "Fused" in s or "fused_adam" in s).astype(bool)
        chosen.append(mine)
    per_step = float(np.mean([m.sum() / max(len(r.steps), 1) for m, r in zip(chosen, account.run.ranks, strict=True)]))
    if per_step <= _FUSED_LAUNCHES:
        return []
    title, cause, remedy = (
        "The optimizer step is not fused",
        f"{per_step:.0f} device operations per optimizer step",
        "Pass fused=True to the optimizer (torch.optim.AdamW(..., fused=True)), or foreach=True where fused is not available. "
        "The saving is of a fused optimizer.",
    )
    if by_group:
        title, cause, remedy = (
            "The optimizer is called for each group of parameters",
            f"{np.mean(calls):.0f} fused calls and {per_step:.0f} device operations per optimizer step, one call for each group",
            "Put parameters with the same settings into one group: a fused call changes all of them. "
            "The saving is of a few calls, the device's time as it is.",
        )
    device_share = 1.0 if by_group else _PASSES_SAVED
    spent = device_ms(account, chosen)
    return [
        Candidate(
            id="optimizer",
            title=title,
            cause=cause,
            remedy=remedy,
            change=lambda replay: fused_work(replay, chosen, launches=_FUSED_LAUNCHES, device_share=device_share),
            limit_ns=with_work_ns(account, spent * 1e6),
            cost_ns=spent * 1e6,
            evidence=(
                Evidence("optimizer operations per step", round(per_step), "launches", "mean rank"),
                Evidence("optimizer device time per step", round(spent, 3), "ms", "mean rank"),
            ),
            doubt=0.3,
        )
    ]


def _fused_calls(rank: Rank) -> int:
    """Return how often steps of a rank called a fused optimizer: once for each group of parameters, device and type."""
    rows = rank.rows_named(lambda name: name.startswith(_FUSED_CALL), EventKind.HOST_OP)
    return int((rank.steps.of(rank.trace["ts_ns"][rows]) >= 0).sum())
