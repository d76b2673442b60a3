"""Stacks as a tree: each one is its caller's and one frame more, so that deep recursion costs what its events do.

    stack            train.py:40 > model.py:12 > model.py:31        the nodes below it hold all that it called
    line             those stacks that hold it: a few ranges of the stacks in the tree's order, callers first

Whatever is asked of all stacks is answered in one pass over the tree, and of all lines by sums over ranges.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.owners import Frame
from stepscope.trace.table import Int64s

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
        """Return the stack of what one stack called through these frames; NOBODY for one without frames."""
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
        """Return the innermost frame of each stack, one entry more for nobody."""
        return np.array([*(self._frame[node] if node >= 0 else NOBODY for node in self._node), NOBODY], np.int64)

    @cached_property
    def innermost_user(self) -> Int64s:
        """Return the innermost frame of each stack that is the user's, one entry more for nobody."""
        is_user = [frame.is_user for frame in self.frames]
        found = self.folded(NOBODY, lambda above, frame: frame if is_user[frame] else above)
        return np.array([*found, NOBODY], np.int64)

    def user_line(self, number: int) -> Line | None:
        """Return the innermost line of a stack that is the user's."""
        frame = self.innermost_user[number]
        return None if frame == NOBODY else (self.frames[frame].file, self.frames[frame].line)

    def holding(self, chosen: Mask) -> Mask:
        """Return which stacks have any of the chosen frames, one entry more for nobody."""
        tree = self._tree
        nodes = np.flatnonzero(chosen[tree.frame]) if len(tree.frame) else tree.frame
        return self.in_ranges(tree.low[nodes], tree.high[nodes])

    def in_ranges(self, low: Int64s, high: Int64s) -> Mask:
        """Return which stacks lie in any of some ranges of the tree's order, one entry more for nobody."""
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
        """Return which stacks hold a line, one entry more for nobody."""
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
