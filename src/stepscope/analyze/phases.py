"""In which phase of training was the host at a moment: forward, backward, between backward and optimizer, optimizer?

Two things leave certain marks on any host: the autograd engine (its nodes) and optimizers (their ranges). Everything
else follows from order: what comes before a backward pass is forward, what comes between the last backward pass and
the optimizer is neither. So no annotation by the user is needed.

    |--- forward ---|=== backward ===|- forward -|=== backward ===|- after -|## optimizer ##|--- forward ...
"""

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_time import HostCalls, Mask, host_calls, records_operators, spans
from stepscope.contract.step_line import EVALUATE, OLD_NODE, Region, named_region, prepares_input
from stepscope.intervals import EMPTY, Intervals, union_of
from stepscope.records import ArrayRecord, Row, dataclass, once_per_record
from stepscope.run.device_work import Rows, enclosing, lookup
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.run.steps import DECODE, MIXED, PREFILL, SERVING, ServingStep, serving_step
from stepscope.stats.robust import among, distinct, distinct_places, median, recurring_long
from stepscope.trace.scanner import call_stack_parents
from stepscope.trace.table import EventKind, Int64s, Kinds, Trace, by_string, of_kinds, rows_named
from stepscope.units import NS_PER_S

# To which part of training does each device operation belong: forward, backward, optimizer, data or other?
#
# Decided by the launch. Marks around it on its thread, the innermost first:
#
#     a range that names a part                        that part; an operator that builds a graph inside an
#                                                      optimizer's range is its closure: forward
#     autograd::engine::evaluate_function              backward; a forward operator inside it is recomputed
#     none, on a thread of the autograd engine         backward
#     none, before the step's last backward            forward (also where the step holds no backward at all; other
#                                                      where the trace has no operators)
#     none, after it                                   other: clipping, unscaling, metrics
#
# Operators that build an autograd graph carry a sequence number and no forward thread; those of a backward pass run
# without gradients and carry none. That is how recomputation (activation checkpointing) shows, except in passes that
# are themselves differentiated.

Codes = npt.NDArray[np.uint8]

_GRAPH_LAUNCH = re.compile(r"GraphLaunch")
_NO_MARK, _EVALUATE_MARK = 0, 100


@dataclass(frozen=True, eq=False, repr=False)
class Regions(ArrayRecord):
    """The part of training of each row, in the order of the given rows."""

    #: values of `Region`
    region: Codes
    #: forward operators that run again inside a backward pass; their region is BACKWARD
    recomputed: Mask


@dataclass(frozen=True, eq=False, repr=False)
class Marks(ArrayRecord):
    """Host events that mark parts of training."""

    #: ranges that name a part, and autograd nodes
    rows: Rows
    #: Region + 1, or _EVALUATE_MARK, per mark
    code: Codes
    #: operators that build an autograd graph
    graph_builders: Rows
    main_thread: int
    autograd_threads: npt.NDArray[np.int64]

    @property
    def autograd_nodes(self) -> Rows:
        return self.rows[self.code == _EVALUATE_MARK]

    def rows_of(self, region: Region) -> Rows:
        return self.rows[self.code == region + 1]


def regions(rank: Rank, marks: Marks | None = None) -> Regions:
    """Return the part of training of each row of `rank.work`; OTHER for work from before the window.

    Work of a CUDA graph that nothing on the host explains is classified by the device's own ranges.
    """
    work = rank.work
    region = np.full(len(work), Region.OTHER, np.uint8)
    recomputed = np.zeros(len(work), bool)
    launched = np.flatnonzero(work.launch_row >= 0)
    calls, back = distinct_places(work.launch_row[launched])
    found, again, named = host_regions(rank, calls, marks or marks_of(rank))
    region[launched], recomputed[launched] = found[back], again[back]
    graph = by_string(rank.trace, rank.trace["name"][calls], lambda s: bool(_GRAPH_LAUNCH.search(s))).astype(bool)
    unsaid = work.launch_row < 0
    serves = rank.steps.told_by == SERVING  # an engine's graphs are its forward pass
    unsaid[launched] = (graph & ~named & (not serves))[back]
    region[unsaid] = _by_device_annotation(rank, work.row[unsaid])
    return Regions(region, recomputed)


