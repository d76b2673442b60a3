"""What does each line of the user's code do: does anything of it go back through autograd, into the optimizer, to the
host or to other ranks?

Everything with the line in its stack counts. From that follows what could go without changing what is trained:
a line is `apart` where nothing it did has a backward, it calls neither backward nor the optimizer, and it sends nothing
to the device.
"""

from dataclasses import field

import numpy as np
import numpy.typing as npt

from stepscope.analyze.owners.ownership import Mask, Ownership
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind, by_string
from stepscope.trace.table import Int64s

Line = tuple[str, int]
_OPTIMIZER_FILES = ("torch/optim/", "torch/amp/grad_scaler")
_NEVER = np.iinfo(np.int64).max


@dataclass(eq=False, repr=False)
class LineWork(ArrayRecord):
    """What one line did on one rank, in all recorded steps."""

    line: Line
    stacks: list[int]
    """that hold it"""
    has_backward: bool = False
    """autograd ran something back through what it did, or it called backward"""
    optimizes: bool = False
    to_host: int = 0
    """copies from the device to the host"""
    to_device: int = 0
    modules: set[str] = field(default_factory=set)
    """that ran below it"""
    top_calls: dict[str, int] = field(default_factory=dict)
    """operators that no other is around, by name"""
    collectives: int = 0
    device_ns: int = 0
    """without communication"""
    first_ns: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    last_ns: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    """by step: when it began first and last, the largest and the smallest number where it did not"""

    @property
    def apart(self) -> bool:
        """Return whether nothing it did reaches gradients, parameters or the device's inputs by what was recorded."""
        return not (self.has_backward or self.optimizes or self.to_device)

    @property
    def in_place(self) -> int:
        """Return how many operators changed a tensor in place."""
        return sum(n for name, n in self.top_calls.items() if name.endswith("_"))


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

    def outermost(self, wanted: dict[Line, LineWork]) -> list[Line]:
        """Return those of some lines that are called from no other of them."""
        found = []
        for line, work in wanted.items():
            around = {k for k in wanted if k != line and set(wanted[k].stacks) >= set(work.stacks)}
            same = {k for k in around if set(wanted[k].stacks) == set(work.stacks)}
            if not around - same and not any(self._outside(k, line, work.stacks[0]) for k in same):
                found.append(line)
        return found

    def _outside(self, one: Line, other: Line, stack: int) -> bool:
        lines = [(self.owned.frames[f].file, self.owned.frames[f].line) for f in self.owned.stacks[stack]]
        return lines.index(one) < lines.index(other)

    def holding(self, line: Line) -> Mask:
        """Return which stacks hold a line, one entry more for nobody."""
        mask = np.zeros(len(self.owned.stacks) + 1, bool)
        mask[self.lines[line].stacks] = True
        return mask


def rank_lines(owned: Ownership) -> RankLines:
    """Return what the user's lines did on a rank."""
    rank, calls, by = owned.rank, owned.calls, owned.by_call
    steps = rank.steps
    step = steps.of(calls.start_ns) if len(calls) else np.empty(0, np.int32)
    inside = step >= 0
    lines: dict[Line, LineWork] = {}
    of_stack: list[list[LineWork]] = []
    for number, stack in enumerate(owned.stacks):
        frames = [owned.frames[f] for f in stack]
        optimizes = any(part in f.file for f in frames if not f.is_user for part in _OPTIMIZER_FILES)
        mine = []
        for key in dict.fromkeys((f.file, f.line) for f in frames if f.is_user):
            work = lines.setdefault(key, LineWork(key, []))
            work.stacks.append(number)
            work.optimizes |= optimizes
            mine.append(work)
        of_stack.append(mine)
    _add_calls(owned, of_stack, step, inside)
    _add_work(owned, of_stack)
    count = len(steps)
    backward = inside & by.backward
    trained = frozenset(owned.modules[m] for m in distinct(by.module[backward]).tolist() if m >= 0)
    is_trained = np.array([*(m in trained and bool(m) for m in owned.modules), False], bool)
    forward = inside & ~by.backward & (is_trained[by.module] if len(calls) else inside)
    optimizer = np.zeros(len(owned.stacks) + 1, bool)
    for number, stack in enumerate(owned.stacks):
        frames = [owned.frames[f] for f in stack if not owned.frames[f].is_user]
        optimizer[number] = any(part in f.file for f in frames for part in _OPTIMIZER_FILES)
    optimizing = inside & optimizer[by.stack] if len(calls) else inside
    return RankLines(
        owned,
        lines,
        trained,
        backward_ns=_latest(calls.start_ns[backward], step[backward], count),
        forward_ns=_earliest(calls.start_ns[forward], step[forward], count),
        optimizer_ns=_earliest(calls.start_ns[optimizing], step[optimizing], count),
    )


def _add_calls(owned: Ownership, of_stack: list[list[LineWork]], step: npt.NDArray[np.int32], inside: Mask) -> None:
    calls, by, strings = owned.calls, owned.by_call, owned.rank.trace.strings
    is_range = owned.rank.kinds[calls.row] == EventKind.ANNOTATION
    count = len(owned.rank.steps)
    for stack in distinct(np.append(by.stack[inside], by.caller[inside])).tolist():
        if stack < 0:
            continue
        mine = np.flatnonzero(inside & (by.stack == stack))
        back = bool(by.backward[mine].any()) or bool((inside & by.backward & (by.caller == stack)).any())
        direct = mine[~by.backward[mine]]
        first = _earliest(calls.start_ns[direct], step[direct], count)
        last = _latest(calls.start_ns[direct], step[direct], count)
        modules = {owned.modules[m] for m in distinct(by.module[mine]).tolist() if m >= 0 and owned.modules[m]}
        top = direct[(calls.parent[direct] < 0) | is_range[np.maximum(calls.parent[direct], 0)]]
        names, times = np.unique(calls.name[top[~is_range[top]]], return_counts=True)
        for work in of_stack[stack]:
            work.has_backward |= back
            work.modules |= modules
            work.first_ns = first if not len(work.first_ns) else np.minimum(work.first_ns, first)
            work.last_ns = last if not len(work.last_ns) else np.maximum(work.last_ns, last)
            for name, n in zip(names.tolist(), times.tolist(), strict=True):
                work.top_calls[strings[name]] = work.top_calls.get(strings[name], 0) + n


def _add_work(owned: Ownership, of_stack: list[list[LineWork]]) -> None:
    work, c = owned.rank.work, owned.rank.collectives
    launched = work.step >= 0
    took = (work.end_ns - work.start_ns) * (launched & (work.kind != EventKind.COMM_KERNEL))
    way = by_string(owned.rank.trace, work.name, _direction)
    for stack, mine in enumerate(of_stack):
        if not mine:
            continue
        owns = launched & (owned.by_work.stack == stack)
        sums = int(took[owns].sum()), int((way[owns] == 1).sum()), int((way[owns] == 2).sum())
        sends = int(((c.step >= 0) & (owned.by_collective.stack == stack)).sum())
        for line in mine:
            line.device_ns += sums[0]
            line.to_host += sums[1]
            line.to_device += sums[2]
            line.collectives += sends


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
