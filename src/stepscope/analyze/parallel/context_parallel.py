"""What does splitting the sequence cost: passing keys and values around, and ranks with more attention to compute?

With a causal mask later parts of the sequence attend to more than earlier ones, so a plain split leaves ranks with
unequal work. The imbalance is the largest compute time of a rank against the mean.
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.parallel.strategy import Strategy
from stepscope.analyze.ranks.traffic import (
    RankTraffic,
    hidden_pct,
    num_steps,
    over_ranks,
    rank_traffic,
    share_of_step_pct,
)
from stepscope.analyze.ranks.window import RankAccount
from stepscope.dataclass import dataclass
from stepscope.run.aligned import AlignedRun
from stepscope.stats.robust import Spread

KIND = "cp"


@dataclass(frozen=True)
class RankContextParallel(RankTraffic):
    """The exchanges of keys and values of one rank, per step."""

    hidden_pct: float | None
    """share of the exchanges' time that lies under other work"""
    share_of_step_pct: float | None
    """exposed time of the step's period"""
    compute_ns: int
    """device compute of the window's steps"""


@dataclass(frozen=True)
class ContextParallelView:
    """Context parallelism of the run."""

    by: str
    """ring (sends and receives), exchange (all-to-all) or gather"""
    compute_imbalance: float | None
    """largest compute time of a rank against the mean, None with fewer than two ranks"""
    ranks: tuple[RankContextParallel, ...]
    over_ranks: dict[str, Spread]


def context_parallel_view(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]
) -> ContextParallelView | None:
    """Return what context parallelism exchanged, None where there is none."""
    ranks = [
        _rank_view(shared, strategy, index, account)
        for index, account in enumerate(accounts)
        if account is not None and len(strategy.rows_of(index, KIND))
    ]
    if not ranks:
        return None
    compute = np.array([r.compute_ns for r in ranks])
    return ContextParallelView(
        by=_by(strategy),
        compute_imbalance=float(compute.max() / compute.mean()) if len(ranks) > 1 and compute.any() else None,
        ranks=tuple(ranks),
        over_ranks=over_ranks(ranks),
    )


def _rank_view(shared: AlignedRun, strategy: Strategy, index: int, account: RankAccount) -> RankContextParallel:
    rank = shared.run.ranks[index]
    traffic = rank_traffic(shared, index, strategy.rows_of(index, KIND), account)
    return RankContextParallel(
        **vars(traffic),
        hidden_pct=hidden_pct(traffic),
        share_of_step_pct=share_of_step_pct(traffic, rank),
        compute_ns=round(account.compute.total_ns / num_steps(rank)),
    )


def _by(strategy: Strategy) -> str:
    ops = {use.op for d in strategy.dimensions if d.kind == KIND for use in d.uses}
    if ops & {"send", "recv", "send_recv"}:
        return "ring"
    return "exchange" if "all_to_all" in ops else "gather"
