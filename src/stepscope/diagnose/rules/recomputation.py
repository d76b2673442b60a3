"""`recomputation`: activation checkpointing repeats forward work in the backward pass."""

from stepscope.analyze.account import Account
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import device_ms
from stepscope.predict.changes import without_work


def recomputation(account: Account) -> list[Candidate]:
    """Return the recomputed work as a cost."""
    chosen = [c.recomputed & (c.rank.work.step >= 0) for c in account.costs]
    repeated = device_ms(account, chosen)
    if not repeated:
        return []
    return [
        Candidate(
            id="recomputation",
            title="Forward work is computed a second time in backward",
            cause="activation checkpointing discards activations and recomputes them",
            remedy="Checkpoint fewer blocks, or only cheap operators (selective checkpointing, torch.utils.checkpoint with a policy), as far "
            "as memory allows. The saving is of no recomputation at all.",
            change=lambda replay: without_work(replay, chosen),
            cost_ns=repeated * 1e6,
            evidence=(Evidence("recomputed device work per step", round(repeated, 3), "ms", "mean rank"),),
        )
    ]
