"""Owners of a rank's recorded steps by its file of owners: matched, inherited, or between two lines."""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from keyword import iskeyword
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

from stepscope.analyze.graph_launches import launches_graphs, with_captures, with_kernel_lines
from stepscope.analyze.host_time import CALLS, HostCalls, call_stacks
from stepscope.analyze.ownership import (
    NOBODY,
    GapShares,
    HostTime,
    Ids,
    OwnedWork,
    Ownership,
    Stacks,
    host_time,
    joined_owners,
    unowned,
)
from stepscope.analyze.phases import Marks, marks_of
from stepscope.contract.run_folder import AUTOGRAD, FUNCTIONS, TRAINING
from stepscope.contract.step_line import EVALUATE
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.device_work import lookup
from stepscope.run.load import Capture, Run
from stepscope.run.rank import Rank
from stepscope.run.side_files import Frame, OwnedThread, RankOwners, SourceText, code_of
from stepscope.run.steps import PROFILER_STEP
from stepscope.stats.robust import distinct
from stepscope.trace.table import EventKind, Int64s, by_string, of_kinds

# Alignment of two nearly equal sequences.
#
#     wanted  a b c X d e        ->  positions in known:  0 1 2 -1 3 4
#     known   a b c d e
#
# Equal beginnings and ends are removed first, so a single inserted or missing stretch costs nothing. The rest is
# aligned by the greedy difference algorithm (Myers 1986), whose time grows with the number of differences, in pieces of
# at most `_MAX_EDITS` differences each and with a bound on the whole: sequences that have little in common stay
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
#     forward work run again inside a node         its own stack: the line that runs twice, not the one that caused it
#     Python inside a node (a Function's backward, the forward operator's stack, and below it the frames of backward
#     a hook of gradients)
#
# `caller` is where an operator was called: the line of `loss.backward()` for all of backward.


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


# the latest forward operator of each sequence number: its stack and module in a file of owners
Forward = dict[int, tuple[int, int]]


def _linked_threads(owners: RankOwners, stacks: Stacks, forward: Forward) -> list[LinkedThread]:
    nodes, steps, sends = (
        np.array([name.startswith(prefix) for name in owners.names], bool)
        for prefix in (EVALUATE, PROFILER_STEP + "#", CALLS)
    )
    gathers = np.array(["AccumulateGrad" in name for name in owners.names], bool)
    trees = [_Tree(thread, nodes, steps) for thread in owners.threads]
    for tree in trees:
        forward.update(tree.forward())
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
        forward: Forward,
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
# it calls) are aligned first, and the rest by single operators.
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

    Of several steps with frames the most similar one is matched first; the others fill what it lacks.
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
        """Return the innermost common parent of two modules; -1 where either is unknown or they share none."""
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


def ownership_by_frames(rank: Rank, owners: RankOwners, forward: Forward | None = None) -> Ownership:
    """Return who owns what a rank did, by the steps it recorded with Python frames.

    `forward` holds the forward operators of earlier files and is updated with those of this one.
    """
    marks = marks_of(rank)
    stacks, modules = Stacks(owners.frames, owners.stacks), Modules(list(owners.modules))
    threads = _linked_threads(owners, stacks, {} if forward is None else forward)
    found = matched(rank, marks, owners, threads)
    first = np.cumsum([0, *map(len, threads)])
    place = np.where(found.position >= 0, first[found.thread] + found.position, NOTHING)
    own = joined_owners([one.owner for one in threads]).at(place)
    inherited = own.at(found.calls.nearest(own.stack >= 0) if len(found.calls) else place)
    by_call = _between_lines(found.calls, own.where(own.stack >= 0, inherited), rank, stacks, modules)
    gaps = _gap_shares(rank, found, threads)
    by_call = _passes_apart(by_call, found.calls, marks, gaps, threads, stacks)

    def between(previous: Int64s, following: Int64s) -> OwnedWork:
        one = by_call.at(following)
        use = by_call.at(previous).where(one.stack < 0, one)
        module = _paired(by_call.module, previous, following, modules.common)
        return OwnedWork(use.stack, use.caller, module, use.backward)

    host = host_time(rank, marks, found.calls, by_call, gaps, between)
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


