"""What does each line of the user's code do: does anything of it go back through autograd, into the optimizer, to the
host or to other ranks?

Everything with the line in its stack counts. From that follows what could go without changing what is trained:
a line is `apart` where nothing it did has a backward, it calls neither backward nor the optimizer, and it sends nothing
to the device.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.analyze.owners.ownership import Ownership
from stepscope.analyze.owners.stacks import Line, LineSets, Mask
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind, by_string
from stepscope.trace.table import Int64s

_OPTIMIZER_FILES = ("torch/optim/", "torch/amp/grad_scaler")
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False, repr=False)
class _StepCalls(ArrayRecord):
    """The calls of recorded steps that have a stack, in the order of the tree of stacks."""

    owned: Ownership
    sets: LineSets
    place: Int64s
    """of each call's stack"""
    row: Int64s
    """in `owned.calls`"""
    step: npt.NDArray[np.int32]
    is_top: Mask
    """an operator that no other is around, outside backward"""

    def of_line(self, line: int) -> Int64s:
        """Return the calls that have a line in their stack, as places in these columns."""
        edges = [np.searchsorted(self.place, ends) for ends in self.sets.ranges(line)]
        return np.concatenate([np.empty(0, np.int64), *(np.arange(low, high) for low, high in edges)])


@dataclass(frozen=True, eq=False, repr=False)
class LineWork(ArrayRecord):
    """What one line did on one rank, in all recorded steps."""

    line: Line
    number: int
    """in `calls.sets`"""
    calls: _StepCalls
    has_backward: bool
    """autograd ran something back through what it did, or it called backward"""
    optimizes: bool
    to_host: int
    """copies from the device to the host"""
    to_device: int
    collectives: int
    device_ns: int
    """without communication"""
    has_calls: bool
    """operators that no other is around"""

    @cached_property
    def stacks(self) -> Int64s:
        """Return the stacks that hold it."""
        return self.calls.sets.numbers(self.number)

    @cached_property
    def modules(self) -> set[str]:
        """Return the modules that ran below it."""
        owned = self.calls.owned
        found = distinct(owned.by_call.module[self.calls.row[self._mine]]).tolist()
        return {owned.modules[m] for m in found if m >= 0 and owned.modules[m]}

    @cached_property
    def top_calls(self) -> dict[str, int]:
        """Return how often it called operators that no other is around, by name."""
        owned = self.calls.owned
        top = self.calls.row[self._mine[self.calls.is_top[self._mine]]]
        names, times = np.unique(owned.calls.name[top], return_counts=True)
        found: dict[str, int] = {}
        for name, n in zip(names.tolist(), times.tolist(), strict=True):
            text = owned.rank.trace.strings[name]
            found[text] = found.get(text, 0) + n
        return found

    @property
    def first_ns(self) -> Int64s:
        """Return by step when it began first, the largest number where it did not."""
        return _earliest(*self._direct, len(self.calls.owned.rank.steps))

    @property
    def last_ns(self) -> Int64s:
        """Return by step when it began last, the smallest number where it did not."""
        return _latest(*self._direct, len(self.calls.owned.rank.steps))

    @property
    def apart(self) -> bool:
        """Return whether nothing it did reaches gradients, parameters or the device's inputs by what was recorded."""
        return not (self.has_backward or self.optimizes or self.to_device)

    @property
    def in_place(self) -> int:
        """Return how many operators changed a tensor in place."""
        return sum(n for name, n in self.top_calls.items() if name.endswith("_"))

    @property
    def _mine(self) -> Int64s:
        return self.calls.of_line(self.number)

    @property
    def _direct(self) -> tuple[Int64s, npt.NDArray[np.int32]]:
        mine, owned = self._mine, self.calls.owned
        mine = mine[~owned.by_call.backward[self.calls.row[mine]]]
        return owned.calls.start_ns[self.calls.row[mine]], self.calls.step[mine]


@dataclass(frozen=True, eq=False, repr=False)
class RankLines(ArrayRecord):
    """The lines of one rank, with when its backward passes and optimizer ran."""

    owned: Ownership
    lines: dict[Line, LineWork]
    trained: frozenset[str]
    """modules that autograd ran back through"""
    backward_ns: Int64s
    """by step: when the last operator of backward began, the smallest number where none did"""
    forward_ns: Int64s
    """by step: when the first module began that autograd ran back through, the largest number where none did"""
    optimizer_ns: Int64s
    """by step: when the optimizer began, the largest number where it did not"""

    @property
    def sets(self) -> LineSets:
        """Return which stacks hold which line."""
        return self.owned.stacks.user_lines

    def outermost(self, wanted: dict[Line, LineWork]) -> list[Line]:
        """Return those of some lines that are called from no other of them."""
        by_number = {work.number: line for line, work in wanted.items()}
        of_frame = self.sets.of_frame.tolist()
        is_wanted = [of_frame[f] in by_number and frame.is_user for f, frame in enumerate(self.owned.frames)]
        top = self.owned.stacks.folded(-1, lambda above, f: above if above >= 0 or not is_wanted[f] else of_frame[f])
        return [line for line, work in wanted.items() if not self._is_inside(work, by_number, top)]

    def _is_inside(self, work: LineWork, wanted: dict[int, Line], top: list[int]) -> bool:
        """Return whether another line is around this one in all stacks; the outermost of one stack is tried first."""
        sets, first = self.sets, int(work.stacks[0])

        def is_around(other: int) -> bool:
            return bool(sets.sizes[other] > sets.sizes[work.number]) and sets.holds(other, work.number)

        if top[first] != work.number and is_around(top[first]):
            return True
        frames = self.owned.stacks[first]
        users = [int(sets.of_frame[f]) for f in frames if self.owned.frames[f].is_user]
        path = [line for line in dict.fromkeys(users) if line in wanted]
        before = path[: path.index(work.number)]
        same = sets.sizes[work.number]
        return any(is_around(other) for other in path) or any(
            sets.sizes[other] == same and sets.holds(other, work.number) for other in before
        )

    def holding(self, line: Line) -> Mask:
        """Return which stacks hold a line, one entry more for nobody."""
        return self.sets.mask(self.lines[line].number)


