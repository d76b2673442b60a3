"""Who owns each operator, each moment of the host and each device operation of a rank?

operator of an undisturbed step   the owner of the operator it matches; else of the one around it; else what its
                                  neighbours' stacks have in common (it ran between their lines)
Python between two operators      the stacks of the same gap in the step with frames, in their shares there
device operation, runtime call    the operator that launched it, else the Python at that moment
collective                        the operator that issued it
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_time import HostCalls
from stepscope.analyze.phases import Marks
from stepscope.errors import UsageError
from stepscope.intervals import Intervals, covered_ns, intersect, subtract, union
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.run.side_files import Frame
from stepscope.stats.robust import distinct
from stepscope.trace.table import EventKind, Int64s

# Stacks as a tree: each one is its caller's stack plus one frame, so deep recursion costs no more than its events.
#
#     stack            train.py:40 > model.py:12 > model.py:31        the nodes below it hold all that it called
#     line             the stacks that hold it: a few ranges of the stacks in the tree's order, callers first
#
# Queries over all stacks are one pass over the tree, those over all lines are sums over ranges.

NOBODY = -1
Stack = tuple[int, ...]
Line = tuple[str, int]
Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
_T = TypeVar("_T")


class Stacks:
    """Stacks by number; more can be added until the first question about all of them."""

    def __init__(self, frames: Sequence[Frame], stacks: Iterable[Stack] = ()) -> None:
        self.frames = frames
        self._parent: list[int] = []
        self._frame: list[int] = []
        self._child: dict[tuple[int, int], int] = {}
        # by stack
        self._node: list[int] = []
        # by node
        self._number: dict[int, int] = {}
        for stack in stacks:
            node = self._below(NOBODY, stack)
            self._number.setdefault(node, len(self._node))
            self._node.append(node)

    def __len__(self) -> int:
        return len(self._node)

    def __getitem__(self, number: int) -> Stack:
        frames, node = [], self._node[number] if number >= 0 else NOBODY
        while node != NOBODY:
            frames.append(self._frame[node])
            node = self._parent[node]
        return tuple(reversed(frames))

    def called(self, number: int, *frames: int) -> int:
        """Return the stack of a call from one stack through these frames; -1 for one without frames."""
        node = self._below(self._node[number] if number >= 0 else NOBODY, frames)
        return NOBODY if node == NOBODY else self._numbered(node)

    def users(self, number: int) -> int:
        """Return a stack without the library's frame, which is the last where there is one."""
        if number < 0 or self._node[number] == NOBODY or self.is_user(self._frame[self._node[number]]):
            return number
        parent = self._parent[self._node[number]]
        return NOBODY if parent == NOBODY else self._numbered(parent)

    def is_user(self, frame: int) -> bool:
        """Return whether a frame is the user's."""
        return not self.frames or self.frames[frame].is_user

    def common(self, one: int, other: int) -> int:
        """Return the frames that two stacks begin with."""
        a, b = self[one], self[other]
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        return self.called(NOBODY, *a[:same])

    def _below(self, node: int, frames: Iterable[int]) -> int:
        for frame in frames:
            below = self._child.setdefault((node, frame), len(self._parent))
            if below == len(self._parent):
                self._parent.append(node)
                self._frame.append(frame)
            node = below
        return node

    def _numbered(self, node: int) -> int:
        number = self._number.setdefault(node, len(self._node))
        if number == len(self._node):
            self._node.append(node)
        return number

    # Questions about all stacks -------------------------------------------------------------------------------------

    def folded(self, start: _T, grown: Callable[[_T, int], _T]) -> list[_T]:
        """Return a value for each stack: `grown(value of its caller, frame)`, from `start` for no frames."""
        values: list[_T] = []
        for parent, frame in zip(self._parent, self._frame, strict=True):
            values.append(grown(values[parent] if parent >= 0 else start, frame))
        return [values[node] if node >= 0 else start for node in self._node]

    @cached_property
    def innermost(self) -> Int64s:
        """Return the innermost frame of each stack, with a last entry for unowned work."""
        return np.array([*(self._frame[node] if node >= 0 else NOBODY for node in self._node), NOBODY], np.int64)

    @cached_property
    def innermost_user(self) -> Int64s:
        """Return the innermost user frame of each stack, with a last entry for unowned work."""
        is_user = [frame.is_user for frame in self.frames]
        found = self.folded(NOBODY, lambda above, frame: frame if is_user[frame] else above)
        return np.array([*found, NOBODY], np.int64)

    def user_line(self, number: int) -> Line | None:
        """Return the innermost line of a stack that is the user's."""
        frame = self.innermost_user[number]
        return None if frame == NOBODY else (self.frames[frame].file, self.frames[frame].line)

    def holding(self, chosen: Mask) -> Mask:
        """Return which stacks have any of the chosen frames, with a last entry for unowned work."""
        tree = self._tree
        nodes = np.flatnonzero(chosen[tree.frame]) if len(tree.frame) else tree.frame
        return self.in_ranges(tree.low[nodes], tree.high[nodes])

    def in_ranges(self, low: Int64s, high: Int64s) -> Mask:
        """Return which stacks are in any of some ranges of the tree's order, with a last entry for unowned work."""
        edges = np.zeros(len(self) + 1, np.int64)
        np.add.at(edges, low, 1)
        np.add.at(edges, high, -1)
        out = np.zeros(len(self) + 1, bool)
        out[self._tree.order] = np.cumsum(edges)[:-1] > 0
        return out

    def levels_of_lines(self, lines: "LineSets", with_stacks: Mask, chosen: Mask) -> Int64s:
        """Return for each line the most frames of the user's above it, in chosen frames around the stacks of a mask.

        -1 for a line that has none.
        """
        tree, is_user = self._tree, np.array([frame.is_user for frame in self.frames], bool)
        count = np.append(0, np.cumsum(with_stacks[tree.order]))
        nodes = np.flatnonzero((count[tree.high] > count[tree.low]) & (chosen & is_user)[tree.frame])
        out = np.full(len(lines), -1, np.int64)
        level: list[int] = []
        for parent, users in zip(self._parent, is_user[tree.frame].tolist(), strict=True):
            level.append((level[parent] if parent >= 0 else 0) + users)
        np.maximum.at(out, lines.of_frame[tree.frame[nodes]], np.array(level, np.int64)[nodes] - 1)
        return out

    @cached_property
    def places(self) -> Int64s:
        """Return where each stack is in the tree's order."""
        out = np.empty(len(self), np.int64)
        out[self._tree.order] = np.arange(len(self))
        return out

    @cached_property
    def lines(self) -> "LineSets":
        """Return which stacks hold which line."""
        return self._line_sets(np.ones(len(self.frames), bool))

    @cached_property
    def user_lines(self) -> "LineSets":
        """Return which stacks hold which line of the user's."""
        return self._line_sets(np.array([frame.is_user for frame in self.frames], bool))

    @cached_property
    def _tree(self) -> "_Tree":
        return _tree(self._parent, self._frame, self._node)

    def _line_sets(self, chosen: Mask) -> "LineSets":
        tree = self._tree
        ids: dict[Line, int] = {}
        of_frame = np.array([ids.setdefault((f.file, f.line), len(ids)) for f in self.frames], np.int64)
        nodes = np.flatnonzero((tree.high > tree.low) & chosen[tree.frame]) if len(tree.frame) else tree.frame
        line, low, high = of_frame[tree.frame[nodes]], tree.low[nodes], tree.high[nodes]
        # Of a line that calls itself the outermost call holds the others: ranges nest or are disjoint.
        order = np.lexsort((-high, low, line))
        nodes, line, low, high = nodes[order], line[order], low[order], high[order]
        base = line * (len(self) + 1)
        furthest = np.maximum.accumulate(base + high) if len(line) else base
        outermost = np.append(True, (base + low)[1:] >= furthest[:-1])[: len(line)]
        nodes, line, low, high = nodes[outermost], line[outermost], low[outermost], high[outermost]
        return LineSets(self, tuple(ids), of_frame, line, low, high, _first_seen(tree, nodes, line))