def _passes_apart(
    owned: OwnedWork, calls: HostCalls, marks: Marks, gaps: GapShares, threads: list[LinkedThread], stacks: Stacks
) -> OwnedWork:
    """Return them with the call of backward that waited for each, where the file has one caller for all passes.

    torch's tree has all that autograd's thread ran below the first call, and so had the files of earlier recorders.
    """
    known = [one.owner.caller for one in threads if one.thread.role == AUTOGRAD]
    callers = distinct(np.concatenate(known)) if known else np.empty(0, np.int64)
    if len(callers) != 1 or not len(gaps.stack):
        return owned
    waits = [n for n in distinct(gaps.stack).tolist() if _calls_autograd(stacks, n)]
    is_wait = np.isin(gaps.stack, waits)
    gap = np.repeat(np.arange(len(gaps.first) - 1), np.diff(gaps.first))
    order = np.flatnonzero(is_wait)[np.argsort(gaps.share[is_wait], kind="stable")]
    waiting = np.full(len(gaps.first), NOBODY, np.int32)
    waiting[gap[order]] = gaps.stack[order]  # that with the largest share last
    mine = np.flatnonzero(np.isin(calls.thread, marks.autograd_threads) & (owned.caller == callers[0]))
    low, high = np.searchsorted(calls.thread, [marks.main_thread, marks.main_thread + 1])
    after = low + np.searchsorted(calls.start_ns[low:high], calls.start_ns[mine], side="right")
    found = waiting[np.append(gaps.gap_of_call, gaps.last)[np.where(after < high, after, -1)]]
    mine, found = mine[found >= 0], found[found >= 0]
    stack, caller = owned.stack.copy(), owned.caller.copy()
    stack[mine] = np.where(stack[mine] == caller[mine], found, stack[mine])
    caller[mine] = found
    return OwnedWork(stack, caller, owned.module, owned.backward)


def _calls_autograd(stacks: Stacks, number: int) -> bool:
    frame = stacks.frames[stacks[number][-1]] if number >= 0 and stacks[number] else None
    return frame is not None and not frame.is_user and "torch/autograd/" in frame.file


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


Floats = npt.NDArray[np.float64]
# stacks, their times, and the begins and ends of calls in them
Gap = tuple[list[int], list[int], list[int]]

# the least that a call, or its end, takes without being watched
_PLAIN_CALL_NS = 25
_HALVINGS = 40


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
    sizes = np.array([len(stacks) for stacks, *_ in entries], np.int64)
    stack = np.array([s for stacks, *_ in entries for s in stacks], np.int32)
    took = np.array([t for _, times, _ in entries for t in times], np.float64)
    calls = np.array([n for *_, counts in entries for n in counts], np.float64)
    first = np.concatenate(([0], np.cumsum(sizes)))
    took = _unwatched(took, calls, np.repeat(np.arange(len(sizes)), sizes), found.calls, gap_of_call)
    total = np.add.reduceat(took, first[:-1]) if len(sizes) else took
    return GapShares(gap_of_call, first, stack, took / np.maximum(np.repeat(total, sizes), 1), last)


def _unwatched(took: Floats, calls: Floats, gap: Int64s, recorded: HostCalls, gap_of_call: Int64s) -> Floats:
    """Return the times in gaps without what watching their calls cost: so much per call that a gap is as in the trace.

    A line that makes thousands of small calls would have most of its gap, whatever else ran there.
    """
    last_ns = recorded.start_ns.copy()  # the end of what ran before each call, or the begin of what is around it
    for thread in distinct(recorded.thread).tolist():
        mine = np.flatnonzero(recorded.thread == thread)
        ends, start = np.sort(recorded.end_ns[mine]), recorded.start_ns[mine]
        ended = np.append(ends, start[:1])[np.searchsorted(ends, start, side="right") - 1]
        last_ns[mine] = np.maximum(ended, np.append(start[:1], start[:-1]))
    known, size = gap_of_call >= 0, int(max(gap.max(initial=-1), gap_of_call.max(initial=-1))) + 1
    times = np.bincount(gap_of_call[known], minlength=size)
    plain = np.bincount(gap_of_call[known], (recorded.start_ns - last_ns)[known], minlength=size) / np.maximum(times, 1)
    plain[times == 0] = np.inf  # not in the trace: nothing is known

    def left(each: Floats) -> Floats:
        return np.minimum(took, np.maximum(took - each[gap] * calls, _PLAIN_CALL_NS * calls))

    low, high = np.zeros(size), np.full(size, float(took.max(initial=0)))
    for _ in range(_HALVINGS):
        each = (low + high) / 2
        is_less = np.bincount(gap, left(each), minlength=size) < plain
        low, high = np.where(is_less, low, each), np.where(is_less, each, high)
    return left(low)


