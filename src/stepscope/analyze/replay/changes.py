"""Changes to a recorded run: each takes the replay and returns it with one thing different.

A change works on what things take and what they wait for, never on when they were recorded, so changes compose.
Selections of work (`chosen`) are one boolean array per rank over the rows of its `DeviceWork`.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_time import HostParts, blocking_calls
from stepscope.analyze.phases import ADDING, backward_calls, regions
from stepscope.analyze.replay.graph import (
    NOTHING,
    Program,
    by_item,
    host_part_ns as host_part_ns,
    host_part_scaled as host_part_scaled,
    without_calls,
)
from stepscope.analyze.replay.replay import Replay, rebuilt, with_factor
from stepscope.analyze.training_step import COMMUNICATION, DATA_CAUSES, NO_CORE
from stepscope.contract.operations import OP_CODE
from stepscope.contract.step_line import Region
from stepscope.intervals import covered_ns, union
from stepscope.records import once_per_record
from stepscope.run.aligned import AlignedRun
from stepscope.run.clocks import POINT_TO_POINT
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.stats.robust import among, distinct, median, quantiles
from stepscope.trace.table import EventKind, Int64s, by_string

if TYPE_CHECKING:
    from stepscope.cost.alpha_beta import Fit

# The run in which a late rank is as fast as its peers.
#
# Ranks of one job mostly run the same program. Then the late rank takes, item by item, what a median peer takes for
# the same item: the lateness is removed where it occurs. Items that no peer has (the cause of the lateness) take
# nothing. Where programs differ too much to be aligned (stages of a pipeline), the late rank is shortened evenly, part
# by part.

Mask = npt.NDArray[np.bool_]
Chosen = Sequence[Mask]
# of the items of both ranks have a counterpart
_SAME_PROGRAM = 0.75


def straggler_off(replay: Replay, ranks: Sequence[int]) -> Replay:
    """Return the run in which the named ranks are as fast as the median of the others, host and device."""
    late = {i for i, r in enumerate(replay.shared.run.ranks) if r.rank in set(ranks)}
    peers = [i for i, p in enumerate(replay.programs) if i not in late and len(p)]
    if not late or not peers:
        return replay
    programs = list(replay.programs)
    for i in late:
        programs[i] = _like_peers(replay, i, peers)
    return rebuilt(replace(replay, recurring=replay.recurring.with_ranks_like_others(ranks)), programs)


def _like_peers(replay: Replay, late: int, peers: Sequence[int]) -> Program:
    program, ranks = replay.programs[late], replay.shared.run.ranks
    host = _median_peer(replay.programs, peers, lambda p: host_part_ns(p, "total_ns"))
    device = _median_peer(replay.programs, peers, compute_ns)
    as_host = _counterparts(ranks[late], program, ranks[host], replay.programs[host])
    as_device = _counterparts(ranks[late], program, ranks[device], replay.programs[device])
    if as_host is None or as_device is None:
        return _shortened(program, [replay.programs[p] for p in peers])
    slow, fast = replay.programs[host], replay.programs[device]
    return replace(
        program,
        host=HostParts(*(_taken(getattr(slow.host, f.name), as_host) for f in fields(HostParts))),
        tail=slow.tail,
        duration_ns=np.where(program.collective == NOTHING, _taken(fast.duration_ns, as_device), program.duration_ns),
        queued_gap_ns={**program.queued_gap_ns, **fast.queued_gap_ns},
    )


def _taken(values: Int64s, counterpart: Int64s) -> Int64s:
    return np.where(counterpart >= 0, values[np.maximum(counterpart, 0)], 0)


def _median_peer(programs: Sequence[Program], peers: Sequence[int], time_ns: Callable[[Program], float]) -> int:
    return sorted(peers, key=lambda i: time_ns(programs[i]))[len(peers) // 2]


def compute_ns(program: Program) -> float:
    """Return what the work of a program takes that is not communication."""
    return float(program.duration_ns[program.kind != EventKind.COMM_KERNEL].sum())


def _counterparts(rank: Rank, program: Program, other_rank: Rank, other: Program) -> Int64s | None:
    """Return for each item the other rank's item of the same step and name, the k-th for the k-th; NOTHING for none.

    None where the two ranks do not run the same program.
    """
    if not len(program) or not len(other):
        return None
    mine, theirs = _names(rank, program), _names(other_rank, other)
    _, both = np.unique(np.concatenate((mine, theirs)), return_inverse=True)
    mine_key = _nth(both[: len(mine)], program.step)
    their_key = _nth(both[len(mine) :], other.step)
    _, key = np.unique(np.concatenate((mine_key, their_key)), axis=0, return_inverse=True)
    key = key.reshape(-1)
    at = np.full(int(key.max()) + 1, NOTHING, np.int64)
    at[key[len(mine) :]] = np.arange(len(other))
    found = at[key[: len(mine)]]
    return found if (found >= 0).sum() / max(len(program), len(other)) >= _SAME_PROGRAM else None


def _names(rank: Rank, program: Program) -> npt.NDArray[np.str_]:
    if not rank.has_device:
        return rank.collectives.op[program.device_index].astype(str)
    used, at = np.unique(rank.work.name[program.device_index], return_inverse=True)
    return np.array([rank.trace.strings[i] for i in used.tolist()])[at.reshape(-1)]


def _nth(name: Int64s, step: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    group = step.astype(np.int64) * (int(name.max()) + 1) + name
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    fresh = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(group)), 0))
    nth = np.empty(len(group), np.int64)
    nth[order] = np.arange(len(group)) - first
    return np.stack((group, nth), axis=1)


def _shortened(program: Program, peers: Sequence[Program]) -> Program:
    for name in (f.name for f in fields(HostParts)):
        usual, own = median([host_part_ns(p, name) for p in peers]), host_part_ns(program, name)
        if own > usual:
            program = host_part_scaled(program, name, usual / own)
    usual, mine = median([compute_ns(p) for p in peers]), compute_ns(program)
    if mine <= usual:
        return program
    return _scaled(program, program.kind != EventKind.COMM_KERNEL, usual / mine)


# The run without checkpointing: consecutive copies to the host, and what the host does between and around them.
#
# Training reads single values from the device: a loss, a flag, the elements of a result. Many copies of tensors to the
# host with nothing computed between them are a model or an optimizer being saved. What the host does meanwhile
# (writing, hashing, packing) is the same stop, recorded as a stall, as its own time or as waiting for the copies.

# in a row: fewer are values that the loop reads
_MIN_COPIES = 8
# complex numbers of 128 bits; in a state that is saved half of the tensors at least are larger
_ELEMENT_BYTES = 16


def state_saves(rank: Rank, program: Program) -> Mask:
    """Return which items of a program copy state to the host: runs of such copies with nothing else between them."""
    if not rank.has_device or not len(program):
        return np.zeros(len(program), bool)
    work = rank.work
    to_host = by_string(rank.trace, work.name, lambda s: "DtoH" in s or "DeviceToHost" in s).astype(bool)
    copies = (to_host & (work.kind == EventKind.COPY))[program.device_index]
    size = rank.trace.arg("bytes").at(work.row[program.device_index], missing=_ELEMENT_BYTES + 1)
    run = np.cumsum(~copies)  # copies in a row have the same number as the item before them
    of_run, of_tensors = (
        np.bincount(run[some], minlength=int(run.max()) + 1) for some in (copies, copies & (size > _ELEMENT_BYTES))
    )
    return copies & ((of_run >= _MIN_COPIES) & (2 * of_tensors >= of_run))[run]


def save_ns(replay: Replay) -> float:
    """Return what saving state takes per step: copies, and the host between them; of the median rank."""
    totals = []
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        saves = state_saves(rank, program)
        totals.append(float(program.duration_ns[saves].sum() + program.host.own_ns[saves].sum()))
    return median(totals) / max(len(replay.steps), 1) if totals else 0.0


def without_state_saves(replay: Replay) -> Replay:
    """Return the run in which no state is saved."""
    pairs = zip(replay.shared.run.ranks, replay.programs, strict=True)
    return rebuilt(replay, [_without(program, state_saves(rank, program)) for rank, program in pairs])


def _without(program: Program, saves: Mask) -> Program:
    if not saves.any():
        return program
    by_save = (program.released_by != NOTHING) & saves[np.maximum(program.released_by, 0)]
    host = program.host
    tail = program.tail_released_by
    return replace(
        program,
        duration_ns=np.where(saves, 0, program.duration_ns),
        host=replace(
            host, own_ns=np.where(saves, 0, host.own_ns), stall_ns=np.where(saves | by_save, 0, host.stall_ns)
        ),
        released_by=np.where(saves | by_save, NOTHING, program.released_by),
        tail_released_by=NOTHING if tail != NOTHING and saves[tail] else tail,
    )


Change = Callable[[Replay], Replay]

_OTHER_THAN_FACTOR = [f.name for f in fields(Replay) if f.name not in ("host_factor", "period_ns")]
# the host's time for one step that is launched as a graph
_GRAPH_LAUNCH_NS = 20_000
_GRAPH_CALL_LAUNCHES = 15


def at_any_factor(change: Change) -> Change:
    """Return a change that does not depend on the profiler's factor, cached for replays that differ in nothing else.

    Intervals use the same change at other factors, and building a graph takes longer than replaying it.
    """
    made: list[tuple[Replay, Replay]] = []

    def changed(replay: Replay) -> Replay:
        for before, after in made:
            if all(getattr(before, name) is getattr(replay, name) for name in _OTHER_THAN_FACTOR):
                return with_factor(after, replay.host_factor)
        made.append((replay, change(replay)))
        return made[-1][1]

    return changed


def without_data_wait(replay: Replay, share: float = 0.0) -> Replay:
    """Return the run with so much of the waits for batches, and no loader that is started again."""
    started = without_recurring(replay, DATA_CAUSES)
    return rebuilt(started, [host_part_scaled(p, "data_ns", share) for p in started.programs])


def without_stalls(replay: Replay) -> Replay:
    """Return the run with no host stalls, neither in the replayed steps nor in others."""
    others = [cause for cause in replay.recurring.causes if cause not in (*DATA_CAUSES, COMMUNICATION, NO_CORE)]
    return without_window_stalls(without_recurring(replay, others))


def without_window_stalls(replay: Replay) -> Replay:
    """Return the run with no host stalls in the replayed steps."""
    return _without_part(replay, "stall_ns")


def without_recurring(replay: Replay, causes: Sequence[str]) -> Replay:
    """Return the run without what recurs for these causes in some of its steps."""
    changed = replace(replay, recurring=replay.recurring.without(causes))
    return replace(changed, period_ns=replay.period_ns - replay.recurring.total_ns + changed.recurring.total_ns)


def without_allocator(replay: Replay) -> Replay:
    """Return the run with no calls for device memory inside steps, and without the synchronisation they imply."""
    return _without_part(replay, "allocator_ns")


def without_syncs(replay: Replay) -> Replay:
    """Return the run in which the host never waits for the device."""
    programs = [
        replace(p, released_by=np.full(len(p), NOTHING, np.int64), tail_released_by=NOTHING) for p in replay.programs
    ]
    return rebuilt(replay, programs)


def without_work(replay: Replay, chosen: Chosen, *, entered: Chosen | None = None) -> Replay:
    """Return the run without some device work and without the host's time for it.

    What the host does after the last piece of such work, before it launches the next thing, belongs to it as well:
    that launch keeps no more than the usual time. So do the launches marked in `entered`: before them the host
    prepared for such work.
    """
    programs = []
    prepared = entered if entered is not None else [np.zeros_like(mask) for mask in chosen]
    for (program, mask), (_, first) in zip(_per_program(replay, chosen), _per_program(replay, prepared), strict=True):
        own = program.host.own_ns.copy()
        after = (np.concatenate(([False], mask[:-1])) | first) & ~mask
        if len(own):
            own[after] = np.minimum(own[after], int(median(own)))
        own[mask] = 0
        programs.append(_scaled(program.with_own_ns(own), mask, 0.0))
    return rebuilt(replay, programs)


def faster_work(replay: Replay, chosen: Chosen, factor: float | Sequence[float]) -> Replay:
    """Return the run in which some device work takes `factor` of its time (per rank where several are given)."""
    factors = [factor] * len(replay.programs) if isinstance(factor, int | float) else list(factor)
    pairs = _per_program(replay, chosen)
    return rebuilt(replay, [_scaled(p, mask, f) for (p, mask), f in zip(pairs, factors, strict=True)])


def with_work_times(replay: Replay, chosen: Chosen, times_ns: Sequence[npt.NDArray[np.float64]]) -> Replay:
    """Return the run in which some device work takes other times, given over the rows of each rank's DeviceWork.

    Times are those of the recorded work: where an earlier change shortened it, the same share applies.
    """
    return rebuilt(replay, _programs_with_times(replay, chosen, times_ns))


def _programs_with_times(replay: Replay, chosen: Chosen, times_ns: Sequence[npt.NDArray[np.float64]]) -> list[Program]:
    programs = []
    for (program, mask), times, rank in zip(
        _per_program(replay, chosen), times_ns, replay.shared.run.ranks, strict=True
    ):
        if not rank.has_device:
            programs.append(program)
            continue
        items = np.flatnonzero(mask)
        rows, duration = program.device_index[items], program.duration_ns.copy()
        share = np.clip(times[rows] / np.maximum(rank.work.end_ns[rows] - rank.work.start_ns[rows], 1), 0, 1)
        duration[items] = np.rint(duration[items] * share)
        programs.append(replace(program, duration_ns=duration))
    return programs


def fused_work(replay: Replay, chosen: Chosen, *, launches: int, device_share: float) -> Replay:
    """Return the run with some work of each step fused into a few launches that take a share of its device time."""
    programs = []
    for program, mask in _per_program(replay, chosen):
        per_step = np.bincount(program.step[mask], minlength=len(replay.steps))
        kept = np.minimum(1.0, launches / np.maximum(per_step, 1))[program.step]
        own = np.where(mask, program.host.own_ns * kept, program.host.own_ns)
        programs.append(_scaled(program.with_own_ns(own), mask, device_share))
    return rebuilt(replay, programs)


def as_graph(replay: Replay) -> Replay:
    """Return the run with each step launched as one graph: the host's own time becomes one launch."""

    def launched_once(program: Program) -> Program:
        own = np.zeros(len(program))
        own[np.unique(program.step, return_index=True)[1]] = _GRAPH_LAUNCH_NS / max(replay.host_factor, 1e-9)
        host = replace(program.host, own_ns=np.minimum(own, program.host.own_ns).astype(np.int64))
        tail = replace(program.tail, own_ns=np.zeros(1, np.int64))
        return replace(program, host=host, tail=tail, queued_gap_ns={})

    return rebuilt(replay, [launched_once(p) for p in replay.programs])


