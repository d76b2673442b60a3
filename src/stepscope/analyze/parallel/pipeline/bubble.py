"""How well is the pipeline filled: what does each stage do with its step, and how large is the bubble?

The *bubble* of a stage is the share of its step in which its device has nothing to do between micro-batches (idle)
or sits in a receive or send until another stage gets there (wait). What messages then still take is *transfer*, and
holes inside a micro-batch's own work are *gaps*: neither goes away with more micro-batches, so neither is bubble.

    stage's step = forward + backward + other work + exposed transfer + gaps + wait + idle
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.parallel.pipeline.actions import Action, stage_actions
from stepscope.analyze.parallel.pipeline.ideal import Replay, replayed, schedule_name, textbook_bubble
from stepscope.analyze.parallel.pipeline.shape import KIND, chains_of, microbatches_and_chunks, one_step_of_one
from stepscope.analyze.parallel.strategy import Strategy
from stepscope.analyze.ranks.traffic import over_ranks
from stepscope.analyze.ranks.window import RankAccount
from stepscope.analyze.step.periods import step_periods
from stepscope.analyze.step.phases import Phase, work_phases
from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.intervals import Intervals, covered_ns, intersect, subtract, union, union_of
from stepscope.run.aligned import AlignedRun
from stepscope.run.rank import Rank
from stepscope.stats.robust import Spread
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s


@dataclass(frozen=True)
class RankPipeline:
    """One stage's step; times per step. The parts of the docstring above sum to `step_ns`."""

    rank: int
    stage: int
    """position among the ranks of its pipeline, from 0"""
    step_ns: int
    forward_ns: int
    backward_ns: int
    other_ns: int
    """optimizer, copies, and communication other than between stages"""
    transfer_ns: int
    """exposed transfer between stages"""
    wait_ns: int
    """exposed waiting in sends and receives; all of their exposed time where they could not be matched"""
    gaps_ns: int
    """nothing runs, but a micro-batch is under way"""
    idle_ns: int
    """nothing runs, between micro-batches"""
    bubble_pct: float
    """wait and idle, of the step"""
    send_ns: int
    """time in which an operation only sends"""
    receive_ns: int
    exchange_ns: int
    """time in operations that do both"""
    forwards: float
    """micro-batches (of each chunk) that went forward"""
    forward_microbatch_ns: int | None
    backward_microbatch_ns: int | None


@dataclass(frozen=True)
class PipelineView:
    """Pipeline parallelism of the run."""

    stages: int
    """ranks of one pipeline"""
    microbatches: int | None
    chunks: int | None
    """stages per rank: 1, or more where it is interleaved"""
    schedule: str | None
    bubble_pct: float
    """mean over ranks of the measured bubble"""
    textbook_pct: float | None
    """(p - 1) / (m v + p - 1)"""
    schedule_pct: float | None
    """the recorded order of actions replayed with equal stages and free messages"""
    stages_pct: float | None
    """the same with the time each stage really takes: what uneven stages add"""
    imbalance: float | None
    """work of the slowest stage against the mean"""
    marked: bool
    """whether the framework's ranges named the actions; otherwise they are told apart by order"""
    notes: tuple[str, ...]
    ranks: tuple[RankPipeline, ...]
    over_ranks: dict[str, Spread]


def pipeline_actions(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]
) -> tuple[list[int], list[list[Action]]] | None:
    """Return the ranks (by index) of one pipeline that was recorded whole and their actions in one step.

    In the order of the stages; None where there is no such pipeline or its micro-batches cannot be told.
    """
    used = [i for i, account in enumerate(accounts) if account is not None and len(strategy.rows_of(i, KIND))]
    if not used:
        return None
    chains, _, found = _stages(shared, strategy, used)
    whole = one_step_of_one(shared, chains, {i: a for i, (a, _) in found.items()})
    if whole is None or not all(whole):
        return None
    index = {shared.run.ranks[i].rank: i for i in used}
    chain = next(c for c in chains if all(rank in index for rank in c))
    return [index[rank] for rank in chain], whole