def _gaps_of(known: LinkedThread) -> tuple[dict[int, Gap], Gap, Gap]:
    """Return the gap before each operator of a thread, the one from a step's last operator to the next step's first,
    and of that the part before the step's end.
    """
    thread = known.thread
    place = np.searchsorted(known.at, thread.gap_before)  # the next one represents a mark of a step
    gaps: dict[int, Gap] = {}
    tail: Gap = ([], [], [])
    columns = (thread.gap_stack, thread.gap_ns, thread.gap_calls)
    for position, stack, took, calls in zip(place.tolist(), *(x.tolist() for x in columns), strict=True):
        if stack < 0 or took <= 0:
            continue
        entry = gaps.setdefault(position, ([], [], [])) if position < len(known) else tail
        for column, value in zip(entry, (stack, took, calls), strict=True):
            column.append(value)
    head = gaps.get(0, ([], [], []))
    return gaps, (tail[0] + head[0], tail[1] + head[1], tail[2] + head[2]), tail


def work_owners(rank: Rank, calls: HostCalls, by_call: OwnedWork, host: HostTime) -> OwnedWork:
    """Return the owners of device operations: of the operator that launched each, else of the moment of the launch."""
    work, trace = rank.work, rank.trace
    by_operator = by_call.at(calls.at_rows(work.op_row))
    launch = np.maximum(work.launch_row, 0)
    moment = host.at(trace["tid"][launch], trace["ts_ns"][launch]) if len(work) else work.launch_row
    by_moment = host.owner.at(np.where(work.launch_row >= 0, moment, -1))
    return by_operator.where(by_operator.stack >= 0, by_moment)


def collective_owners(rank: Rank, calls: HostCalls, by_call: OwnedWork, host: HostTime) -> OwnedWork:
    """Return the owners of collectives: of the operator that issued each, else of its kernel."""
    c = rank.collectives
    by_record = by_call.at(calls.at_rows(c.record_row))
    return by_record.where(by_record.stack >= 0, work_owners(rank, calls, by_call, host).at(c.device_index))


# The owners of all ranks of a run, and what they took.


def ownership_of(run: Run) -> tuple[Ownership | None, ...]:
    """Return the owners of each rank: by its file of owners, else by frames in its trace; None where it has neither."""
    by_rank = {owners.rank: owners for owners in run.owners}
    found = (_ownership(rank, by_rank.get(rank.rank), run.source) for rank in run.ranks)
    return tuple(_with_graphs(run, rank, owned) for rank, owned in zip(run.ranks, found, strict=True))


def _with_graphs(run: Run, rank: Rank, owned: Ownership | None) -> Ownership | None:
    """Return the ownership with lines of compiled kernels and of captures; other ranks' captures where it has none."""
    tables = run.kernel_lines.get(rank.rank, ())
    if not len(rank.steps) or (owned is None and not run.captures and not tables):
        return owned
    owned = owned or _without_owners(rank)
    owned = with_kernel_lines(owned, tables) if tables else owned
    if not launches_graphs(rank):
        return owned
    ranks = {one.rank for one in run.captures}
    of = rank.rank if rank.rank in ranks else next(iter(ranks), None)
    known = _owners_of_captures([one for one in run.captures if one.rank == of], run.source)
    return with_captures(owned, [with_kernel_lines(one, tables, is_capture=True) for one in known])