# Forward and backward launched as graphs, everything else as it is: loss, clipping, optimizer, copies.
#
# The host's time for a graph, measured on an H200 with `make_graphed_callables` for 16 models, in launches of the eager
# model: 15 for a call (static inputs, autograd's node) and one for each gradient that is added to its parameter. On the
# device the kernels follow each other without the gap between separate launches. A wait of the host ends a graph.


def passes_as_graphs(replay: Replay) -> Replay:
    """Return the run with forward and backward launched as graphs; with all of it where no pass is known."""

    def graphed(rank: Rank, program: Program) -> Program:
        if not rank.has_device or not len(program):
            return program
        own, (inside, graph) = program.host.own_ns.astype(float), _graphs(rank, program)
        spent = np.bincount(graph, own)
        launch_ns = float(np.median(own[inside])) if inside.any() else 0.0
        added = np.bincount(graph, _gradients_added(rank, program))
        taken = np.minimum(spent, launch_ns * (_GRAPH_CALL_LAUNCHES + added))
        first = np.unique(graph, return_index=True)[1]
        own[inside] = 0
        own[first[inside[first]]] = taken[inside[first]]
        return replace(program.with_own_ns(own), queued_gap_ns={})

    ranks = replay.shared.run.ranks
    return rebuilt(replay, [graphed(rank, program) for rank, program in zip(ranks, replay.programs, strict=True)])