@once_per_record
def graph_launches(rank: Rank) -> tuple[Rows, Rows]:
    """Return the launches of graphs, and those of them of which nothing on the device was recorded."""
    rows = rank.rows_named(lambda name: bool(_GRAPH_LAUNCH.search(name)), EventKind.RUNTIME)
    return rows, rows[~among(rows, rank.work.launch_row)]


@once_per_record
def marks_of(rank: Rank) -> Marks:
    """Return the marks that a rank's host left."""
    trace = rank.trace
    rows, code = rank.coded_rows(_mark_code, EventKind.ANNOTATION, EventKind.HOST_OP)
    prepares = rank.rows_named(prepares_input, EventKind.PYTHON)
    if len(prepares):
        rows = np.concatenate((rows, prepares))
        code = np.append(code, np.full(len(prepares), Region.DATA + 1, code.dtype))
    if not (code == _EVALUATE_MARK).any():
        rows, code = _with_old_nodes(rank, rows, code)
    nodes = rows[code == _EVALUATE_MARK]
    main = _main_thread(rank, nodes)
    threads = distinct(trace["tid"][nodes])
    return Marks(
        rows=rows,
        code=code,
        graph_builders=graph_builders(rank),
        main_thread=main,
        autograd_threads=threads[threads != main],
    )


def loop_in(rank: Rank, *chosen: Region) -> Intervals:
    """Return when the thread of the training loop was in ranges that name one of these regions."""
    marks, trace = marks_of(rank), rank.trace
    rows = np.concatenate([marks.rows_of(region) for region in chosen])
    return spans(rank, rows[trace["tid"][rows] == marks.main_thread])


_GRADIENT = re.compile(r"^aten::\w+_backward$")


def _with_old_nodes(rank: Rank, rows: Rows, code: Codes) -> tuple[Rows, Codes]:
    """Return the marks with the autograd nodes of torch 1.8, whose engine recorded nothing around them; without any,
    with the operators that compute gradients and were called by themselves.

    A node knows the thread of its forward operator; an operator that merely ends in `Backward` does not.
    """
    trace = rank.trace
    nodes = rank.rows_named(lambda s: bool(OLD_NODE.search(s)), EventKind.HOST_OP)
    own = rows_named(trace, nodes, lambda s: "torch::autograd::" in s)
    nodes = nodes[(trace.arg("fwd_thread").at(nodes, missing=0) > 0) | among(nodes, own)]
    is_node = np.uint8(_EVALUATE_MARK)
    if not len(nodes) and not (code == _EVALUATE_MARK).any():
        nodes, is_node = (
            rank.rows_named(lambda s: bool(_GRADIENT.search(s)), EventKind.HOST_OP),
            np.uint8(Region.BACKWARD + 1),
        )
    both = np.concatenate((rows, nodes))
    codes = np.concatenate((code, np.full(len(nodes), is_node)))
    order = np.argsort(both, kind="stable")
    return both[order], codes[order]


def host_regions(rank: Rank, rows: Rows, marks: Marks) -> tuple[Codes, Mask, Mask]:
    """Return region, whether recomputed, and whether a mark (not the order) decided, for calls on the host."""
    trace = rank.trace
    around = enclosing(trace, marks.rows, rows)
    builder = enclosing(trace, marks.graph_builders, rows)
    code_of = np.zeros(trace.num_events + 1, np.uint8)
    code_of[marks.rows] = marks.code
    code = np.where(around >= 0, code_of[around], _NO_MARK)
    # A builder counts only inside the mark, not around it.
    builds = (builder >= 0) & ((around < 0) | (trace["ts_ns"][builder] >= trace["ts_ns"][around]))
    in_engine = code == _EVALUATE_MARK
    on_engine = among(trace["tid"][rows], marks.autograd_threads)
    region = np.where(code == _NO_MARK, _by_order(rank, rows, marks), code - 1).astype(np.uint8)
    region[in_engine | (on_engine & (code == _NO_MARK))] = Region.BACKWARD
    region[(code == Region.OPTIMIZER + 1) & builds] = Region.FORWARD
    return region, _recomputed(around, in_engine, builds), (code != _NO_MARK) | builds | on_engine