def _owners_of_captures(captures: Sequence[Capture], source: SourceText) -> Iterator[Ownership]:
    """Return the owners of each capture; a separate capture of backward needs the forward operators of earlier ones."""
    tables: RankOwners | None = None
    forward: Forward = {}
    for one in captures:
        if one.owners is None:
            yield _ownership_by_own_frames(one.trace)
        else:
            owners = with_operator_lines(one.owners, source)
            tables = owners if tables is None else _appended(tables, owners)
            yield ownership_by_frames(one.trace, tables, forward)


def _appended(before: RankOwners, owners: RankOwners) -> RankOwners:
    """Return the owners of a file with its tables appended to those of the previous file."""
    frames = tuple(dict.fromkeys(before.frames + owners.frames))
    modules = tuple(dict.fromkeys(before.modules + owners.modules))
    frame, of_frame = {one: n for n, one in enumerate(frames)}, owners.frames
    module = {one: n for n, one in enumerate(modules)}
    of_module = np.array([*(module[one] for one in owners.modules), NOBODY], np.int32)  # the last entry: unknown
    num_stacks, num_names = len(before.stacks), len(before.names)

    def moved(stack: Ids) -> Ids:
        return np.where(stack >= 0, stack + num_stacks, NOBODY).astype(np.int32)

    threads = [
        replace(
            one,
            name=(one.name + num_names).astype(np.int32),
            stack=moved(one.stack),
            module=of_module[one.module],
            gap_stack=moved(one.gap_stack),
        )
        for one in owners.threads
    ]
    stacks = (tuple(frame[of_frame[f]] for f in stack) for stack in owners.stacks)
    return replace(
        owners,
        frames=frames,
        stacks=(*before.stacks, *stacks),
        modules=modules,
        names=before.names + owners.names,
        threads=tuple(threads),
    )


def _without_owners(rank: Rank) -> Ownership:
    calls = operators_and_ranges(rank)
    none = unowned(len(calls))
    host = host_time(rank, marks_of(rank), calls, none, None, lambda _, following: unowned(len(following)))
    work, collectives = unowned(len(rank.work)), unowned(len(rank.collectives))
    return Ownership(rank, FUNCTIONS, (), Stacks(()), (), calls, none, host, work, collectives, None)


def _ownership(rank: Rank, owners: RankOwners | None, source: SourceText) -> Ownership | None:
    if not len(rank.steps):
        return None
    if owners is not None:
        return ownership_by_frames(rank, with_operator_lines(owners, source))
    if (rank.kinds == EventKind.PYTHON).any():
        return _ownership_by_own_frames(rank)
    return None


# Owners of a trace whose recorded steps have Python frames themselves (`with_stack=True`), from any recorder.
#
#     train.py(31): step                    a frame; the line is where the function is defined
#     nn.Module: Linear_8                   a module, known by its class and number
#     <built-in method mm of type object>   no frame: the call of an operator
#
# Such steps are slower than others, so host times are of steps with frames.

# nesting depth of Python events: four times Python's default recursion limit
_MAX_FRAMES = 4096
_MAX_MODULES = 512
# characters of all paths of modules
_MAX_MODULE_TEXT = 1 << 26
_FRAME = re.compile(r"^(?P<file>[^(]+)\((?P<line>\d{1,9})\): (?P<function>.*)$")
_MODULE = "nn.Module: "
# whose files a trace names relative to the folder of installed packages
_PACKAGES = {
    *("torch", "torchvision", "torchaudio", "torchgen", "functorch", "triton", "numpy", "PIL", "tqdm", "einops"),
    *("transformers", "accelerate", "datasets", "tokenizers", "diffusers", "peft", "lightning", "pytorch_lightning"),
    *("lightning_fabric", "deepspeed", "megatron", "apex", "flash_attn", "xformers", "timm", "stepscope"),
}
_INSTALLED = ("site-packages/", "dist-packages/", "<frozen", "<string>", "<__array")