def _graphs(rank: Rank, program: Program) -> tuple[Mask, Int64s]:
    """Return which items are of forward or backward, and the number of the graph that each would be in."""
    begins = _begins_pass(rank, program) | waits_inside(rank, program)
    return in_passes(rank)[program.device_index], np.cumsum(begins) - 1


def graphs_of_few_launches(replay: Replay) -> tuple[float, float]:
    """Return how many graphs of forward and backward a step would have that launch no more than their call costs, and
    how many in all: a compiled call may take longer than such launches. On the rank with the most.
    """
    found = [(0.0, 0.0)]
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        if rank.has_device and len(program):
            inside, graph = _graphs(rank, program)
            launches = np.bincount(graph[inside])
            few = (launches > 0) & (launches <= _GRAPH_CALL_LAUNCHES)
            found.append((float(few.sum()) / len(replay.steps), float((launches > 0).sum()) / len(replay.steps)))
    return max(found)


@once_per_record
def in_passes(rank: Rank) -> Mask:
    """Return which rows of a rank's work are of forward or backward; all of them where none is known to be."""
    found = among(regions(rank).region, (Region.FORWARD, Region.BACKWARD))
    return found if found.any() else np.ones(len(found), bool)


def waits_inside(rank: Rank, program: Program) -> Mask:
    """Return which items come after a wait of the host that has work of the same pass before it."""
    inside, goes_on = in_passes(rank)[program.device_index], ~_begins_pass(rank, program)
    return inside & goes_on & (program.released_by != NOTHING)