@dataclass(frozen=True, eq=False, repr=False)
class _Tree(ArrayRecord):
    frame: Int64s
    low: Int64s
    high: Int64s
    depth: Int64s
    #: the smallest number of the stacks below each
    first: Int64s
    #: numbers of stacks, callers before what they called
    order: Int64s


def _tree(parent: list[int], frame: list[int], node_of: list[int]) -> _Tree:
    count = len(parent)
    size, depth, first = [1] * count, [0] * count, [len(node_of)] * count
    for number, node in enumerate(node_of):
        if node >= 0:
            first[node] = min(first[node], number)
    for node in range(count - 1, -1, -1):
        if parent[node] >= 0:
            size[parent[node]] += size[node]
            first[parent[node]] = min(first[parent[node]], first[node])
    place, free = [0] * count, [0] * (count + 1)  # the last: of no node
    for node, above in enumerate(parent):
        place[node] = free[above]
        free[above] += size[node]
        free[node] = place[node] + 1
        depth[node] = depth[above] + 1 if above >= 0 else 0
    begin = np.array(place, np.int64)
    of_stack = np.array([place[node] if node >= 0 else -1 for node in node_of], np.int64)
    order = np.argsort(of_stack, kind="stable")
    low, high = (np.searchsorted(of_stack[order], edge) for edge in (begin, begin + np.array(size, np.int64)))
    return _Tree(np.array(frame, np.int64), low, high, np.array(depth, np.int64), np.array(first, np.int64), order)