def _ownership_by_own_frames(rank: Rank) -> Ownership:
    marks = marks_of(rank)
    python, deep = _shallow(call_stacks(rank.trace, np.flatnonzero(rank.kinds == EventKind.PYTHON)))
    frames, frame, module_names, own_module = _frames_and_modules(rank, python)
    stack, stacks = _stacks(python, frames, frame)
    module, modules, cut = _modules(python, module_names, own_module)
    notes = (
        (deep, f"{deep:,} Python events below {_MAX_FRAMES:,} others are counted for the frame around them"),
        (cut, f"modules nested more than {_MAX_MODULES} deep are counted for the module around them"),
    )
    calls = operators_and_ranges(rank)
    inside = _innermost(rank, python, calls)
    raw = np.where(inside >= 0, stack[inside], NOBODY).astype(np.int32)
    by_call = _linked(rank, marks, calls, raw, np.where(inside >= 0, module[inside], NOBODY).astype(np.int32))
    # Python events cut the host's time as operators do.
    both = call_stacks(rank.trace, np.sort(np.concatenate((calls.row, python.row))))
    at, at_python = calls.at_rows(both.row), python.at_rows(both.row)
    of_python = OwnedWork(stack, stack, module, np.zeros(len(python), bool))
    by_both = by_call.at(at).where(at >= 0, of_python.at(at_python))

    def between(previous: Int64s, following: Int64s) -> OwnedWork:
        return by_both.at(np.full(len(following), -1))

    host = host_time(rank, marks, both, by_both, None, between, python=at_python >= 0)
    return Ownership(
        rank=rank,
        lines=FUNCTIONS,
        frames=frames,
        stacks=stacks,
        modules=modules,
        calls=calls,
        by_call=by_call,
        host=host,
        by_work=work_owners(rank, calls, by_call, host),
        by_collective=collective_owners(rank, calls, by_call, host),
        matched_share=None,
        notes=tuple(f"rank {rank.rank}: {note}" for applies, note in notes if applies),
    )


def _frames_and_modules(
    rank: Rank, python: HostCalls
) -> tuple[tuple[Frame, ...], list[int], tuple[str, ...], list[int]]:
    """Return the frames, that of each Python event (-1 for none), and the same for modules."""
    strings = rank.trace.strings
    frames: dict[Frame, int] = {}
    modules: dict[str, int] = {}
    frame_of, module_of = (np.full(len(strings), NOBODY, np.int64) for _ in range(2))
    for name in distinct(python.name).tolist():
        text = strings[name] if name >= 0 else ""
        if text.startswith(_MODULE):
            module_of[name] = modules.setdefault(text.removeprefix(_MODULE), len(modules))
        elif found := _FRAME.match(text):
            line = int(found["line"])
            frame = Frame(found["file"], line, found["function"], _is_users(found["file"]), line)
            frame_of[name] = frames.setdefault(frame, len(frames))
    return tuple(frames), frame_of[python.name].tolist(), tuple(modules), module_of[python.name].tolist()


def _is_users(file: str) -> bool:
    if any(part in file for part in _INSTALLED):
        return False
    top = PurePosixPath(file).parts[0] if file else ""
    return top.removesuffix(".py") not in (_PACKAGES | sys.stdlib_module_names) or top == "/"


def _stacks(python: HostCalls, frames: tuple[Frame, ...], own: list[int]) -> tuple[Ids, Stacks]:
    stacks = Stacks(frames)
    is_user = [frame.is_user for frame in frames]
    out, ends_in_user = [NOBODY] * len(python), [False] * len(python)
    for i, (parent, new) in enumerate(zip(python.parent.tolist(), own, strict=True)):
        above, below_user = (out[parent], ends_in_user[parent]) if parent >= 0 else (NOBODY, False)
        out[i], ends_in_user[i] = above, below_user
        if new >= 0 and (is_user[new] or below_user):
            caller = above if below_user or not is_user[new] else stacks.users(above)
            out[i], ends_in_user[i] = stacks.called(caller, new), is_user[new]
    return np.array(out, np.int32), stacks


