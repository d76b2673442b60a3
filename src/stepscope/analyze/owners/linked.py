"""Who owns each operator of the steps with frames? Its own stack in forward, the forward operator's in backward.

    operator                                     owner
    outside autograd nodes                       its own stack and module
    an autograd node, and what it runs           those of the latest forward operator with its sequence number
    AccumulateGrad                               those of the node before it; what it sends has no forward line: a
                                                 bucket is of many parameters
    forward work run again inside a node         its own stack: the line that runs twice, not the one that asked for it
    Python inside a node (a Function's backward, the forward operator's stack, and below it the frames of backward
    a hook of gradients)

Where an operator was called (`caller`) is kept beside it: the line of `loss.backward()` for all of backward.
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.busy_operators import CALLS
from stepscope.analyze.owners.stacks import NOBODY, Stacks
from stepscope.contract.regions import EVALUATE
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.owners import OwnedThread, RankOwners
from stepscope.trace.table import Int64s

_ACCUMULATE = "AccumulateGrad"
_STEP = "ProfilerStep#"

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, repr=False)
class LinkedThread(ArrayRecord):
    """The operators of one thread with their owners, without the profiler's own marks of steps."""

    thread: OwnedThread
    at: Int64s
    """position of each in `thread`"""
    depth: Ids
    stack: Ids
    caller: Ids
    module: Ids
    backward: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.at)


def linked_threads(owners: RankOwners, stacks: Stacks) -> list[LinkedThread]:
    """Return the threads of a rank's file with an owner for each operator."""
    nodes = np.array([name.startswith(EVALUATE) for name in owners.names], bool)
    steps = np.array([name.startswith(_STEP) for name in owners.names], bool)
    sends = np.array([name.startswith(CALLS) for name in owners.names], bool)
    gathers = np.array([_ACCUMULATE in name for name in owners.names], bool)
    trees = [_Tree(thread, nodes, steps) for thread in owners.threads]
    forward = _forward_operators(trees)
    return [tree.linked(stacks, forward, gathers, sends) for tree in trees]


class _Tree:
    """One thread's operators as a tree."""

    def __init__(self, thread: OwnedThread, nodes: npt.NDArray[np.bool_], steps: npt.NDArray[np.bool_]) -> None:
        self.thread = thread
        is_step = steps[thread.name] if len(thread) else np.zeros(0, bool)
        self.depth = _without_steps(thread.depth, np.flatnonzero(is_step))
        self.at = np.flatnonzero(~is_step)
        depth, is_node = self.depth.tolist(), (nodes[thread.name] if len(thread) else is_step).tolist()
        self.parent = [NOBODY] * len(thread)
        self.node = [NOBODY] * len(thread)
        """the innermost autograd node at or around each"""
        self.built = [NOBODY] * len(thread)
        """inside that node: the outermost operator that builds a graph, which only forward work run again does"""
        open_: list[int] = []
        sequence = thread.sequence.tolist()
        for i in self.at.tolist():
            del open_[depth[i] :]
            parent = open_[-1] if open_ else NOBODY
            self.parent[i] = parent
            if is_node[i]:
                self.node[i] = i
            elif parent != NOBODY:
                self.node[i], self.built[i] = self.node[parent], self.built[parent]
            node = self.node[i]
            if node not in (NOBODY, i) and self.built[i] == NOBODY and sequence[i] not in (-1, sequence[node]):
                self.built[i] = i
            open_ += [i] * (depth[i] + 1 - len(open_))

    def forward(self) -> list[int]:
        """Return the operators that took a sequence number in a forward pass."""
        sequence = self.thread.sequence.tolist()
        return [i for i in self.at.tolist() if sequence[i] >= 0 and (self.node[i] == NOBODY or self.built[i] != NOBODY)]

    def linked(
        self,
        stacks: Stacks,
        forward: dict[int, tuple[int, int]],
        gathers: npt.NDArray[np.bool_],
        sends: npt.NDArray[np.bool_],
    ) -> LinkedThread:
        """Return the owners of this thread's operators; `forward` gives stack and module by sequence number."""
        raw, module = self.thread.stack.tolist(), self.thread.module.tolist()
        name, sequence = self.thread.name.tolist(), self.thread.sequence.tolist()
        stack, owner_module = list(raw), list(module)
        last = (NOBODY, NOBODY)
        known: dict[tuple[int, int, int], int] = {}
        for i in self.at.tolist():
            node = self.node[i]
            if node == NOBODY or self.built[i] != NOBODY:
                continue
            if node == i:
                found = forward.get(sequence[i])
                if found is None and not gathers[name[i]]:
                    found = (raw[i], module[i])
                last = stack[i], owner_module[i] = found or (last if last[0] != NOBODY else (raw[i], module[i]))
            elif gathers[name[node]] and (sends[name[i]] or stack[self.parent[i]] == NOBODY):
                stack[i], owner_module[i] = raw[i], module[i]
            elif gathers[name[node]] and self.parent[i] != node and sends[name[self.parent[i]]]:
                stack[i], owner_module[i] = stack[self.parent[i]], owner_module[self.parent[i]]
            else:
                places = stack[node], raw[node], raw[i]
                if places not in known:
                    known[places] = _below(stacks, *places)
                stack[i] = known[places]
                owner_module[i] = owner_module[node]
        at = self.at
        return LinkedThread(
            thread=self.thread,
            at=at,
            depth=self.depth[at],
            stack=np.array(stack, np.int32)[at],
            caller=np.array(raw, np.int32)[at],
            module=np.array(owner_module, np.int32)[at],
            backward=np.array([node != NOBODY for node in self.node], bool)[at],
        )


def _without_steps(depth: Ids, steps: Int64s) -> Ids:
    """Return depths that do not count the profiler's marks of steps."""
    out = depth.copy()
    for step in steps.tolist():
        ends = np.flatnonzero(depth[step + 1 :] <= depth[step])
        out[step + 1 : step + 1 + int(ends[0]) if len(ends) else len(depth)] -= 1
    return out


def _forward_operators(trees: list[_Tree]) -> dict[int, tuple[int, int]]:
    """Return stack and module of the latest forward operator by sequence number."""
    found = {}
    for tree in trees:
        stack, module = tree.thread.stack.tolist(), tree.thread.module.tolist()
        sequence = tree.thread.sequence.tolist()
        for i in tree.forward():
            if stack[i] != NOBODY:
                found[sequence[i]] = stack[i], module[i]
    return found


def _below(stacks: Stacks, owner: int, node: int, raw: int) -> int:
    """Return the owner of a node with the user's frames that ran inside it below."""
    outer, inner = stacks[stacks.users(node)], stacks[raw]
    below = inner[len(outer) :]
    if not below or inner[: len(outer)] != outer or not stacks.is_user(below[0]):
        return owner
    return stacks.called(stacks.users(owner), *below)
