"""The recorded run as a model that can be replayed: programs of all ranks, where they meet, and what the profiler
added.

The profiler slows the host and nothing else. Where the unprofiled step time is known, one factor on the host's own
time is chosen so that the replay takes that long. Where the device decides the step, that factor cannot be identified:
then the recording cost per event is used, or less by the regions of the step log (`logged_host`), and the uncertainty
is larger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_time import RECORDING_COST_NS, Activities, activities, recorded_events
from stepscope.analyze.replay.graph import (
    CircularWaits,
    Graph,
    Meeting,
    Program,
    build_graph,
    device_program,
    end_times,
    host_part_ns,
    host_part_scaled,
    host_program,
    steady_period_ns,
    with_durations,
)
from stepscope.analyze.stragglers import common_steps
from stepscope.analyze.training_step import NOTHING_RECURS, WORK_REGIONS, Floats, Recurring, TrainingStep, region_times
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.aligned import AlignedRun
from stepscope.run.load import Run, each_rank
from stepscope.run.rank import Rank
from stepscope.run.side_files import StepLog
from stepscope.stats.robust import among, far_longer, median, recurring_long
from stepscope.trace.table import EventKind, Int64s, rows_named

# Host time without the profiler, by the regions of the step log.
#
# The log times forward, backward and optimizer step in steps without the profiler too. Where the device decides the
# step, the host waits in them for a free slot in the queue, but not in all: after a pause the queue is empty. The
# quickest of each region are thus the host's own work, as is their time in profiled steps without waiting.
#
#     factor = quickest unprofiled / own profiled, summed over regions and ranks
#
# Waiting only makes it larger: it is a bound from above.

_MIN_STEPS = 8
# times the quickest: the spread of regions in which the host does not wait
_QUICK = 1.5


def logged_factor(run: Run, steps: Int64s) -> float | None:
    """Return an upper bound of the host's factor, None where the logs do not determine it."""
    logs = {log.rank: log for log in run.logs}
    own = quick = 0.0
    for rank in run.ranks:
        log = logs.get(rank.rank)
        if log is None or not rank.has_device:
            continue
        times = region_times(log)
        regions = [name for name in WORK_REGIONS if name in times]
        did = activities(rank) if regions else None
        for name in regions:
            unprofiled = _quick_ns(log, times[name])
            recorded = _own_ns(rank, did, name, steps) if did is not None and unprofiled else None
            if recorded and unprofiled:
                own, quick = own + recorded, quick + unprofiled
    return quick / own if own else None


def _own_ns(rank: Rank, did: Activities, region: str, steps: Int64s) -> float:
    rows = np.flatnonzero(rank.kinds == EventKind.ANNOTATION)
    rows = rows_named(rank.trace, rows, lambda name: name == region)
    start = rank.trace["ts_ns"][rows]
    at = rank.steps.of(start)
    kept = (at >= 0) & among(rank.steps.number[np.maximum(at, 0)], steps)
    start, took = start[kept], rank.trace["dur_ns"][rows[kept]]
    return float(did.parts(start, start + took).own_ns.sum()) / max(len(steps), 1)


def _quick_ns(log: StepLog, took: Floats) -> float | None:
    known = took[log.unprofiled & (took > 0)]
    return median(known[known <= _QUICK * known.min()]) if len(known) >= _MIN_STEPS else None


# Programs in which ranks are as late as the steps without the profiler show them, not as in the few recorded ones.
#
# A rank's host takes, per step, the median of the others' plus its known lateness. Time that it lacks is added at the
# beginning of each step; time that is too much is taken from stalls, then from loading data, then from its own work.


def _as_late_as_known(
    programs: tuple[Program, ...], ranks: Sequence[int], late_ns: Mapping[int, float], *, num_steps: int
) -> tuple[Program, ...]:
    times = np.array([host_part_ns(p, "total_ns") / num_steps for p in programs])
    others = [i for i, (rank, p) in enumerate(zip(ranks, programs, strict=True)) if rank not in late_ns and len(p)]
    if not late_ns or not others:
        return programs
    usual = median(times[others])
    out = list(programs)
    for i, rank in enumerate(ranks):
        if rank in late_ns and len(programs[i]):
            out[i] = _changed(programs[i], usual + late_ns[rank] - float(times[i]), num_steps)
    return tuple(out)


def _changed(program: Program, more_ns: float, num_steps: int) -> Program:
    if more_ns >= 0:
        stall = program.host.stall_ns.copy()
        stall[np.unique(program.step, return_index=True)[1]] += round(more_ns)
        return replace(program, host=replace(program.host, stall_ns=stall))
    left = -more_ns * num_steps
    for name in ("stall_ns", "data_ns", "own_ns"):
        there = host_part_ns(program, name)
        taken = min(left, there)
        if taken > 0:
            program = host_part_scaled(program, name, 1 - taken / there)
            left -= taken
    return program


