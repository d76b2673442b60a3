"""Owners of a rank's recorded steps by its file of owners: matched, inherited, or between two lines."""

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_calls import CALLS, HostCalls, call_stacks
from stepscope.analyze.owner_host_time import GapShares, host_time
from stepscope.analyze.ownership import HostTime, Ids, OwnedWork, Ownership, joined_owners
from stepscope.analyze.phases import Marks, marks_of
from stepscope.analyze.stacks import NOBODY, Stacks
from stepscope.contract.owners import AUTOGRAD, TRAINING
from stepscope.contract.step_line import EVALUATE
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.owners import OwnedThread, RankOwners
from stepscope.run.rank import Rank
from stepscope.run.steps import PROFILER_STEP
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind, by_string, of_kinds
from stepscope.trace.table import Int64s

# Alignment of two nearly equal sequences.
#
#     wanted  a b c X d e        ->  positions in known:  0 1 2 -1 3 4
#     known   a b c d e
#
# Equal beginnings and ends are taken off first, so that one stretch that was put in or left out costs nothing. What is
# left goes through the greedy difference algorithm (Myers 1986), whose time grows with the number of differences, in
# pieces of at most `_MAX_EDITS` differences each and with a bound on the whole: sequences that have little in common
# stay
# unmatched instead of taking minutes.

NOTHING = -1
_MAX_EDITS = 128


@dataclass
class Tries:
    """Remaining search budget, shared by the alignments of one rank."""

    left: int = 1_000_000


def aligned(wanted: Int64s, known: Int64s, tries: Tries | None = None) -> Int64s:
    """Return for each element of `wanted` its position in `known`, NOTHING where it has none.

    >>> aligned(np.array([5, 6, 9, 7]), np.array([5, 6, 7])).tolist()
    [0, 1, -1, 2]
    """
    out = np.full(len(wanted), NOTHING, np.int64)
    shorter = min(len(wanted), len(known))
    front = _same_at_front(wanted[:shorter], known[:shorter])
    back = _same_at_front(wanted[front:][::-1][: shorter - front], known[front:][::-1][: shorter - front])
    out[:front] = np.arange(front)
    out[len(wanted) - back :] = np.arange(len(known) - back, len(known))
    a, b = wanted[front : len(wanted) - back].tolist(), known[front : len(known) - back].tolist()
    tries = tries or Tries()
    begin = (0, 0)
    while begin[0] < len(a) and begin[1] < len(b) and tries.left > 0:
        stretches, begin = _piece(a, b, *begin, tries)
        for x, y, length in stretches:
            out[front + x : front + x + length] = np.arange(front + y, front + y + length)
    return out


def _same_at_front(a: Int64s, b: Int64s) -> int:
    differs = np.flatnonzero(a != b)
    return int(differs[0]) if len(differs) else len(a)


def _piece(
    a: list[int], b: list[int], x0: int, y0: int, tries: Tries
) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
    size_a, size_b = len(a), len(b)
    reach = {1: x0}  # by diagonal x - y (relative to x0 - y0): the furthest x
    history: list[dict[int, int]] = []
    shift = x0 - y0
    for edits in range(_MAX_EDITS + 1):
        history.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach.get(k - 1, -1) < reach.get(k + 1, -1))
            x = reach[k + 1] if down else reach[k - 1] + 1
            y = x - k - shift
            begin = x
            while x < size_a and y < size_b and a[x] == b[y]:
                x, y = x + 1, y + 1
            tries.left -= 1 + x - begin
            reach[k] = x
            if x >= size_a and y >= size_b:
                return _traced(history, k, x, shift), (x, y)
    inside = [k for k, x in reach.items() if (k + _MAX_EDITS) % 2 == 0 and x <= size_a and x - k - shift <= size_b]
    best = max(inside, key=lambda k: 2 * reach[k] - k) if inside else 0
    x = min(reach.get(best, x0), size_a)
    end = (x, min(x - best - shift, size_b))
    return _traced(history, best, x, shift), end if end > (x0, y0) else (size_a, size_b)


def _traced(history: list[dict[int, int]], k: int, x: int, shift: int) -> list[tuple[int, int, int]]:
    found = []
    for edits in range(len(history) - 1, -1, -1):
        reach = history[edits]
        down = k == -edits or (k != edits and reach.get(k - 1, -1) < reach.get(k + 1, -1))
        before = k + 1 if down else k - 1
        began = reach[before] if down else reach[before] + 1
        if x > began:
            found.append((began, began - k - shift, x - began))
        x, k = reach[before], before
    return found[::-1]


