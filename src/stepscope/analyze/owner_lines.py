"""What does each line of the user's code do: does it feed autograd, the optimizer, the host or other ranks?

Everything with the line in its stack counts. This shows what can be removed without changing the training: a line is
`apart` where nothing it did has a backward, it calls neither backward nor the optimizer, and it sends nothing to the
device.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stepscope.analyze.owner_costs import host_waits
from stepscope.analyze.ownership import Line, LineSets, Mask, Ownership
from stepscope.analyze.phases import loop_in, marks_of
from stepscope.contract.run_folder import HOOK
from stepscope.contract.step_line import EVALUATE, Region
from stepscope.intervals import Intervals, covered_ns, union_of
from stepscope.records import ArrayRecord, dataclass, once_per_record
from stepscope.run.rank import Rank
from stepscope.run.side_files import Frame, SourceText
from stepscope.stats.robust import distinct
from stepscope.trace.table import EventKind, Int64s, by_string

_OPTIMIZER_FILES = ("torch/optim/", "torch/amp/grad_scaler")
_NEVER = np.iinfo(np.int64).max
# what a backward runs for a parameter, but not `autograd.grad`
_LEAF = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, eq=False, repr=False)
class _StepCalls(ArrayRecord):
    owned: Ownership
    sets: LineSets
    #: of each call's stack
    place: Int64s
    #: in `owned.calls`
    row: Int64s
    step: npt.NDArray[np.int32]
    #: an operator that no other is around, outside backward
    is_top: Mask

    def of_line(self, line: int) -> Int64s:
        edges = [np.searchsorted(self.place, ends) for ends in self.sets.ranges(line)]
        return np.concatenate([np.empty(0, np.int64), *(np.arange(low, high) for low, high in edges)])


@dataclass(frozen=True, eq=False, repr=False)
class LineWork(ArrayRecord):
    """What one line did on one rank, in all recorded steps."""

    line: Line
    #: in `calls.sets`
    number: int
    calls: _StepCalls
    #: autograd ran something back through what it did, or it called backward
    has_backward: bool
    #: autograd ran something back through a function `forward` that it called, or is in
    runs_model: bool
    #: it called a backward that leaves gradients in parameters
    leaves_gradients: bool
    optimizes: bool
    #: copies from the device to the host
    to_host: int
    to_device: int
    collectives: int
    #: without communication
    device_ns: int
    kernels: int
    #: operators that no other is around
    has_calls: bool

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
    def in_modules(self) -> bool:
        """Return whether all operators that it called ran in modules."""
        return bool((self.calls.owned.by_call.module[self.calls.row[self._mine]] >= 0).all())

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
    #: modules that autograd ran back through
    trained: frozenset[str]
    #: by step: when the last operator of backward began, the smallest number where none did
    backward_ns: Int64s
    #: by step: when the first module began that autograd ran back through, the largest number where none did
    forward_ns: Int64s
    #: by step: when the optimizer began, the largest number where it did not
    optimizer_ns: Int64s

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
        sets, first = self.sets, int(work.stacks[0])

        def is_around(other: int) -> bool:
            return bool(sets.sizes[other] > sets.sizes[work.number]) and sets.holds(other, work.number)

        if top[first] != work.number and is_around(top[first]):
            return True
        users = [int(sets.of_frame[f]) for f in self.owned.stacks[first] if self.owned.frames[f].is_user]
        path = [line for line in dict.fromkeys(users) if line in wanted]
        before = path[: path.index(work.number)]
        same = sets.sizes[work.number]
        return any(is_around(other) for other in path) or any(
            sets.sizes[other] == same and sets.holds(other, work.number) for other in before
        )

    def holding(self, line: Line) -> Mask:
        """Return which stacks hold a line, with a last entry for unowned work."""
        return self.sets.mask(self.lines[line].number)

    def holding_any(self, lines: Sequence[Line]) -> Mask:
        """Return which stacks hold any of some lines; those that the rank does not have hold none."""
        found = np.zeros(len(self.owned.stacks) + 1, bool)
        for line in lines:
            if line in self.lines:
                found |= self.holding(line)
        return found


def rank_lines(owned: Ownership) -> RankLines:
    """Return what the user's lines did on a rank."""
    rank, calls, by = owned.rank, owned.calls, owned.by_call
    steps, sets = rank.steps, owned.stacks.user_lines
    step = steps.of(calls.start_ns) if len(calls) else np.empty(0, np.int32)
    inside = step >= 0
    in_optimizer = [not f.is_user and any(part in f.file for part in _OPTIMIZER_FILES) for f in owned.frames]
    optimizer = owned.stacks.holding(np.array(in_optimizer, bool))
    count = len(steps)
    backward = inside & by.backward
    trained = frozenset(owned.modules[m] for m in distinct(by.module[backward]).tolist() if m >= 0 and owned.modules[m])
    is_trained = np.array([*(m in trained for m in owned.modules), False], bool)
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
    forward = owned.stacks.holding(np.array([f.function == "forward" for f in owned.frames], bool))
    leaves = back & by_string(owned.rank.trace, owned.calls.name, lambda name: name == _LEAF).astype(bool)
    launched = work.step >= 0
    took = (work.end_ns - work.start_ns) * (launched & (work.kind != EventKind.COMM_KERNEL))
    way = by_string(owned.rank.trace, work.name, _direction)
    called = np.where(owned.by_work.caller != owned.by_work.stack, owned.by_work.caller, -1)

    def counted(stack: npt.NDArray[np.integer], amount: npt.NDArray[np.integer] | Mask) -> list[int]:
        by_stack = np.zeros(len(owned.stacks) + 1, np.int64)
        np.add.at(by_stack, stack, amount)
        found: list[int] = sets.sums(by_stack[:-1]).tolist()
        return found

    has_backward = zip(counted(by.stack, back), counted(by.caller, back), strict=True)
    columns = (
        [bool(own or called) for own, called in has_backward],
        [n > 0 for n in counted(by.stack, back & forward[by.stack])],
        [n > 0 for n in counted(by.caller, leaves if leaves.any() else back)],
        [n > 0 for n in sets.sums(optimizer[:-1].astype(np.int64)).tolist()],
        counted(owned.by_work.stack, launched & (way == 1)),
        counted(owned.by_work.stack, launched & (way == 2)),
        counted(owned.by_collective.stack, c.step >= 0),
        np.add(counted(owned.by_work.stack, took), counted(called, took)).tolist(),
        counted(owned.by_work.stack, launched & (work.kind == EventKind.KERNEL)),
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
    return 0 if "copy" not in lower and "memcpy" not in lower else 1 if "dtoh" in lower else 2 if "htod" in lower else 0


def _earliest(when: Int64s, step: npt.NDArray[np.int32], count: int) -> Int64s:
    out = np.full(count, _NEVER, np.int64)
    np.minimum.at(out, step, when)
    return out


def _latest(when: Int64s, step: npt.NDArray[np.int32], count: int) -> Int64s:
    out = np.full(count, -_NEVER, np.int64)
    np.maximum.at(out, step, when)
    return out


# Lines of the training loop outside its passes, in every step.
#
# A step trains by calls of the model, backward, the optimizer and the loader. A line is outside of them where
#     it is no call of the model         autograd ran nothing back through trained modules in it
#     it is no other pass                no backward that leaves gradients, no collective, no step of the optimizer,
#                                        clipping or zeroing, no loader of torch's; at most half of its time is in
#                                        ranges of optimizer, backward or loader
#     it is not inside the model         or it works on the host there, or copies: below a function `forward`, with all
#                                        its operators in modules
#     the model is known                 autograd's nodes have a line of forward; else only lines without an operator
#
# Training may need what it makes (`may_train`) where it has a backward or runs modules, and where it changes tensors in
# place or no optimizer was seen (`changes`: weights updated by hand).
#
# A hook of gradients is such a line too: it ran only inside autograd's nodes, below the line that called backward,
# in a function that is not the `backward` of a Function, neither communicates nor steps an optimizer, and changed
# nothing in place. Its return value may have replaced the gradient: that is not recorded, and the finding says so.

Floats = npt.NDArray[np.float64]
# what is called there is a pass of the step, or prepares one
_TRAINING_FILES = (
    "torch/optim/",
    "torch/amp/grad_scaler",
    "torch/nn/utils/clip_grad",
    "torch/utils/data/",
)
_MOSTLY = 0.5
# arithmetic that changes a tensor in place, each with `_` at its end
_CHANGES = frozenset(
    ("add", "sub", "mul", "div", "lerp", "copy", "zero", "fill", "clamp", "clip", "addcmul", "addcdiv", "neg", "sign",
     "pow", "sqrt", "where", "masked_fill", "nan_to_num", "normal", "uniform")
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class LoopLine(ArrayRecord):
    """A line outside the passes, on one rank."""

    line: Line
    #: that the line is in
    function: str
    #: by step: the host's time for it, with all that it called
    ns: Floats
    #: of the device for it, in the mean step
    device_ns: float
    #: when the host began with it, each time
    began_ns: Int64s
    #: it is above the line of its function that runs forward: it may prepare the input
    before_forward: bool
    #: it changes tensors in place, or no optimizer was seen and it may update weights
    changes: bool
    #: see above
    may_train: bool
    #: it is in a hook that backward calls
    of_gradients: bool
    #: the share of its time that each line has which it calls, the outermost first
    inside: dict[Line, float]

    @property
    def typical_ns(self) -> float:
        """Return what it takes in the median step: what happens in few steps only is no part of it."""
        return float(np.median(self.ns)) if len(self.ns) else 0.0

    @property
    def mean_ns(self) -> float:
        """Return what it takes in the mean step."""
        return float(np.mean(self.ns)) if len(self.ns) else 0.0

    @property
    def longer_ns(self) -> float:
        """Return what it takes of the host in the median step or of the device, whichever is more."""
        return max(self.typical_ns, self.device_ns)


@once_per_record
def loop_lines(known: RankLines) -> dict[Line, LoopLine]:
    """Return the outermost lines of a rank outside the passes."""
    rank, owned = known.owned.rank, known.owned
    if rank.device_unseen or not len(rank.steps):
        return {}
    times, all_known = _LineTimes(known), _model_is_known(known)
    hooks = _gradient_hooks(known) if all_known else {}
    outside = {
        line: work
        for line, work in known.lines.items()
        if (all_known or not (work.has_calls or work.kernels)) and _is_outside(known, work, times)
    }
    chosen = outside | hooks
    names = {(f.file, f.line): f.function for f in reversed(owned.frames)}
    in_hook = _code_in_stacks(known)[2]
    took = {line: times.whole if line in hooks or work.has_backward else times.free for line, work in chosen.items()}
    return {
        line: LoopLine(
            line,
            names[line],
            took[line][chosen[line].number],
            chosen[line].device_ns / len(rank.steps),
            times.began_ns(chosen[line].stacks, in_backward=line in hooks),
            before_forward=line not in hooks and _stands_before_forward(known, chosen[line]),
            changes=_changes(chosen[line]) > 0 or (chosen[line].has_calls and not _optimizer_is_known(known)),
            may_train=bool(chosen[line].has_backward or (chosen[line].modules and not in_hook[chosen[line].number])),
            of_gradients=line in hooks,
            inside=_shares_inside(known, line, took[line]),
        )
        for line in known.outermost(chosen)
    }


def follows_a_pass(known: RankLines, line: LoopLine) -> bool:
    """Return whether a line runs after a pass of the trained modules without gradients, and so may use its result."""
    step = known.owned.rank.steps.of(line.began_ns)
    began_ns, step = line.began_ns[step >= 0], step[step >= 0]
    return bool(len(step)) and any(
        (work.first_ns[step] < began_ns).all()
        for work in known.lines.values()
        if not work.has_backward and not work.optimizes and work.modules & known.trained
        if not _in_forward(known)[work.number]
    )


def _gradient_hooks(known: RankLines) -> dict[Line, LineWork]:
    owned = known.owned
    calls, by, trace = owned.calls, owned.by_call, owned.rank.trace
    if not by.backward.any():
        return {}
    inside = owned.rank.steps.of(calls.start_ns) >= 0
    is_node = by_string(trace, calls.name, lambda name: name.startswith(EVALUATE)).astype(bool)
    asks = np.zeros(len(owned.stacks) + 1, bool)  # stacks that called backward
    asks[by.caller[inside & is_node]] = True
    changes = by_string(trace, calls.name, lambda name: _base(name) in _CHANGES).astype(bool)
    num_calls, num_direct = (_counts(known, by.stack[which]) for which in (inside, inside & ~by.backward))
    found = {}
    for line, work in known.lines.items():
        if not num_calls[work.number] or num_direct[work.number]:
            continue
        holding = known.holding(line)
        mine = inside & holding[by.stack]
        if not holding[by.caller[mine]].all():
            continue
        called = mine & ~np.where(calls.parent >= 0, mine[calls.parent], False)  # by the line itself
        if (holding & asks).any() or (changes & called).any() or work.collectives or work.optimizes:
            continue
        found[line] = work
    function_of = _functions(known)
    trains = {function_of[line] for line, work in known.lines.items() if work.collectives or work.optimizes}
    torch_trains, of_a_function, _ = _code_in_stacks(known)
    return {
        line: work
        for line, work in found.items()
        if function_of[line] not in trains and not of_a_function[work.number] and not torch_trains[work.number]
    }


def _counts(known: RankLines, stack: npt.NDArray[np.integer]) -> Int64s:
    return known.sets.sums(np.bincount(stack[stack >= 0], minlength=len(known.owned.stacks)))


def _functions(known: RankLines) -> dict[Line, tuple[str, str]]:
    return {
        (f.file, f.line): (f.file, f"{f.function} {f.line}" if f.function.startswith("<") else f.function)
        for f in reversed(known.owned.frames)
    }


@once_per_record
def _code_in_stacks(known: RankLines) -> tuple[Mask, Mask, Mask]:
    """Return for each line whether any of its stacks holds training code of torch's, whether any holds the backward of
    a Function, and whether all hold a hook of a module, which is called next to its forward.
    """
    frames, sets = known.owned.frames, known.sets

    def held(chosen: list[bool]) -> Int64s:
        return sets.sums(known.owned.stacks.holding(np.array(chosen, bool))[:-1].astype(np.int64))

    return (
        held([not f.is_user and _is_training_code(f) for f in frames]) > 0,
        held([f.function in ("backward", "vjp") for f in frames]) > 0,
        held([f.function.endswith(HOOK) for f in frames]) == sets.sizes,
    )


def _is_training_code(frame: Frame) -> bool:
    # frameworks wrap clipping: only the first frame of a library is recorded
    return frame.function.startswith("clip_grad") or any(part in frame.file for part in _TRAINING_FILES)


@once_per_record
def _optimizer_calls(known: RankLines) -> Int64s:
    """Return for each line the calls of an optimizer: most of a short `zero_grad` is outside its range."""
    owned = known.owned
    rows = marks_of(owned.rank).rows_of(Region.OPTIMIZER)
    return _counts(known, owned.by_call.stack[np.isin(owned.calls.row, rows)])


class _LineTimes:
    def __init__(self, known: RankLines) -> None:
        owned, rank = known.owned, known.owned.rank
        host, num_steps = owned.host, len(rank.steps)
        step = rank.steps.of(host.start_ns)
        mine = np.flatnonzero(host.runs & (step >= 0) & (host.owner.stack >= 0))
        start, end = host.start_ns[mine], host.end_ns[mine]
        self._owner, self._start = host.owner.at(mine), start
        own = (end - start - covered_ns(host_waits(rank), start, end)).astype(float)
        free = np.maximum(own - covered_ns(_passes(rank), start, end), 0.0)
        shape = (len(owned.stacks), num_steps)

        def summed(ns: Floats, stack: npt.NDArray[np.int32]) -> Floats:
            cell = stack.astype(np.int64) * num_steps + step[mine]
            by_cell = np.bincount(cell[stack >= 0], ns[stack >= 0], minlength=shape[0] * shape[1])
            return known.sets.sums(by_cell.astype(float).reshape(shape))

        self.free = summed(free, self._owner.stack)
        # with what it called of autograd
        called = np.where(self._owner.caller != self._owner.stack, self._owner.caller, -1)
        self.whole = summed(own, self._owner.stack) + summed(own, called)

    def began_ns(self, stacks: Int64s, *, in_backward: bool) -> Int64s:
        mine = np.isin(self._owner.stack, stacks) & (in_backward | ~self._owner.backward)
        return self._start[mine]


def _passes(rank: Rank) -> Intervals:
    """Return when a rank's loop was in backward, the loader or the optimizer, but for one that calls the others."""
    backward, optimizer = loop_in(rank, Region.BACKWARD), loop_in(rank, Region.OPTIMIZER)
    steps = covered_ns(backward, optimizer.start, optimizer.end) == 0
    steps_only = Intervals(optimizer.start[steps], optimizer.end[steps])
    return union_of(backward, loop_in(rank, Region.DATA), steps_only)


def _shares_inside(known: RankLines, line: Line, took: Floats) -> dict[Line, float]:
    sets, level = known.sets, _levels(known)
    number = known.lines[line].number
    inside = sorted((int(level[n]), sets.lines[n], n) for n in sets.inside(number) if level[n] >= 0)
    whole = max(float(took[number].sum()), 1.0)
    return {key: float(took[n].sum()) / whole for _, key, n in inside}


@once_per_record
def _levels(known: RankLines) -> Int64s:
    named = np.array([not f.function.startswith("<") for f in known.owned.frames], bool)
    return known.owned.stacks.levels_of_lines(known.sets, np.ones(len(known.owned.stacks) + 1, bool), named)


def _model_is_known(known: RankLines) -> bool:
    """Return whether some work of backward has its forward line; where steps begin with backward none has."""
    by = known.owned.by_call
    return bool((by.backward & (by.stack >= 0) & (by.stack != by.caller)).any())


def _optimizer_is_known(known: RankLines) -> bool:
    steps = len(marks_of(known.owned.rank).rows_of(Region.OPTIMIZER))
    return bool(steps or (known.optimizer_ns < _NEVER).any())


def is_pass(known: RankLines, work: LineWork) -> bool:
    """Return whether a line calls the model with gradients, backward, the optimizer, the loader or other ranks."""
    trains = work.runs_model or not known.trained or not work.modules.isdisjoint(known.trained)
    calls_model = work.has_backward and trains
    moves = work.leaves_gradients or work.optimizes or work.collectives
    return bool(calls_model or moves or _code_in_stacks(known)[0][work.number] or _optimizer_calls(known)[work.number])


def _is_outside(known: RankLines, work: LineWork, times: "_LineTimes") -> bool:
    if is_pass(known, work) or _only_zeroes(work):
        return False
    whole, free = float(times.whole[work.number].sum()), float(times.free[work.number].sum())
    if not work.has_backward and (free <= 0 or free < _MOSTLY * whole):
        return False
    computes = work.kernels if known.owned.rank.has_device else work.has_calls
    return not (_in_forward(known)[work.number] and work.in_modules and computes) or bool(work.to_host + work.to_device)


@once_per_record
def _in_forward(known: RankLines) -> Mask:
    """Return for each line whether it always runs below a function `forward`, or in one, and in no hook."""
    frames, of_frame = known.owned.frames, known.sets.of_frame
    inside = np.ones(len(known.sets), bool)

    def walk(above: bool, f: int) -> bool:
        below = frames[f].function == "forward" or (above and not frames[f].function.endswith(HOOK))
        inside[of_frame[f]] &= below
        return below

    known.owned.stacks.folded(False, walk)
    return inside


def _stands_before_forward(known: RankLines, work: LineWork) -> bool:
    return bool(_before_forward(known)[work.stacks[0]])


@once_per_record
def _before_forward(known: RankLines) -> list[bool | None]:
    """Return for each stack whether its outermost frame in a function with lines that have a backward, in none of them,
    is above all of them in the source; None where it has no such frame.
    """
    limits: dict[tuple[str, str], int] = {}
    frames = [f for f in known.owned.frames if f.is_user]
    trains = {line for line, work in known.lines.items() if work.has_backward}
    for f in frames:
        if (f.file, f.line) in trains:
            limits[f.file, f.function] = min(f.line, limits.get((f.file, f.function), f.line))
    verdict = [
        f.line < limits[f.file, f.function]
        if f.is_user and (f.file, f.function) in limits and (f.file, f.line) not in trains
        else None
        for f in known.owned.frames
    ]
    return known.owned.stacks.folded(None, lambda above, f: verdict[f] if above is None else above)


def _changes(work: LineWork) -> int:
    return sum(n for name, n in work.top_calls.items() if _base(name) in _CHANGES)


def _only_zeroes(work: LineWork) -> bool:
    return bool(work.top_calls) and all(_base(name) in ("zero", "fill", "detach") for name in work.top_calls)


def _base(name: str) -> str:
    """Return the operator of a name that changes a tensor in place, nothing for others.

    >>> _base("aten::lerp_"), _base("aten::_foreach_mul_"), _base("aten::add")
    ('lerp', 'mul', '')
    """
    plain = name.removeprefix("aten::").removeprefix("_foreach_")
    return plain[:-1] if plain.endswith("_") else ""


def loops(lines: Sequence[LoopLine], passes: Sequence[Line]) -> list[tuple[LoopLine, ...]]:
    """Return the lines of one rank in groups: lines that alternate in one loop of one function, with no line of a pass
    between them, form a group.
    """
    groups: list[list[LoopLine]] = []
    by_function: dict[tuple[str, str], list[LoopLine]] = defaultdict(list)
    for one in sorted(lines, key=lambda one: one.line):
        by_function[one.line[0], one.function].append(one)
    for (file, _), members in by_function.items():
        groups.append([members[0]])
        for before, one in pairwise(members):
            passed = any(other == file and before.line[1] < number < one.line[1] for other, number in passes)
            if _take_turns(before, one) and not passed:
                groups[-1].append(one)
            else:
                groups.append([one])
    return [tuple(group) for group in groups]


def _take_turns(one: LoopLine, other: LoopLine) -> bool:
    began = np.concatenate((one.began_ns, other.began_ns))
    is_other = (np.arange(len(began)) >= len(one.began_ns))[np.argsort(began, kind="stable")]
    # lines that take turns four times per step are in one loop
    return int((is_other[1:] != is_other[:-1]).sum()) >= 4 * max(len(one.ns), 1)


# Does the result of a line of the training loop flow into training, by its source text?
#
# Within the function that holds the line, names that its statement assigns are followed through later statements,
# around the loop once more, until one of them is used by a line that has a backward or steps the optimizer.
#
#     stats = grad_norms(model)          feeds nothing: only print uses it
#     print(stats)
#     scale = 1 / (1 + stats.mean())     feeds training: the next line uses it, and has a backward
#     loss = scale * criterion(model(x), y)
#
# None where the source does not show it: no source text, a function without training lines, or a value that leaves the
# function.

# methods through which a value gets into the object they are called on
_TAKES = frozenset(("add", "append", "appendleft", "copy_", "extend", "insert", "push", "put", "setdefault", "update"))
_Function = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def feeds_training(source: SourceText, known: RankLines, line: Line) -> bool | None:
    """Return whether what a line computes is used by a line of forward, backward or optimizer; None where unknown."""
    file, number = line
    lines = source.lines(file)
    tree = _parsed("\n".join(lines)) if lines is not None else None
    function = _function_at(tree, number) if tree is not None else None
    if function is None:
        return None
    trains = {at for (name, at), work in known.lines.items() if name == file and (work.has_backward or work.optimizes)}
    return _flows(function, number, trains)


def uses_results(source: SourceText, known: RankLines, line: Line) -> bool:
    """Return whether a line works with what a trained module returned, as far as its function's source shows: nothing
    can prepare that ahead of the model.
    """
    file, number = line
    lines = source.lines(file)
    tree = _parsed("\n".join(lines)) if lines is not None else None
    function = _function_at(tree, number) if tree is not None else None
    statements = list(_statements(function)) if function is not None else []
    runs = {at for (name, at), work in known.lines.items() if name == file and work.modules & known.trained} - {number}
    results = set[str]()
    for statement, parts in statements * 2:  # around the loop once more
        used = any(_uses(part) & results for part in parts)
        if used and _covers(parts, number):
            return True
        if used or any(_covers(parts, at) for at in runs):
            results |= _assigned(statement)
    return False


def skipped_line(source: SourceText, line: Line, seen: set[int]) -> int | None:
    """Return the first line of the `if` block below a line of which nothing was `seen` at work: what ran there in other
    steps; of several the one for every Nth step (`if step % 100 == 0:`). None where the source shows none.
    """
    lines = source.lines(line[0])
    tree = _parsed("\n".join(lines)) if lines is not None else None
    function = _function_at(tree, line[1]) if tree is not None else None
    skipped = []
    for statement, parts in _statements(function) if function is not None else ():
        inside = range(statement.lineno + 1, (statement.end_lineno or 0) + 1)
        if statement.lineno > line[1] and isinstance(statement, ast.If) and seen.isdisjoint(inside):
            every = any(isinstance(n, ast.Mod) for part in parts for n in ast.walk(part))
            skipped.append((not every, statement.lineno, statement))
        elif statement.lineno > line[1] and statement.lineno in seen:
            break
    if not skipped:
        return None
    body: ast.stmt = min(skipped, key=lambda one: one[:2])[2]
    while isinstance(body, ast.If | ast.With | ast.For):
        body = body.body[0]
    return body.lineno


@lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _function_at(tree: ast.Module, number: int) -> _Function | None:
    """Return the innermost function around a line, the module where there is none."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    around = [f for f in functions if f.lineno <= number <= (f.end_lineno or 0)]
    return max(around, key=lambda f: f.lineno, default=tree)


def _flows(function: _Function, number: int, trains: set[int]) -> bool | None:
    statements = list(_statements(function))
    mine = [s for s, parts in statements if _covers(parts, number)]
    if not any(_covers(parts, at) for at in trains for _, parts in statements) or not mine:
        return None
    if any(_covers(parts, at) for at in trains for _, parts in _statements(mine[-1])):
        return True  # it contains training, as `with torch.autocast(...):` does
    tainted, escapes = _assigned(mine[-1]), isinstance(mine[-1], ast.Return)
    for statement, parts in statements * 2:  # around the loop once more
        if statement is mine[-1] or not any(_uses(part) & tainted for part in parts):
            continue
        if any(_covers(parts, at) for at in trains):
            return True
        if isinstance(statement, ast.Return) or any(isinstance(n, ast.Yield) for part in parts for n in ast.walk(part)):
            escapes = True
        tainted |= _assigned(statement)
    leaves = {name for name in tainted if name.startswith("self.")}
    return None if escapes or leaves or not tainted.isdisjoint(_declared_outside(function)) else False


def _statements(node: ast.AST) -> Iterator[tuple[ast.stmt, list[ast.AST]]]:
    """Yield each statement of a function with its own expressions, without those of nested statements."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.stmt):
            parts = [
                c
                for c in ast.iter_child_nodes(child)
                if not isinstance(c, ast.stmt | ast.ExceptHandler | ast.match_case)
            ]
            yield child, parts
            yield from _statements(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _statements(child)


def _covers(parts: list[ast.AST], number: int) -> bool:
    spans = [(p.lineno, p.end_lineno) for part in parts for p in ast.walk(part) if isinstance(p, ast.expr)]
    return any(start <= number <= (end or start) for start, end in spans)


def _assigned(statement: ast.stmt) -> set[str]:
    """Return the names that a statement assigns or modifies."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [statement.target]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        targets = [called.value] if isinstance(called, ast.Attribute) and called.attr in _TAKES else []
    own = ast.walk(statement) if isinstance(statement, ast.Assign | ast.Expr) else ()
    named = {node.target.id for node in own if isinstance(node, ast.NamedExpr)}
    return named.union(*(_names(target) for target in targets))


def _names(target: ast.expr) -> set[str]:
    if isinstance(target, ast.Tuple | ast.List):
        return set[str]().union(*(_names(one) for one in target.elts))
    if isinstance(target, ast.Starred | ast.Subscript):
        return _names(target.value)
    if isinstance(target, ast.Attribute):
        return (
            {f"self.{target.attr}"}
            if isinstance(target.value, ast.Name) and target.value.id == "self"
            else _names(target.value)
        )
    return {target.id} if isinstance(target, ast.Name) else set()


def _uses(part: ast.AST) -> set[str]:
    """Return the names that an expression reads."""
    found = set()
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            found.add(f"self.{node.attr}")
    return found


def _declared_outside(function: _Function) -> set[str]:
    return {name for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
