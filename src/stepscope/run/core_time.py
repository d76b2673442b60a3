"""A run on a busy machine, with the times that it would have on free cores.

    lost     in each logged step: how long the training thread was ready and had no core, by the kernel's count
    factor   (step - lost) / step

Where much is lost, the clock of the step log runs slower by the factor. The trace's does not where a rank is alone and
has a list of its waits for a core (`record/helper/core_waits.py`): its clock stops in each of them. The end of a
wait is known to a millisecond or so, and no event of the thread begins or ends in it: it is in a pause between two.

Without the list each part of a step has lost as much of its time: a rank that is alone has a factor for each step, or
for the steps that were timed together. Several ranks have one for the profiled steps, so that their clocks still agree,
and one for all others. Waits for something else (a sleep, a disk) are then shortened as well.

Threads that compute one operator together wait for each other longer where the machine is busier. Where a region of the
step took less in the profiled steps than in the others, the clock of a rank that is alone is stretched in it.

What a device computes needs no core, so runs with a device keep their times.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.contract.run_folder import CORE_WAITS, SCHEMA, json_object, rank_file
from stepscope.run.rank import Rank
from stepscope.run.side_files import StepLog, unprofiled_step
from stepscope.side_file import read_side_file
from stepscope.stats.robust import distinct, median, slow_start
from stepscope.trace.table import NONE_NS, EventKind, Int64s
from stepscope.units import NS_PER_S, ms

Floats = npt.NDArray[np.float64]
Clock = Callable[[Int64s], Int64s]
# when each began, and how long it was
Waits = tuple[Int64s, Int64s]

# of the steps: from here on the wait for a core is what the machine does, and no fix of the job's
STARVED = 0.1
_LEAST_FACTOR = 0.01
# undisturbed steps from which the time of a region is known
_MIN_STEPS = 3
# of a wait that can be
_LONGEST_NS = 600 * NS_PER_S


def no_core_ns(log: StepLog) -> Floats | None:
    """Return by step how long the training thread waited for a core; None where the log does not have it."""
    time = log.column("cpu.delay_ns")
    return np.nan_to_num(time) if np.isfinite(time).mean() >= 0.5 else None


def no_core_share(logs: Sequence[StepLog], *, profiled: bool = False) -> float | None:
    """Return the share of the undisturbed steps, or of the profiled ones, in which the median rank waited for a core;
    None where unknown.
    """
    shares = []
    for log in logs:
        waited, keep = no_core_ns(log), (log.profiled if profiled else log.unprofiled) & (log.dur_ns > 0)
        if waited is not None and keep.any():
            shares.append(float(waited[keep].sum() / log.dur_ns[keep].sum()))
    return median(shares) if shares else None


def on_core_time(
    ranks: Sequence[Rank], logs: tuple[StepLog, ...], description: dict[str, Any], folder: Path | None
) -> tuple[list[Rank], tuple[StepLog, ...], dict[str, Any], float]:
    """Return a run with the times of free cores, and the share of its time that was lost; 0 where that is little."""
    share = no_core_share(logs)
    if share is None or share < STARVED or any(rank.has_device or rank.device_unseen for rank in ranks):
        return list(ranks), logs, description, 0.0
    in_window = no_core_share(logs, profiled=True)
    of_window = 1 - (share if in_window is None else in_window)
    alone = len(logs) == 1 and len(ranks) == 1 and logs[0].header.get("world_size", 1) == 1
    factors = [_factors(log, 1 - share, of_window, each=alone) for log in logs]
    of_step = dict(zip(logs[0].step.tolist(), factors[0].tolist(), strict=True)) if alone else {}
    moments = [rank.trace["ts_ns"] for rank in ranks]
    since_ns = min((int(at[at != NONE_NS].min(initial=1 << 62)) for at in moments), default=0)
    waits = _core_waits(folder, ranks[0]) if alone and folder is not None else None
    changed = tuple(_slower(log, factor) for log, factor in zip(logs, factors, strict=True))
    step = unprofiled_step(changed)
    described = {**description, "unprofiled_step_ms": ms(step.median_ns) if step is not None else None}
    clocks = [_clock(rank, of_step, of_window, since_ns) if waits is None else _without(waits) for rank in ranks]
    found = [_on_clock(rank, clock) for rank, clock in zip(ranks, clocks, strict=True)]
    if alone:
        found = [_on_clock(found[0], _stretched(found[0], changed[0]))]
    return found, changed, described, share


def _factors(log: StepLog, outside: float, of_window: float, *, each: bool) -> Floats:
    """Return by step what remains of it; steps that were timed together have their mean: the clock was read once."""
    waited, ran = log.column("cpu.delay_ns"), log.column("cpu.run_ns")
    group = np.cumsum(np.append(True, (np.diff(waited) != 0) | (np.diff(ran) != 0))[: len(log)]) - 1
    mean_ns = (np.bincount(group, log.dur_ns) / np.bincount(group))[group]
    found = np.maximum(mean_ns - waited, _LEAST_FACTOR * mean_ns) / np.maximum(log.dur_ns, 1)
    return np.where(np.isfinite(found) & each, found, np.where(log.profiled, of_window, outside))


def _slower(log: StepLog, factor: Floats) -> StepLog:
    """Return the log with shorter steps and regions; when they began and ended stays the wall clock's."""
    numbers = {path: x * factor if path.startswith("regions.") and path.endswith(".ns") else x
               for path, x in log.numbers.items()}  # fmt: skip
    numbers |= {"cpu.delay_ns": np.zeros(len(log)), "cpu.lost_ns": log.dur_ns * (1 - factor)}
    return replace(log, dur_ns=np.rint(log.dur_ns * factor).astype(np.int64), numbers=numbers)


