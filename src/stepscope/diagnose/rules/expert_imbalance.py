"""`expert-imbalance`: tokens are routed unevenly, so some ranks receive and compute more than others."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import evenly_spread
from stepscope.diagnose.finding import Candidate, Evidence

_UNEVEN = 1.2


def expert_imbalance(account: Account) -> list[Candidate]:
    """Return uneven exchanges of tokens, evened out."""
    view = account.views.experts
    if view is None or view.imbalance is None or view.imbalance < _UNEVEN or account.replay is None:
        return []
    uneven = view.imbalance
    ranks = () if view.fullest_rank is None else (view.fullest_rank,)
    return [
        Candidate(
            id="expert-imbalance",
            title=f"Tokens are routed unevenly: the fullest rank has {uneven:.1f} times the mean",
            cause="the router prefers few experts; their ranks receive and compute more while the others wait",
            remedy="Balance the router (auxiliary loss, or bias per expert as in auxiliary-loss-free balancing), set a capacity factor, or "
            "place popular experts on several ranks. The saving is of the same tokens spread evenly.",
            change=evenly_spread,
            ranks=ranks,
            evidence=(Evidence("load of the fullest rank against the mean", round(uneven, 2), "times"),),
            doubt=0.3,
        )
    ]
