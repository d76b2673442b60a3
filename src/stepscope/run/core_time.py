"""A run on a busy machine, with the times that it would have on free cores.

    lost     in each logged step: how long the training thread was ready and had no core, by the kernel's count
    factor   (step - lost) / step

Where much is lost, the clocks of trace and step log run slower by the factor: each part of a step has lost as much of
its time. A rank that is alone has a factor for each step, or for the steps that were timed together. Several ranks have
one for the profiled steps, so that their clocks still agree, and one for all others.
Waits for something else (a sleep, a disk) are shortened as well: which part of a step they are is not known.

What a device computes needs no core, so runs with a device keep their times.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.run.rank import Rank
from stepscope.run.side_files import StepLog, unprofiled_step
from stepscope.stats.robust import median
from stepscope.trace.table import NONE_NS, Int64s
from stepscope.units import ms

Floats = npt.NDArray[np.float64]

# of the steps: from here on the wait for a core is what the machine does, and no fix of the job's
STARVED = 0.1
_LEAST_FACTOR = 0.01


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
    ranks: Sequence[Rank], logs: tuple[StepLog, ...], description: dict[str, Any]
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
    changed = tuple(_slower(log, factor) for log, factor in zip(logs, factors, strict=True))
    step = unprofiled_step(changed)
    described = {**description, "unprofiled_step_ms": ms(step.median_ns) if step is not None else None}
    return [_on_clock(rank, of_step, of_window, since_ns) for rank in ranks], changed, described, share


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


def _on_clock(rank: Rank, of_step: dict[int, float], otherwise: float, since_ns: int) -> Rank:
    steps = rank.steps
    edges, slopes = np.array([since_ns]), np.array([otherwise])
    if of_step and len(steps):
        edges = steps.start_ns
        slopes = np.array([of_step.get(number, otherwise) for number in steps.number.tolist()])

    def at(moment: Int64s) -> Int64s:
        """Return the moment on the clock that runs with the slope of its step."""
        place = np.maximum(np.searchsorted(edges, moment, side="right") - 1, 0)
        before = np.concatenate([[0.0], np.cumsum(np.diff(edges) * slopes[:-1])])
        return edges[0] + np.rint(before[place] + (moment - edges[place]) * slopes[place]).astype(np.int64)

    trace, c = rank.trace, rank.collectives
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


def _known(at: Callable[[Int64s], Int64s], moment: Int64s, known: Int64s) -> Int64s:
    """Return moments on another clock, NONE_NS where there is none."""
    return np.where(known == NONE_NS, NONE_NS, at(moment))


def core_wait_ns(logs: Sequence[StepLog], step_ns: float, lost: float) -> float | None:
    """Return the wait for a core per step: that in the step, or that which was taken out of it (`lost`)."""
    if lost:
        return step_ns * lost / (1 - lost)
    waited = no_core_share(logs)
    return None if waited is None else waited * step_ns