Stages = tuple[list[tuple[int, ...]], dict[int, int], dict[int, tuple[list[Action], bool]]]


def _stages(shared: AlignedRun, strategy: Strategy, used: Sequence[int]) -> Stages:
    """Return the pipelines, each rank's place in its own, and each rank's actions with whether they were marked."""
    chains = chains_of(shared, strategy, used)
    position = {i: chain.index(shared.run.ranks[i].rank) for i in used for chain in chains if _on(shared, i, chain)}
    found = {
        i: stage_actions(shared.run.ranks[i], strategy.passes[i], strategy.rows_of(i, KIND), position=position[i])
        for i in used
    }
    return chains, position, found


def pipeline_view(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]
) -> PipelineView | None:
    """Return what the stages did, None where there is no pipeline."""
    used = [i for i, account in enumerate(accounts) if account is not None and len(strategy.rows_of(i, KIND))]
    if not used:
        return None
    chains, position, found = _stages(shared, strategy, used)
    actions = {i: a for i, (a, _) in found.items()}
    ranks = [
        r
        for i in used
        for account in (accounts[i],)
        if account is not None and (r := _rank_pipeline(shared, strategy, i, account, position[i], actions[i]))
    ]
    if not ranks:
        return None
    return _view(shared, strategy, chains, actions, ranks, marked=all(marked for _, marked in found.values()))


def _view(
    shared: AlignedRun,
    strategy: Strategy,
    chains: Sequence[tuple[int, ...]],
    actions: dict[int, list[Action]],
    ranks: list[RankPipeline],
    *,
    marked: bool,
) -> PipelineView:
    stages = max(len(chain) for chain in chains)
    microbatches, chunks, notes = microbatches_and_chunks(shared, strategy, chains[0], actions, marked=marked)
    whole = one_step_of_one(shared, chains, actions)
    schedule = schedule_name(whole, chunks=chunks) if whole and chunks else None
    if not whole:
        notes.append("the schedule is unknown: not all ranks of a pipeline were recorded")
    orders = whole if marked or chunks == 1 else None
    work = [r.forward_ns + r.backward_ns for r in ranks]
    return PipelineView(
        stages=stages,
        microbatches=microbatches,
        chunks=chunks,
        schedule=schedule,
        bubble_pct=float(np.mean([r.bubble_pct for r in ranks])),
        textbook_pct=100 * textbook_bubble(stages, microbatches, chunks=chunks) if microbatches and chunks else None,
        schedule_pct=_replayed_pct(orders, equal=True),
        stages_pct=_replayed_pct(orders, equal=False),
        imbalance=max(work) / float(np.mean(work)) if any(work) else None,
        marked=marked,
        notes=tuple(notes),
        ranks=tuple(ranks),
        over_ranks=over_ranks(ranks),
    )


def _on(shared: AlignedRun, index: int, chain: tuple[int, ...]) -> bool:
    return shared.run.ranks[index].rank in chain


def _rank_pipeline(
    shared: AlignedRun, strategy: Strategy, index: int, account: RankAccount, position: int, actions: Sequence[Action]
) -> RankPipeline | None:
    rank, rows = shared.run.ranks[index], strategy.rows_of(index, KIND)
    spans = _spans(rank)
    if spans is None:
        return None
    window, count = spans
    c, wait = rank.collectives, shared.wait_ns[index][rows]
    duration = c.end_ns[rows] - c.start_ns[rows]
    waits = union(c.start_ns[rows], c.start_ns[rows] + np.where(wait >= 0, wait, duration))
    others = np.delete(np.arange(len(c)), rows)
    compute = union_of(account.compute, account.memory) if account.memory is not None else account.compute
    busy = intersect(union_of(compute, union(c.start_ns[others], c.end_ns[others])), window)
    messages = subtract(intersect(union(c.start_ns[rows], c.end_ns[rows]), window), busy)
    forward, backward = (intersect(x, window).total_ns for x in _passes_work(rank, strategy, index, account))
    step = window.total_ns
    waited = intersect(messages, waits).total_ns
    nothing = subtract(window, union_of(busy, messages))
    gaps = intersect(nothing, union([a.start_ns for a in actions], [a.end_ns for a in actions])).total_ns
    idle = nothing.total_ns - gaps
    by_op = {op: _op_ns(rank, rows, op, window) for op in ("send", "recv", "send_recv")}
    return RankPipeline(
        rank=rank.rank,
        stage=position,
        step_ns=round(step / count),
        forward_ns=round(forward / count),
        backward_ns=round(backward / count),
        other_ns=round((busy.total_ns - forward - backward) / count),
        transfer_ns=round((messages.total_ns - waited) / count),
        wait_ns=round(waited / count),
        gaps_ns=round(gaps / count),
        idle_ns=round(idle / count),
        bubble_pct=100 * (waited + idle) / step,
        send_ns=round(by_op["send"] / count),
        receive_ns=round(by_op["recv"] / count),
        exchange_ns=round(by_op["send_recv"] / count),
        forwards=sum(a.kind == "F" for a in actions) / max(len(rank.steps), 1),
        forward_microbatch_ns=_mean_ns(actions, "F"),
        backward_microbatch_ns=_mean_ns(actions, "BIW"),
    )


