"""What did each pipeline stage compute, in which order: the forwards and backwards of its micro-batches?

Where the framework marks its actions (`PP:1F0`: stage 1, forward, micro-batch 0) they are taken as they are. Otherwise
the host's order tells: a stage sends or receives between micro-batches, and forward and backward are told apart, so

    recv F send recv F send ... recv B send     ->     F F ... B

A stretch of far fewer operations than usual (zeroing gradients, seeding a backward pass) is no micro-batch.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.analyze.phases import Passes, Phase, marks_of, work_phases
from stepscope.analyze.rank_windows import host_compute
from stepscope.dataclass import dataclass
from stepscope.intervals import Intervals, covered_ns, union
from stepscope.records import ArrayRecord
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.stats.robust import median
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

MARKED_ACTION = re.compile(r"^(?:PP:)?(?P<stage>\d+)(?P<kind>[FBIW])(?P<microbatch>\d+)$")
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
    marked = MARKED_ACTION.match(name)
    if marked:
        return marked["kind"], int(marked["stage"]), int(marked["microbatch"])
    named = _NAMED.match(name)
    assert named is not None
    return named["kind"][0], position, int(named["microbatch"])


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
    count: dict[tuple[int, str], int] = {}
    out = []
    for a in actions:
        k = count.get((a.step, a.kind), 0)
        count[a.step, a.kind] = k + 1
        out.append(replace(a, microbatch=k))
    return out
