"""In which phase of training was the host at a moment: forward, backward, between backward and optimizer, optimizer?

Two things leave certain marks on any host: the autograd engine (its nodes) and optimizers (their ranges). Everything
else follows from order: what comes before a backward pass is forward, what comes between the last backward pass and
the optimizer is neither. So no annotation by the user is needed.

    |--- forward ---|=== backward ===|- forward -|=== backward ===|- after -|## optimizer ##|--- forward ...
"""

import re
from collections.abc import Iterable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import host_calls
from stepscope.analyze.step.regions import marks_of
from stepscope.contract.regions import Region
from stepscope.dataclass import dataclass
from stepscope.intervals import EMPTY, Intervals, union, union_of
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among
from stepscope.trace.classify import rows_named
from stepscope.trace.table import Int64s

_GRAPH_LAUNCH = re.compile(r"GraphLaunch")


class Phase(IntEnum):
    """Where in the training step the host is."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    AFTER_BACKWARD = 3
    """after the last backward pass and before the optimizer: gradients are final, not yet used"""
    OPTIMIZER = 4


Phases = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Passes:
    """The backward passes and optimizer steps of one rank, on its host's clock."""

    backward: Intervals
    """one per backward pass"""
    optimizer: Intervals
    autograd_threads: frozenset[int]
    """threads that run nothing but the autograd engine"""
    known: bool
    """False where the trace holds no host operators to tell by"""

    def at(self, moment_ns: Int64s, thread: Int64s) -> Phases:
        """Return the phase of each moment on a host thread."""
        if not self.known:
            return np.full(len(moment_ns), Phase.UNKNOWN, np.uint8)
        to_backward, to_optimizer = (_until_next(x, moment_ns) for x in (self.backward, self.optimizer))
        out = np.where(to_backward <= to_optimizer, Phase.FORWARD, Phase.AFTER_BACKWARD).astype(np.uint8)
        none_follows = (to_backward == _NEVER) & (to_optimizer == _NEVER)
        after_last = _since_last(self.backward, moment_ns) < _since_last(self.optimizer, moment_ns)
        out[none_follows] = Phase.FORWARD
        out[none_follows & after_last] = Phase.AFTER_BACKWARD
        on_engine = among(thread, list(self.autograd_threads))
        out[on_engine & (out == Phase.FORWARD)] = Phase.BACKWARD
        out[_inside(self.optimizer, moment_ns)] = Phase.OPTIMIZER
        out[_inside(self.backward, moment_ns)] = Phase.BACKWARD
        return out


_NEVER = np.iinfo(np.int64).max


def passes(rank: Rank) -> Passes:
    """Return the backward passes and optimizer steps that the host ran."""
    trace, marks, ops = rank.trace, marks_of(rank), host_calls(rank)
    engine = union_of(_spans(rank, marks.autograd_nodes), _spans(rank, marks.rows_of(Region.BACKWARD)))
    backward = _joined(engine, ops.start_ns[ops.of_thread(marks.main_thread)])
    optimizer = rows_named(trace, marks.rows_of(Region.OPTIMIZER), lambda s: "zero_grad" not in s)
    return Passes(
        backward=backward,
        optimizer=_after_inner(_spans(rank, optimizer), backward),
        autograd_threads=frozenset(marks.autograd_threads.tolist()),
        known=bool(len(ops)),
    )


def trains(found: Iterable[Passes]) -> bool:
    """Return whether any rank ran a backward pass or an optimizer; a job that did neither is inference.

    True where no trace tells: most jobs train.
    """
    ranks = list(found)
    known = [p for p in ranks if p.known]
    return not known or any(len(p.backward) or len(p.optimizer) for p in known)


def collective_phases(rank: Rank, found: Passes) -> Phases:
    """Return the phase in which each collective was asked for; UNKNOWN before the window and inside a graph."""
    c, trace = rank.collectives, rank.trace
    asked = c.issue_ns > np.iinfo(np.int64).min
    source = c.record_row.copy()
    on_device = c.device_index >= 0
    launch = np.where(on_device, rank.work.launch_row[c.device_index] if len(rank.work) else -1, -1)
    source = np.where(source >= 0, source, launch)
    out = np.full(len(c), Phase.UNKNOWN, np.uint8)
    use = np.flatnonzero(asked & (source >= 0))
    out[use] = found.at(c.issue_ns[use], trace["tid"][source[use]])
    launched = np.flatnonzero(launch >= 0)
    in_graph = rows_named(trace, launch[launched], lambda s: bool(_GRAPH_LAUNCH.search(s)))
    out[launched[among(launch[launched], in_graph)]] = Phase.UNKNOWN
    return out


def work_phases(rank: Rank, found: Passes) -> Phases:
    """Return the phase in which each device operation was launched; UNKNOWN for launches before the window."""
    launch = rank.work.launch_row
    out = np.full(len(launch), Phase.UNKNOWN, np.uint8)
    use = np.flatnonzero(launch >= 0)
    out[use] = found.at(rank.trace["ts_ns"][launch[use]], rank.trace["tid"][launch[use]])
    return out


def _spans(rank: Rank, rows: npt.NDArray[np.intp]) -> Intervals:
    start = rank.trace["ts_ns"][rows]
    return union(start, start + rank.trace["dur_ns"][rows])


def _joined(engine: Intervals, begun: Int64s) -> Intervals:
    """Return the engine's spans, joined where the main thread, which began operators then, began none between them."""
    if not len(engine):
        return EMPTY
    before = np.searchsorted(begun, engine.end[:-1], side="left")
    after = np.searchsorted(begun, engine.start[1:], side="left")
    first = np.concatenate(([True], after > before))
    last = np.append(np.flatnonzero(first)[1:] - 1, len(engine) - 1)
    return Intervals(engine.start[first], engine.end[last])


def _after_inner(optimizer: Intervals, backward: Intervals) -> Intervals:
    """Return optimizer steps from the end of the last backward pass inside them (closures run the whole step)."""
    if not len(backward) or not len(optimizer):
        return optimizer
    last = np.searchsorted(backward.end, optimizer.end, side="right") - 1
    inner_end = np.where(last >= 0, backward.end[last], optimizer.start)
    return Intervals(np.maximum(optimizer.start, inner_end), optimizer.end)


def _inside(x: Intervals, moment: Int64s) -> npt.NDArray[np.bool_]:
    if not len(x):
        return np.zeros(len(moment), bool)
    i = np.searchsorted(x.start, moment, side="right") - 1
    return (i >= 0) & (moment < x.end[i])


def _until_next(x: Intervals, moment: Int64s) -> Int64s:
    """Return the time from each moment to the next start, _NEVER where none follows."""
    i = np.searchsorted(x.start, moment, side="left")
    padded = np.append(x.start, 0)
    return np.where(i < len(x), padded[i] - moment, _NEVER)


def _since_last(x: Intervals, moment: Int64s) -> Int64s:
    """Return the time since the last end before each moment, _NEVER where there was none."""
    i = np.searchsorted(x.end, moment, side="right") - 1
    padded = np.append(x.end, 0)
    return np.where(i >= 0, moment - padded[np.maximum(i, 0)], _NEVER)
