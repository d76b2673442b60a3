"""How did data parallelism send its gradients: which buckets, in which order, how early, and at what extra cost?

A *synchronisation* is all gradient all-reduces of one backward pass; with gradient accumulation done right there is
one per step, however many passes a step has.

    backward on the device   |=====================|
    buckets                        |--0--||--1--| |--2--|
                             |delay|               |tail|
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.collective_costs import (
    RankAccount,
    RankTraffic,
    hidden_pct,
    num_steps,
    over_ranks,
    rank_traffic,
    share_of_step_pct,
)
from stepscope.analyze.host_time import HostCalls, call_stacks
from stepscope.analyze.parallel_strategy import Strategy
from stepscope.analyze.phases import (
    ADDING,
    BACK,
    GRADIENT,
    NODE,
    BackwardCalls,
    Passes,
    Phase,
    backward_calls,
    launched_within,
    part_of_backward,
)
from stepscope.contract.collectives import OP_CODE
from stepscope.intervals import EMPTY, covered_ns, union
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.aligned import AlignedRun
from stepscope.run.load import each_rank
from stepscope.run.rank import Rank
from stepscope.side_file import is_number, parsed_json
from stepscope.stats.robust import Spread, among, distinct
from stepscope.trace.table import EventKind, Int64s, Kinds, by_string

_KINDS = ("ddp", "zero1")


@dataclass(frozen=True)
class Bucket:
    """One bucket of a synchronisation; means over its occurrences on all ranks."""

    #: in which it became ready, from 0
    order: int
    size_bytes: float | None
    #: from the backward pass's beginning on the host until the host issued it
    ready_ns: int
    time_ns: int
    wait_ns: int | None
    transfer_ns: int | None
    exposed_ns: int
    occurrences: int


@dataclass(frozen=True)
class RankBuckets(RankTraffic):
    """The gradient all-reduces of one rank, per step unless named otherwise."""

    #: backward passes that synchronised
    syncs: float
    backward_passes: float
    #: device time from a synchronised pass's first operation to its last, mean
    backward_ns: int
    #: from the pass's first device operation to the first bucket's start, mean
    first_delay_ns: int
    #: of the pass's device time
    first_delay_pct: float | None
    #: from the pass's last device operation to the last bucket's end, mean
    tail_ns: int
    #: host time in gradient hooks: filling buckets, launching, copying back; None where no nodes were recorded
    hook_host_ns: int | None
    #: device time of what hooks launched, the all-reduces themselves left out
    hook_device_ns: int | None


@dataclass(frozen=True)
class BucketView:
    """Gradient synchronisation of the run."""

    #: of the usual synchronisation, in ready order
    buckets: tuple[Bucket, ...]
    #: share of synchronisations, over ranks and steps, that have as many buckets with the same sizes in this order
    usual_share: float
    ranks: tuple[RankBuckets, ...]
    over_ranks: dict[str, Spread]


def bucket_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> BucketView | None:
    """Return the gradient buckets of a run, None where it has no gradient all-reduces."""

    def of_rank(index: int, rank: Rank) -> tuple[RankBuckets, list[_Sync]] | None:
        account, found, issue_ns = accounts[index], strategy.passes[index], rank.collectives.issue_ns
        rows = strategy.rows_of(index, *_KINDS)
        rows = rows[strategy.phases[index][rows] != Phase.OPTIMIZER]
        if account is None or not len(rows):
            return None
        rows = rows[np.argsort(issue_ns[rows], kind="stable")]
        at_pass = np.searchsorted(found.backward.start, issue_ns[rows], side="right") - 1
        split = {int(k): rows[at_pass == k] for k in distinct(at_pass)}
        syncs = [_Sync(index, at, one) for at, one in split.items()]
        return _rank_buckets(shared, index, account, found, rows, split), syncs

    known = [one for one in each_rank(shared.run, of_rank) if one is not None]
    if not known:
        return None
    ranks = [one for one, _ in known]
    usual, share = _usual(shared, [sync for _, syncs in known for sync in syncs])
    return BucketView(_buckets(shared, strategy, accounts, usual), share, tuple(ranks), over_ranks(ranks))


@dataclass(frozen=True, eq=False, repr=False)
class _Sync(ArrayRecord):
    index: int
    #: backward pass
    at: int
    rows: Int64s


def _rank_buckets(
    shared: AlignedRun, index: int, account: RankAccount, found: Passes, rows: Int64s, split: dict[int, Int64s]
) -> RankBuckets:
    rank = shared.run.ranks[index]
    traffic, steps = rank_traffic(shared, index, rows, account), num_steps(rank)
    begins, ends, hook_host_ns, hook_device_ns = _gradients(rank, found)
    known = [k for k in split if k >= 0 and ends[k] > begins[k]]
    c = rank.collectives
    delay = [int(c.start_ns[split[k]].min() - begins[k]) for k in known]
    tail = [max(int(c.end_ns[split[k]].max() - ends[k]), 0) for k in known]
    backward = [int(ends[k] - begins[k]) for k in known]
    return RankBuckets(
        **vars(traffic),
        syncs=len(split) / steps,
        backward_passes=_passes_in_steps(rank, found) / steps,
        backward_ns=_mean_ns(backward),
        first_delay_ns=_mean_ns(delay),
        first_delay_pct=100 * sum(delay) / sum(backward) if sum(backward) else None,
        tail_ns=_mean_ns(tail),
        hook_host_ns=_per_step_ns(hook_host_ns, steps),
        hook_device_ns=_per_step_ns(hook_device_ns, steps),
    )


def _gradients(rank: Rank, found: Passes) -> tuple[Int64s, Int64s, int | None, int | None]:
    """Return when the computation of each pass began and ended, and its hooks' host and device time over all steps.

    On a CPU rank a pass begins with its first node.
    A gradient's node adds the gradient (its inner operator) and then runs the hooks: everything else in it is theirs.
    """
    backward = backward_calls(rank)
    calls, adding = backward.calls, backward.only(ADDING)
    hooks = backward.only(GRADIENT, BACK)
    host = _in_steps_ns(rank, calls, hooks) - _in_steps_ns(rank, calls, adding) if len(adding) else None
    if not rank.has_device:
        computing = backward.only(NODE, ADDING)
        start = calls.start_ns[computing]
        return (*_extent(found, start, start, calls.end_ns[computing]), host, None)
    work, (calls, part) = rank.work, _stacked(rank, backward)
    launched = np.flatnonzero((work.launch_row >= 0) & (work.kind != int(EventKind.COMM_KERNEL)))
    part = np.append(part, 0).take(launched_within(rank, calls, launched))  # in the last place: of no call
    by_hook = launched[among(part, (GRADIENT, BACK)) & (work.step[launched] >= 0)]
    own = launched[among(part, (NODE, ADDING))]
    extent = _extent(found, rank.trace["ts_ns"][work.launch_row[own]], work.start_ns[own], work.end_ns[own])
    device = union(work.start_ns[by_hook], work.end_ns[by_hook]).total_ns if host is not None else None
    return (*extent, host, device)


def _stacked(rank: Rank, backward: BackwardCalls) -> tuple[HostCalls, Kinds]:
    calls, part = backward.calls, backward.part
    same = [values[1:] == values[:-1] for values in (calls.thread, calls.start_ns, calls.end_ns)]
    if np.logical_and.reduce(same).any():
        calls = call_stacks(rank.trace, calls.row[np.lexsort((calls.row, part))].astype(np.int64))
        part = by_string(rank.trace, calls.name, part_of_backward)
    return calls, part


def _extent(found: Passes, moment: Int64s, start: Int64s, end: Int64s) -> tuple[Int64s, Int64s]:
    begins = np.full(len(found.backward), np.iinfo(np.int64).max)
    ends = np.full(len(found.backward), np.iinfo(np.int64).min)
    at = np.searchsorted(found.backward.start, moment, side="right") - 1
    known = np.flatnonzero(at >= 0)
    np.minimum.at(begins, at[known], start[known])
    np.maximum.at(ends, at[known], end[known])
    return begins, ends


def _in_steps_ns(rank: Rank, calls: HostCalls, chosen: Int64s) -> int:
    start, end = calls.start_ns[chosen], calls.end_ns[chosen]
    return int((end - start)[rank.steps.of(start) >= 0].sum() if len(rank.steps) else (end - start).sum())


def _passes_in_steps(rank: Rank, found: Passes) -> int:
    return int((rank.steps.of(found.backward.start) >= 0).sum()) if len(rank.steps) else len(found.backward)


def _usual(shared: AlignedRun, syncs: Sequence[_Sync]) -> tuple[list[_Sync], float]:
    sizes = [tuple(shared.run.ranks[s.index].collectives.full_bytes[s.rows].tolist()) for s in syncs]
    usual, count = Counter(sizes).most_common(1)[0]
    return [s for s, size in zip(syncs, sizes, strict=True) if size == usual], count / len(syncs)


def _buckets(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None], usual: Sequence[_Sync]
) -> tuple[Bucket, ...]:
    of_ranks = [
        _occurrences(shared, strategy, index, account, mine)
        for index, account in enumerate(accounts)
        if (mine := [sync for sync in usual if sync.index == index])
    ]
    columns = np.concatenate(of_ranks, axis=1)
    matched = (columns[3] >= 0).all(axis=0).tolist()
    means = zip(*columns.mean(axis=1).tolist(), strict=True)
    return tuple(
        Bucket(
            order=order,
            size_bytes=size if size >= 0 else None,
            ready_ns=round(ready),
            time_ns=round(time),
            wait_ns=round(wait) if matched[order] else None,
            transfer_ns=round(time - wait) if matched[order] else None,
            exposed_ns=round(exposed),
            occurrences=len(usual),
        )
        for order, (size, ready, time, wait, exposed) in enumerate(means)
    )


def _occurrences(
    shared: AlignedRun, strategy: Strategy, index: int, account: RankAccount | None, syncs: Sequence[_Sync]
) -> Int64s:
    """Return size, readiness, duration, wait and exposed time of the buckets (columns) of a rank's synchronisations,
    of which all have as many.
    """
    c, rows = shared.run.ranks[index].collectives, np.stack([sync.rows for sync in syncs])
    issue, start, end = c.issue_ns[rows], c.start_ns[rows], c.end_ns[rows]
    at = np.array([sync.at for sync in syncs])
    begin = np.where(at >= 0, np.append(strategy.passes[index].backward.start, 0)[at], issue.min(axis=1))
    exposed = covered_ns(account.exposed_comm if account else EMPTY, start, end)
    return np.stack((c.full_bytes[rows], issue - begin[:, None], end - start, shared.wait_ns[index][rows], exposed))


def _per_step_ns(total_ns: int | None, steps: int) -> int | None:
    return None if total_ns is None else round(total_ns / steps)


def _mean_ns(values: Sequence[int]) -> int:
    return round(float(np.mean(values))) if values else 0


# Gathers and scatters of sharded data parallelism (FSDP, ZeRO).
#
# A gather is *early* when the device still computes as it starts: it was prefetched. Any exposed part of it was
# prefetched too late. Without prefetch a gather starts after the computation before it, and everything waits.
#
#     not early   compute ====            ====        early   compute ========  ====
#                 gather      |--------|                      gather      |------|

_SHARDING_KINDS = ("fsdp-zero3", "fsdp-zero2", "zero2", "zero1")


@dataclass(frozen=True)
class RankSharding:
    """Gathers and scatters of one rank, per step. Bytes are of full buffers; None is unknown."""

    rank: int
    gathers_forward: float
    gathers_backward: float
    #: parameters handed round after the optimizer's step (ZeRO-1 and -2)
    gathers_optimizer: float
    gathered_bytes: float | None
    gather_ns: int
    gather_exposed_ns: int
    gather_wait_ns: int | None
    #: share of the gathers of forward and backward that start while the device still computes
    early_pct: float | None
    #: reductions of gradients: reduce-scatters, and the all-reduces of ZeRO-1
    scatters: float
    scattered_bytes: float | None
    scatter_ns: int
    scatter_exposed_ns: int
    scatter_wait_ns: int | None
    #: one gather of everything: the gathers of forward, per backward pass
    parameter_bytes: float | None
    #: how often everything is gathered per backward pass: 1 where it stays until backward, 2 where it is freed
    gathers_of_parameters: float | None
    #: gathered and scattered bytes per backward pass against the parameters' bytes
    traffic_of_parameters: float | None


@dataclass(frozen=True)
class ShardingView:
    """Sharded data parallelism of the run."""

    #: zero1, zero2 or zero3
    stage: str
    ranks: tuple[RankSharding, ...]
    over_ranks: dict[str, Spread]


def sharding_view(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]
) -> ShardingView | None:
    """Return gathers and scatters of a run, None where nothing is sharded over data-parallel ranks."""
    dimension = next((d for d in strategy.dimensions if d.kind in _SHARDING_KINDS), None)
    ranks = [
        _rank_sharding(shared, strategy, index, account)
        for index, account in enumerate(accounts)
        if account is not None and len(strategy.rows_of(index, *_SHARDING_KINDS))
    ]
    if dimension is None or not ranks:
        return None
    return ShardingView(dimension.kind.removeprefix("fsdp-"), tuple(ranks), over_ranks(ranks))


def _rank_sharding(shared: AlignedRun, strategy: Strategy, index: int, account: RankAccount) -> RankSharding:
    rank = shared.run.ranks[index]
    c, phase = rank.collectives, strategy.phases[index]
    rows = strategy.rows_of(index, *_SHARDING_KINDS)
    hands_round = among(c.op[rows], [OP_CODE["all_gather"], OP_CODE["broadcast"]])
    gathers, scatters = rows[hands_round], rows[~hands_round]
    forward, backward, after = (gathers[among(phase[gathers], which)] for which in _GATHER_PHASES)
    gathered, scattered = (rank_traffic(shared, index, x, account) for x in (gathers, scatters))
    once = rank_traffic(shared, index, forward if len(forward) else after, account).size_bytes
    passes = max(_passes_in_steps(rank, strategy.passes[index]), 1) / num_steps(rank)
    parameters = once / passes if once else None
    sizes = (gathered.size_bytes, scattered.size_bytes)
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
        traffic_of_parameters=_ratio(None if None in sizes else sum(s or 0 for s in sizes), parameters, passes),
    )


_GATHER_PHASES = (
    (Phase.FORWARD, Phase.UNKNOWN),
    (Phase.BACKWARD,),
    (Phase.AFTER_BACKWARD, Phase.OPTIMIZER),
)


def _early_pct(rank: Rank, account: RankAccount, rows: Int64s) -> float | None:
    if not len(rows):
        return None
    start, compute = rank.collectives.start_ns[rows], account.compute
    i = np.searchsorted(compute.start, start, side="left") - 1  # computing before it starts, and still then
    still = (i >= 0) & (compute.end[np.maximum(i, 0)] > start) if len(compute) else np.zeros(len(rows), bool)
    return 100 * float(still.mean())


def _ratio(total: float | None, parameters: float | None, passes: float) -> float | None:
    return None if total is None or not parameters else total / parameters / passes


# What does tensor parallelism cost, layer by layer?
#
# Every layer ends in an exchange of activations that the next layer needs, so its time can hardly be hidden. The share
# of a layer is what is exposed of its exchange, against the time from the end of the exchange before it to its own end:
#
#     compute   =====        ======
#     exchange       |-----|       |-----|
#               <--- layer 0 --->
#                          <-- layer 1 -->

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

    #: share of the exchanges' time that is overlapped by other work
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

_MODEL_PARALLEL_KINDS = ("ep", "embedding")

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
    kind = next((d.kind for d in strategy.dimensions if d.kind in _MODEL_PARALLEL_KINDS), None)
    used = [
        i
        for i, account in enumerate(accounts)
        if account is not None and len(strategy.rows_of(i, *_MODEL_PARALLEL_KINDS))
    ]
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
    rank, rows = shared.run.ranks[index], strategy.rows_of(index, *_MODEL_PARALLEL_KINDS)
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
    mine = [set(strategy.rows_of(i, *_MODEL_PARALLEL_KINDS).tolist()) for i in range(len(ranks))]
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