def _first_seen(tree: _Tree, nodes: Int64s, line: Int64s) -> Int64s:
    by_line = np.lexsort((tree.first[nodes], line))
    lines, at = np.unique(line[by_line], return_index=True)
    first = nodes[by_line][at]
    return lines[np.lexsort((tree.depth[first], tree.first[first]))]


@dataclass(frozen=True, eq=False, repr=False)
class LineSets(ArrayRecord):
    """The stacks that hold each line, as ranges of the stacks in the tree's order."""

    stacks: Stacks
    lines: tuple[Line, ...]
    of_frame: Int64s
    #: of each range, ascending
    line: Int64s
    low: Int64s
    high: Int64s
    #: lines that any stack holds, in the order in which the stacks name them
    seen: Int64s

    def __len__(self) -> int:
        return len(self.lines)

    @cached_property
    def ids(self) -> dict[Line, int]:
        """Return the number of each line."""
        return {line: i for i, line in enumerate(self.lines)}

    def ranges(self, line: int) -> Iterator[tuple[int, int]]:
        """Return the ranges of the stacks that hold a line."""
        mine = slice(*np.searchsorted(self.line, (line, line + 1)))
        return zip(self.low[mine].tolist(), self.high[mine].tolist(), strict=True)

    def numbers(self, line: int) -> Int64s:
        """Return the stacks that hold a line, ascending."""
        order = self.stacks._tree.order
        return np.sort(np.concatenate([order[:0], *(order[low:high] for low, high in self.ranges(line))]))

    def mask(self, line: int) -> Mask:
        """Return which stacks hold a line, with a last entry for unowned work."""
        mine = slice(*np.searchsorted(self.line, (line, line + 1)))
        return self.stacks.in_ranges(self.low[mine], self.high[mine])

    @cached_property
    def sizes(self) -> Int64s:
        """Return how many stacks hold each line."""
        return self.sums(np.ones(len(self.stacks), np.int64))

    def sums(self, by_stack: Values) -> Values:
        """Return for each line the sum over the stacks that hold it."""
        ordered = by_stack[self.stacks._tree.order]
        until = np.concatenate((np.zeros((1, *ordered.shape[1:]), ordered.dtype), np.cumsum(ordered, axis=0)))
        out = np.zeros((len(self), *ordered.shape[1:]), ordered.dtype)
        np.add.at(out, self.line, until[self.high] - until[self.low])
        return out

    def things(self, stack: Values, caller: Values) -> Iterator[tuple[int, Int64s]]:
        """Return each line with the things that have it in their stack or in that of their caller, in their order."""
        own, apart = np.flatnonzero(stack >= 0), np.flatnonzero((caller >= 0) & (caller != stack))
        by_stack, by_caller = self._by_place(own, stack[own]), self._by_place(apart, caller[apart])
        for line in self.seen.tolist():
            mine, more = (
                np.concatenate([own[:0], *(rows[slice(*np.searchsorted(place, ends))] for ends in self.ranges(line))])
                for rows, place in (by_stack, by_caller)
            )
            if len(mine) or len(more):
                yield line, np.union1d(mine, more) if len(more) else np.sort(mine)

    def _by_place(self, rows: Int64s, stack: Values) -> tuple[Int64s, Int64s]:
        place = self.stacks.places[stack]
        order = np.argsort(place, kind="stable")
        return rows[order], place[order]

    def holds(self, line: int, other: int) -> bool:
        """Return whether every stack that holds the other line holds this one as well."""
        mine = slice(*np.searchsorted(self.line, (line, line + 1)))
        low, high = self.low[mine], self.high[mine]
        theirs = slice(*np.searchsorted(self.line, (other, other + 1)))
        until = np.append(0, np.cumsum(high - low))

        def held(place: Int64s) -> Int64s:
            last = np.maximum(np.searchsorted(low, place, side="right") - 1, 0)
            return until[last] + np.minimum(high[last], place) - low[last] if len(low) else place * 0

        inside = np.maximum(held(self.high[theirs]), 0) - np.maximum(held(self.low[theirs]), 0)
        return bool((inside == self.high[theirs] - self.low[theirs]).all())

    def inside(self, line: int) -> list[int]:
        """Return the other lines that only stacks with this line hold, in no order."""
        firsts, lines = self._by_first_place
        found = [lines[slice(*np.searchsorted(firsts, edges))] for edges in self.ranges(line)]
        others = np.concatenate([lines[:0], *found]).tolist()
        return [other for other in others if other != line and self.holds(line, other)]

    @cached_property
    def _by_first_place(self) -> tuple[Int64s, Int64s]:
        lines, at = np.unique(self.line, return_index=True)
        order = np.argsort(self.low[at], kind="stable")
        return self.low[at][order], lines[order]