def _begins_pass(rank: Rank, program: Program) -> Mask:
    region = regions(rank).region[program.device_index]
    begins = np.ones(len(program), bool)
    begins[1:] = (region[1:] != region[:-1]) | (program.step[1:] != program.step[:-1])
    return begins


def _gradients_added(rank: Rank, program: Program) -> npt.NDArray[np.float64]:
    """Return for each item how many gradients autograd added to their parameters before it and after the last."""
    found = backward_calls(rank)
    when = np.sort(found.calls.start_ns[found.only(ADDING)])
    launched = rank.trace["ts_ns"][rank.work.launch_row[program.device_index]]
    at = np.searchsorted(launched, when[(when >= launched[0]) & (when <= launched[-1])])
    return np.bincount(at, minlength=len(program)).astype(float)


def faster_network(replay: Replay, speedup: float) -> Replay:
    """Return the run with every transfer `speedup` times as fast."""
    return rebuilt(replay, [_scaled(p, p.collective != NOTHING, 1 / speedup) for p in replay.programs])


def with_transfer_times(replay: Replay, times_ns: Sequence[Int64s]) -> Replay:
    """Return the run with other transfer times, given per rank and row of its Collectives."""
    programs = []
    for program, times in zip(replay.programs, times_ns, strict=True):
        is_comm = program.collective != NOTHING
        duration = program.duration_ns.copy()
        duration[is_comm] = times[program.collective[is_comm]]
        programs.append(replace(program, duration_ns=duration))
    return rebuilt(replay, programs)


def evenly_spread(replay: Replay) -> Replay:
    """Return the run with the same compute in all, in each step spread evenly over the ranks."""
    if not any(rank.has_device for rank in replay.shared.run.ranks):
        return _evenly_spread_hosts(replay)
    computing = [p.kind != EventKind.COMM_KERNEL for p in replay.programs]
    each = [
        np.bincount(p.step[mask], p.duration_ns[mask], minlength=len(replay.steps)).astype(float)
        for p, mask in zip(replay.programs, computing, strict=True)
    ]
    mean = np.mean(each, axis=0)
    programs = []
    for program, mask, mine in zip(replay.programs, computing, each, strict=True):
        factor = np.divide(mean, mine, out=np.ones_like(mean), where=mine > 0)[program.step]
        programs.append(_scaled(program, mask, factor))
    return rebuilt(replay, programs)


