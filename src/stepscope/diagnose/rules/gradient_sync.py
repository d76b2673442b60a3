"""Which collectives synchronise gradients? What the rules on gradient communication share."""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.replay.program import NOTHING
from stepscope.analyze.replay.replay import Replay
from stepscope.run.matching.match import POINT_TO_POINT
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct

_OTHER_USES = ("tp", "pp", "ep", "cp", "embedding")


def gradient_groups_only(account: Account) -> bool:
    """Return whether all group communication of the run is data-parallel: what may move against compute freely.

    Collectives of tensor, expert or context parallelism stand inside the forward and backward pass: their results
    are needed at once, so starting them earlier is no fix.
    """
    return account.replay is not None and communicates(account.replay) and not account.strategy.has(*_OTHER_USES)


def communicates(replay: Replay) -> bool:
    """Return whether ranks take part in collectives of several ranks, also where only one of them was recorded."""
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        used = distinct(rank.collectives.group[program.collective[program.collective != NOTHING]])
        if any(rank.collectives.groups[g].size != 1 for g in used.tolist()):
            return True
    return bool(replay.meetings)


def group_rows(rank: Rank) -> npt.NDArray[np.int64]:
    """Return a rank's group collectives launched in recorded steps, in the order they were issued."""
    c = rank.collectives
    rows = np.flatnonzero((c.step >= 0) & ~among(c.op, POINT_TO_POINT))
    return rows[np.argsort(c.issue_ns[rows], kind="stable")]