def _clock(rank: Rank, of_step: dict[int, float], otherwise: float, since_ns: int) -> Clock:
    """Return the clock that runs with the slope of each step."""
    steps = rank.steps
    edges, slopes = np.array([since_ns]), np.array([otherwise])
    if of_step and len(steps):
        edges = steps.start_ns
        slopes = np.array([of_step.get(number, otherwise) for number in steps.number.tolist()])
    before = np.concatenate([[0.0], np.cumsum(np.diff(edges) * slopes[:-1])])

    def at(moment: Int64s) -> Int64s:
        place = np.maximum(np.searchsorted(edges, moment, side="right") - 1, 0)
        return edges[0] + np.rint(before[place] + (moment - edges[place]) * slopes[place]).astype(np.int64)

    return at


def _without(waits: Waits) -> Clock:
    """Return the clock that stops in the waits."""
    end_ns = waits[0] + waits[1]
    passed = np.append(0, np.cumsum(waits[1]))

    def at(moment: Int64s) -> Int64s:
        place = np.searchsorted(end_ns, moment, side="right")  # of the next wait to end
        begun = np.append(waits[0], np.iinfo(np.int64).max)[place]
        return np.minimum(moment, begun) - passed[place]

    return at


def _stretched(rank: Rank, log: StepLog) -> Clock:
    """Return the clock on which the regions of the profiled steps take what they take in the other steps."""
    recorded, others = np.isin(log.step, rank.steps.number) & ~log.unprofiled, np.flatnonzero(log.unprofiled)
    others = others[slow_start(log.dur_ns[others]) :]
    slope = {}
    for path in log.numbers:
        if path.startswith("regions.") and path.endswith(".ns"):
            took = np.nan_to_num(log.column(path))
            here, elsewhere = (x[x > 0] for x in (took[recorded], took[others]))
            if len(here) and len(elsewhere) >= _MIN_STEPS and elsewhere.mean() > here.mean():
                slope[path[len("regions.") : -len(".ns")]] = elsewhere.mean() / here.mean()
    rows = rank.rows_named(lambda name: name in slope, EventKind.ANNOTATION)
    rows = rows[np.argsort(rank.trace["ts_ns"][rows], kind="stable")]
    start = rank.trace["ts_ns"][rows]
    end = start + np.maximum(rank.trace["dur_ns"][rows], 0)
    outer = start >= np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
    start, end, names = start[outer], end[outer], rank.trace["name"][rows[outer]].tolist()
    more = np.array([slope[rank.trace.text(name) or ""] - 1 for name in names])
    passed = np.append(0.0, np.cumsum((end - start) * more))

    def at(moment: Int64s) -> Int64s:
        place = np.searchsorted(end, moment, side="right")  # of the next region to end
        begun = np.append(start, np.iinfo(np.int64).max)[place]
        inside = (np.maximum(moment, begun) - begun) * np.append(more, 0.0)[place]
        return moment + np.rint(passed[place] + inside).astype(np.int64)

    return at