def _evenly_spread_hosts(replay: Replay) -> Replay:
    own_ns = [host_part_ns(p, "own_ns") for p in replay.programs]
    mean_ns = float(np.mean(own_ns))
    pairs = zip(replay.programs, own_ns, strict=True)
    return rebuilt(replay, [host_part_scaled(p, "own_ns", mean_ns / mine) if mine else p for p, mine in pairs])


def _per_program(replay: Replay, chosen: Chosen) -> list[tuple[Program, Mask]]:
    return [
        (p, mask[p.device_index] if rank.has_device else np.zeros(len(p), bool))
        for p, mask, rank in zip(replay.programs, chosen, replay.shared.run.ranks, strict=True)
    ]


def _scaled(program: Program, items: Mask, factor: float | npt.NDArray[np.float64]) -> Program:
    duration = np.where(items, np.rint(program.duration_ns * factor), program.duration_ns).astype(np.int64)
    return replace(program, duration_ns=duration)


def _without_part(replay: Replay, part: str) -> Replay:
    return rebuilt(replay, [host_part_scaled(p, part, 0.0) for p in replay.programs])


# The run with each chain of kernels fused into one: one launch, and one pass over memory.


def fused_chains(replay: Replay, chosen: Chosen, times_ns: Sequence[npt.NDArray[np.float64]], leads: Chosen) -> Replay:
    """Return the run in which chosen kernels take other times, and only those in `leads` are still launched.

    All three are given per rank over the rows of its DeviceWork.
    """
    shorter = _programs_with_times(replay, chosen, times_ns)
    programs = []
    for program, mask, lead, rank in zip(shorter, chosen, leads, replay.shared.run.ranks, strict=True):
        if not rank.has_device:
            programs.append(program)
            continue
        own_ns = np.where((mask & ~lead)[program.device_index], 0, program.host.own_ns)
        programs.append(program.with_own_ns(own_ns))
    return rebuilt(replay, programs)


# Hidden copies: they take no time, and the host does not wait for them.
#
# Those that follow one another are one: what the host does between two copies is for the second.
#
# The host waits for a copy inside the operator that issues it: where the source is pageable memory, and without
# `non_blocking=True`. It waits there for everything launched before, not for the copy alone.


@once_per_record
def copies_to_device(rank: Rank) -> Mask:
    """Return which rows of a rank's work copy from the host to the device."""
    named = by_string(rank.trace, rank.work.name, lambda s: "HtoD" in s or "HostToDevice" in s).astype(bool)
    return named & (rank.work.kind == EventKind.COPY)


def hidden_copies(replay: Replay, copies: Chosen, share: float = 0.0) -> Replay:
    """Return the run in which these copies take a share of their time, none by default, and the host waits for no copy
    to the device.
    """
    ranks = replay.shared.run.ranks
    programs = []
    for rank, program, mask in zip(ranks, without_waits(replay), copies, strict=True):
        items = mask[program.device_index] if rank.has_device else np.zeros(len(program), bool)
        further = items & np.append(False, items[:-1])[: len(items)]
        shorter = program.with_own_ns(np.where(further, 0, program.host.own_ns))
        programs.append(
            replace(
                shorter,
                duration_ns=np.where(items, np.rint(share * program.duration_ns), program.duration_ns).astype(np.int64),
            )
        )
    return rebuilt(replay, programs)


def without_waits(replay: Replay) -> list[Program]:
    """Return the programs in which the host does not wait for copies to the device."""
    ranks = replay.shared.run.ranks
    return [
        without_calls(program, rank, replay.steps, _waiting_calls(rank)) if rank.has_device else program
        for rank, program in zip(ranks, replay.programs, strict=True)
    ]


@once_per_record
def _waiting_calls(rank: Rank) -> Int64s:
    copies, calls = copies_to_device(rank), np.sort(blocking_calls(rank, synchronisations_only=True)[2])
    launches, operators = rank.work.launch_row[copies], rank.work.op_row[copies]
    mine = among(calls, distinct(launches)) | (enclosing(rank.trace, distinct(operators[operators >= 0]), calls) >= 0)
    return calls[mine]


# Changes to what a run communicates: fewer bytes, larger messages, no repeats.
#
# A transfer is modelled as latency + bytes / bandwidth, fitted on the run's own collectives of the same operation.

# Host overhead of hooks around collectives.
#
# A sharded module gathers its parameters, copies them out, and packs and scatters its gradients in hooks that
# FullyShardedDataParallel marks (`FSDP::pre_forward`, `FSDP::post_backward_reduce`). They run once per sharded unit, so
# merged messages also merge their hooks.


