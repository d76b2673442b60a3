"""`mixed-precision-overhead`: loss scaling: unscaling, checks for infinities and the synchronisation they need."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.abilities import abilities
from stepscope.analyze.replay.changes import without_syncs, without_work
from stepscope.analyze.replay.replay import Replay
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.limits import with_work_ns
from stepscope.diagnose.rules.measures import device_ms
from stepscope.stats.distinct import among
from stepscope.trace.classify import EventKind


def mixed_precision_overhead(account: Account) -> list[Candidate]:
    """Return the work of a gradient scaler; on a chip without bfloat16 there is nothing to put in its place."""
    if abilities(account.run.ranks, account.chip.chip).bf16 is False:
        return []
    chosen = []
    for rank in account.run.ranks:
        work, scaling = rank.work, rank.rows_named(lambda s: "_amp_" in s, EventKind.HOST_OP)
        chosen.append((work.step >= 0) & among(work.op_row, scaling))
    if not any(mask.any() for mask in chosen):
        return []

    def without_scaler(replay: Replay) -> Replay:
        return without_syncs(without_work(replay, chosen))

    return [
        Candidate(
            id="mixed-precision-overhead",
            title="Loss scaling costs time",
            cause="GradScaler unscales every gradient, checks it for infinities and waits for the answer",
            remedy="Train in bfloat16, which needs no scaler: torch.autocast('cuda', torch.bfloat16) and no GradScaler. "
            "The saving is of the same step without scaling and its synchronisation.",
            change=without_scaler,
            limit_ns=with_work_ns(account, device_ms(account, chosen) * 1e6),
            cost_ns=device_ms(account, chosen) * 1e6,
            evidence=(Evidence("scaler operations per step", round(float(np.mean([m.sum() / max(len(r.steps), 1)
                      for m, r in zip(chosen, account.run.ranks, strict=True)]))), "launches", "mean rank"),),
            doubt=0.4,
            sureness=0.8,
        )
    ]  # fmt: skip