# Python between two operators that takes longer is not stretched by the profiler; shorter stretches are part of what
# recording their neighbours costs
_MIN_PYTHON_NS = 20_000
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, repr=False)
class OwnedWork(ArrayRecord):
    """Owners of a list of items; -1 where unknown."""

    #: the owner: in backward the forward operator's
    stack: Ids
    #: where it was called: in backward the line of `loss.backward()`
    caller: Ids
    module: Ids
    backward: Mask

    def __len__(self) -> int:
        return len(self.stack)

    def at(self, index: npt.NDArray[np.integer]) -> "OwnedWork":
        """Return the owners at these places; none at -1."""
        if not len(self):
            return unowned(len(index))
        known = index >= 0

        stack, caller, module = (
            np.where(known, ids[index], NOBODY).astype(np.int32) for ids in (self.stack, self.caller, self.module)
        )
        return OwnedWork(stack, caller, module, known & self.backward[index])

    def where(self, mask: Mask, other: "OwnedWork") -> "OwnedWork":
        """Return these owners where the mask holds, the others elsewhere."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(OwnedWork))
        return OwnedWork(*(np.where(mask, mine, theirs) for mine, theirs in pairs))


def unowned(count: int) -> OwnedWork:
    """Return `count` unowned items."""
    none = np.full(count, NOBODY, np.int32)
    return OwnedWork(none, none, none, np.zeros(count, bool))


def joined_owners(parts: Sequence[OwnedWork]) -> OwnedWork:
    """Return the owners of several lists of things as one list."""
    return OwnedWork(*(np.concatenate([getattr(p, f.name) for p in (unowned(0), *parts)]) for f in fields(OwnedWork)))


@dataclass(frozen=True, eq=False, repr=False)
class HostTime(ArrayRecord):
    """The time of the threads that training waits for, cut by owner, sorted by thread and start."""

    thread: Int64s
    start_ns: Int64s
    end_ns: Int64s
    owner: OwnedWork
    #: in no operator
    is_python: Mask
    #: on the training thread: no other thread worked for it meanwhile; on the others: an operator
    runs: Mask

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, thread: Int64s, moment_ns: Int64s) -> Int64s:
        """Return the index of the span at each moment of a thread, -1 for none."""
        out = np.full(len(moment_ns), -1, np.int64)
        for one in distinct(thread):
            low, high = np.searchsorted(self.thread, [one, one + 1])
            mine = np.flatnonzero(thread == one)
            i = low + np.searchsorted(self.start_ns[low:high], moment_ns[mine], side="right") - 1
            fits = (i >= low) & (moment_ns[mine] < self.end_ns[np.maximum(i, 0)]) if len(self) else np.zeros(0, bool)
            out[mine[fits]] = i[fits]
        return out


@dataclass(frozen=True, eq=False, repr=False)
class Ownership(ArrayRecord):
    """The owners of everything one rank did in its recorded steps."""

    rank: Rank
    #: `executing` lines, or those where `functions` are defined
    lines: str
    frames: tuple[Frame, ...]
    stacks: Stacks
    modules: tuple[str, ...]
    calls: HostCalls
    #: per entry of `calls`
    by_call: OwnedWork
    host: HostTime
    #: per row of the rank's DeviceWork
    by_work: OwnedWork
    #: per row of the rank's Collectives
    by_collective: OwnedWork
    #: of the operators in recorded steps: have a counterpart with frames; None where these steps have frames
    matched_share: float | None
    #: what was left out
    notes: tuple[str, ...] = ()

    def of_rows(self, rows: npt.NDArray[np.integer]) -> OwnedWork:
        """Return the owners of rows of the event table: operators, calls, kernels, memory events."""
        trace = self.rank.trace
        own = self.by_call.at(self.calls.at_rows(rows))
        middle = trace["ts_ns"][rows] + np.maximum(trace["dur_ns"][rows], 0) // 2  # of those that cross others too
        moment = self.host.owner.at(self.host.at(trace["tid"][rows], middle))
        on_device = self.by_work.at(self._work_of_row[rows])
        return on_device.where(self._work_of_row[rows] >= 0, own.where(own.stack >= 0, moment))

    @cached_property
    def runtime_calls(self) -> tuple[Rows, OwnedWork]:
        """Return the rows of calls into the device's runtime, and their owners."""
        rows = np.flatnonzero(self.rank.kinds == EventKind.RUNTIME)
        return rows, self.of_rows(rows)

    @cached_property
    def long_python(self) -> Intervals:
        """Return when the host ran Python for so long that the profiler did not stretch it."""
        mine = self.host.is_python & self.host.runs
        whole = union(self.host.start_ns[mine], self.host.end_ns[mine])
        long = whole.end - whole.start >= _MIN_PYTHON_NS
        return Intervals(whole.start[long], whole.end[long])

    @cached_property
    def _work_of_row(self) -> Int64s:
        out = np.full(self.rank.trace.num_events, -1, np.int64)
        out[self.rank.work.row] = np.arange(len(self.rank.work))
        return out

    def running(self, chosen: Mask) -> Intervals:
        """Return when the host worked for chosen spans, autograd's engine between two nodes for the first of them."""
        host, keep = self.host, chosen & self.host.runs
        following = np.append(host.start_ns[1:], 0)
        back, thread = np.append(host.owner.backward, False), np.append(host.thread, NOBODY)
        engine = back[:-1] & back[1:] & (thread[:-1] == thread[1:]) & (following - host.end_ns < _MIN_PYTHON_NS)
        return union(host.start_ns[keep], np.where(engine, following, host.end_ns)[keep])

    def holding(self, frames: Sequence[int]) -> Mask:
        """Return which stacks have any of these frames, with a last entry for unowned work."""
        chosen = np.zeros(len(self.frames), bool)
        chosen[np.asarray(frames, np.int64)] = True
        return self.stacks.holding(chosen)