def _unit_overhead_ns(rank: Rank, program: Program) -> npt.NDArray[np.float64]:
    out = np.zeros(len(program))
    if not rank.has_device or not len(program):
        return out
    hooks = rank.rows_named(lambda s: s.startswith("FSDP::"), EventKind.ANNOTATION, EventKind.HOST_OP)
    if not len(hooks):
        return out
    start = rank.trace["ts_ns"][hooks]
    launched = rank.trace["ts_ns"][rank.work.launch_row[program.device_index]]
    before = np.concatenate((launched[:1], launched[:-1]))
    inside = covered_ns(union(start, start + rank.trace["dur_ns"][hooks]), before, np.maximum(launched, before))
    return np.minimum(inside, program.host.own_ns).astype(float)


GOOD_MESSAGE_BYTES = 4 * 2**20
GRADIENT_OPS = tuple(OP_CODE[op] for op in ("all_reduce", "reduce_scatter"))

# `(program, operations, sizes, items) -> transfer times` of those items
Transfers = Callable[[Program, Int64s, Int64s, Int64s], npt.NDArray[np.float64]]


def _transfer_lines(replay: Replay, *, bulk_only: bool = False) -> "dict[int, Fit]":
    """Return the fitted line of each operation the run used, by operation code.

    `bulk_only` leaves out the small messages that together carry 5 % of the bytes: they travel by another protocol
    and say nothing about large ones.
    """
    sizes: dict[int, list[Int64s]] = {}
    times: dict[int, list[Int64s]] = {}
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        items = np.flatnonzero(program.collective != NOTHING)
        rows = program.collective[items]
        size = rank.collectives.full_bytes[rows]
        for op in distinct(rank.collectives.op[rows]):
            mine = (rank.collectives.op[rows] == op) & (size > 0) & (program.duration_ns[items] > 0)
            sizes.setdefault(int(op), []).append(size[mine])
            times.setdefault(int(op), []).append(program.duration_ns[items][mine])
    from stepscope.cost.alpha_beta import fit

    lines = {}
    for op in sizes:
        x, y = np.concatenate(sizes[op]), np.concatenate(times[op])
        if not len(x):
            continue
        if bulk_only:
            ordered = np.sort(x)
            keep = x >= ordered[np.searchsorted(np.cumsum(ordered), 0.05 * ordered.sum())]
            x, y = x[keep], y[keep]
        lines[op] = fit(x, y)
    return lines


def fewer_bytes(replay: Replay, share: float, *, kept: Sequence[Mask] | None = None) -> Replay:
    """Return the run with every collective moving `share` of its bytes; latency stays.

    `kept` marks collectives that stay as they are, one mask per rank over the rows of its Collectives.
    """
    lines = _transfer_lines(replay)

    def changed(program: Program, op: Int64s, size: Int64s, items: Int64s) -> npt.NDArray[np.float64]:
        before = _modelled(lines, op, size)
        after = _modelled(lines, op, size * share)
        return np.asarray(program.duration_ns[items] * np.where(before > 0, after / np.maximum(before, 1), share))

    return _with_transfers(replay, changed, kept)


def larger_messages(replay: Replay, message_bytes: int = GOOD_MESSAGE_BYTES) -> Replay:
    """Return the run with small collectives merged into messages of the given size.

    Each keeps its bytes and its share of one message's latency, on the network and on the host.
    """
    if replay.message_bytes >= message_bytes:
        return replay
    lines = _transfer_lines(replay, bulk_only=True)
    programs = []
    for index, (rank, program) in enumerate(zip(replay.shared.run.ranks, replay.programs, strict=True)):
        items = _group_items(rank.collectives.op, program)
        rows = program.collective[items]
        size = rank.collectives.full_bytes[rows]
        recorded = (rank.collectives.end_ns - rank.collectives.start_ns - np.maximum(replay.shared.wait_ns[index], 0))[
            rows
        ]
        share = _merged(lines, rank.collectives.op[rows], size, recorded, message_bytes) / np.maximum(recorded, 1)
        merged = _with_transfer_share(program, items, np.where(size > 0, share, 1.0), recorded)
        programs.append(_spare_host(rank, merged, items, 1 - np.clip(size / message_bytes, 0, 1)))
    return replace(rebuilt(replay, programs), message_bytes=message_bytes)


def _merged(
    lines: "dict[int, Fit]",
    op: npt.NDArray[np.uint8],
    size: Int64s,
    now: Int64s,
    message_bytes: int,
) -> npt.NDArray[np.float64]:
    share = np.clip(size / message_bytes, 0, 1)
    alpha = np.array([lines[o].alpha_ns if o in lines else 0.0 for o in op.tolist()])
    slope = np.array([lines[o].ns_per_byte if o in lines else np.inf for o in op.tolist()])
    return np.minimum(
        now, np.where(share < 1, alpha * share + np.where(size > 0, slope, 0.0) * np.maximum(size, 0), now)
    )


