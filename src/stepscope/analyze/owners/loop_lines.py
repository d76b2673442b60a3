"""What does the training loop do in every step that is no pass of the model?

A step trains by forward, loss, backward, the optimizer and the loader. What the host spends in lines of the user's that
are none of these is work beside training: copies of the weights, statistics, logs, files, waiting.

A line is beside training where
    nothing went back through it       autograd ran no node for what it did, and it did not call backward
    it moved nothing                   no collective, no step of the optimizer or clipping, no loader of torch's
    it lies in no pass                 at most half of its time inside ranges of optimizer, backward or loader
    it ran no part of a model          no module, or it is a hook of one, or none that is trained and only after the
                                       step's last backward
    it changed nothing beforehand      an arithmetic operator in place only once backward and optimizer have run, and
                                       not to zero tensors alone, which is `zero_grad` by hand
    the passes are known               autograd's nodes have a line of forward, and an optimizer ran; else only
                                       lines without an operator (an update by hand looks like any other work)

Where a device computes, other rules ask about what the host does alone, what it brings back and what it changes one by
one. There a line is beside training only where, besides, it has operators, runs no module, copies nothing to the host,
changes nothing in place and does not stand above forward, where it may prepare the input: statistics on the device.

Lines inside `forward` through which no gradient goes (masks, routing, frozen networks) may decide the loss: not judged.

A hook of gradients is judged too: a line that ran only inside autograd's nodes, below the line that called backward, in
a function that is no `backward` of a Function's, neither communicates nor steps an optimizer, and changed nothing in
place. What it returned may have replaced the gradient: that is not recorded, and is said.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.owners.line_work import LineWork, RankLines
from stepscope.analyze.owners.stacks import Line
from stepscope.analyze.owners.sums import host_waits
from stepscope.analyze.step.regions import loop_in, marks_of
from stepscope.contract.owners import HOOK
from stepscope.contract.regions import EVALUATE, Region
from stepscope.dataclass import dataclass
from stepscope.intervals import covered_ns
from stepscope.records import ArrayRecord, once_per_record
from stepscope.trace.classify import by_string
from stepscope.trace.table import Int64s

Floats = npt.NDArray[np.float64]
_PASSES = (Region.BACKWARD, Region.OPTIMIZER, Region.DATA)
_TRAINING_FILES = (
    "torch/optim/",
    "torch/amp/",
    "torch/nn/utils/clip_grad",
    "torch/nn/parallel/",
    "torch/distributed/",
    "torch/autograd/",
    "torch/utils/data/",
)
"""what is called there is a pass of the step, or prepares one"""
_OF_A_FUNCTION = ("backward", "vjp")
"""what the backward of a `torch.autograd.Function` is called"""
_MOSTLY = 0.5
_NEVER = np.iinfo(np.int64).max
_MIN_TURNS = 4
"""per step: lines that take turns as often are in one loop"""
_CHANGES = frozenset(
    ("add", "sub", "mul", "div", "lerp", "copy", "zero", "fill", "clamp", "clip", "addcmul", "addcdiv", "neg", "sign",
     "pow", "sqrt", "where", "masked_fill", "nan_to_num", "normal", "uniform")
)  # fmt: skip
"""arithmetic that changes a tensor in place, each with `_` at its end"""


@dataclass(frozen=True, eq=False, repr=False)
class LoopLine(ArrayRecord):
    """A line beside training, on one rank."""

    line: Line
    function: str
    """that the line is in"""
    ns: Floats
    """by step: the host's time for it, with all that it called"""
    device_ns: float
    """of the device for it, in the mean step"""
    began_ns: Int64s
    """when the host began with it, each time"""
    before_forward: bool
    """it stands above the line of its function that runs forward: it may prepare the input"""
    in_place: bool
    of_gradients: bool
    """it is in a hook that backward calls"""
    inside: dict[Line, float]
    """the share of its time that each line has which it calls, the outermost first"""

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
    """Return the outermost lines of a rank that are beside training."""
    rank, owned = known.owned.rank, known.owned
    if rank.device_unseen or not len(rank.steps):
        return {}
    times, all_known = _LineTimes(known), _passes_are_known(known)
    hooks = _gradient_hooks(known) if all_known else {}
    beside = {
        line: work
        for line, work in known.lines.items()
        if (all_known or not work.has_calls)
        and _is_beside(known, work, times)
        and (not rank.has_device or _stays_on_the_device(known, work))
    }
    chosen = beside | hooks
    names = {(f.file, f.line): f.function for f in reversed(owned.frames)}
    return {
        line: LoopLine(
            line,
            names[line],
            (times.whole if line in hooks else times.free)[chosen[line].number],
            chosen[line].device_ns / len(rank.steps),
            times.began_ns(chosen[line].stacks),
            before_forward=line not in hooks and _stands_before_forward(known, chosen[line]),
            in_place=_changes(chosen[line]) > 0,
            of_gradients=line in hooks,
            inside=_shares_inside(known, line, times.whole if line in hooks else times.free),
        )
        for line in known.outermost(chosen)
    }


