"""Changes to a recorded run: each takes the replay and returns it with one thing different.

A change works on what things take and what they wait for, never on when they were recorded, so changes compose.
Selections of work (`chosen`) are one boolean array per rank over the rows of its `DeviceWork`.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.time import HostParts
from stepscope.analyze.replay.program import NOTHING, Program
from stepscope.analyze.replay.replay import Replay, rebuilt, with_factor
from stepscope.analyze.replay.straggler_off import host_part_ns, host_part_scaled
from stepscope.analyze.step.recurring import COMMUNICATION, DATA_CAUSES
from stepscope.run.rank import Rank
from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

Chosen = Sequence[npt.NDArray[np.bool_]]
Change = Callable[[Replay], Replay]

_OTHER_THAN_FACTOR = [f.name for f in fields(Replay) if f.name not in ("host_factor", "period_ns")]
_GRAPH_LAUNCH_NS = 20_000
"""the host's time for one step that is launched as a graph"""


def at_any_factor(change: Change) -> Change:
    """Return a change that does not ask for the profiler's factor, made once for replays that differ in nothing else.

    Intervals are of the same change at other factors, and to lay out a graph anew takes longer than to replay it.
    """
    made: list[tuple[Replay, Replay]] = []

    def changed(replay: Replay) -> Replay:
        for before, after in made:
            if all(getattr(before, name) is getattr(replay, name) for name in _OTHER_THAN_FACTOR):
                return with_factor(after, replay.host_factor)
        made.append((replay, change(replay)))
        return made[-1][1]

    return changed


def without_data_wait(replay: Replay) -> Replay:
    """Return the run with every batch ready when it is asked for, and no loader that is started again."""
    return _with_host(without_recurring(replay, DATA_CAUSES), lambda parts: _without(parts, "data_ns"))


def without_stalls(replay: Replay) -> Replay:
    """Return the run with no host stalls, neither in the replayed steps nor in others."""
    others = [cause for cause in replay.recurring.causes if cause not in (*DATA_CAUSES, COMMUNICATION)]
    return without_window_stalls(without_recurring(replay, others))


def without_window_stalls(replay: Replay) -> Replay:
    """Return the run with no host stalls in the replayed steps."""
    return _with_host(replay, lambda parts: _without(parts, "stall_ns"))


def without_recurring(replay: Replay, causes: Sequence[str]) -> Replay:
    """Return the run without what recurs for these causes in some of its steps."""
    changed = replace(replay, recurring=replay.recurring.without(causes))
    return replace(changed, period_ns=replay.period_ns - replay.recurring.total_ns + changed.recurring.total_ns)


def without_allocator(replay: Replay) -> Replay:
    """Return the run with no calls for device memory inside steps, and without the synchronisation they imply."""
    return _with_host(replay, lambda parts: _without(parts, "allocator_ns"))


def without_syncs(replay: Replay) -> Replay:
    """Return the run in which the host never waits for the device."""

    def unreleased(p: Program) -> Program:
        return replace(p, released_by=np.full(len(p), NOTHING, np.int64), tail_released_by=NOTHING)

    return rebuilt(replay, [unreleased(p) for p in replay.programs])


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
        programs.append(_scaled(replace(program, host=replace(program.host, own_ns=own)), mask, 0.0))
    return rebuilt(replay, programs)


def faster_work(replay: Replay, chosen: Chosen, factor: float | Sequence[float]) -> Replay:
    """Return the run in which some device work takes `factor` of its time (per rank where several are given)."""
    factors = [factor] * len(replay.programs) if isinstance(factor, int | float) else list(factor)
    pairs = _per_program(replay, chosen)
    return rebuilt(replay, [_scaled(p, mask, f) for (p, mask), f in zip(pairs, factors, strict=True)])


def with_work_times(replay: Replay, chosen: Chosen, times_ns: Sequence[npt.NDArray[np.float64]]) -> Replay:
    """Return the run in which some device work takes other times, given over the rows of each rank's DeviceWork.

    Times are those of the recorded work: where an earlier change shortened it already, the same share is kept.
    """
    return rebuilt(replay, programs_with_times(replay, chosen, times_ns))