def _with_transfer_share(program: Program, items: Int64s, share: npt.NDArray[np.float64], recorded: Int64s) -> Program:
    """Return a program whose transfers take a share of what they take now.

    Where an earlier change laid the transfers of a step together, they shrink together.
    """
    duration = program.duration_ns.astype(float)
    together = float((recorded * share).sum() / max(recorded.sum(), 1))
    duration[items] *= together if program.also_after else share
    after = tuple((item, other, round(lag_ns * together)) for item, other, lag_ns in program.also_after)
    return replace(program, duration_ns=np.rint(duration).astype(np.int64), also_after=after)


def _spare_host(rank: Rank, program: Program, items: Int64s, spared: npt.NDArray[np.float64]) -> Program:
    hooks = _unit_overhead_ns(rank, program)
    alone = hooks[items] < 0.5 * np.maximum(program.host.own_ns[items], 1)
    fewer = _spare_calls(rank, program, items[alone], spared[alone])
    if alone.all():
        return fewer
    own = np.maximum(fewer.host.own_ns - hooks * float(spared[~alone].mean()), 0)
    return fewer.with_own_ns(own)


def _spare_calls(rank: Rank, program: Program, items: Int64s, spared: npt.NDArray[np.float64]) -> Program:
    """Return a program in which the host is spared a share of each of these calls.

    Without the call, the host would take the usual time from the launch before it to the launch after it. What it
    takes beyond that is the call's: part of it comes before its own launch, the rest before the next. A rank without
    a device computes between its calls: there a call takes what its operator takes.
    """
    if not len(items):
        return program
    own = program.host.own_ns.astype(float)
    if not rank.has_device:
        rows = rank.rows_named(lambda s: s.startswith("c10d::"), EventKind.HOST_OP)
        own[items] -= spared * np.minimum(own[items], median(rank.trace["dur_ns"][rows]) if len(rows) else 0.0)
        return program.with_own_ns(own)
    usual = median(own)
    following = np.minimum(items + 1, len(program) - 1)
    more_after = np.maximum(own[following] - usual, 0) * (~among(following, items))
    own[items] -= spared * own[items]
    own[following] -= spared * more_after
    return program.with_own_ns(own)


def without_collectives(replay: Replay, dropped: Sequence[Mask]) -> Replay:
    """Return the run without some collectives, given per rank over the rows of its Collectives."""
    programs, gone = [], []
    for rank, program, rows in zip(replay.shared.run.ranks, replay.programs, dropped, strict=True):
        items = np.zeros(len(program), bool)
        is_comm = program.collective != NOTHING
        items[is_comm] = rows[program.collective[is_comm]]
        spared = _spare_calls(rank, program, np.flatnonzero(items), np.ones(int(items.sum())))
        programs.append(replace(spared, duration_ns=np.where(items, 0, program.duration_ns)))
        gone.append(items)
    return rebuilt(replay, programs, [m for m in replay.meetings if not all(gone[r][i] for r, i in m)])


def _group_items(ops: npt.NDArray[np.uint8], program: Program, only: tuple[int, ...] = ()) -> Int64s:
    items = np.flatnonzero(program.collective != NOTHING)
    op = ops[program.collective[items]]
    keep = among(op, only) if only else ~among(op, POINT_TO_POINT)
    return items[keep]


def _with_transfers(replay: Replay, changed: Transfers, kept: Sequence[Mask] | None) -> Replay:
    programs = []
    for index, (rank, program) in enumerate(zip(replay.shared.run.ranks, replay.programs, strict=True)):
        items = _group_items(rank.collectives.op, program)
        rows = program.collective[items]
        known = rank.collectives.full_bytes[rows] > 0
        if kept is not None:
            known &= ~kept[index][rows]
        items, rows = items[known], rows[known]
        duration = program.duration_ns.copy()
        op, size = rank.collectives.op[rows], rank.collectives.full_bytes[rows]
        duration[items] = np.rint(changed(program, op.astype(np.int64), size, items))
        programs.append(replace(program, duration_ns=duration))
    return rebuilt(replay, programs)


def _modelled(lines: "dict[int, Fit]", op: npt.NDArray[np.integer], size: npt.ArrayLike) -> npt.NDArray[np.float64]:
    sizes = np.asarray(size, float)
    out = np.zeros(len(sizes))
    for one, line in lines.items():
        mine = np.flatnonzero(op == one)
        out[mine] = line.time_ns(sizes[mine])
    return out


# The run with its gradient collectives started while the backward pass still runs.
#
# The bytes of a step travel in n equal pieces, each ready when its share of the backward pass is done. With a total
# transfer T the last piece ends at
#
#     max(end of backward + T/n,  1/n of backward + T)
#
# because either the last piece is what remains, or the link was busy all the time. Overlapping transfer and compute
# share cores and memory, so both take longer.

# of the time that transfer and compute share: what each of the two takes longer
_CONTENTION = 0.1