def _gradient_hooks(known: RankLines) -> dict[Line, LineWork]:
    """Return the lines that ran only where autograd called a function of the user's that changed nothing in place."""
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
    in_stacks = _code_in_stacks(known)
    return {
        line: work
        for line, work in found.items()
        if function_of[line] not in trains
        and not in_stacks.of_a_function[work.number]
        and not in_stacks.trains[work.number]
    }


def _counts(known: RankLines, stack: npt.NDArray[np.integer]) -> Int64s:
    """Return how many of some things have each line in their stack."""
    return known.sets.sums(np.bincount(stack[stack >= 0], minlength=len(known.owned.stacks)))


def _functions(known: RankLines) -> dict[Line, tuple[str, str]]:
    """Return file and name of the function that each line is in; of one without a name the line."""
    return {
        (f.file, f.line): (f.file, f"{f.function} {f.line}" if f.function.startswith("<") else f.function)
        for f in reversed(known.owned.frames)
    }


@dataclass(frozen=True, eq=False, repr=False)
class _CodeInStacks(ArrayRecord):
    """What the stacks that hold each line have in them."""

    trains: npt.NDArray[np.bool_]
    """any: code of torch's that trains"""
    of_a_function: npt.NDArray[np.bool_]
    """any: the backward of a Function"""
    hook: npt.NDArray[np.bool_]
    """all: a hook of a module, which is called beside its forward"""


@once_per_record
def _code_in_stacks(known: RankLines) -> _CodeInStacks:
    frames, sets = known.owned.frames, known.sets

    def held(chosen: list[bool]) -> Int64s:
        return sets.sums(known.owned.stacks.holding(np.array(chosen, bool))[:-1].astype(np.int64))

    return _CodeInStacks(
        held([not f.is_user and any(part in f.file for part in _TRAINING_FILES) for f in frames]) > 0,
        held([f.function in _OF_A_FUNCTION for f in frames]) > 0,
        held([f.function.endswith(HOOK) for f in frames]) == sets.sizes,
    )


class _LineTimes:
    """The host's own time of a rank by line and step, with and without its passes."""

    def __init__(self, known: RankLines) -> None:
        owned, rank = known.owned, known.owned.rank
        host, num_steps = owned.host, len(rank.steps)
        step = rank.steps.of(host.start_ns)
        mine = np.flatnonzero(host.runs & (step >= 0) & (host.owner.stack >= 0))
        start, end = host.start_ns[mine], host.end_ns[mine]
        self._stack, self._start = host.owner.stack[mine], start
        own = (end - start - covered_ns(host_waits(rank), start, end)).astype(float)
        free = np.maximum(own - covered_ns(loop_in(rank, *_PASSES), start, end), 0.0)
        cell, shape = self._stack.astype(np.int64) * num_steps + step[mine], (len(owned.stacks), num_steps)

        def summed(ns: Floats) -> Floats:
            return np.bincount(cell, ns, minlength=shape[0] * shape[1]).astype(float).reshape(shape)

        sets = known.sets
        self.whole, self.free = sets.sums(summed(own)), sets.sums(summed(free))
        self.in_module = sets.sums(summed(free * (host.owner.module[mine] >= 0)))
        self.first_ns = np.full(shape, _NEVER, np.int64)
        """by stack"""
        np.minimum.at(self.first_ns.reshape(-1), cell, start)

    def began_ns(self, stacks: Int64s) -> Int64s:
        """Return when the host began with any of some stacks."""
        return self._start[np.isin(self._stack, stacks)]


def _shares_inside(known: RankLines, line: Line, took: Floats) -> dict[Line, float]:
    """Return the lines that only this one calls, by the depth at which they stand, with their shares of its time."""
    sets, level = known.sets, _levels(known)
    number = known.lines[line].number
    inside = sorted((int(level[n]), sets.lines[n], n) for n in sets.inside(number) if level[n] >= 0)
    whole = max(float(took[number].sum()), 1.0)
    return {key: float(took[n].sum()) / whole for _, key, n in inside}


@once_per_record
def _levels(known: RankLines) -> Int64s:
    """Return how deep each line stands among the user's, -1 where it is in no function with a name."""
    named = np.array([not f.function.startswith("<") for f in known.owned.frames], bool)
    return known.owned.stacks.levels_of_lines(known.sets, np.ones(len(known.owned.stacks) + 1, bool), named)


def _passes_are_known(known: RankLines) -> bool:
    """Return whether some work of backward has its forward line (where steps begin with backward none has), and an
    optimizer ran.
    """
    by = known.owned.by_call
    linked = bool((by.backward & (by.stack >= 0) & (by.stack != by.caller)).any())
    steps = len(marks_of(known.owned.rank).rows_of(Region.OPTIMIZER))
    return linked and bool(steps or (known.optimizer_ns < _NEVER).any())