def _recomputed(node: Rows, in_engine: Mask, builds: Mask) -> Mask:
    """Return which calls inside autograd nodes run forward operators again.

    A checkpoint is recomputed inside the one node that first asks for it. Where most nodes build a graph, the backward
    pass itself is differentiated (`create_graph=True`) and nothing is known to be recomputed.
    """
    again = in_engine & builds
    nodes, building = len(distinct(node[in_engine])), len(distinct(node[again]))
    return again if 2 * building <= nodes else np.zeros_like(again)


def _mark_code(name: str) -> int:
    if name.startswith(EVALUATE):
        return _EVALUATE_MARK
    region = named_region(name)
    return _NO_MARK if region is None else region + 1


@once_per_record
def graph_builders(rank: Rank) -> Rows:
    """Return the operators that build an autograd graph: they have a sequence number and no forward thread."""
    sequence, forward_thread = rank.trace.arg("sequence"), rank.trace.arg("fwd_thread")
    rows = sequence.rows[sequence.values >= 0].astype(np.int64)
    rows = rows[forward_thread.at(rows, missing=0) <= 0]
    return rows[of_kinds(rank.kinds[rows], (EventKind.HOST_OP,))]


def _main_thread(rank: Rank, nodes: Rows) -> int:
    trace = rank.trace
    marks = rank.rows_named(lambda s: s.startswith("ProfilerStep#"), EventKind.ANNOTATION)
    if len(marks):
        return int(trace["tid"][marks[0]])
    rows = rank.work.launch_row[rank.work.launch_row >= 0]
    rows = rows if len(rows) else np.flatnonzero(rank.kinds == EventKind.HOST_OP)
    threads, count = np.unique(trace["tid"][rows], return_counts=True)
    own = ~among(threads, trace["tid"][nodes])
    threads, count = (threads[own], count[own]) if own.any() else (threads, count)
    return int(threads[count.argmax()]) if len(threads) else -1


def _by_order(rank: Rank, rows: Rows, marks: Marks) -> Codes:
    trace, num_steps = rank.trace, len(rank.steps)
    if not len(marks.rows) and not records_operators(rank):  # not a model's: any program on a device
        return np.full(len(rows), Region.OTHER, np.uint8)
    backward = np.concatenate((marks.autograd_nodes, marks.rows_of(Region.BACKWARD)))
    last = np.full(num_steps + 1, np.iinfo(np.int64).min)  # the extra slot is for moments in no step
    np.maximum.at(last, rank.steps.of(trace["ts_ns"][backward]), trace["ts_ns"][backward])
    last[last == np.iinfo(np.int64).min] = np.iinfo(np.int64).max  # no backward in the step: it is all forward
    moment = trace["ts_ns"][rows]
    step = rank.steps.of(moment)
    before = moment < last[step]
    before &= (trace["tid"][rows] == marks.main_thread) & ((step >= 0) | (num_steps == 0))
    return np.where(before, Region.FORWARD, Region.OTHER).astype(np.uint8)


def _by_device_annotation(rank: Rank, rows: Rows) -> Codes:
    trace = rank.trace
    if not len(rows):
        return np.empty(0, np.uint8)
    ranges = np.flatnonzero(of_kinds(rank.kinds, (EventKind.DEVICE_ANNOTATION,)))
    code = by_string(trace, trace["name"][ranges], _mark_code)
    named = (code != _NO_MARK) & (code != _EVALUATE_MARK)
    if not named.any():
        return np.full(len(rows), Region.OTHER, np.uint8)
    around = enclosing(trace, ranges[named], rows)
    code_of = np.full(trace.num_events + 1, Region.OTHER + 1, np.uint8)
    code_of[ranges[named]] = code[named]
    return (np.where(around >= 0, code_of[around], Region.OTHER + 1) - 1).astype(np.uint8)


