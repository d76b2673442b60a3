"""How evenly do routed tokens reach the ranks, and what do the exchanges cost?

An all-to-all that dispatches tokens is uneven where it receives, the one that brings them back where it sends. The
*load* of a rank in an exchange is its amount on the uneven side, so it is what its experts have to work on:

    dispatch   sends 4 4 4 4   receives 13 1 1 1     load 13 1 1 1, imbalance 13 / 4
    combine    sends 13 1 1 1  receives 4 4 4 4      load 13 1 1 1

The imbalance is the largest load against the mean: all ranks wait for the fullest one.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.parallel.strategy import Strategy
from stepscope.analyze.ranks.traffic import num_steps, over_ranks, rank_traffic
from stepscope.analyze.ranks.window import RankAccount
from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.run.aligned import AlignedRun
from stepscope.run.rank import Rank
from stepscope.side_file import is_number, parsed_json
from stepscope.stats.distinct import distinct
from stepscope.stats.robust import Spread
from stepscope.trace.table import Int64s

KINDS = ("ep", "embedding")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RankExperts:
    """The exchanges of one rank, per step."""

    rank: int
    count: float
    sent_bytes: float | None
    received_bytes: float | None
    load_bytes: float | None
    """on the uneven side of each exchange; None where the exchanges could not be matched across ranks"""
    time_ns: int
    exposed_ns: int
    wait_ns: int | None
    transfer_ns: int | None
    routing_imbalance: float | None
    """largest against mean amount it sends to a peer, in its most uneven exchange; None where not recorded"""


@dataclass(frozen=True)
class ExpertsView:
    """Expert parallelism (or sharded embeddings) of the run."""

    kind: str
    """ep or embedding"""
    imbalance: float | None
    """load of the fullest rank against the mean, over all exchanges; 1 is even"""
    worst_exchange: float | None
    """the largest imbalance of a single exchange"""
    fullest_rank: int | None
    """None where all are equally full, or unknown"""
    ranks: tuple[RankExperts, ...]
    over_ranks: dict[str, Spread]


def experts_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> ExpertsView | None:
    """Return the token exchanges of a run, None where there are none."""
    kind = next((d.kind for d in strategy.dimensions if d.kind in KINDS), None)
    used = [i for i, account in enumerate(accounts) if account is not None and len(strategy.rows_of(i, *KINDS))]
    if kind is None or not used:
        return None
    load, worst = _loads(shared, strategy)
    ranks = [_rank_experts(shared, strategy, i, accounts[i], load[i]) for i in used]
    total = np.array([load[i] for i in used])
    known = len(used) > 1 and not np.isnan(total).any() and total.sum() > 0
    return ExpertsView(
        kind=kind,
        imbalance=float(total.max() / total.mean()) if known else None,
        worst_exchange=worst,
        fullest_rank=shared.run.ranks[used[int(total.argmax())]].rank if known and np.ptp(total) else None,
        ranks=tuple(ranks),
        over_ranks=over_ranks(ranks),
    )


def _rank_experts(
    shared: AlignedRun, strategy: Strategy, index: int, account: RankAccount | None, load: float
) -> RankExperts:
    rank, rows = shared.run.ranks[index], strategy.rows_of(index, *KINDS)
    assert account is not None
    traffic, steps, c = rank_traffic(shared, index, rows, account), num_steps(rank), rank.collectives
    return RankExperts(
        rank=rank.rank,
        count=traffic.count,
        sent_bytes=_per_step(c.in_bytes[rows], steps),
        received_bytes=_per_step(c.out_bytes[rows], steps),
        load_bytes=None if np.isnan(load) else float(load) / steps,
        time_ns=traffic.time_ns,
        exposed_ns=traffic.exposed_ns,
        wait_ns=traffic.wait_ns,
        transfer_ns=traffic.transfer_ns,
        routing_imbalance=_routing_imbalance(rank, rows),
    )


def _loads(shared: AlignedRun, strategy: Strategy) -> tuple[Floats, float | None]:
    """Return each rank's load over the window in bytes, NaN where unknown, and the worst single exchange."""
    matches, ranks = shared.matches, shared.run.ranks
    load = np.full(len(ranks), np.nan)
    worst: float | None = None
    mine = [set(strategy.rows_of(i, *KINDS).tolist()) for i in range(len(ranks))]
    for m in np.flatnonzero(matches.op == OP_CODE["all_to_all"]).tolist():
        members = slice(matches.first[m], matches.first[m + 1])
        index, row = matches.rank_index[members], matches.row[members]
        sides = [
            np.array([getattr(ranks[i].collectives, side)[r] for i, r in zip(index, row, strict=True)], float)
            for side in ("in_bytes", "out_bytes")
        ]
        uneven = max(sides, key=_imbalance)
        if (uneven < 0).any() or row[0] not in mine[index[0]]:
            continue
        worst = max(worst or 0.0, _imbalance(uneven))
        load[index] = np.nan_to_num(load[index]) + uneven
    return load, worst


def _imbalance(amounts: Floats) -> float:
    return float(amounts.max() / amounts.mean()) if amounts.sum() > 0 else 0.0


def _routing_imbalance(rank: Rank, rows: Int64s) -> float | None:
    """Return how unevenly this rank sends to its peers in the most uneven exchange, from the recorded amounts."""
    records = rank.collectives.record_row[rows]
    texts = distinct(rank.trace.arg("in_split").at(records[records >= 0], missing=-1))
    lists = [amounts for text in texts.tolist() if (amounts := _amounts(rank.trace.text(text)))]
    return max((_imbalance(np.array(x, float)) for x in lists), default=None)


def _amounts(text: str | None) -> list[float] | None:
    """Return a recorded list of amounts; a shortened one (`[1, 2, ...]`) is no list."""
    try:
        found = parsed_json(text or "[]").value
    except ValueError:
        return None
    return found if isinstance(found, list) and found and all(is_number(x, low=0) for x in found) else None


def _per_step(sizes: Int64s, steps: int) -> float | None:
    return float(sizes.sum()) / steps if (sizes >= 0).all() else None