# Owners by name: `train.py:42`, `train.py:40-44`, `module:layers.*.bn`.
#
# A line matches everything that has it anywhere in its stack, in backward also what the line of `loss.backward()`
# called. A module matches itself and the modules inside it; `*` in a pattern is one name or part of one between two
# dots, and the pattern may begin at any of them: `bn` is every module of that name.

_MODULE = "module:"
_LINE = re.compile(r"^(?P<file>.+):(?P<first>\d{1,9})(-(?P<last>\d{1,9}))?$")
_MAX_NAMED = 6


@dataclass(frozen=True)
class OwnerName:
    """A line, some lines in a row, or modules by pattern."""

    text: str
    file: str = ""
    first: int = 0
    last: int = 0
    pattern: str = ""

    def chosen(self, owned: Ownership, things: OwnedWork) -> Mask:
        """Return which of some things of a rank are the owner's."""
        if self.pattern:
            fits = np.array([*(_module_fits(path, self.pattern) for path in owned.modules), False], bool)
            return fits[things.module]
        holding = owned.holding([i for i, f in enumerate(owned.frames) if self._holds(f.file, f.line)])
        return holding[things.stack] | holding[things.caller]

    def _holds(self, file: str, line: int) -> bool:
        return self.first <= line <= self.last and _same_file(file, self.file)


def owner_name(text: str, owned: Sequence[Ownership]) -> OwnerName:
    """Resolve a name in a run; a `UsageError` with the available names where it matches nothing."""
    if text.startswith(_MODULE):
        return _module(text, owned)
    found = _LINE.match(text)
    if found is None:
        raise UsageError(f"{text}: write FILE:LINE such as train.py:42, or module:GLOB such as module:layers.*.bn")
    first = int(found["first"])
    name = OwnerName(text, found["file"], first, int(found["last"] or first))
    files = {f.file for one in owned for f in one.frames if _same_file(f.file, name.file)}
    if not files:
        raise UsageError(f"{text}: no line of {name.file} ran in the recorded steps; {_files(name.file, owned)}")
    if len(files) > 1 and name.file not in files:
        listed = ", ".join(sorted(files)[:_MAX_NAMED])
        raise UsageError(f"{text}: several files end in {name.file} ({listed}); be more specific")
    lines = sorted({f.line for one in owned for f in one.frames if f.file in files})
    if not any(name.first <= line <= name.last for line in lines):
        listed = ", ".join(map(str, sorted(sorted(lines, key=lambda line: abs(line - first))[:_MAX_NAMED])))
        raise UsageError(f"{text}: nothing recorded was called from that line; lines of that file near it: {listed}")
    return name


def _module(text: str, owned: Sequence[Ownership]) -> OwnerName:
    pattern = text.removeprefix(_MODULE)
    paths = {path for one in owned for path in one.modules if path}
    if not pattern or not any(_module_fits(path, pattern) for path in paths):
        listed = ", ".join(_near(pattern, sorted(paths))) or "none, because no module was recorded"
        raise UsageError(f"{text}: no module of that name ran in the recorded steps; there are {listed}")
    return OwnerName(text, pattern=pattern)