def programs_with_times(replay: Replay, chosen: Chosen, times_ns: Sequence[npt.NDArray[np.float64]]) -> list[Program]:
    """Return the programs of `with_work_times`."""
    programs = []
    for (program, mask), times, rank in zip(_per_program(replay, chosen), times_ns, _ranks(replay), strict=True):
        if not rank.has_device:
            programs.append(program)
            continue
        items = np.flatnonzero(mask)
        rows, duration = program.device_index[items], program.duration_ns.copy()
        recorded = rank.work.end_ns[rows] - rank.work.start_ns[rows]
        share = np.clip(times[rows] / np.maximum(recorded, 1), 0, 1)
        duration[items] = np.rint(duration[items] * share)
        programs.append(replace(program, duration_ns=duration))
    return programs


def fused_work(replay: Replay, chosen: Chosen, *, launches: int, device_share: float) -> Replay:
    """Return the run with some work of each step fused into a few launches that take a share of its device time."""
    programs = []
    for program, mask in _per_program(replay, chosen):
        per_step = np.bincount(program.step[mask], minlength=len(replay.steps))
        kept = np.minimum(1.0, launches / np.maximum(per_step, 1))[program.step]
        own = np.where(mask, np.rint(program.host.own_ns * kept), program.host.own_ns).astype(np.int64)
        fused = replace(program, host=replace(program.host, own_ns=own))
        programs.append(_scaled(fused, mask, device_share))
    return rebuilt(replay, programs)


def as_graph(replay: Replay) -> Replay:
    """Return the run with each step launched as one graph: the host's own time becomes one launch."""

    def launched_once(program: Program) -> Program:
        own = np.zeros(len(program))
        own[np.unique(program.step, return_index=True)[1]] = _GRAPH_LAUNCH_NS / max(replay.host_factor, 1e-9)
        host = replace(program.host, own_ns=np.minimum(own, program.host.own_ns).astype(np.int64))
        return replace(program, host=host, tail=replace(program.tail, own_ns=np.zeros(1, np.int64)))

    return rebuilt(replay, [launched_once(p) for p in replay.programs])


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
    if not any(rank.has_device for rank in _ranks(replay)):
        return _evenly_spread_hosts(replay)
    each = [_compute_in_steps(p, len(replay.steps)) for p in replay.programs]
    mean = np.mean(each, axis=0)
    programs = []
    for program, mine in zip(replay.programs, each, strict=True):
        factor = np.divide(mean, mine, out=np.ones_like(mean), where=mine > 0)[program.step]
        programs.append(_scaled(program, program.kind != EventKind.COMM_KERNEL, factor))
    return rebuilt(replay, programs)


def _compute_in_steps(program: Program, steps: int) -> npt.NDArray[np.float64]:
    """Return what the work of a program takes in each step, communication aside."""
    computes = program.kind != EventKind.COMM_KERNEL
    return np.bincount(program.step[computes], program.duration_ns[computes], minlength=steps).astype(float)


def _evenly_spread_hosts(replay: Replay) -> Replay:
    """Return the same for ranks whose hosts compute."""
    own_ns = [host_part_ns(p, "own_ns") for p in replay.programs]
    mean_ns = float(np.mean(own_ns))
    pairs = zip(replay.programs, own_ns, strict=True)
    return rebuilt(replay, [host_part_scaled(p, "own_ns", mean_ns / mine) if mine else p for p, mine in pairs])


def _ranks(replay: Replay) -> tuple[Rank, ...]:
    return replay.shared.run.ranks


def _per_program(replay: Replay, chosen: Chosen) -> list[tuple[Program, npt.NDArray[np.bool_]]]:
    """Return each program with its items' share of a selection over device work; none on a rank without a device."""
    return [
        (p, mask[p.device_index] if rank.has_device else np.zeros(len(p), bool))
        for p, mask, rank in zip(replay.programs, chosen, _ranks(replay), strict=True)
    ]


def _scaled(program: Program, items: npt.NDArray[np.bool_], factor: float | npt.NDArray[np.float64]) -> Program:
    duration = np.where(items, np.rint(program.duration_ns * factor), program.duration_ns).astype(np.int64)
    return replace(program, duration_ns=duration)


def _without(parts: HostParts, name: str) -> HostParts:
    return replace(parts, **{name: np.zeros_like(getattr(parts, name))})


def _with_host(replay: Replay, change: Callable[[HostParts], HostParts]) -> Replay:
    return rebuilt(replay, [replace(p, host=change(p.host), tail=change(p.tail)) for p in replay.programs])
