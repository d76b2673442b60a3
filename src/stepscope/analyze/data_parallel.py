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
    num_steps,
    over_ranks,
    rank_traffic,
    share_of_step_pct,
)
from stepscope.analyze.host_time import HostCalls, call_stacks
from stepscope.analyze.parallel_strategy import Strategy, taking_part
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
from stepscope.contract.operations import OP_CODE
from stepscope.intervals import EMPTY, covered_ns, union
from stepscope.records import Row
from stepscope.run.aligned import AlignedRun
from stepscope.run.load import each_rank
from stepscope.run.rank import Rank
from stepscope.side_file import is_number, parsed_json
from stepscope.stats.robust import among, distinct
from stepscope.trace.table import EventKind, Int64s, Kinds, by_string

_KINDS = ("ddp", "zero1")
# the index of a rank, one of its backward passes, and the all-reduces that send the gradients of it
_Sync = tuple[int, int, Int64s]


def bucket_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> Row | None:
    """Return the gradient buckets of a run, None where it has no gradient all-reduces."""

    def of_rank(index: int, rank: Rank) -> tuple[Row, list[_Sync]] | None:
        account, found, issue_ns = accounts[index], strategy.passes[index], rank.collectives.issue_ns
        rows = strategy.rows_of(index, *_KINDS)
        rows = rows[strategy.phases[index][rows] != Phase.OPTIMIZER]
        if account is None or not len(rows):
            return None
        rows = rows[np.argsort(issue_ns[rows], kind="stable")]
        at_pass = np.searchsorted(found.backward.start, issue_ns[rows], side="right") - 1
        syncs = [(index, int(k), rows[at_pass == k]) for k in distinct(at_pass)]
        return _rank_buckets(shared, account, found, rows, syncs), syncs

    known = [one for one in each_rank(shared.run, of_rank) if one is not None]
    if not known:
        return None
    ranks, syncs = [one for one, _ in known], [sync for _, of_one in known for sync in of_one]
    sizes = [tuple(shared.run.ranks[index].collectives.full_bytes[rows].tolist()) for index, _, rows in syncs]
    usual, count = Counter(sizes).most_common(1)[0]
    alike = [sync for sync, size in zip(syncs, sizes, strict=True) if size == usual]
    return Row(
        buckets=_buckets(shared, strategy, accounts, alike),  # of the most common synchronisation, in ready order
        # of all synchronisations, over ranks and steps: as many buckets with the same sizes in this order
        usual_share=count / len(syncs),
        ranks=ranks,
        over_ranks=over_ranks(ranks),
    )


def _rank_buckets(shared: AlignedRun, account: RankAccount, found: Passes, rows: Int64s, syncs: Sequence[_Sync]) -> Row:
    index = syncs[0][0]
    rank, steps = shared.run.ranks[index], num_steps(shared.run.ranks[index])
    begins, ends, hook_host_ns, hook_device_ns = _gradients(rank, found)
    sent = {at: (int(rank.collectives.start_ns[x].min()), int(rank.collectives.end_ns[x].max())) for _, at, x in syncs}
    # of a pass that ran, and whose gradients were not sent before they were there
    known = [k for k in sent if k >= 0 and begins[k] < ends[k] and begins[k] <= sent[k][0]]
    delay, backward = [int(sent[k][0] - begins[k]) for k in known], [int(ends[k] - begins[k]) for k in known]
    return Row(
        **rank_traffic(shared, index, rows, account),
        syncs=len(syncs) / steps,  # backward passes that synchronised
        backward_passes=_num_passes(rank, found) / steps,
        backward_ns=_mean_ns(backward),  # from a synchronised pass's first operation on the device to its last
        first_delay_ns=_mean_ns(delay),  # from that first operation to the first bucket's start
        first_delay_pct=100 * sum(delay) / sum(backward) if sum(backward) else None,  # of `backward_ns`
        # from its last operation to the last bucket's end
        tail_ns=_mean_ns([max(int(sent[k][1] - ends[k]), 0) for k in known]),
        # filling buckets, launching, copying back; None where no nodes were recorded
        hook_host_ns=None if hook_host_ns is None else round(hook_host_ns / steps),
        # of what hooks launched, the all-reduces themselves left out
        hook_device_ns=None if hook_device_ns is None else round(hook_device_ns / steps),
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
    host = None if host is not None and host < 0 else host  # the file lacks some of the nodes around
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


def _buckets(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None], syncs: Sequence[_Sync]
) -> list[Row]:
    """Return the buckets of synchronisations that have as many, as means over ranks and steps."""
    parts = []
    for index in distinct(np.array([index for index, _, _ in syncs])).tolist():
        c, account = shared.run.ranks[index].collectives, accounts[index]
        at, rows = (np.stack([sync[k] for sync in syncs if sync[0] == index]) for k in (1, 2))
        issue, start, end = c.issue_ns[rows], c.start_ns[rows], c.end_ns[rows]
        begin = np.where(at >= 0, np.append(strategy.passes[index].backward.start, 0)[at], issue.min(axis=1))
        end = np.maximum(start, end)  # of damaged events
        exposed = covered_ns(account.exposed_comm if account else EMPTY, start, end)
        wait = shared.wait_ns[index][rows]
        parts.append(np.stack((c.full_bytes[rows], issue - begin[:, None], end - start, wait, exposed)))
    columns = np.concatenate(parts, axis=1)
    matched = (columns[3] >= 0).all(axis=0).tolist()
    return [
        Row(
            order=order,  # in which it became ready, from 0
            size_bytes=size if size >= 0 else None,
            ready_ns=round(ready),  # from the backward pass's beginning on the host until the host issued it
            time_ns=round(time),
            wait_ns=round(wait) if matched[order] else None,
            transfer_ns=round(time - wait) if matched[order] else None,
            exposed_ns=round(exposed),
            occurrences=len(syncs),
        )
        for order, (size, ready, time, wait, exposed) in enumerate(columns.mean(axis=1).T.tolist())
    ]


