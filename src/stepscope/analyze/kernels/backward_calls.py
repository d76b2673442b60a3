"""Which calls of the host are of a backward pass, and what does each do there?

The engine evaluates one node after the other. A node computes; or it stores the gradient of a parameter, and then runs
the hooks on that gradient, by which data parallelism sends it.
"""

import numpy as np

from stepscope.analyze.host.calls import HostCalls, host_calls
from stepscope.contract.regions import EVALUATE
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord, once_per_record
from stepscope.run.rank import Rank
from stepscope.trace.classify import Kinds, by_string
from stepscope.trace.scanner import call_stack_parents
from stepscope.trace.table import Int64s

NODE, ADDING, GRADIENT, BACK = 1, 2, 3, 4
"""a node that computes, adding a gradient, the node around that, copying a bucket back into gradients"""
_ACCUMULATE = "torch::autograd::AccumulateGrad"
_COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


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
    return BackwardCalls(calls_among(calls, found), part.take(found))


def part_of_backward(name: str) -> int:
    """Return what a call of this name does in a backward pass, 0 for nothing."""
    if name.startswith(EVALUATE):
        return GRADIENT if name.endswith(_ACCUMULATE) else NODE
    return ADDING if name == _ACCUMULATE else BACK if name == _COPY_BACK else 0


def calls_among(calls: HostCalls, chosen: Int64s) -> HostCalls:
    """Return some of the calls, given by ascending index, with their callers among themselves."""
    thread, start, end = (column.take(chosen) for column in (calls.thread, calls.start_ns, calls.end_ns))
    return HostCalls(
        row=calls.row.take(chosen),
        name=calls.name.take(chosen),
        thread=thread,
        start_ns=start,
        end_ns=end,
        parent=call_stack_parents(thread, start, end).astype(np.int32),
    )