# Owners of the operators in the steps with frames: their own stack in forward, the forward operator's in backward.
#
#     operator                                     owner
#     outside autograd nodes                       its own stack and module
#     an autograd node, and what it runs           those of the latest forward operator with its sequence number
#     AccumulateGrad                               those of the node before it; what it sends has no forward line: a
#                                                  bucket is of many parameters
#     forward work run again inside a node         its own stack: the line that runs twice, not the one that asked for
#     it
#     Python inside a node (a Function's backward, the forward operator's stack, and below it the frames of backward
#     a hook of gradients)
#
# Where an operator was called (`caller`) is kept beside it: the line of `loss.backward()` for all of backward.


@dataclass(frozen=True, eq=False, repr=False)
class LinkedThread(ArrayRecord):
    """The operators of one thread with their owners, without the profiler's own marks of steps."""

    thread: OwnedThread
    #: position of each in `thread`
    at: Int64s
    depth: Ids
    owner: OwnedWork

    def __len__(self) -> int:
        return len(self.at)


def _linked_threads(owners: RankOwners, stacks: Stacks) -> list[LinkedThread]:
    nodes, steps, sends = (
        np.array([name.startswith(prefix) for name in owners.names], bool)
        for prefix in (EVALUATE, PROFILER_STEP + "#", CALLS)
    )
    gathers = np.array(["AccumulateGrad" in name for name in owners.names], bool)
    trees = [_Tree(thread, nodes, steps) for thread in owners.threads]
    forward = {sequence: owner for tree in trees for sequence, owner in tree.forward()}
    return [tree.linked(stacks, forward, gathers, sends) for tree in trees]


class _Tree:
    def __init__(self, thread: OwnedThread, nodes: npt.NDArray[np.bool_], steps: npt.NDArray[np.bool_]) -> None:
        self.thread = thread
        is_step = steps[thread.name] if len(thread) else np.zeros(0, bool)
        self.depth = _without_steps(thread.depth, np.flatnonzero(is_step))
        self.at = np.flatnonzero(~is_step)
        depth, is_node = self.depth.tolist(), (nodes[thread.name] if len(thread) else is_step).tolist()
        self.parent = [NOBODY] * len(thread)
        # the innermost autograd node at or around each
        self.node = [NOBODY] * len(thread)
        # inside that node: the outermost operator that builds a graph, which only forward work run again does
        self.built = [NOBODY] * len(thread)
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

    def forward(self) -> Iterator[tuple[int, tuple[int, int]]]:
        columns = (self.thread.sequence, self.thread.stack, self.thread.module)
        sequence, stack, module = (column.tolist() for column in columns)
        for i in self.at.tolist():
            if sequence[i] >= 0 and stack[i] != NOBODY and (self.node[i] == NOBODY or self.built[i] != NOBODY):
                yield sequence[i], (stack[i], module[i])

    def linked(
        self,
        stacks: Stacks,
        forward: dict[int, tuple[int, int]],
        gathers: npt.NDArray[np.bool_],
        sends: npt.NDArray[np.bool_],
    ) -> LinkedThread:
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
            owner=OwnedWork(
                np.array(stack, np.int32)[at],
                np.array(raw, np.int32)[at],
                np.array(owner_module, np.int32)[at],
                np.array([node != NOBODY for node in self.node], bool)[at],
            ),
        )


def _without_steps(depth: Ids, steps: Int64s) -> Ids:
    out = depth.copy()
    for step in steps.tolist():
        ends = np.flatnonzero(depth[step + 1 :] <= depth[step])
        out[step + 1 : step + 1 + int(ends[0]) if len(ends) else len(depth)] -= 1
    return out


def _below(stacks: Stacks, owner: int, node: int, raw: int) -> int:
    outer, inner = stacks[stacks.users(node)], stacks[raw]
    below = inner[len(outer) :]
    if not below or inner[: len(outer)] != outer or not stacks.is_user(below[0]):
        return owner
    return stacks.called(stacks.users(owner), *below)


# Operators of the undisturbed steps matched to those of the steps with frames.
#
# On a thread the sequence of (depth, name) is the same in every step, so operators are matched by their order, step by
# step and thread by thread. Where a step has operators that the other has not, whole calls (an operator with all that
# it
# calls) are laid side by side first, and what is left by single operators.
#
#     step 7        [linear [addmm]] [relu] [item]            [backward ...]
#     with frames   [linear [addmm]] [relu]        [print]    [backward ...]
#     matched        0       1        2     -1                 4 ...

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_MAX_DEPTH = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class OperatorMatch(ArrayRecord):
    """For each call of a rank: the thread of the file and the position on it, NOTHING where it has none."""

    calls: HostCalls
    #: index into the linked threads
    thread: npt.NDArray[np.int32]
    #: index into that thread's operators
    position: Int64s