def _num_passes(rank: Rank, found: Passes) -> int:
    return int((rank.steps.of(found.backward.start) >= 0).sum()) if len(rank.steps) else len(found.backward)


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


_GATHER_PHASES = {
    "forward": (Phase.FORWARD, Phase.UNKNOWN),
    "backward": (Phase.BACKWARD,),
    "optimizer": (Phase.AFTER_BACKWARD, Phase.OPTIMIZER),  # parameters handed round after the step (ZeRO-1 and -2)
}


def sharding_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> Row | None:
    """Return gathers and scatters of a run, None where nothing is sharded over data-parallel ranks."""
    dimension = next((d for d in strategy.dimensions if d.kind in _SHARDING_KINDS), None)
    found = taking_part(shared, strategy, accounts, *_SHARDING_KINDS)
    ranks = [_rank_sharding(shared, strategy, *one) for one in found]
    if dimension is None or not ranks:
        return None
    return Row(stage=dimension.kind.removeprefix("fsdp-"), ranks=ranks, over_ranks=over_ranks(ranks))


def _rank_sharding(
    shared: AlignedRun, strategy: Strategy, index: int, rank: Rank, account: RankAccount, rows: Int64s
) -> Row:
    """Return gathers and scatters of one rank, per step; bytes are of full buffers."""
    c, phase, steps = rank.collectives, strategy.phases[index], num_steps(rank)
    hands_round = among(c.op[rows], [OP_CODE["all_gather"], OP_CODE["broadcast"]])
    handed = rows[hands_round]
    gathers = {name: handed[among(phase[handed], which)] for name, which in _GATHER_PHASES.items()}
    # reductions of gradients: reduce-scatters, and the all-reduces of ZeRO-1
    gathered, scattered = (rank_traffic(shared, index, x, account) for x in (handed, rows[~hands_round]))
    whole = gathers["forward"] if len(gathers["forward"]) else gathers["optimizer"]
    once, sizes = rank_traffic(shared, index, whole, account).size_bytes, (gathered.size_bytes, scattered.size_bytes)
    passes = max(_num_passes(rank, strategy.passes[index]), 1) / steps
    parameters = once / passes if once else None
    per_pass = passes * (parameters or np.nan)
    return Row(
        rank=rank.rank,
        **{f"gathers_{name}": len(x) / steps for name, x in gathers.items()},
        gathered_bytes=gathered.size_bytes,
        gather_ns=gathered.time_ns,
        gather_exposed_ns=gathered.exposed_ns,
        gather_wait_ns=gathered.wait_ns,
        early_pct=_early_pct(rank, account, np.concatenate((gathers["forward"], gathers["backward"]))),
        scatters=scattered.count,
        scattered_bytes=scattered.size_bytes,
        scatter_ns=scattered.time_ns,
        scatter_exposed_ns=scattered.exposed_ns,
        scatter_wait_ns=scattered.wait_ns,
        parameter_bytes=parameters,  # one gather of everything: the gathers of forward, per backward pass
        # how often everything is gathered per backward pass: 1 where it stays until backward, 2 where it is freed
        gathers_of_parameters=sizes[0] / per_pass if parameters and sizes[0] is not None else None,
        # gathered and scattered bytes per backward pass against the parameters' bytes
        traffic_of_parameters=sum(sizes) / per_pass if parameters and None not in sizes else None,
    )


def _early_pct(rank: Rank, account: RankAccount, rows: Int64s) -> float | None:
    if not len(rows):
        return None
    start, compute = rank.collectives.start_ns[rows], account.compute
    i = np.searchsorted(compute.start, start, side="left") - 1  # computing before it starts, and still then
    still = (i >= 0) & (compute.end[np.maximum(i, 0)] > start) if len(compute) else np.zeros(len(rows), bool)
    return 100 * float(still.mean())


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


