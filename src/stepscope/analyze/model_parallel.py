"""What does tensor parallelism cost, layer by layer?

Every layer ends in an exchange of activations that the next layer needs, so its time can hardly be hidden. The share
of a layer is what is exposed of its exchange, against the time from the end of the exchange before it to its own end:

    compute   =====        ======
    exchange       |-----|       |-----|
              <--- layer 0 --->
                         <-- layer 1 -->
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.collective_costs import (
    RankTraffic,
    hidden_pct,
    num_steps,
    over_ranks,
    rank_traffic,
    share_of_step_pct,
)
from stepscope.analyze.parallel_strategy import Strategy
from stepscope.analyze.phases import Phase
from stepscope.analyze.rank_windows import RankAccount
from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.intervals import covered_ns
from stepscope.run.aligned import AlignedRun
from stepscope.run.rank import Rank
from stepscope.side_file import is_number, parsed_json
from stepscope.stats.distinct import distinct
from stepscope.stats.robust import Spread
from stepscope.trace.table import Int64s

_PASSES = ((Phase.FORWARD, "forward"), (Phase.BACKWARD, "backward"))


@dataclass(frozen=True)
class Layer:
    """One exchange of a pass, by its position in it; means over ranks, passes and steps."""

    #: forward or backward
    part: str
    #: in the pass, from 0
    position: int
    size_bytes: float | None
    time_ns: int
    exposed_ns: int
    wait_ns: int | None
    #: device compute since the exchange before
    compute_ns: int
    #: exposed time of the time since the exchange before
    share_pct: float
    occurrences: int


@dataclass(frozen=True)
class RankTensorParallel(RankTraffic):
    """The exchanges of one rank, per step."""

    #: exposed time of the step's period
    share_of_step_pct: float | None


@dataclass(frozen=True)
class TensorParallelView:
    """Tensor parallelism of the run."""

    layers: tuple[Layer, ...]
    ranks: tuple[RankTensorParallel, ...]
    over_ranks: dict[str, Spread]


def tensor_parallel_view(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]
) -> TensorParallelView | None:
    """Return the exchanges of tensor parallelism, None where there are none."""
    ranks, found = [], []
    for index, account in enumerate(accounts):
        rows = strategy.rows_of(index, "tp")
        if account is None or not len(rows):
            continue
        traffic = rank_traffic(shared, index, rows, account)
        share = share_of_step_pct(traffic, shared.run.ranks[index])
        ranks.append(RankTensorParallel(**vars(traffic), share_of_step_pct=share))
        found.append(_exchanges(shared, strategy, index, account, rows))
    if not ranks:
        return None
    return TensorParallelView(_layers(found), tuple(ranks), over_ranks(ranks))


def _exchanges(shared: AlignedRun, strategy: Strategy, index: int, account: RankAccount, rows: Int64s) -> Int64s:
    """Return a column per exchange: part, position, size, time, exposed, wait, compute, and the time since the end of
    the exchange before.
    """
    rank = shared.run.ranks[index]
    c = rank.collectives
    start, end = c.start_ns[rows], c.end_ns[rows]
    before = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    step = c.step[rows]
    first_of_step = np.flatnonzero(np.concatenate(([True], step[1:] != step[:-1])))
    before[first_of_step] = np.minimum(
        _step_begins(rank, step[first_of_step], start[first_of_step]), start[first_of_step]
    )
    before = np.minimum(before, start)
    columns = (
        strategy.phases[index][rows].astype(np.int64),
        _positions(rank, strategy, index, rows),
        c.full_bytes[rows],
        end - start,
        covered_ns(account.exposed_comm, start, end),
        shared.wait_ns[index][rows],
        covered_ns(account.compute, before, start),
        end - before,
    )
    return np.stack(columns)


def _step_begins(rank: Rank, steps: npt.NDArray[np.int32], otherwise: Int64s) -> Int64s:
    begins = np.full(num_steps(rank), np.iinfo(np.int64).max)
    mine = rank.work.step >= 0
    np.minimum.at(begins, rank.work.step[mine], rank.work.start_ns[mine])
    return np.where((steps >= 0) & (begins[steps] < np.iinfo(np.int64).max), begins[steps], otherwise)


def _positions(rank: Rank, strategy: Strategy, index: int, rows: Int64s) -> Int64s:
    c, part = rank.collectives, strategy.phases[index][rows]
    backward = strategy.passes[index].backward
    passes = rank.steps.of(backward.start) if len(rank.steps) else np.zeros(len(backward), np.int32)
    position = np.zeros(len(rows), np.int64)
    for step in distinct(c.step[rows]).tolist():
        for phase, _ in _PASSES:
            mine = np.flatnonzero((c.step[rows] == step) & (part == phase))
            microbatches = max(int((passes == step).sum()), 1) if len(rank.steps) else max(len(backward), 1)
            per_pass = len(mine) // microbatches if len(mine) % microbatches == 0 else len(mine)
            position[mine] = np.arange(len(mine)) % max(per_pass, 1)
    return position


def _layers(found: Sequence[Int64s]) -> tuple[Layer, ...]:
    part, position, size, time, exposed, wait, compute, since = np.concatenate(found, axis=1)
    out = []
    for phase, name in _PASSES:
        for k in distinct(position[part == phase]).tolist():
            mine = (part == phase) & (position == k)
            out.append(
                Layer(
                    part=name,
                    position=k,
                    size_bytes=float(size[mine].mean()) if (size[mine] >= 0).all() else None,
                    time_ns=round(time[mine].mean()),
                    exposed_ns=round(exposed[mine].mean()),
                    wait_ns=round(wait[mine].mean()) if (wait[mine] >= 0).all() else None,
                    compute_ns=round(compute[mine].mean()),
                    share_pct=100 * float(exposed[mine].sum() / max(since[mine].sum(), 1)),
                    occurrences=int(mine.sum()),
                )
            )
    return tuple(out)


# Context parallelism: exchanges of keys and values, and compute imbalance.
#
# With a causal mask later parts of the sequence attend to more than earlier ones, so a plain split leaves ranks with
# unequal work. The imbalance is the largest compute time of a rank against the mean.


@dataclass(frozen=True)
class RankContextParallel(RankTraffic):
    """The exchanges of keys and values of one rank, per step."""

    #: share of the exchanges' time that lies under other work
    hidden_pct: float | None
    #: exposed time of the step's period
    share_of_step_pct: float | None
    #: device compute of the window's steps
    compute_ns: int


@dataclass(frozen=True)
class ContextParallelView:
    """Context parallelism of the run."""

    #: ring (sends and receives), exchange (all-to-all) or gather
    by: str
    #: largest compute time of a rank against the mean, None with fewer than two ranks
    compute_imbalance: float | None
    ranks: tuple[RankContextParallel, ...]
    over_ranks: dict[str, Spread]


def context_parallel_view(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]
) -> ContextParallelView | None:
    """Return what context parallelism exchanged, None where there is none."""
    ranks = []
    for index, (rank, account) in enumerate(zip(shared.run.ranks, accounts, strict=True)):
        rows = strategy.rows_of(index, "cp")
        if account is not None and len(rows):
            traffic = rank_traffic(shared, index, rows, account)
            view = RankContextParallel(
                **vars(traffic),
                hidden_pct=hidden_pct(traffic),
                share_of_step_pct=share_of_step_pct(traffic, rank),
                compute_ns=round(account.compute.total_ns / num_steps(rank)),
            )
            ranks.append(view)
    if not ranks:
        return None
    ops = {use.op for d in strategy.dimensions if d.kind == "cp" for use in d.uses}
    compute = np.array([r.compute_ns for r in ranks])
    return ContextParallelView(
        by="ring" if ops & {"send", "recv", "send_recv"} else "exchange" if "all_to_all" in ops else "gather",
        compute_imbalance=float(compute.max() / compute.mean()) if len(ranks) > 1 and compute.any() else None,
        ranks=tuple(ranks),
        over_ranks=over_ranks(ranks),
    )


# Expert parallelism: balance of routed tokens and cost of their exchanges.
#
# An all-to-all that dispatches tokens is uneven where it receives, the one that brings them back where it sends. The
# *load* of a rank in an exchange is its amount on the uneven side, so it is what its experts have to work on:
#
#     dispatch   sends 4 4 4 4   receives 13 1 1 1     load 13 1 1 1, imbalance 13 / 4
#     combine    sends 13 1 1 1  receives 4 4 4 4      load 13 1 1 1
#
# The imbalance is the largest load against the mean: all ranks wait for the fullest one.

_KINDS = ("ep", "embedding")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RankExperts:
    """The exchanges of one rank, per step."""

    rank: int
    count: float
    sent_bytes: float | None
    received_bytes: float | None
    #: on the uneven side of each exchange; None where the exchanges could not be matched across ranks
    load_bytes: float | None
    time_ns: int
    exposed_ns: int
    wait_ns: int | None
    transfer_ns: int | None
    #: largest against mean amount it sends to a peer, in its most uneven exchange; None where not recorded
    routing_imbalance: float | None


@dataclass(frozen=True)
class ExpertsView:
    """Expert parallelism (or sharded embeddings) of the run."""

    #: ep or embedding
    kind: str
    #: load of the fullest rank against the mean, over all exchanges; 1 is even
    imbalance: float | None
    #: the largest imbalance of a single exchange
    worst_exchange: float | None
    #: None where all are equally full, or unknown
    fullest_rank: int | None
    ranks: tuple[RankExperts, ...]
    over_ranks: dict[str, Spread]


def experts_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> ExpertsView | None:
    """Return the token exchanges of a run, None where there are none."""
    kind = next((d.kind for d in strategy.dimensions if d.kind in _KINDS), None)
    used = [i for i, account in enumerate(accounts) if account is not None and len(strategy.rows_of(i, *_KINDS))]
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
    rank, rows = shared.run.ranks[index], strategy.rows_of(index, *_KINDS)
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
    matches, ranks = shared.matches, shared.run.ranks
    load = np.full(len(ranks), np.nan)
    worst: float | None = None
    mine = [set(strategy.rows_of(i, *_KINDS).tolist()) for i in range(len(ranks))]
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
    records = rank.collectives.record_row[rows]
    texts = distinct(rank.trace.arg("in_split").at(records[records >= 0], missing=-1))
    lists = [amounts for text in texts.tolist() if (amounts := _amounts(rank.trace.text(text)))]
    return max((_imbalance(np.array(x, float)) for x in lists), default=None)


def _amounts(text: str | None) -> list[float] | None:
    try:
        found = parsed_json(text or "[]").value
    except ValueError:
        return None
    return found if isinstance(found, list) and found and all(is_number(x, low=0) for x in found) else None


def _per_step(sizes: Int64s, steps: int) -> float | None:
    return float(sizes.sum()) / steps if (sizes >= 0).all() else None