def _modules(python: HostCalls, names: tuple[str, ...], own: list[int]) -> tuple[Ids, tuple[str, ...], bool]:
    known: dict[tuple[int, int], int] = {}
    paths: list[str] = []
    depth: list[int] = []
    left, cut = _MAX_MODULE_TEXT, False
    out = [NOBODY] * len(python)
    for i, (parent, new) in enumerate(zip(python.parent.tolist(), own, strict=True)):
        above = out[i] = out[parent] if parent >= 0 else NOBODY
        if new < 0:
            continue
        if (above, new) not in known:
            path = names[new] if above < 0 else f"{paths[above]}.{names[new]}"
            level = depth[above] + 1 if above >= 0 else 1
            if above >= 0 and (level > _MAX_MODULES or len(path) > left):
                cut = True
                continue
            left -= len(path)
            known[above, new] = len(paths)
            paths.append(path)
            depth.append(level)
        out[i] = known[above, new]
    return np.array(out, np.int32), tuple(paths), cut


def _shallow(python: HostCalls) -> tuple[HostCalls, int]:
    depth: list[int] = []
    for parent in python.parent.tolist():
        depth.append(depth[parent] + 1 if parent >= 0 else 1)
    keep = np.array(depth, np.int64) <= _MAX_FRAMES
    deep = len(python) - int(keep.sum())
    if not deep:
        return python, 0
    place = np.append(np.cumsum(keep) - 1, -1).astype(np.int32)  # callers of what stays stay
    columns = {f.name: getattr(python, f.name)[keep] for f in fields(HostCalls)}
    return HostCalls(**{**columns, "parent": place[columns["parent"]]}), deep


def _innermost(rank: Rank, python: HostCalls, calls: HostCalls) -> Int64s:
    """Return the innermost Python event around each call.

    The autograd engine's thread has none: for it, the one of the training thread that waits for it.
    """
    inside = python.innermost_at(calls.thread, calls.start_ns)
    lost = np.flatnonzero(inside < 0)
    inside[lost] = python.innermost_at(np.full(len(lost), marks_of(rank).main_thread), calls.start_ns[lost])
    return inside


def _linked(rank: Rank, marks: Marks, calls: HostCalls, raw: Ids, module: Ids) -> OwnedWork:
    if not len(calls):
        return OwnedWork(raw, raw, module, np.zeros(0, bool))
    trace = rank.trace
    sequence = trace.arg("sequence").at(calls.row, missing=-1)
    is_node = np.zeros(len(calls), bool)
    is_node[calls.at_rows(marks.autograd_nodes)] = True
    node = calls.nearest(is_node)
    builds = (sequence >= 0) & (trace.arg("fwd_thread").at(calls.row, missing=0) <= 0) & ~is_node
    again = calls.nearest(builds & (node >= 0))  # forward work run again keeps its own
    forward = np.flatnonzero(builds)
    found = lookup(sequence[forward], forward, np.where(is_node, sequence, -2))
    owner = np.where(found >= 0, found, -1)
    gathers = by_string(trace, calls.name, lambda s: "AccumulateGrad" in s).astype(bool) & is_node
    last = np.maximum.accumulate(np.where(is_node & (owner >= 0), np.arange(len(calls)), -1))
    owner = np.where(gathers & ((last >= 0) & (calls.thread[last] == calls.thread)), owner[last], owner)
    use = np.where((node >= 0) & (again < 0), owner[node], -1)
    sends = by_string(trace, calls.name, lambda s: s.startswith(CALLS)).astype(bool)
    use[gathers[node] & (node >= 0) & (calls.nearest(sends) >= 0)] = -1  # a bucket is of no forward line
    stack = np.where(use >= 0, raw[use], raw).astype(np.int32)
    return OwnedWork(stack, raw, np.where(use >= 0, module[use], module).astype(np.int32), node >= 0)


# Lines of operators that raise no call, by the source between the calls before and after.
#
#     44  rows = torch.cat([d, e], 1)                    a call: known
#     45  if "outer" in names:
#     46      products = (rows[:, None] * rows).sum(-1)  `*` raises none: it ran after the call in 44, before `sum` in
#     46
#
# Of the lines from the one call to the other, those are left that hold the symbol of such an operator. Where that is
# one line, it is known; where there are several, the operator is between the first and the last of them. Lines alone
# are searched, never parsed as a program: the text is not trusted.