def overlapped(
    replay: Replay, backward: Sequence[Mask], *, message_bytes: int = GOOD_MESSAGE_BYTES, exactly: bool = False
) -> Replay:
    """Return the run with the gradients of a step sent during backward, in pieces of at most `message_bytes`.

    Pieces that were recorded smaller stay so, unless they are to be `exactly` that large. `backward` marks the
    backward pass's work per rank, over the rows of its DeviceWork.
    """
    latency = max((line.alpha_ns for op, line in _transfer_lines(replay).items() if op in GRADIENT_OPS), default=0.0)
    programs = []
    for index, (program, mask) in enumerate(zip(replay.programs, backward, strict=True)):
        c = replay.shared.run.ranks[index].collectives
        items = _group_items(c.op, program, GRADIENT_OPS)
        pieces = _pieces(program, items, np.maximum(c.full_bytes, 0), message_bytes, exactly=exactly)
        computes = program.collective == NOTHING
        computes &= mask[program.device_index] if len(mask) else False
        hidden = _hidden_transfers(replay.shared, index)
        programs.append(_overlapped(program, items, computes, pieces, latency, hidden))
    return rebuilt(replay, programs)


def perfectly_overlapped(backward: Sequence[Mask]) -> Change:
    """Return the change that overlaps gradients with backward as far as dependencies allow, in good messages."""
    return at_any_factor(lambda replay: overlapped(larger_messages(replay), backward, exactly=True))


def _hidden_transfers(shared: AlignedRun, index: int) -> Int64s:
    rank = shared.run.ranks[index]
    work, c = rank.work, rank.collectives
    computes = np.ones(len(work), bool)
    if rank.has_device:
        computes[c.device_index] = False
    start = c.start_ns + np.maximum(shared.wait_ns[index], 0)
    return covered_ns(union(work.start_ns[computes], work.end_ns[computes]), start, np.maximum(start, c.end_ns))


def _pieces(program: Program, items: Int64s, size: Int64s, message_bytes: int, *, exactly: bool) -> dict[int, int]:
    out = {}
    for step in distinct(program.step[items]).tolist():
        mine = items[program.step[items] == step]
        total = int(size[program.collective[mine]].sum())
        out[step] = max(1 if exactly else len(mine), -(-total // message_bytes))
    return out


def _overlapped(
    program: Program, items: Int64s, computes: Mask, pieces_of: dict[int, int], latency_ns: float, hidden_ns: Int64s
) -> Program:
    duration, after = program.duration_ns.copy(), list(program.also_after)
    kept, added = np.ones(len(program), bool), []
    before = program.stream_predecessor.copy()
    for step in distinct(program.step):
        mine = items[program.step[items] == step]
        if not len(mine):
            continue
        last = int(mine[-1])
        back = np.flatnonzero(computes & (program.step == step))
        back = back[back < last]  # what comes later (copies out of a bucket) waits for the collective itself
        if not len(back):
            continue
        pieces, busy = pieces_of[int(step)], int(duration[back].sum())
        total = int(duration[mine].sum() + latency_ns * max(0, pieces - len(mine)))
        share = int(np.searchsorted(np.cumsum(duration[back]), busy / pieces))
        first_ready = int(back[min(len(back) - 1, share)])
        more_hidden = min(total - total // pieces, busy) - int(hidden_ns[program.collective[mine]].sum())
        total = max(0, total + round(_CONTENTION * more_hidden))
        duration[back] = np.rint(duration[back] * max(0.0, 1 + _CONTENTION * more_hidden / max(busy, 1)))
        duration[mine] = 0
        duration[last] = total // pieces
        after.append((last, first_ready, total - total // pieces))
        # The other collectives of the step wait for nothing any more; the last one for the end of backward.
        kept[mine] = False
        added.append((int(back[-1]), last))
        if before[last] in set(back.tolist()):
            before[last] = NOTHING
    waits = np.concatenate(
        (program.waits[:, kept[program.waits[1]]], np.array(added, np.int64).reshape(-1, 2).T), axis=1
    )
    return replace(
        program,
        duration_ns=duration,
        also_after=tuple(after),
        waits=by_item(waits),
        stream_predecessor=before,
    )


# The run with several collectives in one call, where their sizes are not recorded.
#
# A call of any size takes at least the latency of the operation: the time of the shortest ones. Merged, `together`
# calls pay it once, on the network and on the host; the rest of their time stays.


def fewer_calls(replay: Replay, together: int) -> Replay:
    """Return the run with each `together` of its group collectives merged into one."""
    spared = 1 - 1 / together
    programs = []
    for rank, program in zip(replay.shared.run.ranks, replay.programs, strict=True):
        items = _group_items(rank.collectives.op, program)
        if len(items):
            latency = float(quantiles(program.duration_ns[items], 0.05))
            duration = program.duration_ns.astype(float)
            duration[items] = np.maximum(duration[items] - spared * latency, 0)
            shorter = replace(program, duration_ns=np.rint(duration).astype(np.int64))
            program = _spare_calls(rank, shorter, items, np.full(len(items), spared))
        programs.append(program)
    return rebuilt(replay, programs)