def _on_clock(rank: Rank, at: Clock) -> Rank:
    trace, c, steps = rank.trace, rank.collectives, rank.steps
    began, lasted = trace["ts_ns"], trace["dur_ns"]
    start, end = (_known(at, moment, began) for moment in (began, began + lasted))
    columns = {**trace.columns, "ts_ns": start, "dur_ns": np.where(lasted == NONE_NS, NONE_NS, end - start)}
    issue = _known(at, c.issue_ns, c.issue_ns)
    return replace(
        rank,
        trace=replace(trace, columns=columns),
        steps=replace(steps, start_ns=at(steps.start_ns), end_ns=at(steps.end_ns)),
        collectives=replace(c, start_ns=at(c.start_ns), end_ns=at(c.end_ns), issue_ns=issue),
    )


def _core_waits(folder: Path, rank: Rank) -> Waits | None:
    """Return when the training thread waited for a core; None where the steps of the trace were not watched for it."""
    if not len(rank.steps):
        return None
    first_ns, last_ns = int(rank.steps.start_ns.min()), int(rank.steps.end_ns.max())
    for since_ns, until_ns, waits in _watched(folder / rank_file(rank.rank, CORE_WAITS)):
        if since_ns <= first_ns and last_ns <= until_ns:
            return _placed(waits, distinct(np.clip(_edges(rank), since_ns, until_ns)))
    return None


def _watched(path: Path) -> Iterator[tuple[int, int, Int64s]]:
    try:
        lines = read_side_file(path).splitlines()
    except OSError:
        return
    for line in lines:
        found = json_object(line) or {}
        try:
            waits = np.array(found["waits"], np.int64).reshape(-1, 3)
            since_ns, until_ns = int(found["since_ns"]), int(found["until_ns"])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        after, seen, waited = waits.T
        sound = (waited > 0) & (waited <= _LONGEST_NS) & (after < seen) & (since_ns <= after) & (seen <= until_ns)
        if found.get("schema") == SCHEMA and since_ns >= 0 and sound.all() and (np.diff(seen) > 0).all():
            yield since_ns, until_ns, waits


def _edges(rank: Rank) -> Int64s:
    """Return when events of the training thread begin and end, in no order, and two times beyond them."""
    trace = rank.trace
    marks = np.flatnonzero(np.isin(trace["ts_ns"], rank.steps.start_ns) & (rank.kinds == EventKind.ANNOTATION))
    mine = np.isin(trace["tid"], trace["tid"][marks[:1]]) & (trace["dur_ns"] >= 0)
    far = np.array([-1 << 62, 1 << 62])
    return np.concatenate([far, trace["ts_ns"][mine], trace["ts_ns"][mine] + trace["dur_ns"][mine]])


def _placed(waits: Int64s, edges: Int64s) -> Waits:
    """Return what each pause between two events lost: a wait is in the one where it can have ended and leaves least.

    Where none is long enough, several waits were read as one: they are in the longest pauses meanwhile.
    """
    lost = np.zeros(max(len(edges) - 1, 0), np.int64)
    length = np.diff(edges)
    for after, seen, waited in waits.tolist():
        first, last = np.searchsorted(edges, (after - waited, seen), side="right")
        near = np.arange(max(first - 1, 0), min(last, len(length)))
        free = length[near] - lost[near]
        can = (free >= waited) & (edges[near] + waited <= seen) & (edges[near + 1] > after)
        order = near[can][np.argsort(free[can])][:1] if can.any() else near[np.argsort(-free)]
        for pause in order.tolist():
            taken = min(waited, int(length[pause] - lost[pause]))
            lost[pause] += taken
            waited -= taken
            if not waited:
                break
    held = np.flatnonzero(lost)
    return edges[held], lost[held]


def _known(at: Clock, moment: Int64s, known: Int64s) -> Int64s:
    """Return moments on another clock, NONE_NS where there is none."""
    return np.where(known == NONE_NS, NONE_NS, at(moment))


def core_wait_ns(logs: Sequence[StepLog], step_ns: float, lost: float) -> float | None:
    """Return the wait for a core per step: that in the step, or that which was taken out of it (`lost`)."""
    if lost:
        return step_ns * lost / (1 - lost)
    waited = no_core_share(logs)
    return None if waited is None else waited * step_ns