# ... or this number, where a step alone is large
_MIN_STEADY_STEPS = 3
# beyond this many items fewer steps are replayed: more of the same add nothing
_MAX_ITEMS = 24_000
_MIN_FACTOR = 0.3
# of the step follows the host's time: then the step times determine the factor
_MOSTLY = 0.5
# a replay this near to the unprofiled step needs no other factor: the step times could not resolve it
_AGREES = 0.04
# of the step that a quicker host saves at most: then the replay's error is not due to the host
_HIDDEN = 0.01


@dataclass(frozen=True, eq=False, repr=False)
class Replay(ArrayRecord):
    """A run ready to be replayed with changes."""

    shared: AlignedRun
    #: numbers of the steps it is made of
    steps: Int64s
    programs: tuple[Program, ...]
    meetings: tuple[Meeting, ...]
    graph: Graph
    #: on the host's own time: what is left of it without the profiler
    host_factor: float
    #: whether the unprofiled step time determined the factor
    factor_identified: bool
    #: time per step of the replay with that factor: the baseline of every what-if
    period_ns: float
    #: time per step of the replay as recorded
    profiled_ns: float
    #: numbers of single steps far longer than the others: left out
    hiccups: tuple[int, ...] = ()
    #: collectives have been merged into messages of this size already; 0 as recorded
    message_bytes: int = 0
    #: what the training has in other steps than those replayed; part of `period_ns`
    recurring: Recurring = NOTHING_RECURS


def replay_of(
    shared: AlignedRun,
    *,
    unprofiled_ns: float | None = None,
    training: TrainingStep | None = None,
    late_ns: Mapping[int, float] | None = None,
    every_step: bool = False,
) -> Replay | None:
    """Return the run as a model; None where no step was recorded on all ranks or nothing was launched.

    With `training` the ordinary steps of the window are replayed, `unprofiled_ns` is theirs, and what recurs in other
    steps is added. `late_ns` gives by rank how late it is without the profiler, where that is known better. With
    `every_step` no recorded step is left out.
    """
    numbers = common_steps(shared.run.ranks)
    if not len(numbers):
        return None
    hiccups: tuple[int, ...] = ()
    if training is None and not every_step:
        numbers, hiccups = _without_hiccup(shared, numbers)
    elif training is not None:
        numbers = _ordinary_stretch(numbers, training)
    numbers = _few_enough(shared, numbers)
    programs = each_rank(
        shared.run, lambda i, rank: (device_program if rank.has_device else host_program)(shared, i, numbers)
    )
    if not any(len(p) for p in programs):
        return None
    if training is not None:
        programs = tuple(
            p if r.has_device else host_part_scaled(p, "data_ns", training.loading_factor.get(r.rank, 1.0))
            for r, p in zip(shared.run.ranks, programs, strict=True)
        )
    programs = _as_late_as_known(programs, [r.rank for r in shared.run.ranks], late_ns or {}, num_steps=len(numbers))
    meetings = tuple(_meetings_of(shared, programs))
    try:
        graph = _graph(programs, meetings, len(numbers))
    except CircularWaits:
        return None
    profiled = _period_ns(graph, 1.0)
    factor, identified = _host_factor(shared, programs, graph, numbers, profiled, unprofiled_ns)
    recurring = training.recurring if training is not None else NOTHING_RECURS
    return Replay(
        shared=shared,
        steps=numbers,
        programs=programs,
        meetings=meetings,
        graph=graph,
        host_factor=factor,
        factor_identified=identified,
        period_ns=_period_ns(graph, factor) + recurring.total_ns,
        profiled_ns=profiled,
        hiccups=hiccups,
        recurring=recurring,
    )


def with_host_factor(graph: Graph, factor: float) -> npt.NDArray[np.float64]:
    """Return the graph's durations with the host's own work scaled; loading data and stalls stay as they are."""
    spared = (1 - factor) * graph.profiled_ns
    return np.subtract(graph.duration_ns, spared, out=spared)


def _meetings_of(shared: AlignedRun, programs: Sequence[Program]) -> list[Meeting]:
    matches = shared.matches
    item = np.full(len(matches.row), -1, np.int64)
    for index, (rank, program) in enumerate(zip(shared.run.ranks, programs, strict=True)):
        keys = rank.collectives.device_index if rank.has_device else np.arange(len(rank.collectives))
        place = np.full(int(max(keys.max(initial=-1), program.device_index.max(initial=-1))) + 1, -1, np.int64)
        real = np.flatnonzero(program.device_index >= 0)
        place[program.device_index[real]] = real
        mine = matches.members_of(index)
        item[mine] = place[keys[matches.row[mine]]]
    present = item >= 0
    count = np.bincount(matches.of_member[present], minlength=len(matches))
    present &= count[matches.of_member] > 1
    pairs = list(zip(matches.rank_index[present].tolist(), item[present].tolist(), strict=True))
    last = np.cumsum(count[count > 1]).tolist()
    return [tuple(pairs[a:b]) for a, b in zip([0, *last], last, strict=False)]


def rebuilt(replay: Replay, programs: Sequence[Program], meetings: Sequence[Meeting] | None = None) -> Replay:
    """Return the replay of changed programs with the same profiler factor."""
    kept = replay.meetings if meetings is None else tuple(meetings)
    if meetings is None and all(_same_waits(a, b) for a, b in zip(replay.programs, programs, strict=True)):
        graph = with_durations(replay.graph, programs, len(kept))
    else:
        graph = _graph(tuple(programs), kept, len(replay.steps))
    return with_factor(replace(replay, programs=tuple(programs), meetings=kept, graph=graph), replay.host_factor)


