"""Steps of a run without step marks: those that all ranks show alike.

The loader's batches and the optimizer's steps, else the period of the kernels' sequence, on every rank as many: a step
is the same step everywhere. Else the whole window of each rank is one stretch, so that what was lost in it is found;
how often the loop went round in it is unknown, and a window of more than MAX_ITEMS is too long to be replayed.

A trace that was cut off holds the host's events first and the device's after them. So as far as launches have device
work it is complete, and only that far it is looked at; without any device work nothing tells how far that is.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.run.device_work import DeviceWork, device_work
from stepscope.run.rank import Rank
from stepscope.run.step_log import MISSING, PASSES_NS, StepLog, unprofiled_step
from stepscope.run.steps import Steps, unnamed_steps
from stepscope.stats.robust import OFTEN, median
from stepscope.trace.classify import EventKind, Kinds, of_kinds, rows_named
from stepscope.trace.table import Int64s, Trace
from stepscope.units import ms

# Marks: the loader's next batch begins a step where there is one per optimizer step; else the optimizer ends it, and
# the first is left out. Optimizers that alternate (a generator's and a discriminator's) make one step together.

_LOADER = re.compile(r"^enumerate\(DataLoader\)#|^\[pl\]\[profile\]\[_?TrainingEpochLoop\]\.train_dataloader_next$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_ENGINE = re.compile(r"^autograd::engine::evaluate_function|^torch::autograd::|Backward\d*$")
_FEWEST = 2
# of the operators between two optimizer steps may differ from those one pattern later
_ALIKE = 0.05


def steps_between_marks(trace: Trace, kinds: Kinds) -> tuple[Int64s, Int64s, str] | None:
    """Return start and end of each step, and what they were told by; None where neither mark recurs."""
    ranges = np.flatnonzero(kinds == EventKind.ANNOTATION)
    optimizer = _spans(trace, rows_named(trace, ranges, lambda s: bool(_OPTIMIZER.match(s))))
    loader = _spans(trace, rows_named(trace, ranges, lambda s: bool(_LOADER.match(s))))
    if len(optimizer) < _FEWEST:
        return None
    ends = _last_of_each(trace, kinds, optimizer)
    begins = loader[:, 0]
    if len(begins) >= _FEWEST and (np.diff(np.searchsorted(ends, begins)) == 1).all():
        last = ends[ends > begins[-1]]
        edges = np.append(begins, last[:1]) if len(last) else begins
        return edges[:-1], edges[1:], "the batches of the loader"
    if len(ends) <= _FEWEST:
        return None
    return ends[:-1], ends[1:], "the ends of Optimizer.step"


def _spans(trace: Trace, rows: npt.NDArray[np.intp]) -> Int64s:
    start = trace["ts_ns"][rows]
    both = np.stack((start, start + trace["dur_ns"][rows]), axis=1)[np.argsort(start, kind="stable")]
    if not len(both):
        return both
    reach = np.maximum.accumulate(both[:, 1])
    return both[np.append(True, both[1:, 0] >= reach[:-1])]


def _last_of_each(trace: Trace, kinds: Kinds, optimizer: Int64s) -> Int64s:
    ops = np.flatnonzero(kinds == EventKind.HOST_OP)
    backward = np.sort(trace["ts_ns"][rows_named(trace, ops, lambda s: bool(_ENGINE.search(s)))])
    passed = np.searchsorted(backward, optimizer[:, 0])
    ends = optimizer[np.append(np.diff(passed) > 0, True), 1] if len(backward) else optimizer[:, 1]
    count = np.diff(np.searchsorted(np.sort(trace["ts_ns"][ops]), ends))
    for every in range(1, 5):
        if len(count) < 2 * every:
            break
        off = np.abs(count[every:] - count[:-every]) / np.maximum(count[:-every], 1)
        if median(off) <= _ALIKE:
            return ends[(len(ends) - 1) % every :: every]
    return ends


# Steps from the period of the kernel sequence.
#
# A kernel that runs once per step is an anchor: what lies between two of its launches is the same every time.
#
#     A b c d d d e   A b c d d d e   A b c d d d e      A, b, c, e are anchors; d is not: the pieces between differ
#
# Of all anchors the most frequent one with pieces as alike as the best has the shortest period. The confidence is how
# alike the least alike piece is. Any anchor would do; the one before which the device idles longest begins the step.

# whole ones; fewer repetitions may be chance
_MIN_STEPS = 2
_MIN_CONFIDENCE = 0.9
# in a step: a loop over a handful of kernels is a benchmark, not a step
_MIN_KERNELS = 5
# pieces times names that are compared for one anchor
_MAX_CELLS = 1_000_000
# of the kernels before the first and after the last anchor must belong to a usual step
_MIN_FITTING = 0.98
# of the launched kernels must lie in the steps found
_MIN_COVERED = 0.6


class Period(NamedTuple):
    """Steps as the kernels' sequence shows them, on the host's clock."""

    start_ns: Int64s
    end_ns: Int64s
    #: 0 to 1: how alike the kernels of the step are that is least like the others
    confidence: float


def kernel_period(trace: Trace, work: DeviceWork) -> Period | None:
    """Return the steps that the sequence of launched kernels repeats in, None where nothing repeats."""
    rows = np.flatnonzero((work.launch_row >= 0) & of_kinds(work.kind, (EventKind.KERNEL, EventKind.COMM_KERNEL)))
    if not _MIN_STEPS * _MIN_KERNELS <= len(rows) <= 400_000:
        return None
    asked = trace["ts_ns"][work.launch_row[rows]]
    order = np.lexsort((work.start_ns[rows], asked))
    rows, asked = rows[order], asked[order]
    names, code = np.unique(work.name[rows], return_inverse=True)
    if len(names) > 4_000:
        return None
    anchors = _anchors(code, len(names))
    if not anchors:
        return None
    best = max(score for _, score in anchors)
    near = [(at, score) for at, score in anchors if score >= best - 0.02]
    most = max(len(at) for at, _ in near)
    alike = [(at, score) for at, score in near if len(at) == most]
    at, score = max(alike, key=lambda anchor: _idle_before(work, rows, anchor[0]))
    begins = asked[at]
    if score < _MIN_CONFIDENCE or not (np.diff(begins) > 0).all():
        return None
    return Period(begins[:-1], begins[1:], round(score, 3))


def _anchors(code: npt.NDArray[np.intp], names: int) -> list[tuple[npt.NDArray[np.intp], float]]:
    by_name = np.argsort(code, kind="stable")
    cuts = np.searchsorted(code[by_name], np.arange(names + 1))
    out = []
    for name in range(names):
        at = np.sort(by_name[cuts[name] : cuts[name + 1]])
        if len(at) <= _MIN_STEPS or at[-1] - at[0] < _MIN_COVERED * len(code):
            continue
        length = np.diff(at)
        if length.min() < max(_MIN_KERNELS, _MIN_CONFIDENCE * length.max()) or len(at) * names > _MAX_CELLS:
            continue
        out.append((at, _likeness(code, at, names)))
    return out


def _likeness(code: npt.NDArray[np.intp], at: npt.NDArray[np.intp], names: int) -> float:
    """Return the share of kernels that the piece least like the usual one has in common with it.

    What lies before the first anchor and after the last are parts of steps: kernels that no usual piece has there tell
    that the pieces are layers of one step, between its first and its last kernels.
    """
    inside = code[at[0] : at[-1]]
    piece = np.repeat(np.arange(len(at) - 1), np.diff(at))
    counts = np.bincount(piece * names + inside, minlength=(len(at) - 1) * names).reshape(len(at) - 1, names)
    usual = np.median(counts, axis=0)
    shared = np.minimum(counts, usual).sum(axis=1)
    inner = float((shared / np.maximum(np.maximum(counts.sum(axis=1), usual.sum()), 1)).min())
    ends = [np.bincount(part, minlength=names) for part in (code[: at[0]], code[at[-1] :])]
    outer = [float(np.minimum(part, usual).sum() / part.sum()) for part in ends if part.any()]
    return min(inner, *outer) if min(outer, default=1.0) >= _MIN_FITTING else 0.0


def _idle_before(work: DeviceWork, rows: Int64s, at: npt.NDArray[np.intp]) -> float:
    reach = np.maximum.accumulate(work.end_ns[rows])
    inner = at[at > 0]
    return median(np.maximum(work.start_ns[rows[inner]] - reach[inner - 1], 0)) if len(inner) else 0.0


# of device work and collectives on all ranks: a longer window is no stretch
_MAX_ITEMS = 60_000


def with_derived_steps(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks with steps where none of them has any and all tell the same number of them."""
    if any(len(rank.steps) for rank in ranks):
        return list(ranks)
    is_short = sum(len(rank.work) or len(rank.collectives) for rank in ranks) <= _MAX_ITEMS
    for tell in (_marked, _periodic, _whole) if is_short else (_marked, _periodic):
        found = [_as_far_as_known(rank, tell(rank)) for rank in ranks]
        steps = [one for one in found if one is not None]
        if len(steps) == len(ranks) and len({len(one) for one in steps}) == 1:
            return [_with_steps(rank, one) for rank, one in zip(ranks, steps, strict=True)]
    return list(ranks)