def tensor_parallel_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> Row | None:
    """Return the exchanges of tensor parallelism, None where there are none."""
    ranks, found = [], []
    for index, rank, account, rows in taking_part(shared, strategy, accounts, "tp"):
        traffic = rank_traffic(shared, index, rows, account)
        ranks.append(Row(**traffic, share_of_step_pct=share_of_step_pct(traffic, rank)))
        found.append(_exchanges(shared, strategy, index, account, rows))
    return Row(layers=_layers(found), ranks=ranks, over_ranks=over_ranks(ranks)) if ranks else None


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


def _layers(found: Sequence[Int64s]) -> list[Row]:
    """Return the exchanges by their position in a pass, as means over ranks, passes and steps."""
    part, position, *columns = np.concatenate(found, axis=1)
    out = []
    for phase, name in _PASSES:
        for k in distinct(position[part == phase]).tolist():
            size, time, exposed, wait, compute, since = (x[(part == phase) & (position == k)] for x in columns)
            out.append(
                Row(
                    part=name,
                    position=k,
                    size_bytes=float(size.mean()) if (size >= 0).all() else None,
                    time_ns=round(time.mean()),
                    exposed_ns=round(exposed.mean()),
                    wait_ns=round(wait.mean()) if (wait >= 0).all() else None,
                    compute_ns=round(compute.mean()),  # of the device since the exchange before
                    share_pct=100 * float(exposed.sum() / max(since.sum(), 1)),  # of the time since then
                    occurrences=len(size),
                )
            )
    return out


# Context parallelism: exchanges of keys and values, and compute imbalance.
#
# With a causal mask later parts of the sequence attend to more than earlier ones, so a plain split leaves ranks with
# unequal work. The imbalance is the largest compute time of a rank against the mean.


def context_parallel_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> Row | None:
    """Return what context parallelism exchanged, None where there is none."""
    ranks = []
    for index, rank, account, rows in taking_part(shared, strategy, accounts, "cp"):
        traffic = rank_traffic(shared, index, rows, account)
        hidden = 100 * (1 - traffic.exposed_ns / traffic.time_ns) if traffic.time_ns else None
        share, compute_ns = share_of_step_pct(traffic, rank), round(account.compute.total_ns / num_steps(rank))
        ranks.append(Row(**traffic, hidden_pct=hidden, share_of_step_pct=share, compute_ns=compute_ns))
    if not ranks:
        return None
    ops = {use.op for d in strategy.dimensions if d.kind == "cp" for use in d.uses}
    compute = np.array([r.compute_ns for r in ranks])
    return Row(
        # sends and receives, all-to-all, or gathers
        by="ring" if ops & {"send", "recv", "send_recv"} else "exchange" if "all_to_all" in ops else "gather",
        # the largest against the mean
        compute_imbalance=float(compute.max() / compute.mean()) if len(ranks) > 1 and compute.any() else None,
        ranks=ranks,
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


def experts_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> Row | None:
    """Return the token exchanges of a run (or of sharded embeddings), None where there are none."""
    kind = next((d.kind for d in strategy.dimensions if d.kind in _MODEL_PARALLEL_KINDS), None)
    used = [*taking_part(shared, strategy, accounts, *_MODEL_PARALLEL_KINDS)]
    if kind is None or not used:
        return None
    load, worst = _loads(shared, strategy)
    ranks = [_rank_experts(shared, load[one[0]], *one) for one in used]
    total = load[[index for index, *_ in used]]
    known = len(used) > 1 and not np.isnan(total).any() and total.sum() > 0
    return Row(
        kind=kind,
        imbalance=float(total.max() / total.mean()) if known else None,  # load of the fullest rank against the mean
        worst_exchange=worst,  # the largest imbalance of a single one
        fullest_rank=ranks[int(total.argmax())].rank if known and np.ptp(total) else None,
        ranks=ranks,
        over_ranks=over_ranks(ranks),
    )


def _rank_experts(shared: AlignedRun, load: float, index: int, rank: Rank, account: RankAccount, rows: Int64s) -> Row:
    traffic, steps, c = rank_traffic(shared, index, rows, account), num_steps(rank), rank.collectives
    sizes = {"sent_bytes": c.in_bytes[rows], "received_bytes": c.out_bytes[rows]}
    return Row(
        rank=rank.rank,
        count=traffic.count,
        **{name: float(size.sum()) / steps if (size >= 0).all() else None for name, size in sizes.items()},
        # on the uneven side of each exchange; None where the exchanges could not be matched across ranks
        load_bytes=None if np.isnan(load) else float(load) / steps,
        **{name: traffic[name] for name in ("time_ns", "exposed_ns", "wait_ns", "transfer_ns")},
        # largest against mean amount it sends to a peer, in its most uneven exchange
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