def operators_and_ranges(rank: Rank) -> HostCalls:
    """Return what the file of owners lists too: operators and ranges, without the profiler's marks of steps."""
    rows = np.flatnonzero(of_kinds(rank.kinds, (EventKind.HOST_OP, EventKind.ANNOTATION)))
    marks = by_string(rank.trace, rank.trace["name"][rows], lambda s: s.startswith(PROFILER_STEP + "#"))
    return call_stacks(rank.trace, rows[marks == 0])


def matched(rank: Rank, marks: Marks, owners: RankOwners, threads: list[LinkedThread]) -> OperatorMatch:
    """Return the operators of the recorded steps matched to those of the steps with frames."""
    calls = operators_and_ranges(rank)
    ids: dict[str, int] = {}

    def name_ids(names: Iterable[str]) -> Int64s:
        plain = (name if "::" in name else re.sub(r"\d+", "0", name) for name in names)
        return np.array([ids.setdefault(name, len(ids)) for name in plain], np.int64)

    names = name_ids(rank.trace.strings[i] for i in range(len(rank.trace.strings)))
    own_names = name_ids(owners.names)
    keys = names[calls.name] * _MAX_DEPTH + _depths(calls)
    step = rank.steps.recorded.of(calls.start_ns)  # frames are of single steps
    thread = np.full(len(calls), NOTHING, np.int32)
    position = np.full(len(calls), NOTHING, np.int64)
    tries = Tries()
    for tid, index in _pairs(calls, marks, threads):
        known = threads[index]
        known_keys = own_names[known.thread.name[known.at]] * _MAX_DEPTH + known.depth
        low, high = np.searchsorted(calls.thread, [tid, tid + 1])
        found = _by_step(keys[low:high], step[low:high], known_keys, known.thread.step[known.at], tries)
        position[low:high] = found
        thread[low:high][found != NOTHING] = index
    return OperatorMatch(calls, thread, position)


def _depths(calls: HostCalls) -> Int64s:
    depth, current = np.zeros(len(calls), np.int64), calls.parent
    while (inside := current >= 0).any():
        depth += inside
        current = np.where(inside, calls.parent[current], -1)
    return np.minimum(depth, _MAX_DEPTH - 1)


def _pairs(calls: HostCalls, marks: Marks, threads: list[LinkedThread]) -> list[tuple[int, int]]:
    tids, count = np.unique(calls.thread, return_counts=True)
    busiest = tids[np.argsort(-count, kind="stable")].tolist()
    autograd = set(marks.autograd_threads.tolist())
    by_role: dict[str, list[int]] = {}
    for tid in busiest:
        role = TRAINING if tid == marks.main_thread else AUTOGRAD if tid in autograd else ""
        by_role.setdefault(role, []).append(tid)
    found = []
    for role in (TRAINING, AUTOGRAD, ""):
        known = [
            i
            for i, t in enumerate(threads)
            if t.thread.role == role or (not role and t.thread.role not in (TRAINING, AUTOGRAD))
        ]
        known.sort(key=lambda i: -len(threads[i]))
        found += list(zip(by_role.get(role, []), known, strict=False))
    return found


def _by_step(keys: Int64s, step: npt.NDArray[np.int32], known: Int64s, known_step: Int64s, tries: Tries) -> Int64s:
    """Return for each operator of a thread its position among the known ones.

    Of several steps with frames the one most like a step is laid beside it; what it lacks the others may have.
    """
    out = np.full(len(keys), NOTHING, np.int64)
    samples = [np.flatnonzero(known_step == s) for s in distinct(known_step)]
    seen: dict[bytes, Int64s] = {}
    for s in distinct(step[step >= 0]).tolist():
        mine = np.flatnonzero(step == s)
        content = keys[mine].tobytes()
        if content not in seen:
            seen[content] = _best(keys[mine], known, samples, tries)
        out[mine] = seen[content]
    return out


def _best(keys: Int64s, known: Int64s, samples: list[Int64s], tries: Tries) -> Int64s:
    out = np.full(len(keys), NOTHING, np.int64)
    for sample in sorted(samples, key=lambda one: abs(len(one) - len(keys))):
        if (missing := out == NOTHING).any():
            found = _laid_together(keys, known[sample], tries)
            use = missing & (found != NOTHING)
            out[use] = sample[found[use]]
    return out