def _as_far_as_known(rank: Rank, steps: Steps | None) -> Steps | None:
    if steps is None or not rank.trace.quality.truncated:
        return steps
    launches = rank.work.launch_row[rank.work.launch_row >= 0]
    if not rank.has_device or not len(launches):
        return None
    known_until_ns = (rank.trace["ts_ns"][launches] + rank.trace["dur_ns"][launches]).max()
    keep = steps.end_ns <= known_until_ns + 1
    whole = replace(steps, number=steps.number[keep], start_ns=steps.start_ns[keep], end_ns=steps.end_ns[keep])
    return whole if len(whole) else None


def _marked(rank: Rank) -> Steps | None:
    found = steps_between_marks(rank.trace, rank.kinds)
    return None if found is None else unnamed_steps(*found)


def _periodic(rank: Rank) -> Steps | None:
    found = kernel_period(rank.trace, rank.work)
    if found is None:
        return None
    told_by = f"the period of the sequence of kernels (confidence {found.confidence:.2f})"
    return unnamed_steps(*found[:2], told_by)


def _whole(rank: Rank) -> Steps | None:
    rows = rank.work.launch_row[rank.work.launch_row >= 0]
    rows = rows if rank.has_device else np.flatnonzero(rank.kinds == EventKind.HOST_OP)
    if not len(rows):
        return None
    start = rank.trace["ts_ns"][rows]
    end = start + rank.trace["dur_ns"][rows]
    first_ns = start.min()
    host = np.flatnonzero(of_kinds(rank.kinds, (EventKind.HOST_OP, EventKind.ANNOTATION, EventKind.RUNTIME)))
    if rank.has_device and len(host):
        # The device may be busy with earlier work: what the host does meanwhile is part of the window.
        first_ns = min(first_ns, max(rank.work.start_ns.min(), rank.trace["ts_ns"][host].min()))
    bounds = np.array([first_ns], np.int64), np.array([end.max() + 1], np.int64)
    return unnamed_steps(*bounds, "the whole window", is_window=True)