def _same_file(path: str, given: str) -> bool:
    """Return whether a path is the given one or ends in it.

    >>> same_file("data/augment.py", "augment.py"), same_file("mytrain.py", "train.py")
    (True, False)
    """
    plain = given.removeprefix("./")
    return path == plain or path.endswith("/" + plain)


def _module_fits(path: str, pattern: str) -> bool:
    """Return whether a module is one of a pattern's, or inside one.

    >>> [module_fits(p, "layers.*.bn") for p in ("model.layers.3.bn", "layers.3.bn.scale", "layers.3.mlp.bn")]
    [True, True, False]
    """
    names, wanted = path.split("."), pattern.split(".")
    starts = range(len(names) - len(wanted) + 1)
    return any(all(fnmatchcase(n, w) for n, w in zip(names[at:], wanted, strict=False)) for at in starts)


def _files(given: str, owned: Sequence[Ownership]) -> str:
    near = _near(given, sorted({f.file for one in owned for f in one.frames if f.is_user}))
    return f"files with recorded lines are {', '.join(near)}" if near else "no file of the user's has recorded lines"


def _near(given: str, known: list[str]) -> list[str]:
    from difflib import get_close_matches  # only for names that are wrong

    return get_close_matches(given, known, n=_MAX_NAMED, cutoff=0.3) or known[:_MAX_NAMED]


# Owner of each moment of the host. Operators are their owners'; Python between them is split among the stacks there.
#
# Inside an autograd node Python that runs between two operators of a hook is the hook's.
#
# The training thread waits while the autograd engine's thread works for it: that time is the engine's operators', and
# only what is left of it (`runs`) is the line's that called backward.

# a shorter gap is attributed to its largest owner
_MIN_SHARED_GAP_NS = 5_000


@dataclass(frozen=True, eq=False, repr=False)
class GapShares(ArrayRecord):
    """Stacks that ran in the gaps before calls, with their shares: gap g has the entries `first[g]:first[g + 1]`."""

    #: the gap before each call, -1 where nothing is known of it
    gap_of_call: Int64s
    first: Int64s
    stack: npt.NDArray[np.int32]
    share: npt.NDArray[np.float64]
    #: the gap after the training thread's last call, -1 where nothing is known of it
    last: int = -1


def host_time(
    rank: Rank,
    marks: Marks,
    calls: HostCalls,
    by_call: OwnedWork,
    gaps: GapShares | None,
    between: Callable[[Int64s, Int64s], OwnedWork],
    *,
    python: Mask | None = None,
) -> HostTime:
    """Return the time of the training thread and the autograd engine's, by owner.

    `between(previous, following)` gives the owners of Python between two calls where nothing else is known. `python`
    marks the calls that are Python frames: their time is Python's and their own.
    """
    if not len(rank.steps):
        return _joined([])
    begin, end = int(rank.steps.start_ns.min()), int(rank.steps.end_ns.max())
    is_range = rank.kinds[calls.row] == EventKind.ANNOTATION
    is_range = is_range if python is None else is_range | python
    is_range &= calls.nearest(~is_range) < 0  # inside an operator a range is part of it
    on_engine = np.isin(calls.thread, marks.autograd_threads) & ~is_range
    engine = union(calls.start_ns[on_engine], calls.end_ns[on_engine])
    order = np.argsort(calls.start_ns[on_engine])
    engine_calls = calls.start_ns[on_engine][order], by_call.caller[on_engine][order]
    parts = []
    for thread in sorted({int(marks.main_thread), *marks.autograd_threads.tolist()}):
        spans = _thread_spans(calls, thread, begin, end)
        call = spans[2]
        in_python = (call < 0) | is_range[call] if len(calls) else np.ones(len(call), bool)
        if thread == marks.main_thread:
            part = _owned(calls, thread, spans, in_python, by_call, gaps, between, engine_calls)
            parts.append(_without_engine(part, engine))
        else:
            spans = spans[:, ~in_python]
            parts.append(_owned(calls, thread, spans, in_python[~in_python], by_call, gaps, between, None))
    return _joined(parts)


def _owned(
    calls: HostCalls,
    thread: int,
    spans: Int64s,
    python: Mask,
    by_call: OwnedWork,
    gaps: GapShares | None,
    between: Callable[[Int64s, Int64s], OwnedWork],
    engine_calls: tuple[Int64s, npt.NDArray[np.int32]] | None,
) -> HostTime:
    start_ns, end_ns, call = spans
    low, high = np.searchsorted(calls.thread, [thread, thread + 1])
    after = low + np.searchsorted(calls.start_ns[low:high], start_ns, side="right")
    following, previous = np.where(after < high, after, -1), np.where(after > low, after - 1, -1)
    own = by_call.at(call)
    owner = own.where(~python | ((own.stack >= 0) & (gaps is None)), between(previous, following))
    owner = owner.where(~_inside_hook(calls, by_call, call, previous, following) | python, by_call.at(previous))
    whole = HostTime(np.full(len(call), thread), start_ns, end_ns, owner, python, np.ones(len(call), bool))
    if gaps is None or not len(gaps.stack):
        return whole
    gap = np.where(python, np.append(gaps.gap_of_call, gaps.last)[following], -1)
    if engine_calls is not None and len(engine_calls[0]):
        whole, gap, gaps = _around_backward(whole, gap, gaps, *engine_calls)
    return _cut(whole, gaps, gap)