def _laid_together(keys: Int64s, known: Int64s, tries: Tries) -> Int64s:
    if len(keys) == len(known) and np.array_equal(keys, known):
        return np.arange(len(keys))
    tops, known_tops = _top_calls(keys), _top_calls(known)
    whole = aligned(_content(keys, tops), _content(known, known_tops), tries)
    out = np.full(len(keys), NOTHING, np.int64)
    ends, known_ends = np.append(tops[1:], len(keys)), np.append(known_tops[1:], len(known))
    before = known_before = 0
    for top in [*np.flatnonzero(whole != NOTHING).tolist(), len(tops)]:
        last = top == len(tops)
        begin = len(keys) if last else int(tops[top])
        known_begin = len(known) if last else int(known_tops[whole[top]])
        if before < begin and known_before < known_begin:
            between = aligned(keys[before:begin], known[known_before:known_begin], tries)
            out[before:begin] = np.where(between == NOTHING, NOTHING, between + known_before)
        if not last:
            out[begin : ends[top]] = np.arange(known_begin, known_ends[whole[top]])
            before, known_before = int(ends[top]), int(known_ends[whole[top]])
    return out


def _top_calls(keys: Int64s) -> Int64s:
    depth = keys % _MAX_DEPTH
    return np.flatnonzero(depth == 0) if len(keys) and depth[0] == 0 else np.append(0, np.flatnonzero(depth == 0))


def _content(keys: Int64s, tops: Int64s) -> Int64s:
    if not len(keys) or not len(tops):
        return np.empty(0, np.int64)
    mixed = keys.astype(np.uint64) * _MIX
    mixed ^= mixed >> np.uint64(29)
    mixed *= _ODD
    place = np.arange(len(keys)) - np.repeat(tops, np.diff(np.append(tops, len(keys))))
    power = np.cumprod(np.full(int(place.max()) + 1, _ODD, np.uint64))  # wraps around, as a hash may
    return np.add.reduceat(mixed * power[place], tops).view(np.int64)


@dataclass
class Modules:
    """Module paths by number; more can be added."""

    known: list[str]

    def __post_init__(self) -> None:
        self._ids = {path: i for i, path in reversed(list(enumerate(self.known)))}

    def common(self, one: int, other: int) -> int:
        """Return the module that two modules lie in; NOBODY where either is unknown or they share none."""
        if one < 0 or other < 0 or one == other:
            return min(one, other)
        a, b = self.known[one].split("."), self.known[other].split(".")
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        if not same:
            return NOBODY
        found = self._ids.setdefault(".".join(a[:same]), len(self.known))
        if found == len(self.known):
            self.known.append(".".join(a[:same]))
        return found


def ownership_by_frames(rank: Rank, owners: RankOwners) -> Ownership:
    """Return who owns what a rank did, by the steps it recorded with Python frames."""
    marks = marks_of(rank)
    stacks, modules = Stacks(owners.frames, owners.stacks), Modules(list(owners.modules))
    threads = _linked_threads(owners, stacks)
    found = matched(rank, marks, owners, threads)
    first = np.cumsum([0, *map(len, threads)])
    place = np.where(found.position >= 0, first[found.thread] + found.position, NOTHING)
    own = joined_owners([one.owner for one in threads]).at(place)
    inherited = own.at(found.calls.nearest(own.stack >= 0) if len(found.calls) else place)
    by_call = _between_lines(found.calls, own.where(own.stack >= 0, inherited), rank, stacks, modules)

    def between(previous: Int64s, following: Int64s) -> OwnedWork:
        one = by_call.at(following)
        use = by_call.at(previous).where(one.stack < 0, one)
        module = _paired(by_call.module, previous, following, modules.common)
        return OwnedWork(use.stack, use.caller, module, use.backward)

    host = host_time(rank, marks, found.calls, by_call, _gap_shares(rank, found, threads), between)
    in_steps = rank.steps.of(found.calls.start_ns) >= 0
    return Ownership(
        rank=rank,
        lines=owners.lines,
        frames=owners.frames,
        stacks=stacks,
        modules=tuple(modules.known),
        calls=found.calls,
        by_call=by_call,
        host=host,
        by_work=work_owners(rank, found.calls, by_call, host),
        by_collective=collective_owners(rank, found.calls, by_call, host),
        matched_share=float((found.position[in_steps] != NOTHING).mean()) if in_steps.any() else 0.0,
    )


