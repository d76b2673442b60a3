"""How did sharded data parallelism (FSDP, ZeRO) move its parameters and gradients, and was it early enough?

A gather is *early* when the device still computes at the moment it starts: somebody asked for it before it was
needed. What of it is still exposed was early, but not early enough. Without prefetch a gather starts when the
computation before it has ended and everything waits.

    not early   compute ====            ====        early   compute ========  ====
                gather      |--------|                      gather      |------|
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.parallel.strategy import Strategy
from stepscope.analyze.ranks.traffic import RankTraffic, num_steps, over_ranks, rank_traffic
from stepscope.analyze.ranks.window import RankAccount
from stepscope.analyze.step.phases import Phase, Phases
from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.run.aligned import AlignedRun
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among
from stepscope.stats.robust import Spread
from stepscope.trace.table import Int64s

KINDS = ("fsdp-zero3", "fsdp-zero2", "zero2", "zero1")


@dataclass(frozen=True)
class RankSharding:
    """Gathers and scatters of one rank, per step. Bytes are of full buffers; None is unknown."""

    rank: int
    gathers_forward: float
    gathers_backward: float
    gathers_optimizer: float
    """parameters handed round after the optimizer's step (ZeRO-1 and -2)"""
    gathered_bytes: float | None
    gather_ns: int
    gather_exposed_ns: int
    gather_wait_ns: int | None
    early_pct: float | None
    """share of the gathers of forward and backward that start while the device still computes"""
    scatters: float
    """reductions of gradients: reduce-scatters, and the all-reduces of ZeRO-1"""
    scattered_bytes: float | None
    scatter_ns: int
    scatter_exposed_ns: int
    scatter_wait_ns: int | None
    parameter_bytes: float | None
    """one gather of everything: the gathers of forward, per backward pass"""
    gathers_of_parameters: float | None
    """how often everything is gathered per backward pass: 1 where it stays until backward, 2 where it is freed"""
    traffic_of_parameters: float | None
    """gathered and scattered bytes per backward pass against the parameters' bytes"""


@dataclass(frozen=True)
class ShardingView:
    """Sharded data parallelism of the run."""

    stage: str
    """zero1, zero2 or zero3"""
    ranks: tuple[RankSharding, ...]
    over_ranks: dict[str, Spread]


def sharding_view(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]
) -> ShardingView | None:
    """Return gathers and scatters of a run, None where nothing is sharded over data-parallel ranks."""
    dimension = next((d for d in strategy.dimensions if d.kind in KINDS), None)
    ranks = [
        _rank_sharding(shared, strategy, index, account)
        for index, account in enumerate(accounts)
        if account is not None and len(strategy.rows_of(index, *KINDS))
    ]
    if dimension is None or not ranks:
        return None
    return ShardingView(dimension.kind.removeprefix("fsdp-"), tuple(ranks), over_ranks(ranks))


def _rank_sharding(shared: AlignedRun, strategy: Strategy, index: int, account: RankAccount) -> RankSharding:
    rank = shared.run.ranks[index]
    c, phase = rank.collectives, strategy.phases[index]
    rows = strategy.rows_of(index, *KINDS)
    hands_round = among(c.op[rows], [OP_CODE["all_gather"], OP_CODE["broadcast"]])
    gathers, scatters = rows[hands_round], rows[~hands_round]
    forward, backward, after = (_during(phase, gathers, *which) for which in _GATHER_PHASES)
    gathered, scattered = (rank_traffic(shared, index, x, account) for x in (gathers, scatters))
    once = rank_traffic(shared, index, forward if len(forward) else after, account).size_bytes
    passes = max(_synchronised_passes(rank, strategy, index), 1) / num_steps(rank)
    parameters = once / passes if once else None
    return RankSharding(
        rank=rank.rank,
        gathers_forward=len(forward) / num_steps(rank),
        gathers_backward=len(backward) / num_steps(rank),
        gathers_optimizer=len(after) / num_steps(rank),
        gathered_bytes=gathered.size_bytes,
        gather_ns=gathered.time_ns,
        gather_exposed_ns=gathered.exposed_ns,
        gather_wait_ns=gathered.wait_ns,
        early_pct=_early_pct(rank, account, np.concatenate((forward, backward))),
        scatters=scattered.count,
        scattered_bytes=scattered.size_bytes,
        scatter_ns=scattered.time_ns,
        scatter_exposed_ns=scattered.exposed_ns,
        scatter_wait_ns=scattered.wait_ns,
        parameter_bytes=parameters,
        gathers_of_parameters=_ratio(gathered.size_bytes, parameters, passes),
        traffic_of_parameters=_ratio(_both(gathered, scattered), parameters, passes),
    )


_GATHER_PHASES = (
    (Phase.FORWARD, Phase.UNKNOWN),
    (Phase.BACKWARD,),
    (Phase.AFTER_BACKWARD, Phase.OPTIMIZER),
)


def _during(phase: Phases, rows: Int64s, *which: Phase) -> Int64s:
    return rows[among(phase[rows], which)]


def _synchronised_passes(rank: Rank, strategy: Strategy, index: int) -> int:
    """Return the number of backward passes in the recorded steps."""
    backward = strategy.passes[index].backward
    return int((rank.steps.of(backward.start) >= 0).sum()) if len(rank.steps) else len(backward)


def _early_pct(rank: Rank, account: RankAccount, rows: Int64s) -> float | None:
    if not len(rows):
        return None
    start, compute = rank.collectives.start_ns[rows], account.compute
    i = np.searchsorted(compute.start, start, side="left") - 1  # computing before it starts, and still then
    still = (i >= 0) & (compute.end[np.maximum(i, 0)] > start) if len(compute) else np.zeros(len(rows), bool)
    return 100 * float(still.mean())


def _both(a: RankTraffic, b: RankTraffic) -> float | None:
    return None if a.size_bytes is None or b.size_bytes is None else a.size_bytes + b.size_bytes


def _ratio(total: float | None, parameters: float | None, passes: float) -> float | None:
    return None if total is None or not parameters else total / parameters / passes
