"""How well is the pipeline filled: what does each stage do with its step, and how large is the bubble?

The *bubble* of a stage is the share of its step in which its device has nothing to do between micro-batches (idle)
or sits in a receive or send until another stage gets there (wait). What messages then still take is *transfer*, and
holes inside a micro-batch's own work are *gaps*: neither goes away with more micro-batches, so neither is bubble.

    stage's step = forward + backward + other work + exposed transfer + gaps + wait + idle
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.collective_costs import RankAccount, host_compute, over_ranks
from stepscope.analyze.parallel_strategy import MARKED_ACTION, Strategy, taking_part
from stepscope.analyze.phases import Passes, Phase, marks_of, step_periods, work_phases
from stepscope.contract.operations import OP_CODE
from stepscope.cost.alpha_beta import DEFAULT_LATENCY_NS
from stepscope.intervals import Intervals, covered_ns, intersect, subtract, union, union_of
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.aligned import AlignedRun, sharing_ranks
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.stats.robust import among, distinct, median
from stepscope.trace.table import EventKind, Int64s

# The actions of each stage: the forwards and backwards of its micro-batches, in order.
#
# Actions that the framework marks (`PP:1F0`: stage 1, forward, micro-batch 0) are used as they are. Otherwise the
# host's order separates them: a stage sends or receives between micro-batches, and forward and backward are known, so
#
#     recv F send recv F send ... recv B send     ->     F F ... B
#
# A stretch of far fewer operations than usual (zeroing gradients, seeding a backward pass) is no micro-batch.

_NAMED = re.compile(r"^(?P<kind>Forward|Backward) (?P<microbatch>\d+)$")
# of the operations of a usual stretch of the same kind: one with fewer is no micro-batch
_MIN_SHARE = 0.3


@dataclass(frozen=True)
class Action:
    """One micro-batch going one way through one stage."""

    #: F forward, B backward, or its halves: I gradients of inputs, W gradients of weights
    kind: str
    #: global number of the stage; the rank's position where nothing marks it
    stage: int
    microbatch: int
    #: when the device began with it
    start_ns: int
    end_ns: int
    #: time in which the device computed for it
    busy_ns: int
    step: int


@dataclass(frozen=True, eq=False, repr=False)
class _Work(ArrayRecord):
    moment_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    phase: npt.NDArray[np.uint8]
    step: npt.NDArray[np.int32]
    #: see `_graph_numbers`
    graph: Int64s
    #: on a CPU rank, where operators nest: the time covered by any
    busy: Intervals | None


def stage_actions(rank: Rank, found: Passes, messages: Int64s, *, position: int) -> tuple[list[Action], bool]:
    """Return a rank's actions in order, and whether the framework marked them.

    `messages` are the rows of its pipeline sends and receives, `position` its place among the stages.
    """
    work = _device_work(rank, found) if rank.has_device else _host_work(rank, found)
    marked = _marked_actions(rank, work, position)
    if marked:
        return marked, True
    return _told_apart(rank, work, np.sort(rank.collectives.issue_ns[messages]), position), False


def _device_work(rank: Rank, found: Passes) -> _Work:
    work = rank.work
    use = np.flatnonzero((work.kind == EventKind.KERNEL) & (work.launch_row >= 0) & (work.step >= 0))
    moment = rank.trace["ts_ns"][work.launch_row[use]]
    order = np.argsort(moment, kind="stable")
    use = use[order]
    phase = work_phases(rank, found)[use]
    graph = _graph_numbers(rank, work.launch_row[use])
    return _Work(moment[order], work.start_ns[use], work.end_ns[use], phase, work.step[use], graph, None)


def _host_work(rank: Rank, found: Passes) -> _Work:
    trace = rank.trace
    rows = rank.rows_named(lambda s: s.startswith(("aten::", "autograd::")), EventKind.HOST_OP)
    start = trace["ts_ns"][rows]
    order = np.argsort(start, kind="stable")
    rows, start = rows[order], start[order]
    step = rank.steps.of(start)
    inside = step >= 0
    rows, start, step = rows[inside], start[inside], step[inside]
    phase = found.at(start, trace["tid"][rows])
    end = start + trace["dur_ns"][rows]
    return _Work(start, start, end, phase, step, _graph_numbers(rank, rows), host_compute(rank))


def _graph_numbers(rank: Rank, rows: Int64s) -> Int64s:
    """Return the autograd sequence number of the operator at or around each host row, -1 where there is none.

    It counts the nodes that forward adds to the graph: work that adds none (scaling, zeroing) keeps the same number.
    """
    builders = marks_of(rank).graph_builders
    if not len(builders) or not len(rows):
        return np.full(len(rows), -1, np.int64)
    around = np.where(among(rows, builders), rows, enclosing(rank.trace, builders, rows))
    return np.where(around >= 0, rank.trace.arg("sequence").at(around, missing=-1), -1)


def _marked_actions(rank: Rank, work: _Work, position: int) -> list[Action]:
    trace = rank.trace
    rows = rank.rows_named(lambda s: bool(MARKED_ACTION.match(s) or _NAMED.match(s)), EventKind.ANNOTATION)
    rows = rows[np.argsort(trace["ts_ns"][rows], kind="stable")]
    rows = rows[rank.steps.of(trace["ts_ns"][rows]) >= 0]
    begin = trace["ts_ns"][rows]
    end = begin + trace["dur_ns"][rows]
    first, last = np.searchsorted(work.moment_ns, begin), np.searchsorted(work.moment_ns, end)
    actions = []
    for k, row in enumerate(rows.tolist()):
        kind, stage, microbatch = _read_name(trace.strings[trace["name"][row]], position)
        step = int(rank.steps.of(begin[k : k + 1])[0])
        actions.append(Action(kind, stage, microbatch, *_extent(work, int(first[k]), int(last[k])), step))
    return actions


def _read_name(name: str, position: int) -> tuple[str, int, int]:
    found = MARKED_ACTION.match(name) or _NAMED.match(name)
    assert found is not None
    return found["kind"][0], int(found.groupdict().get("stage", position)), int(found["microbatch"])


def _extent(work: _Work, first: int, last: int) -> tuple[int, int, int]:
    if last <= first:
        return 0, 0, 0
    start, end = work.start_ns[first:last], work.end_ns[first:last]
    begins, ends = int(start.min()), int(end.max())
    if work.busy is not None:
        return begins, ends, int(covered_ns(work.busy, np.array([begins]), np.array([ends]))[0])
    return begins, ends, union(start, end).total_ns


def _told_apart(rank: Rank, work: _Work, messages_ns: Int64s, position: int) -> list[Action]:
    use = np.flatnonzero(among(work.phase, (Phase.FORWARD, Phase.BACKWARD)))
    if not len(use):
        return []
    between = np.searchsorted(messages_ns, work.moment_ns[use])
    changes = (np.diff(between) > 0) | (np.diff(work.phase[use]) != 0) | (np.diff(work.step[use]) != 0)
    first = np.concatenate(([0], np.flatnonzero(changes) + 1))
    last = np.append(first[1:], len(use))
    actions = [
        Action(
            "F" if work.phase[use[a]] == Phase.FORWARD else "B",
            position,
            -1,
            *_extent(work, int(use[a]), int(use[b - 1]) + 1),
            int(work.step[use[a]]),
        )
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]
    sizes = [_size(work, use[a:b]) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    return _numbered(_of_usual_size(actions, sizes))


def _size(work: _Work, items: npt.NDArray[np.intp]) -> int:
    numbers = work.graph[items]
    if work.phase[items[0]] == Phase.FORWARD and (numbers >= 0).any():
        return len(distinct(numbers[numbers >= 0]))
    return len(items)


def _of_usual_size(actions: Sequence[Action], operations: Sequence[int]) -> list[Action]:
    least = {}
    for kind in {a.kind for a in actions}:
        counts = np.array([n for a, n in zip(actions, operations, strict=True) if a.kind == kind])
        # Crumbs may outnumber the micro-batches, so that the median is one of them; the mean from it on is not.
        least[kind] = _MIN_SHARE * counts[counts >= median(counts)].mean()
    return [a for a, n in zip(actions, operations, strict=True) if n >= least[a.kind]]


def _numbered(actions: Sequence[Action]) -> list[Action]:
    numbers: defaultdict[tuple[int, str], Iterator[int]] = defaultdict(itertools.count)
    return [replace(a, microbatch=next(numbers[a.step, a.kind])) for a in actions]


# Schedule of a pipeline, and its ideal idle share.
#
# The textbook share (p - 1) / (m + p - 1) holds for GPipe and 1F1B with equal stages; interleaving over v chunks per
# rank divides p - 1 by v. For any order of actions the answer comes from replaying it: an action starts when its rank
# is free and what it needs has been computed, messages take no time.
#
#     F(s, i) needs F(s - 1, i)      B(s, i) needs B(s + 1, i), on the last stage F(s, i)      W(s, i) needs I(s, i)

GPIPE, ONE_F_ONE_B, INTERLEAVED, LOOPED, ZERO_BUBBLE, OTHER = (
    "gpipe", "1f1b", "interleaved-1f1b", "interleaved-gpipe", "zero-bubble", "other",
)  # fmt: skip


@dataclass(frozen=True)
class Replay:
    """A schedule run with given durations and no other delay."""

    makespan: float
    #: per rank, of the makespan
    idle_share: tuple[float, ...]
    #: per rank, when each of its actions begins
    starts: tuple[tuple[float, ...], ...] = ()

    @property
    def mean_idle_share(self) -> float:
        """Return the bubble: the mean over ranks."""
        return sum(self.idle_share) / len(self.idle_share)


def textbook_bubble(stages: int, microbatches: int, *, chunks: int = 1) -> float:
    """Return the idle share of the step: (p - 1) / (m v + p - 1).

    >>> round(textbook_bubble(4, 4), 4), round(textbook_bubble(4, 4, chunks=2), 4)
    (0.4286, 0.2727)
    """
    return (stages - 1) / (microbatches * chunks + stages - 1)


def schedule_name(ranks: Sequence[Sequence[Action]], *, chunks: int) -> str:
    """Return the schedule that the orders of actions follow, one sequence per rank in the order of the stages."""
    kinds = [[a.kind for a in actions] for actions in ranks]
    if any(kind in ("I", "W") for sequence in kinds for kind in sequence):
        return ZERO_BUBBLE
    all_forward_first = all("F" not in sequence[sequence.index("B") :] for sequence in kinds if "B" in sequence)
    if chunks > 1:
        return LOOPED if all_forward_first else INTERLEAVED
    if all_forward_first:
        return GPIPE
    return ONE_F_ONE_B if all(_is_1f1b(one, len(kinds) - position) for position, one in enumerate(kinds)) else OTHER


def replayed(ranks: Sequence[Sequence[Action]], durations: Sequence[Sequence[float]]) -> Replay | None:
    """Return when these orders of actions would end with these durations, None where they wait for each other."""
    last_stage = max(a.stage for actions in ranks for a in actions)
    ends: dict[tuple[str, int, int], float] = {}
    at, clock, busy = [0] * len(ranks), [0.0] * len(ranks), [0.0] * len(ranks)
    starts: list[list[float]] = [[] for _ in ranks]
    while any(i < len(actions) for i, actions in zip(at, ranks, strict=True)):
        moved = False
        for r, actions in enumerate(ranks):
            while at[r] < len(actions):
                action, took = actions[at[r]], durations[r][at[r]]
                ready = _ready(action, last_stage, ends)
                if ready is None:
                    break
                starts[r].append(max(clock[r], ready))
                clock[r] = starts[r][-1] + took
                busy[r] += took
                ends[_key(action)] = clock[r]
                at[r] += 1
                moved = True
        if not moved:
            return None
    makespan = max(clock)
    if makespan <= 0:
        return None
    return Replay(makespan, tuple(1 - b / makespan for b in busy), tuple(map(tuple, starts)))


def _is_1f1b(kinds: Sequence[str], stages_left: int) -> bool:
    in_flight = [0, *itertools.accumulate(1 if kind == "F" else -1 for kind in kinds)]
    return max(in_flight) == min(kinds.count("F"), stages_left) and in_flight[-1] == 0


def _key(a: Action) -> tuple[str, int, int]:
    # A full backward gives the gradients of inputs as its first half does.
    return ("I" if a.kind == "B" else a.kind, a.stage, a.microbatch)


def _ready(a: Action, last_stage: int, ends: dict[tuple[str, int, int], float]) -> float | None:
    if a.kind == "F":
        return 0.0 if a.stage == 0 else ends.get(("F", a.stage - 1, a.microbatch))
    if a.kind == "W":
        return ends.get(("I", a.stage, a.microbatch))
    if a.stage == last_stage:
        return ends.get(("F", a.stage, a.microbatch))
    return ends.get(("I", a.stage + 1, a.microbatch))


# Ranks of a pipeline, its micro-batches and chunks per rank.

_KIND = "pp"


def _chains_of(shared: AlignedRun, strategy: Strategy, used: Sequence[int]) -> list[tuple[int, ...]]:
    groups: list[set[int]] = []
    for i in used:
        c = shared.run.ranks[i].collectives
        mine = among(c.messages.collective, strategy.rows_of(i, _KIND))
        linked = {shared.run.ranks[i].rank, *(p for p in c.messages.peer[mine].tolist() if p >= 0)}
        members = [c.groups[g].ranks for g in distinct(c.group[strategy.rows_of(i, _KIND)])]
        if len(linked) == 1:
            linked |= set(members[0] or [shared.run.ranks[k].rank for k in used])
        groups = [g for g in groups if not g & linked] + [linked.union(*[g for g in groups if g & linked])]
    return sorted((tuple(sorted(g)) for g in groups), key=lambda chain: (-len(chain), chain))


def microbatches_and_chunks(
    shared: AlignedRun, strategy: Strategy, chain: tuple[int, ...], actions: dict[int, list[Action]], *, marked: bool
) -> tuple[int | None, int | None, list[str]]:
    """Return micro-batches and chunks, with a note where they are unknown."""
    forwards, backwards = (
        Counter(n for a in actions.values() for n in Counter(x.step for x in a if x.kind == kind).values())
        for kind in "FB"
    )
    most_common = forwards.most_common(1)
    if marked and most_common:
        chunks = max(len({x.stage for x in a}) for a in actions.values())
        return most_common[0][0] // chunks, chunks, []
    if len(forwards) != 1 or backwards.keys() != forwards.keys():
        return None, None, ["micro-batches not identified: their number differs between stages or steps"]
    count = most_common[0][0]
    # An end of the chain receives m v messages from its neighbour, and m (v - 1) around from the other end.
    ends = [i for i in actions if shared.run.ranks[i].rank in (chain[0], chain[-1])]
    received = {_receives(shared.run.ranks[i], strategy.rows_of(i, _KIND)) for i in ends}
    found = 2 * count - received.pop() if len(received) == 1 else count
    if 0 < found < count and count % found == 0:
        return found, count // found, []
    return count, 1, []


def _one_step_of_one(
    shared: AlignedRun, chains: Sequence[tuple[int, ...]], actions: dict[int, list[Action]]
) -> list[list[Action]] | None:
    index = {shared.run.ranks[i].rank: i for i in actions}
    for chain in chains:
        if all(rank in index for rank in chain):
            steps = set.intersection(*({a.step for a in actions[index[r]]} for r in chain))
            if steps:
                last = max(steps)
                return [[a for a in actions[index[r]] if a.step == last] for r in chain]
    return None


def _receives(rank: Rank, rows: Int64s) -> int:
    receiving = among(rank.collectives.op[rows], [OP_CODE["recv"], OP_CODE["send_recv"]])
    return int(receiving.sum()) // max(len(rank.steps), 1)


def microbatch_saving_ns(view: Row, number: float, *, step_ns: float) -> float:
    """Return what the step saves with `number` micro-batches of the same total work: of the bubble only the schedule's
    part, in which stages fill and drain, shrinks; waiting for an uneven stage stays, and what each message takes
    beyond its bytes is paid for every further one, so it may be below 0. A device that several stages share has work
    of the others meanwhile: it counts as one stage.
    """
    if not view.microbatches or not view.ranks:
        return 0.0
    work = sum(r.forward_ns + r.backward_ns + r.gaps_ns for r in view.ranks) / len(view.ranks)
    filling_ns = (view.devices - 1) / (view.chunks or 1) * work * view.stages / view.devices / view.microbatches
    per_message_ns = sum(r.per_message_ns for r in view.ranks) / len(view.ranks)
    saved_ns = min(filling_ns, view.bubble_pct / 100 * step_ns) * (1 - view.microbatches / number)
    return float(saved_ns - per_message_ns * (number / view.microbatches - 1))


def _fixed_share(rank: Rank, rows: Int64s, wait_ns: Int64s) -> float:
    """Return the share of the messages' own time that does not shrink with their bytes.

    On a device that is the latency of a call. On the host, where sizes are rarely recorded, a message is the work of
    threads that wake each other: only what bytes take at the fastest message's bandwidth is not fixed.
    """
    c = rank.collectives
    own, sizes = (c.end_ns - c.start_ns)[rows] - wait_ns, c.full_bytes[rows]
    own, sizes = own[wait_ns >= 0], sizes[wait_ns >= 0]
    if rank.has_device:
        each = np.diff(np.stack([c.start_ns[rows], c.end_ns[rows]]), axis=0)
        return float(np.minimum(DEFAULT_LATENCY_NS, each / 2).sum() / max(each.sum(), 1))
    known = (sizes > 0) & (own > 0)
    if not known.any():
        return 1.0
    least_ns_per_byte = float((own[known] / sizes[known]).min())
    return max(0.0, 1 - least_ns_per_byte * float(sizes[known].sum()) / float(own[known].sum()))


def pipeline_actions(
    shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]
) -> tuple[list[int], list[list[Action]]] | None:
    """Return the ranks (by index) of one pipeline that was recorded whole and their actions in one step.

    In the order of the stages; None where there is no such pipeline or its micro-batches are unknown.
    """
    used = [index for index, *_ in taking_part(shared, strategy, accounts, _KIND)]
    chains, _, found = _stages(shared, strategy, used)
    whole = _one_step_of_one(shared, chains, {i: a for i, (a, _) in found.items()})
    if whole is None or not all(whole):
        return None
    index = {shared.run.ranks[i].rank: i for i in used}
    return [index[rank] for rank in next(c for c in chains if all(rank in index for rank in c))], whole


Stages = tuple[list[tuple[int, ...]], dict[int, int], dict[int, tuple[list[Action], bool]]]


def _stages(shared: AlignedRun, strategy: Strategy, used: Sequence[int]) -> Stages:
    chains = _chains_of(shared, strategy, used)
    rank_of = {i: shared.run.ranks[i].rank for i in used}
    position = {i: chain.index(rank) for i, rank in rank_of.items() for chain in chains if rank in chain}
    found = {
        i: stage_actions(shared.run.ranks[i], strategy.passes[i], strategy.rows_of(i, _KIND), position=position[i])
        for i in used
    }
    return chains, position, found


def pipeline_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> Row | None:
    """Return what the stages did, None where there is no pipeline."""
    used = [*taking_part(shared, strategy, accounts, _KIND)]
    chains, position, found = _stages(shared, strategy, [index for index, *_ in used])
    actions, marked = {i: a for i, (a, _) in found.items()}, all(marked for _, marked in found.values())
    each = (_rank_pipeline(shared, strategy, *one, position[one[0]], actions[one[0]]) for one in used)
    ranks = [row for row in each if row is not None]
    if not ranks:
        return None
    stages = max(len(chain) for chain in chains)
    microbatches, chunks, notes = microbatches_and_chunks(shared, strategy, chains[0], actions, marked=marked)
    whole = _one_step_of_one(shared, chains, actions)
    if not whole:
        notes.append("the schedule is unknown: not all ranks of a pipeline were recorded")
    orders = whole if marked or chunks == 1 else None
    work = [r.forward_ns + r.backward_ns for r in ranks]
    device = {shared.run.ranks[i].rank: shared.run.ranks[of[0]].rank for of in sharing_ranks(shared) for i in of}
    return Row(
        stages=stages,  # ranks of one pipeline
        microbatches=microbatches,
        chunks=chunks,  # stages per rank: 1, or more where it is interleaved
        schedule=schedule_name(whole, chunks=chunks) if whole and chunks else None,
        bubble_pct=float(np.mean([r.bubble_pct for r in ranks])),
        # that the stages of one pipeline run on: fewer than stages where some share one
        devices=len({device.get(rank, rank) for rank in max(chains, key=len)}),
        textbook_pct=100 * textbook_bubble(stages, microbatches, chunks=chunks) if microbatches and chunks else None,
        # the recorded order of actions replayed with free messages, and equal stages or the time each really takes
        schedule_pct=_replayed_pct(orders, equal=True),
        stages_pct=_replayed_pct(orders, equal=False),
        imbalance=max(work) / float(np.mean(work)) if any(work) else None,  # work of the slowest stage against the mean
        marked=marked,  # the framework's ranges named the actions; otherwise they are identified by order
        notes=notes,
        ranks=ranks,
        over_ranks=over_ranks(ranks),
    )


def _rank_pipeline(
    shared: AlignedRun,
    strategy: Strategy,
    index: int,
    rank: Rank,
    account: RankAccount,
    rows: Int64s,
    position: int,
    actions: Sequence[Action],
) -> Row | None:
    periods = step_periods(rank)
    if periods is None or not len(periods):
        return None
    keep = periods.complete if periods.complete.any() else np.ones(len(periods), bool)
    window, count = union(periods.start_ns[keep], periods.end_ns[keep]), int(keep.sum())
    c, wait = rank.collectives, shared.wait_ns[index][rows]
    start, end = c.start_ns[rows], c.end_ns[rows]
    waits = union(start, start + np.where(wait >= 0, wait, end - start))
    others = np.delete(np.arange(len(c)), rows)
    compute = union_of(account.compute, account.memory) if account.memory is not None else account.compute
    busy = intersect(union_of(compute, union(c.start_ns[others], c.end_ns[others])), window)
    messages = subtract(intersect(union(start, end), window), busy)
    fixed = _fixed_share(rank, rows, wait)
    forward, backward = (intersect(x, window).total_ns for x in _passes_work(rank, strategy, index, account))
    waited = intersect(messages, waits).total_ns
    nothing = subtract(window, union_of(busy, messages))
    gaps = intersect(nothing, union([a.start_ns for a in actions], [a.end_ns for a in actions])).total_ns
    idle, in_window = nothing.total_ns - gaps, covered_ns(window, start, end)
    send, receive, both = (int(in_window[c.op[rows] == OP_CODE[op]].sum()) for op in ("send", "recv", "send_recv"))
    in_steps = {
        "step": window.total_ns,
        "forward": forward,
        "backward": backward,
        "other": busy.total_ns - forward - backward,  # optimizer, copies, and communication other than between stages
        "transfer": messages.total_ns - waited,  # exposed, between stages
        # of it: what messages take whatever their size
        "per_message": (messages.total_ns - waited) * fixed,
        "wait": waited,  # exposed, in sends and receives; all of their exposed time where they could not be matched
        "gaps": gaps,  # nothing runs, but a micro-batch is under way
        "idle": idle,  # nothing runs, between micro-batches
        "send": send,  # in operations that only send
        "receive": receive,
        "exchange": both,
    }
    return Row(
        rank=rank.rank,
        stage=position,  # among the ranks of its pipeline, from 0
        **{f"{name}_ns": round(ns / count) for name, ns in in_steps.items()},
        bubble_pct=100 * (waited + idle) / window.total_ns,
        forwards=sum(a.kind == "F" for a in actions) / max(len(rank.steps), 1),  # micro-batches of each chunk
        forward_microbatch_ns=_mean_ns(actions, "F"),
        backward_microbatch_ns=_mean_ns(actions, "BIW"),
    )


def _passes_work(rank: Rank, strategy: Strategy, index: int, account: RankAccount) -> tuple[Intervals, Intervals]:
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
    return subtract(subtract(account.compute, found.backward), found.optimizer), backward


def _mean_ns(actions: Sequence[Action], kinds: str) -> int | None:
    mine = [a for a in actions if a.kind in kinds]
    count = len({(a.step, a.stage, a.microbatch) for a in mine})
    return round(sum(a.busy_ns for a in mine) / count) if count else None


def _replayed_pct(ranks: list[list[Action]] | None, *, equal: bool) -> float | None:
    found = ideal_schedule(ranks, equal=equal)[0] if ranks else None
    return 100 * found.mean_idle_share if found else None


def ideal_schedule(ranks: list[list[Action]], *, equal: bool) -> tuple[Replay | None, list[list[float]]]:
    """Return these orders of actions with free messages, and what each action then takes."""
    means = [_mean_busy(actions) for actions in ranks]
    if equal:
        means = [_mean_busy([a for actions in ranks for a in actions])] * len(ranks)
    durations = [[mean[a.kind] for a in actions] for actions, mean in zip(ranks, means, strict=True)]
    return replayed(ranks, durations), durations


def _mean_busy(actions: Sequence[Action]) -> dict[str, float]:
    kinds = {a.kind for a in actions}
    return {kind: float(np.mean([a.busy_ns for a in actions if a.kind == kind])) for kind in kinds}