def _is_beside(known: RankLines, work: LineWork, times: _LineTimes) -> bool:
    in_stacks = _code_in_stacks(known)
    if not work.apart or work.collectives or in_stacks.trains[work.number]:
        return False
    whole, free = float(times.whole[work.number].sum()), float(times.free[work.number].sum())
    if free <= 0 or free < _MOSTLY * whole or _only_zeroes(work):
        return False
    after = _after_training(known, times.first_ns[work.stacks].min(axis=0))
    if float(times.in_module[work.number].sum()) >= _MOSTLY * free and not in_stacks.hook[work.number]:
        return after and work.modules.isdisjoint(known.trained)
    return after or not _changes(work)


def _stays_on_the_device(known: RankLines, work: LineWork) -> bool:
    """Return whether a line ran operators, none of a module's, whose results neither go to the host nor into tensors
    that are there, nor are input.
    """
    if not work.has_calls or work.to_host or _changes(work) or _stands_before_forward(known, work):
        return False
    return not work.modules or bool(_code_in_stacks(known).hook[work.number])


def _after_training(known: RankLines, first_ns: Int64s) -> bool:
    """Return whether something always began after the last backward of its step and after the optimizer had begun."""
    began = np.maximum(known.backward_ns, np.where(known.optimizer_ns < _NEVER, known.optimizer_ns, 0))
    return bool((first_ns > began).all())


def _stands_before_forward(known: RankLines, work: LineWork) -> bool:
    """Return whether a line, or one that calls it, stands above what is trained in the same function."""
    return bool(_before_forward(known)[work.stacks[0]])


def stands_after_optimizer(known: RankLines, work: LineWork) -> bool:
    """Return whether a line, or one that calls it, stands below the line of its function that steps the optimizer.

    A step that ends with its optimizer has what follows at its beginning: then only the source tells the order.
    """
    return bool(_after_optimizer(known)[work.stacks[0]])


@once_per_record
def _before_forward(known: RankLines) -> list[bool | None]:
    trained = {line for line, work in known.lines.items() if work.has_backward}
    first = _lines_by_function(known, trained)
    return _outermost_verdicts(known, trained, {key: min(lines) for key, lines in first.items()}, below=False)


@once_per_record
def _after_optimizer(known: RankLines) -> list[bool | None]:
    steps = {line for line, work in known.lines.items() if work.optimizes}
    last = _lines_by_function(known, steps)
    return _outermost_verdicts(known, steps, {key: max(lines) for key, lines in last.items()}, below=True)


def _lines_by_function(known: RankLines, lines: set[Line]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for f in known.owned.frames:
        if (f.file, f.line) in lines:
            found[f.file, f.function].append(f.line)
    return found


def _outermost_verdicts(
    known: RankLines, lines: set[Line], limit: dict[tuple[str, str], int], *, below: bool
) -> list[bool | None]:
    """Return for each stack whether its outermost frame in a function with a limit, in none of the lines, is below it
    in the source (or above it); None where it has no such frame.
    """
    verdict: list[bool | None] = []
    for f in known.owned.frames:
        line = limit.get((f.file, f.function))
        judged = f.is_user and line is not None and (f.file, f.line) not in lines
        verdict.append((f.line > line if below else f.line < line) if judged and line is not None else None)
    return known.owned.stacks.folded(None, lambda above, f: verdict[f] if above is None else above)


def _changes(work: LineWork) -> int:
    """Return how many operators changed the numbers of a tensor in place."""
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
    """Return the lines of one rank in groups: those that take turns in one loop of one function belong together.

    No line of a pass lies between them.
    """
    groups: list[list[LoopLine]] = []
    by_function: dict[tuple[str, str], list[LoopLine]] = defaultdict(list)
    for one in sorted(lines, key=lambda one: one.line):
        by_function[one.line[0], one.function].append(one)
    for (file, _), members in by_function.items():
        numbers = sorted(number for other, number in passes if other == file)
        group: list[LoopLine] = []
        for one in members:
            if group and not (_take_turns(group[-1], one) and not _between(numbers, group[-1].line[1], one.line[1])):
                groups.append(group)
                group = []
            group.append(one)
        groups.append(group)
    return [tuple(group) for group in groups]


def _take_turns(one: LoopLine, other: LoopLine) -> bool:
    began = np.concatenate((one.began_ns, other.began_ns))
    is_other = (np.arange(len(began)) >= len(one.began_ns))[np.argsort(began, kind="stable")]
    return int((is_other[1:] != is_other[:-1]).sum()) >= _MIN_TURNS * max(len(one.ns), 1)


def _between(numbers: Sequence[int], low: int, high: int) -> bool:
    return any(low < number < high for number in numbers)