class Phase(IntEnum):
    """Where in the training step the host is."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    #: after the last backward pass and before the optimizer: gradients are final, not yet used
    AFTER_BACKWARD = 3
    OPTIMIZER = 4


Phases = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Passes:
    """The backward passes and optimizer steps of one rank, on its host's clock."""

    #: one per backward pass
    backward: Intervals
    optimizer: Intervals
    #: threads that run nothing but the autograd engine
    autograd_threads: frozenset[int]
    #: False where the trace holds no host operators
    known: bool

    def at(self, moment_ns: Int64s, thread: Int64s) -> Phases:
        if not self.known:
            return np.full(len(moment_ns), Phase.UNKNOWN, np.uint8)
        to_backward, to_optimizer = (_until_next(x, moment_ns) for x in (self.backward, self.optimizer))
        out = np.where(to_backward <= to_optimizer, Phase.FORWARD, Phase.AFTER_BACKWARD).astype(np.uint8)
        none_follows = (to_backward == _NEVER) & (to_optimizer == _NEVER)
        after_last = _since_last(self.backward, moment_ns) < _since_last(self.optimizer, moment_ns)
        out[none_follows] = Phase.FORWARD
        out[none_follows & after_last] = Phase.AFTER_BACKWARD
        out[among(thread, list(self.autograd_threads)) & (out == Phase.FORWARD)] = Phase.BACKWARD
        out[_inside(self.optimizer, moment_ns)] = Phase.OPTIMIZER
        out[_inside(self.backward, moment_ns)] = Phase.BACKWARD
        return out


_NEVER = np.iinfo(np.int64).max


def passes(rank: Rank) -> Passes:
    """Return the backward passes and optimizer steps that the host ran."""
    trace, marks, ops = rank.trace, marks_of(rank), host_calls(rank)
    engine = union_of(spans(rank, marks.autograd_nodes), spans(rank, marks.rows_of(Region.BACKWARD)))
    backward = _joined(engine, ops.start_ns[ops.of_thread(marks.main_thread)])
    optimizer = rows_named(trace, marks.rows_of(Region.OPTIMIZER), lambda s: "zero_grad" not in s)
    return Passes(
        backward=backward,
        optimizer=_after_inner(spans(rank, optimizer), backward),
        autograd_threads=frozenset(marks.autograd_threads.tolist()),
        known=bool(len(ops)),
    )


def trains(found: Iterable[Passes]) -> bool:
    """Return whether any rank ran a backward pass or an optimizer; a job that did neither is inference.

    True where unknown: most jobs train.
    """
    known = [p for p in list(found) if p.known]
    return not known or any(len(p.backward) or len(p.optimizer) for p in known)


def collective_phases(rank: Rank, found: Passes) -> Phases:
    """Return the phase in which each collective was issued; UNKNOWN before the window and inside a graph."""
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


def _joined(engine: Intervals, begun: Int64s) -> Intervals:
    if not len(engine):
        return EMPTY
    before = np.searchsorted(begun, engine.end[:-1], side="left")
    first = np.concatenate(([True], np.searchsorted(begun, engine.start[1:], side="left") > before))
    return Intervals(engine.start[first], engine.end[np.append(np.flatnonzero(first)[1:] - 1, len(engine) - 1)])


def _after_inner(optimizer: Intervals, backward: Intervals) -> Intervals:
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
    i = np.searchsorted(x.start, moment, side="left")
    return np.where(i < len(x), np.append(x.start, 0)[i] - moment, _NEVER)


def _since_last(x: Intervals, moment: Int64s) -> Int64s:
    i = np.searchsorted(x.end, moment, side="right") - 1
    return np.where(i >= 0, moment - np.append(x.end, 0)[np.maximum(i, 0)], _NEVER)


# Calls of the backward pass.

# a node that computes, adding a gradient, the node around that, copying a bucket back into gradients
NODE, ADDING, GRADIENT, BACK = 1, 2, 3, 4
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
# nested calls that are searched for a launch
_MAX_CLIMB = 64
_STORES = "AccumulateGrad"
# in the names of a normalisation's kernels for the gradients of its scale and offset
_OF_PARAMETERS = "GammaBeta"


@dataclass(frozen=True, eq=False, repr=False)
class BackwardCalls(ArrayRecord):
    """The calls of a rank's backward passes, each with what it does."""

    calls: HostCalls
    part: Kinds

    def only(self, *parts: int) -> Int64s:
        return np.flatnonzero(np.logical_or.reduce([self.part == one for one in parts]))


@once_per_record
def backward_calls(rank: Rank) -> BackwardCalls:
    """Return the calls of a rank's backward passes."""
    calls = host_calls(rank)
    part = by_string(rank.trace, calls.name, part_of_backward)
    found = np.flatnonzero(part != 0)
    return BackwardCalls(_calls_among(calls, found), part.take(found))


def part_of_backward(name: str) -> int:
    """Return what a call of this name does in a backward pass, 0 for nothing."""
    if name.startswith(EVALUATE):
        return GRADIENT if name.endswith(_ACCUMULATE) else NODE
    return ADDING if name == _ACCUMULATE else BACK if name == _COPY_BACK else 0