def _inside_hook(calls: HostCalls, by_call: OwnedWork, call: Int64s, previous: Int64s, following: Int64s) -> Mask:
    if not len(calls):
        return np.zeros(len(call), bool)
    stack = by_call.stack
    same = (stack[previous] == stack[following]) & (stack[previous] >= 0) & (stack[previous] != stack[call])
    within = (call >= 0) & (previous > call) & (following > call) & (calls.start_ns[following] < calls.end_ns[call])
    return same & within & by_call.backward[call]


def _around_backward(
    whole: HostTime, gap: Int64s, gaps: GapShares, called_ns: Int64s, callers: npt.NDArray[np.int32]
) -> tuple[HostTime, Int64s, GapShares]:
    """Return spans cut where the engine began and ended working for them, with the gap of each piece.

    The length of backward in the step with frames does not predict its time here. What came before it ran before the
    engine began, what came after it later: also in the neighbouring spans, where a range cuts the gap.
    """
    begun, ended = np.searchsorted(called_ns, whole.start_ns), np.searchsorted(called_ns, whole.end_ns)
    hit = np.flatnonzero((ended > begun) & (gap >= 0))
    if not len(hit):
        return whole, gap, gaps
    gap = gap.copy()
    same_gap = np.append(gap[1:] == gap[:-1], False)  # as the next span
    pieces: list[tuple[int, int, int, int]] = []  # span, start, end, gap
    first, stack, share = gaps.first.tolist(), gaps.stack.tolist(), gaps.share.tolist()
    worked = set(hit.tolist())
    for i in hit.tolist():
        low, high = first[gap[i]], first[gap[i] + 1]
        at = next((k for k in range(low, high) if stack[k] == callers[begun[i]]), None)
        if at is None:
            pieces.append((i, int(whole.start_ns[i]), int(whole.end_ns[i]), int(gap[i])))
            continue
        cuts = (int(whole.start_ns[i]), int(called_ns[begun[i]]), int(called_ns[ended[i] - 1]))
        numbers = range(len(first) - 1, len(first) + 2)
        for one, other in ((low, at), (at, at + 1), (at + 1, high)):
            if one == other:
                one, other = at, at + 1
            stack += stack[one:other]
            share += [part / max(sum(share[one:other]), 1e-9) for part in share[one:other]]
            first.append(len(stack))
        pieces += [(i, *piece) for piece in zip(cuts, (*cuts[1:], int(whole.end_ns[i])), numbers, strict=True)]
        for beside in _beside(i, same_gap, worked):
            gap[beside] = numbers[0 if beside < i else 2]
    kept = np.setdiff1d(np.arange(len(whole)), hit, assume_unique=True)
    span, start, end, number = np.array(pieces, np.int64).T
    every, begin = np.concatenate((kept, span)), np.concatenate((whole.start_ns[kept], start))
    order = np.argsort(begin, kind="stable")
    every, until = every[order], np.concatenate((whole.end_ns[kept], end))[order]
    cut = HostTime(
        whole.thread[every], begin[order], until, whole.owner.at(every), whole.is_python[every], whole.runs[every]
    )
    grown = replace(gaps, first=np.array(first), stack=np.array(stack, np.int32), share=np.array(share, float))
    return cut, np.concatenate((gap[kept], number))[order], grown


def _beside(span: int, same_gap: Mask, worked: set[int]) -> list[int]:
    before = takewhile(lambda k: same_gap[k] and k not in worked, range(span - 1, -1, -1))
    after = takewhile(lambda k: same_gap[k - 1] and k not in worked, range(span + 1, len(same_gap)))
    return [*before, *after]