def _with_steps(rank: Rank, steps: Steps) -> Rank:
    work, joins = device_work(rank.trace, rank.kinds, steps)
    c = rank.collectives
    asked = c.issue_ns > np.iinfo(np.int64).min
    step = steps.of(np.where(asked, c.issue_ns, c.start_ns))
    if rank.has_device:
        step[~asked] = -1
    return replace(rank, steps=steps, work=work, joins=joins, collectives=replace(c, step=step))


# Several steps of the optimizer that follow passes without gradients, again and again, are one step of the loop.
#
# A policy writes answers, is scored, and is then improved in several steps by what it wrote. The step log shows it:
#
#     step          4    5    6    7    8    9
#     evaluation   68        67        99             rounds of two steps: 4-5, 6-7, 8-9
#
# Every second step of the optimizer is another kind of step than the one before it, and neither stands for the run:
# the
# round does. Rounds are counted from 0 in the log, and those of the window by the same numbers.

# of a round: what comes more seldom recurs in some steps, and is told apart from the ordinary one
_MAX_STEPS = round(1 / OFTEN)
# of the time of all steps: passes that take less do not make a step another one
_MIN_SHARE = 0.1
_OF_ONE_STEP = (
    "flops_per_step",
    "hardware_flops_per_step",
    "profiled_step_ms",
    "unprofiled_before",
    "unprofiled_after",
)