def _calls_among(calls: HostCalls, chosen: Int64s) -> HostCalls:
    thread, start, end = (column.take(chosen) for column in (calls.thread, calls.start_ns, calls.end_ns))
    return HostCalls(
        row=calls.row.take(chosen),
        name=calls.name.take(chosen),
        thread=thread,
        start_ns=start,
        end_ns=end,
        parent=call_stack_parents(thread, start, end).astype(np.int32),
    )


def launched_within(rank: Rank, calls: HostCalls, work: Int64s) -> Int64s:
    """Return the innermost of the calls around the launch of each piece of work, as an index into `calls`; -1 for none.

    `work` are indices of launched work. Same result as `enclosing`, from the calls alone where that is possible.
    """
    launch, row = rank.work.launch_row.take(work), calls.row.astype(np.int64)
    found = _climbed(rank.trace, calls, launch)
    return lookup(row, np.arange(len(row)), enclosing(rank.trace, row, launch)) if found is None else found


def _climbed(trace: Trace, calls: HostCalls, launch: Int64s) -> Int64s | None:
    """Return the innermost call around each launch: up from the last that began before it to one that is still open.

    None where a launch outlasts a call that it began in, or where there are too many threads, or calls one above the
    other, to look at one by one.
    """
    threads = distinct(calls.thread).tolist()
    if len(threads) > 32:
        return None
    start = trace["ts_ns"].take(launch)
    end = start + trace["dur_ns"].take(launch)
    out = _last_begun(calls, threads, trace["tid"].take(launch), start)
    inside = np.flatnonzero(out >= 0)
    for _ in range(_MAX_CLIMB):
        if not len(inside):
            return out
        call, begun, ended = out.take(inside), start.take(inside), end.take(inside)
        until = calls.end_ns.take(call)
        left = np.flatnonzero((ended > until) | (begun >= until))
        inside, call, begun, ended, until = (values.take(left) for values in (inside, call, begun, ended, until))
        if (begun < until).any():
            return None
        stays = (ended <= until) & (begun == calls.start_ns.take(call))  # both take no time
        above = np.where(stays, call, calls.parent.take(call))
        out[inside] = above
        inside = inside[(above >= 0) & ~stays]
    return None


def _last_begun(calls: HostCalls, threads: Sequence[int], thread: Int64s, moment_ns: Int64s) -> Int64s:
    out = np.full(len(thread), -1, np.int64)
    for one in threads:
        mine, there = np.flatnonzero(thread == one), calls.of_thread(one)
        begun = np.searchsorted(calls.start_ns[there], moment_ns.take(mine), side="right")
        out[mine] = np.where(begun > 0, there.start + begun - 1, -1)
    return out


@once_per_record
def parameter_gradients(rank: Rank) -> Mask:
    """Return which of a rank's device work makes nothing but the gradient of a parameter."""
    work, trace = rank.work, rank.trace
    found = by_string(trace, work.name, lambda s: _OF_PARAMETERS in s).astype(bool)
    backward, launched = backward_calls(rank), np.flatnonzero(work.launch_row >= 0)
    evaluated = backward.only(NODE, GRADIENT)
    if not len(evaluated) or not len(launched):
        return found
    nodes = _calls_among(backward.calls, evaluated)
    node = launched_within(rank, nodes, launched)
    inside = np.flatnonzero(node >= 0)
    node = node.take(inside)
    alone = _before_a_store(trace, nodes) & (np.bincount(node, minlength=len(nodes)) == 1)
    found[launched.take(inside)] |= alone.take(node)
    return found


def _before_a_store(trace: Trace, nodes: HostCalls) -> Mask:
    order = np.lexsort((nodes.row, nodes.start_ns, nodes.thread))
    stores = by_string(trace, nodes.name, lambda s: _STORES in s).astype(bool)
    node, following = order[:-1], order[1:]
    out = np.zeros(len(nodes), bool)
    out[node] = stores[following] & ~stores[node] & (nodes.thread[following] == nodes.thread[node])
    return out