def _spans(rank: Rank) -> tuple[Intervals, int] | None:
    """Return the periods of the rank's steps as one set, complete ones if there are any, and how many they are."""
    periods = step_periods(rank)
    if periods is None or not len(periods):
        return None
    keep = periods.complete if periods.complete.any() else np.ones(len(periods), bool)
    return union(periods.start_ns[keep], periods.end_ns[keep]), int(keep.sum())


def _passes_work(rank: Rank, strategy: Strategy, index: int, account: RankAccount) -> tuple[Intervals, Intervals]:
    """Return the time of forward and of backward work; where both run at once it is backward."""
    found = strategy.passes[index]
    if rank.has_device:
        phase = work_phases(rank, found)
        work = (rank.work.kind != EventKind.COMM_KERNEL) & (rank.work.step >= 0)
        forward, backward = (
            union(rank.work.start_ns[work & (phase == p)], rank.work.end_ns[work & (phase == p)])
            for p in (Phase.FORWARD, Phase.BACKWARD)
        )
        return subtract(forward, backward), backward
    backward = intersect(account.compute, found.backward)
    rest = subtract(subtract(account.compute, found.backward), found.optimizer)
    return rest, backward


def _op_ns(rank: Rank, rows: Int64s, op: str, window: Intervals) -> int:
    c = rank.collectives
    mine = rows[c.op[rows] == OP_CODE[op]]
    return int(covered_ns(window, c.start_ns[mine], c.end_ns[mine]).sum())


def _mean_ns(actions: Sequence[Action], kinds: str) -> int | None:
    """Return the mean time of a micro-batch one way: halves of a backward count together."""
    mine = [a for a in actions if a.kind in kinds]
    count = len({(a.step, a.stage, a.microbatch) for a in mine})
    return round(sum(a.busy_ns for a in mine) / count) if count else None


def _replayed_pct(ranks: list[list[Action]] | None, *, equal: bool) -> float | None:
    """Return the bubble of these orders with each stage's mean times, or with the same mean times on all stages."""
    found = ideal_schedule(ranks, equal=equal)[0] if ranks else None
    return 100 * found.mean_idle_share if found else None


def ideal_schedule(ranks: list[list[Action]], *, equal: bool) -> tuple[Replay | None, list[list[float]]]:
    """Return these orders of actions with free messages, and what each action then takes."""
    means = [_mean_busy(actions) for actions in ranks]
    if equal:
        everywhere = _mean_busy([a for actions in ranks for a in actions])
        means = [everywhere] * len(ranks)
    durations = [[mean[a.kind] for a in actions] for actions, mean in zip(ranks, means, strict=True)]
    return replayed(ranks, durations), durations


def _mean_busy(actions: Sequence[Action]) -> dict[str, float]:
    kinds = {a.kind for a in actions}
    return {kind: float(np.mean([a.busy_ns for a in actions if a.kind == kind])) for kind in kinds}