def rank_lines(owned: Ownership) -> RankLines:
    """Return what the user's lines did on a rank."""
    rank, calls, by = owned.rank, owned.calls, owned.by_call
    steps, sets = rank.steps, owned.stacks.user_lines
    step = steps.of(calls.start_ns) if len(calls) else np.empty(0, np.int32)
    inside = step >= 0
    trains = (f.file for f in owned.frames)
    in_optimizer = np.array([any(part in file for part in _OPTIMIZER_FILES) for file in trains], bool)
    in_optimizer &= ~np.array([f.is_user for f in owned.frames], bool)
    optimizer = owned.stacks.holding(in_optimizer)
    count = len(steps)
    backward = inside & by.backward
    trained = frozenset(owned.modules[m] for m in distinct(by.module[backward]).tolist() if m >= 0)
    is_trained = np.array([*(m in trained and bool(m) for m in owned.modules), False], bool)
    forward = inside & ~by.backward & (is_trained[by.module] if len(calls) else inside)
    optimizing = inside & optimizer[by.stack] if len(calls) else inside
    return RankLines(
        owned,
        _lines(owned, sets, step, optimizer),
        trained,
        backward_ns=_latest(calls.start_ns[backward], step[backward], count),
        forward_ns=_earliest(calls.start_ns[forward], step[forward], count),
        optimizer_ns=_earliest(calls.start_ns[optimizing], step[optimizing], count),
    )


def _lines(owned: Ownership, sets: LineSets, step: npt.NDArray[np.int32], optimizer: Mask) -> dict[Line, LineWork]:
    calls = _step_calls(owned, sets, step)
    by, work, c = owned.by_call, owned.rank.work, owned.rank.collectives
    back = by.backward & (step >= 0)
    launched = work.step >= 0
    took = (work.end_ns - work.start_ns) * (launched & (work.kind != EventKind.COMM_KERNEL))
    way = by_string(owned.rank.trace, work.name, _direction)

    def counted(stack: npt.NDArray[np.integer], amount: npt.NDArray[np.integer] | Mask) -> list[int]:
        by_stack = np.zeros(len(owned.stacks) + 1, np.int64)
        np.add.at(by_stack, stack, amount)
        found: list[int] = sets.sums(by_stack[:-1]).tolist()
        return found

    has_backward = zip(counted(by.stack, back), counted(by.caller, back), strict=True)
    columns = (
        [bool(own or called) for own, called in has_backward],
        [n > 0 for n in sets.sums(optimizer[:-1].astype(np.int64)).tolist()],
        counted(owned.by_work.stack, launched & (way == 1)),
        counted(owned.by_work.stack, launched & (way == 2)),
        counted(owned.by_collective.stack, c.step >= 0),
        counted(owned.by_work.stack, took),
        [n > 0 for n in counted(by.stack[calls.row], calls.is_top)],
    )
    each = list(zip(*columns, strict=True))
    return {sets.lines[n]: LineWork(sets.lines[n], n, calls, *each[n]) for n in sets.seen.tolist()}


def _step_calls(owned: Ownership, sets: LineSets, step: npt.NDArray[np.int32]) -> _StepCalls:
    calls, by = owned.calls, owned.by_call
    row = np.flatnonzero((step >= 0) & (by.stack >= 0))
    place = sets.stacks.places[by.stack[row]]
    order = np.argsort(place, kind="stable")
    row, place = row[order], place[order]
    is_range = owned.rank.kinds[calls.row] == EventKind.ANNOTATION
    parent = calls.parent[row]
    alone = (parent < 0) | (is_range[np.maximum(parent, 0)] if len(row) else False)
    return _StepCalls(owned, sets, place, row, step[row], alone & ~is_range[row] & ~by.backward[row])


def _direction(name: str) -> int:
    lower = name.lower()
    if "memcpy" not in lower and "copy" not in lower:
        return 0
    return 1 if "dtoh" in lower else 2 if "htod" in lower else 0


def _earliest(when: Int64s, step: npt.NDArray[np.int32], count: int) -> Int64s:
    out = np.full(count, _NEVER, np.int64)
    np.minimum.at(out, step, when)
    return out


def _latest(when: Int64s, step: npt.NDArray[np.int32], count: int) -> Int64s:
    out = np.full(count, -_NEVER, np.int64)
    np.maximum.at(out, step, when)
    return out