# When did the device begin and end each recorded step?
#
# The host runs ahead of the device, so its spans say little about how long a step takes. A step's period is the time
# from the device's end of the step before to its own:
#
#     launched in step    0 0 0   1 1 1 1     2 2 2
#     device           ---===== --=======-----=====-
#     period              |  0  |    1   |    2    |
#
# The first step's period begins where the work from before the window ends. Where the trace holds none, the device was
# idle for an unknown time: that period begins with the host's span and is not complete. Neither is one after a step
# that was not recorded or launched nothing: it holds more than its own step.

NO_STEP = -1


@dataclass(frozen=True, eq=False, repr=False)
class StepPeriods(ArrayRecord):
    """The periods of one rank's steps, by time; on a device each begins where the one before ends."""

    #: index into the rank's steps; NO_STEP for the whole window of a trace without steps
    step: npt.NDArray[np.int64]
    start_ns: Int64s
    end_ns: Int64s
    #: False where the period is not that of one step alone (see above)
    complete: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def cuts(self) -> Int64s:
        return distinct(np.concatenate((self.start_ns, self.end_ns)))

    @property
    def dur_ns(self) -> Int64s:
        return self.end_ns - self.start_ns

    def of(self, kept: npt.NDArray[np.bool_]) -> "StepPeriods":
        return StepPeriods(self.step[kept], self.start_ns[kept], self.end_ns[kept], self.complete[kept])

    @property
    def typical(self) -> npt.NDArray[np.int64]:
        """Return the half of the periods whose length is nearest to the median, complete ones if there are any.

        These represent the run: steps with a checkpoint, an evaluation or a hiccup in them are left out. Where long
        steps recur, all periods represent it.
        """
        known = self._known
        if self.uneven:
            return known
        off = np.abs(self.dur_ns[known] - median(self.dur_ns[known]))
        return known[off <= np.sort(off)[(len(known) - 1) // 2]]

    @property
    def median_ns(self) -> float:
        return median(self.dur_ns[self._known])

    @property
    def mean_ns(self) -> float:
        return float(self.dur_ns[self._known].mean())

    @property
    def uneven(self) -> bool:
        """Return whether long steps recur, so that the median does not represent the run."""
        return bool(recurring_long(self.dur_ns[self._known]).any())

    @property
    def _known(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self.complete) if self.complete.any() else np.arange(len(self))


@once_per_record
def step_periods(rank: Rank) -> StepPeriods | None:
    """Return the periods of a rank's steps, None for a trace without evidence of them.

    A rank without a device, or without launches, has the host's spans. Without steps all of it is one period.
    """
    if rank.has_device and rank.steps.known and (rank.work.step >= 0).any():
        return _device_periods(rank)
    if rank.has_device and not _spanned(rank):
        return _one(*device_window(rank))
    if rank.steps.known:
        start, end = rank.steps.start_ns, _host_ends(rank)
        return _periods(np.arange(len(start)), start, end, np.ones(len(start), bool))
    rows = np.flatnonzero(rank.kinds == EventKind.HOST_OP)
    if not len(rows):
        return None
    start = rank.trace["ts_ns"][rows]
    return _one(start.min(), (start + rank.trace["dur_ns"][rows]).max())


def _spanned(rank: Rank) -> bool:
    """Return whether the device's work, none of which has a launch, is in the steps."""
    work, steps = rank.work, rank.steps
    if not steps.known or (work.launch_row >= 0).any():
        return False
    return bool(steps.start_ns.min() <= work.start_ns.min() and work.end_ns.max() <= steps.end_ns.max())


def device_window(rank: Rank) -> tuple[int, int]:
    """Return the span of a device's work, or that of the range around all launches where one bounds the window."""
    start, end = int(rank.work.start_ns.min()), int(rank.work.end_ns.max())
    if rank.steps.bound_window and len(rank.steps):
        start, end = min(start, int(rank.steps.start_ns.min())), max(end, int(rank.steps.end_ns.max()))
    return start, end


def profiled_step_ns(periods: Sequence[StepPeriods | None]) -> float | None:
    """Return the step's time while profiled: the mean over ranks of each rank's median period."""
    known = [p.median_ns for p in periods if p is not None and len(p)]
    return float(np.mean(known)) if known else None


def _device_periods(rank: Rank) -> StepPeriods | None:
    work = rank.work
    ends = np.full(len(rank.steps), np.iinfo(np.int64).min)
    launched = work.step >= 0
    np.maximum.at(ends, work.step[launched], work.end_ns[launched])
    step = np.flatnonzero(ends > np.iinfo(np.int64).min)
    end = np.maximum.accumulate(ends[step])
    begin, known = _beginning(rank, int(end[0]))
    if (
        len(step) == 1 and not known and rank.steps.bound_window
    ):  # no next step holds the host's time after the last work
        end = np.maximum(end, rank.steps.end_ns[step])
    start = np.concatenate(([begin], end[:-1]))
    return _periods(step, start, end, np.concatenate(([known], np.diff(rank.steps.number[step]) == 1)))


def _beginning(rank: Rank, first_end_ns: int) -> tuple[int, bool]:
    work = rank.work
    first_start_ns = work.start_ns[work.step >= 0].min()
    before = (work.step < 0) & (work.start_ns < first_start_ns)
    if before.any():
        return min(int(work.end_ns[before].max()), first_end_ns), True
    if not rank.steps.bound_window:  # the window is the span of the device's operations, and the trace may be cut to it
        return int(first_start_ns), False
    return min(int(rank.steps.start_ns[0]), int(first_start_ns)), False


def _one(start_ns: int, end_ns: int) -> StepPeriods | None:
    return _periods(np.array([NO_STEP]), np.array([start_ns]), np.array([end_ns]), np.array([True]))


def _periods(
    step: npt.NDArray[np.int64], start: Int64s, end: Int64s, complete: npt.NDArray[np.bool_]
) -> StepPeriods | None:
    keep = end > start
    return StepPeriods(step[keep], start[keep], end[keep], complete[keep]) if keep.any() else None


def _host_ends(rank: Rank) -> Int64s:
    steps = rank.steps
    follows = np.append(np.diff(steps.number) == 1, False)
    following = np.append(steps.start_ns[1:], max(steps.end_ns[-1], steps.start_ns[-1]))
    return np.where(follows, following, np.minimum(steps.end_ns, following))


# Steps of a serving engine.


def serving_of(run: Run) -> Row | None:
    """Return what a serving engine did on the first rank with its ranges, None for any other job."""
    for rank in run.ranks:
        if rank.steps.told_by == SERVING:
            periods = step_periods(rank)
            return None if periods is None else _serving(rank, periods)
    return None


def _serving(rank: Rank, periods: StepPeriods) -> Row | None:
    named = _named_steps(rank)
    in_steps = periods.step != NO_STEP
    starts = rank.steps.start_ns[periods.step[in_steps]].tolist()
    known = [(named.get(start), dur) for start, dur in zip(starts, periods.dur_ns[in_steps].tolist(), strict=True)]
    steps = [(step, dur) for step, dur in known if step is not None]
    if not steps:
        return None
    kinds = [_of_kind(kind, [s for s in steps if s[0].kind == kind]) for kind in (PREFILL, DECODE, MIXED)]
    total_ns = sum(dur for _, dur in steps)
    return Row(
        rank=rank.rank,
        kinds=tuple(kind for kind in kinds if kind is not None),
        tokens_per_s=_rate([step.tokens for step, _ in steps], total_ns),
        generated_per_s=_rate([step.decode_tokens for step, _ in steps], total_ns),
    )


def _named_steps(rank: Rank) -> dict[int, ServingStep]:
    trace = rank.trace
    rows = rank.rows_named(lambda name: serving_step(name) is not None, EventKind.ANNOTATION)
    named = {}
    for row in rows.tolist():
        step = serving_step(trace.strings[trace["name"][row]])
        if step is not None:
            named[int(trace["ts_ns"][row])] = step
    return named


def _of_kind(kind: str, steps: list[tuple[ServingStep, int]]) -> Row | None:
    if not steps:
        return None
    requests = [_sum(step.prefill_requests, step.decode_requests) for step, _ in steps]
    tokens = [step.tokens for step, _ in steps]
    return Row(
        kind=kind,
        steps=len(steps),
        step_ns=round(median([dur for _, dur in steps])),
        requests_per_step=_mean(requests),
        tokens_per_step=_mean(tokens),
        tokens_per_s=_rate(tokens, sum(dur for _, dur in steps)),
    )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _mean(values: list[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _rate(tokens: list[int | None], time_ns: int) -> float | None:
    known = [t for t in tokens if t is not None]
    return sum(known) * NS_PER_S / time_ns if len(known) == len(tokens) and time_ns else None