@dataclass(frozen=True)
class Rounds:
    """Which steps of the optimizer are one round."""

    #: steps of the optimizer
    size: int
    #: number of the step that the first round begins with
    first: int

    def of(self, number: Int64s) -> Int64s:
        """Return the round of each step, negative before the first.

        >>> Rounds(2, 4).of(np.array([3, 4, 5, 6])).tolist()
        [-1, 0, 0, 1]
        """
        return (number - self.first) // self.size

    def whole(self, number: Int64s) -> npt.NDArray[np.intp]:
        """Return the places of the steps of each round that is there as a whole, one row each; steps are in order."""
        mine = self.of(number)
        first = np.flatnonzero(np.diff(mine, prepend=mine[:1] - 1) != 0)
        size = np.diff(first, append=len(mine))
        first = first[(size == self.size) & (mine[first] >= 0)]
        return first[:, None] + np.arange(self.size)


def in_rounds(
    ranks: Sequence[Rank], logs: Sequence[StepLog], description: dict[str, Any]
) -> tuple[list[Rank], tuple[StepLog, ...], dict[str, Any], list[str]]:
    """Return a run whose steps are rounds, and a line that says so; the same run where its steps are steps."""
    found = {_rounds(log) for log in logs}
    rounds = found.pop() if len(found) == 1 else None
    steps = [_steps_in_rounds(rank.steps, rounds) if rounds else None for rank in ranks]
    if rounds is None or any(s is None for s in steps):
        return list(ranks), tuple(logs), description, []
    line = (
        f"a step of this report is a round of {rounds.size} steps of the optimizer: passes without gradients, as those "
        f"of a policy that writes what it is trained on, come once in {rounds.size} of them"
    )
    joined = tuple(_log_in_rounds(log, rounds) for log in logs)
    described = _description_in_rounds(description, rounds, joined)
    return [_with_steps(r, s) for r, s in zip(ranks, steps, strict=True) if s is not None], joined, described, [line]


def _rounds(log: StepLog) -> Rounds | None:
    passes = np.nan_to_num(log.column(PASSES_NS))
    begins = log.step[passes > 0]
    if len(begins) < 4 or (np.diff(log.step) != 1).any():
        return None
    size, first, last = int(begins[1] - begins[0]), int(begins[0]), int(log.step[-1])
    is_regular = (np.diff(begins) == size).all() and last - begins[-1] < size
    is_so_from_the_start = first - log.step[0] <= 2 * size  # before the recorder knows the loop's modules
    if not (1 < size <= _MAX_STEPS and is_regular and is_so_from_the_start):
        return None
    return Rounds(size, first) if passes.sum() >= _MIN_SHARE * log.dur_ns.sum() else None


def _steps_in_rounds(steps: Steps, rounds: Rounds) -> Steps | None:
    if not (steps.by_profiler and steps.numbered):
        return None
    each = rounds.whole(steps.number)
    if not len(each):
        return None
    first, last = each[:, 0], each[:, -1]
    number, start_ns = rounds.of(steps.number[first]), steps.start_ns[first]
    return replace(steps, number=number, start_ns=start_ns, end_ns=steps.end_ns[last], in_rounds=steps)


def _log_in_rounds(log: StepLog, rounds: Rounds) -> StepLog:
    each = rounds.whole(log.step)
    first, last = each[:, 0], each[:, -1]
    device_ns = log.device_ns[each]
    return replace(
        log,
        step=rounds.of(log.step[first]),
        start_ns=log.start_ns[first],
        end_ns=log.end_ns[last],
        dur_ns=log.dur_ns[each].sum(axis=1),
        device_ns=np.where((device_ns > 0).all(axis=1), device_ns.sum(axis=1), MISSING),
        profiled=np.asarray(log.profiled[each].any(axis=1)),
        phase=tuple(log.phase[i] for i in last.tolist()),
        numbers={
            name: values[last]
            if name.startswith("memory.")  # a level, no sum over time
            else np.where(np.isnan(values[each]).all(axis=1), np.nan, np.nansum(values[each], axis=1))
            for name, values in log.numbers.items()
        },
    )


def _description_in_rounds(description: dict[str, Any], rounds: Rounds, logs: Sequence[StepLog]) -> dict[str, Any]:
    step = unprofiled_step(logs)
    out = {name: value for name, value in description.items() if name not in _OF_ONE_STEP}
    for name in ("tokens_per_step", "samples_per_step"):
        if isinstance(out.get(name), int):
            out[name] *= rounds.size
    # The recorder's own warnings compare the steps after the window with those before it.
    return {**out, "unprofiled_step_ms": None if step is None else ms(step.median_ns), "warnings": []}