# between two calls; further apart they are unrelated
MAX_LINES = 60

# of an operator, without `aten::` and the underscore of one that works in place
_SYMBOLS = {
    **dict.fromkeys(("sub", "rsub", "neg"), "-"),
    **dict.fromkeys(("div", "true_divide", "reciprocal"), "/"),
    **dict.fromkeys(("bitwise_and", "__and__"), "&"),
    **dict.fromkeys(("bitwise_or", "__or__"), "|"),
    **dict.fromkeys(("bitwise_xor", "__xor__"), "^"),
    **dict.fromkeys(("index", "index_put", "copy", "fill"), "["),
    "add": "+",
    "mul": "*",
    "remainder": "%",
    "bitwise_not": "~",
    "floor_divide": "//",
    "pow": "**",
    "matmul": "@",
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
# of those that move nothing: they determine a line only where nothing else does
_VIEWS = dict.fromkeys(("select", "slice", "unsqueeze", "alias"), "[")

_OPERATORS = frozenset(_SYMBOLS.values())
_TOKEN = re.compile(r"\w[\w.]*|\*\*|//|->|[<>=!]=|<<|>>|[-+*/%@&|^~<>\[]|\S")
# before an operator that has a left side; not in `f(*args)`, `x = -1`, `return [1, 2]`
_OPERAND_ENDS = re.compile(r'[\w)\]}"]$')


def with_operator_lines(owners: RankOwners, source: SourceText) -> RankOwners:
    """Return the owners with source lines for operators that raise no call, as far as the stored source shows them."""
    unsure = {i for i, f in enumerate(owners.frames) if f.is_user and 0 < f.line < f.line_to <= f.line + MAX_LINES}
    if not unsure:
        return owners
    frames = list(owners.frames)
    for i, wanted in _symbols_at(owners, unsure).items():
        frame, lines = frames[i], source.lines(frames[i].file) or ()
        numbers = range(frame.line, min(frame.line_to, len(lines)) + 1)
        holding = [n for n in numbers if wanted & set(operator_symbols(lines[n - 1]))]
        if holding:
            frames[i] = replace(frame, line=holding[0], line_to=holding[-1])
    return replace(owners, frames=tuple(frames))


def _symbols_at(owners: RankOwners, unsure: set[int]) -> dict[int, set[str]]:
    innermost = [stack[-1] if stack else -1 for stack in owners.stacks]
    names: dict[int, set[str]] = defaultdict(set)
    for thread in owners.threads:
        around: list[int] = []  # the stacks of the operators that are open
        for name, depth, stack in zip(thread.name.tolist(), thread.depth.tolist(), thread.stack.tolist(), strict=True):
            is_part = depth > 0 and around[depth - 1 : depth] == [stack]  # of the symbol's operators
            around[depth:] = [stack]
            if stack >= 0 and innermost[stack] in unsure and not is_part:
                bare = owners.names[name].removeprefix("aten::")
                names[innermost[stack]] |= {bare, bare.removesuffix("_")}
    by_frame = {frame: _symbols(asked, _SYMBOLS) or _symbols(asked, _VIEWS) for frame, asked in names.items()}
    return {frame: symbols for frame, symbols in by_frame.items() if symbols}


def _symbols(names: set[str], of_name: Mapping[str, str]) -> set[str]:
    return {of_name[name] for name in names if name in of_name}


def operator_symbols(line: str) -> Iterator[str]:
    """Return the symbols in a line that may stand for an operator on tensors.

    >>> list(operator_symbols('x = f(*a, -1)[0] * scale  # times 2 + 3'))
    ['[', '*']
    """
    before = ""
    for token, after in pairwise([*_TOKEN.findall(code_of(line)), ""]):
        unary = iskeyword(before) or not _OPERAND_ENDS.search(before)
        wanted = not unary or (token in "~-" and not after[:1].isdigit())
        if token in _OPERATORS and wanted and '"' not in (before, after):
            yield token
        before = token