def _cut(whole: HostTime, gaps: GapShares, gap: Int64s) -> HostTime:
    count = np.where(gap >= 0, np.diff(gaps.first)[gap], 0)
    duration = whole.end_ns - whole.start_ns
    short = (duration < _MIN_SHARED_GAP_NS) & (count > 0)
    order = np.lexsort((gaps.share, np.repeat(np.arange(len(gaps.first) - 1), np.diff(gaps.first))))
    largest = np.append(order[gaps.first[1:] - 1] if len(order) else order, 0)
    pieces = np.where(short | (count == 0), 1, count)
    span = np.repeat(np.arange(len(whole)), pieces)
    nth = np.arange(len(span)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    known = count[span] > 0
    entry = np.where(known, np.where(short[span], largest[gap[span]], gaps.first[gap[span]] + nth), 0)
    share = np.where(known & ~short[span], gaps.share[entry] if len(gaps.share) else 1.0, 1.0)
    start = whole.start_ns[span]
    end = start + np.rint(duration[span] * _running_share(share, pieces)).astype(np.int64)
    begin = np.where(nth == 0, start, np.concatenate(([0], end[:-1])))
    owner = whole.owner.at(span)
    stack = gaps.stack[entry] if len(gaps.stack) else np.full(len(entry), -1, np.int32)
    cut = OwnedWork(stack, stack, owner.module, owner.backward).where(known, owner)
    return HostTime(whole.thread[span], begin, end, cut, whole.is_python[span], whole.runs[span])


def _running_share(share: npt.NDArray[np.float64], pieces: Int64s) -> npt.NDArray[np.float64]:
    total = np.cumsum(share)
    before = np.repeat(np.concatenate(([0.0], total[np.cumsum(pieces)[:-1] - 1])), pieces) if len(pieces) else total
    until = total - before
    until[np.cumsum(pieces) - 1] = 1.0
    return np.clip(until, 0.0, 1.0)


def _without_engine(part: HostTime, engine: Intervals) -> HostTime:
    waits = part.is_python & (covered_ns(engine, part.start_ns, part.end_ns) > 0)
    if not waits.any():
        return part
    own = Intervals(part.start_ns[waits], part.end_ns[waits])
    pieces = [(subtract(own, engine), True), (intersect(own, engine), False)]
    start = np.concatenate([x.start for x, _ in pieces])
    index = np.flatnonzero(waits)[np.searchsorted(own.start, start, side="right") - 1]
    kept = np.flatnonzero(~waits)
    begin = np.concatenate((part.start_ns[kept], start))
    order = np.argsort(begin, kind="stable")
    every = np.concatenate((kept, index))[order]
    runs = np.concatenate((part.runs[kept], *(np.full(len(x), r) for x, r in pieces)))
    end = np.concatenate((part.end_ns[kept], *(x.end for x, _ in pieces)))
    return HostTime(
        part.thread[every], begin[order], end[order], part.owner.at(every), part.is_python[every], runs[order]
    )


def _joined(parts: list[HostTime]) -> HostTime:
    no_time, no_mask = np.empty(0, np.int64), np.empty(0, bool)
    return HostTime(
        thread=np.concatenate([no_time, *(p.thread for p in parts)]),
        start_ns=np.concatenate([no_time, *(p.start_ns for p in parts)]),
        end_ns=np.concatenate([no_time, *(p.end_ns for p in parts)]),
        owner=joined_owners([part.owner for part in parts]),
        is_python=np.concatenate([no_mask, *(p.is_python for p in parts)]),
        runs=np.concatenate([no_mask, *(p.runs for p in parts)]),
    )


def _thread_spans(calls: HostCalls, thread: int, start_ns: int, end_ns: int) -> Int64s:
    """Return start, end and innermost call (-1 for none) of a thread's time, cut at every beginning and end."""
    low, high = np.searchsorted(calls.thread, [thread, thread + 1])
    own = np.arange(low, high)
    end = np.minimum(calls.end_ns[own], _next_beside(calls, own))
    own, end = own[end > calls.start_ns[own]], end[end > calls.start_ns[own]]
    when = np.concatenate((calls.start_ns[own], end))
    innermost = np.concatenate((own, calls.parent[own]))
    begins = np.repeat([True, False], len(own))
    # At one moment ends come before beginnings, inner ends before outer ones, outer beginnings before inner ones.
    order = np.lexsort((np.concatenate((own, -own)), begins, when))
    cuts = np.concatenate(([start_ns], np.clip(when[order], start_ns, end_ns), [end_ns]))
    inside = np.concatenate(([-1], innermost[order]))
    keep = cuts[1:] > cuts[:-1]
    return np.stack((cuts[:-1], cuts[1:], inside))[:, keep]


def _next_beside(calls: HostCalls, own: Int64s) -> Int64s:
    out = np.full(len(own), np.iinfo(np.int64).max)
    order = np.lexsort((own, calls.parent[own]))
    parent, start = calls.parent[own][order], calls.start_ns[own][order]
    same = np.flatnonzero(parent[1:] == parent[:-1])
    out[order[same]] = start[same + 1]
    return out