def with_factor(replay: Replay, host_factor: float) -> Replay:
    """Return the same run with another profiler factor."""
    period_ns = _period_ns(replay.graph, host_factor) + replay.recurring.total_ns
    return replace(replay, host_factor=host_factor, period_ns=period_ns)


def _period_ns(graph: Graph, host_factor: float) -> float:
    return steady_period_ns(graph, end_times(graph, with_host_factor(graph, host_factor)))


def _same_waits(a: Program, b: Program) -> bool:
    return (
        a.stream_predecessor is b.stream_predecessor
        and a.waits is b.waits
        and a.released_by is b.released_by
        and a.tail_released_by == b.tail_released_by
        and a.also_after is b.also_after
        and a.queued_gap_ns is b.queued_gap_ns
    )


def _graph(programs: tuple[Program, ...], meetings: tuple[Meeting, ...], num_steps: int) -> Graph:
    large = sum(len(p) for p in programs) / num_steps * _MIN_STEPS > _MAX_ITEMS
    repeats = max(1, -(-(_MIN_STEADY_STEPS if large else _MIN_STEPS) // num_steps))
    return build_graph(programs, meetings, num_steps=num_steps, repeats=repeats, from_rest=True)


def _without_hiccup(shared: AlignedRun, numbers: Int64s) -> tuple[Int64s, tuple[int, ...]]:
    """Return the longest stretch of steps without one far longer than the others, and the numbers of such steps; all
    steps where long ones recur.

    A single one has an outside cause; a few steps cannot show that long ones recur.
    """
    took = np.mean([_spans(r, numbers) for r in shared.run.ranks if len(r.steps)], axis=0)
    long = far_longer(took)
    if len(took) < 5 or not long.any() or recurring_long(took).any():
        return numbers, ()
    return _longest_stretch(numbers, long), tuple(numbers[long].tolist())


def _ordinary_stretch(numbers: Int64s, training: TrainingStep) -> Int64s:
    events = np.array(sorted({n for steps in training.event_steps.values() for n in steps}), np.int64)
    stretch = _longest_stretch(numbers, among(numbers, events))
    return stretch if len(stretch) else numbers


def _longest_stretch(numbers: Int64s, without: npt.NDArray[np.bool_]) -> Int64s:
    cuts = np.concatenate(([-1], np.flatnonzero(without), [len(numbers)]))
    widest = int(np.argmax(np.diff(cuts)))
    return numbers[cuts[widest] + 1 : cuts[widest + 1]]


def _spans(rank: Rank, numbers: Int64s) -> Int64s:
    by_number = np.argsort(rank.steps.number, kind="stable")
    at = by_number[np.searchsorted(rank.steps.number, numbers, sorter=by_number)]
    return rank.steps.end_ns[at] - rank.steps.start_ns[at]


def _few_enough(shared: AlignedRun, numbers: Int64s) -> Int64s:
    per_step = sum(len(r.work) or len(r.collectives) for r in shared.run.ranks) / max(len(numbers), 1)
    return numbers[-max(1, int(_MAX_ITEMS / max(per_step, 1))) :]


def _host_factor(
    shared: AlignedRun,
    programs: tuple[Program, ...],
    graph: Graph,
    numbers: Int64s,
    profiled_ns: float,
    unprofiled_ns: float | None,
) -> tuple[float, bool]:
    if unprofiled_ns is None:
        return 1.0, False
    events = host = 0.0
    for rank, program in zip(shared.run.ranks, programs, strict=True):
        events += int(recorded_events(rank)[among(rank.steps.number, numbers)].sum())
        host += float(program.host.own_ns.sum() + program.tail.own_ns.sum())
    prior = float(np.clip(1 - RECORDING_COST_NS * events / host, 0.5, 1.0)) if host else 1.0
    logged = logged_factor(shared.run, numbers)
    if logged is not None:
        prior = float(np.clip(logged, _MIN_FACTOR, prior))
    usual, shortest = _period_ns(graph, prior), _period_ns(graph, _MIN_FACTOR)
    host_decides = profiled_ns - usual >= _MOSTLY * (1 - prior) * profiled_ns > 0
    is_hidden = logged is not None and usual <= (1 + _HIDDEN) * shortest
    if not host_decides and (is_hidden or abs(usual - unprofiled_ns) <= _AGREES * unprofiled_ns):
        return prior, False
    if unprofiled_ns >= profiled_ns and (host_decides or usual < (1 - _AGREES) * unprofiled_ns):
        return 1.0, host_decides
    if shortest < unprofiled_ns < profiled_ns:
        return _factor_that_gives(graph, unprofiled_ns), True
    return prior, False


def _factor_that_gives(graph: Graph, target_ns: float) -> float:
    low, high = _MIN_FACTOR, 1.0
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if _period_ns(graph, middle) < target_ns else (low, middle)
    return high
