"""What did the calls of a backward pass launch, and which kernels end in a parameter's gradient?

The engine evaluates one node after the other. A node computes; or it stores the gradient of a parameter
(`AccumulateGrad`), right after the node that made it, and then runs the hooks on that gradient, by which data
parallelism sends it.

Kernels that end in a parameter's gradient hand nothing to those that follow them. A node of one kernel before a stored
gradient (a cast to the parameter's type) made that gradient and nothing else; a node of several made other things too,
of which only the kernels that say so in their name are known to be gradients of parameters.
"""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.host_calls import HostCalls, Mask, host_calls
from stepscope.contract.step_line import EVALUATE
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord, once_per_record
from stepscope.run.device_work import enclosing, lookup
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import Kinds, by_string
from stepscope.trace.scanner.call_stack import call_stack_parents
from stepscope.trace.table import Int64s, Trace

# a node that computes, adding a gradient, the node around that, copying a bucket back into gradients
NODE, ADDING, GRADIENT, BACK = 1, 2, 3, 4
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_MAX_THREADS = 32
# calls one above the other that are looked at for a launch
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
        """Return the indices of the calls that do one of these."""
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
    """Return the innermost of the calls around the launch of each piece of work, given by its index and launched, as an
    index into `calls`; -1 where there is none. As `enclosing` tells it, from the calls alone where that is possible.
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
    if len(threads) > _MAX_THREADS:
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