def _between_lines(calls: HostCalls, owned: OwnedWork, rank: Rank, stacks: Stacks, modules: Modules) -> OwnedWork:
    missing = np.flatnonzero((owned.stack < 0) & (rank.steps.of(calls.start_ns) >= 0))
    if not len(missing):
        return owned
    known = np.flatnonzero(owned.stack >= 0)
    after = np.searchsorted(known, missing)
    bounded = np.concatenate(([-1], known, [-1]))
    previous, following = bounded[after], bounded[after + 1]
    for side in (previous, following):
        side[calls.thread[side] != calls.thread[missing]] = -1
    both = (previous >= 0) & (following >= 0)
    stack, module = owned.stack.copy(), owned.module.copy()
    stack[missing] = np.where(both, _paired(owned.stack, previous, following, stacks.common), NOBODY)
    module[missing] = np.where(both, _paired(owned.module, previous, following, modules.common), NOBODY)
    caller = np.where(owned.stack < 0, stack, owned.caller).astype(np.int32)
    return OwnedWork(stack, caller, module, owned.backward)


def _paired(ids: Ids, one: Int64s, other: Int64s, common: Callable[[int, int], int]) -> Ids:
    base = int(ids.max(initial=0)) + 2
    a, b = (np.append(ids, NOBODY).astype(np.int64)[np.where(side >= 0, side, -1)] for side in (one, other))
    pairs, at = np.unique((a + 1) * base + b + 1, return_inverse=True)
    found = np.array([common(pair // base - 1, pair % base - 1) for pair in pairs.tolist()], np.int32)
    return found[at.reshape(-1)]


# stacks and times
Gap = tuple[list[int], list[int]]


def _gap_shares(rank: Rank, found: OperatorMatch, threads: list[LinkedThread]) -> GapShares:
    gap_of_call = np.full(len(found.calls), -1, np.int64)
    entries: list[Gap] = []
    last = -1
    for index, known in enumerate(threads):
        gaps, first_gap, tail = _gaps_of(known)
        numbers = np.full(len(known), -1, np.int64)
        for position, entry in gaps.items():
            numbers[position] = len(entries)
            entries.append(entry)
        mine = np.flatnonzero(found.thread == index)
        gap_of_call[mine] = numbers[found.position[mine]]
        if first_gap[0]:
            later = mine[(found.position[mine] == 0) & (rank.steps.of(found.calls.start_ns[mine]) > 0)]
            gap_of_call[later] = len(entries)
            entries.append(first_gap)
        if tail[0] and known.thread.role == TRAINING:
            last = len(entries)
            entries.append(tail)
    sizes = np.array([len(stacks) for stacks, _ in entries], np.int64)
    stack = np.array([s for stacks, _ in entries for s in stacks], np.int32)
    took = np.array([t for _, times in entries for t in times], np.float64)
    first = np.concatenate(([0], np.cumsum(sizes)))
    total = np.add.reduceat(took, first[:-1]) if len(sizes) else took
    return GapShares(gap_of_call, first, stack, took / np.maximum(np.repeat(total, sizes), 1), last)


def _gaps_of(known: LinkedThread) -> tuple[dict[int, Gap], Gap, Gap]:
    """Return the gap before each operator of a thread, the one from a step's last operator to the next step's first,
    and of that the part before the step's end.
    """
    thread = known.thread
    place = np.searchsorted(known.at, thread.gap_before)  # the next one stands for a mark of a step
    gaps: dict[int, Gap] = {}
    tail: Gap = ([], [])
    for position, stack, took in zip(place.tolist(), thread.gap_stack.tolist(), thread.gap_ns.tolist(), strict=True):
        if stack < 0 or took <= 0:
            continue
        stacks, times = gaps.setdefault(position, ([], [])) if position < len(known) else tail
        stacks.append(stack)
        times.append(took)
    head = gaps.get(0, ([], []))
    return gaps, ([*tail[0], *head[0]], [*tail[1], *head[1]]), tail


def work_owners(rank: Rank, calls: HostCalls, by_call: OwnedWork, host: HostTime) -> OwnedWork:
    """Return the owners of device operations: of the operator that launched each, else of the moment of the launch."""
    work, trace = rank.work, rank.trace
    by_operator = by_call.at(calls.at_rows(work.op_row))
    launch = np.maximum(work.launch_row, 0)
    moment = host.at(trace["tid"][launch], trace["ts_ns"][launch]) if len(work) else work.launch_row
    by_moment = host.owner.at(np.where(work.launch_row >= 0, moment, -1))
    return by_operator.where(by_operator.stack >= 0, by_moment)


def collective_owners(rank: Rank, calls: HostCalls, by_call: OwnedWork, host: HostTime) -> OwnedWork:
    """Return the owners of collectives: of the operator that asked for each, else of its kernel."""
    c = rank.collectives
    by_record = by_call.at(calls.at_rows(c.record_row))
    return by_record.where(by_record.stack >= 0, work_owners(rank, calls, by_call, host).at(c.device_index))
