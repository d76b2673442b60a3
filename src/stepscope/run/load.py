"""Files into one `Run`: find them, read them on all cores, assign them to ranks, report what is missing."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.contract.run_folder import CAPTURE, RUN_JSON, rank_file
from stepscope.errors import InputError
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.clocks import with_agreed_ends
from stepscope.run.collectives import FLIGHT_RECORDER, believable_world
from stepscope.run.core_time import on_core_time
from stepscope.run.device_work import DeviceWork, device_work
from stepscope.run.formats import FailedSource, Progress, ReadSource, measured_launches, source_reader
from stepscope.run.rank import Rank, cut_off, quality_warnings, rank_of_trace
from stepscope.run.side_files import (
    MISSING,
    PASSES_NS,
    KernelLines,
    RankOwners,
    SideFiles,
    SourceText,
    StepLog,
    UnprofiledStep,
    is_later_window,
    log_since,
    read_kernel_lines,
    read_owners,
    readable_step_logs,
    side_files,
    unprofiled_step,
    window_number,
)
from stepscope.run.sources import Sources, assign_ranks, find_sources, rank_in_header, rank_in_name, stated_name
from stepscope.run.steps import Steps, unnamed_steps
from stepscope.side_file import read_side_json, unusable_fields
from stepscope.stats.robust import FAR_LONGER, OFTEN, median
from stepscope.trace.cache import WriteLater
from stepscope.trace.read import read as read_trace, return_freed
from stepscope.trace.table import (
    NO_STRING,
    EventKind,
    Int64s,
    Kinds,
    Trace,
    event_kinds,
    joined,
    labels,
    of_kinds,
    rows_named,
)
from stepscope.units import NS_PER_MS, Digest, ms, rank_ranges

# Steps of a run without step marks: those that all ranks have in common.
#
# The loader's batches and the optimizer's steps, else the period of the kernels' sequence, the same number on every
# rank. Else the whole window of each rank is one stretch, so that its losses are found; the number of steps in it is
# unknown, and a window of more than MAX_ITEMS is too long to be replayed.
#
# A truncated trace holds the host's events first and the device's after them. It is complete as far as launches have
# device work, and only that part is analysed; without any device work that extent is unknown.

# Marks: the loader's next batch begins a step where there is one per optimizer step; else the optimizer ends it, and
# the first is left out. Optimizers that alternate (a generator's and a discriminator's) make one step together.

_LOADER = re.compile(r"^enumerate\(DataLoader\)#|^\[pl\]\[profile\]\[_?TrainingEpochLoop\]\.train_dataloader_next$")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_ENGINE = re.compile(r"^autograd::engine::evaluate_function|^torch::autograd::|Backward\d*$")
_FEWEST = 2
# of the operators between two optimizer steps may differ from those one pattern later
_ALIKE = 0.05


def steps_between_marks(trace: Trace, kinds: Kinds) -> tuple[Int64s, Int64s, str] | None:
    """Return start and end of each step, and the marks used; None where neither mark recurs."""
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
# A kernel that runs once per step is an anchor: the pieces between two of its launches are the same every time.
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
# of the launched kernels must be in the steps found
_MIN_COVERED = 0.6


def kernel_period(trace: Trace, work: DeviceWork) -> tuple[Int64s, Int64s, float] | None:
    """Return the steps that the sequence of launched kernels repeats in, None where nothing repeats.

    Start and end on the host's clock, and from 0 to 1 how alike the kernels of the step are that is least like the
    others.
    """
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
    if anchors:
        best = max(score for _, score in anchors)
        near = [(at, score) for at, score in anchors if score >= best - 0.02]
        most = max(len(at) for at, _ in near)
        alike = [(at, score) for at, score in near if len(at) == most]
        at, score = max(alike, key=lambda anchor: _idle_before(work, rows, anchor[0]))
        begins = asked[at]
    else:
        begins, score = asked[:: _exact_period(code) or len(asked)], 1.0
    if score < _MIN_CONFIDENCE or len(begins) <= _MIN_STEPS or not (np.diff(begins) > 0).all():
        return None
    return begins[:-1], begins[1:], round(score, 3)


def _exact_period(code: npt.NDArray[np.intp]) -> int | None:
    """Return after how many kernels the sequence repeats itself to its end, where it does so twice or more."""
    text, width = code.tobytes(), code.itemsize
    shift = text.find(text[: len(code) * _MIN_STEPS // (_MIN_STEPS + 1) * width], width)
    is_period = shift >= _MIN_KERNELS * width and shift % width == 0 and text[shift:] == text[:-shift]
    return shift // width if is_period else None


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
    """Return the share of kernels that the least typical piece has in common with the typical one.

    The kernels before the first anchor and after the last are parts of steps: if no typical piece has them there, the
    pieces are layers of one step, between its first and its last kernels.
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
    """Return the ranks with steps where none of them has any and all show the same number of them."""
    if any(len(rank.steps) for rank in ranks):
        return list(ranks)
    is_short = sum(len(rank.work) or len(rank.collectives) for rank in ranks) <= _MAX_ITEMS
    for tell in (_marked, _periodic, _whole) if is_short else (_marked, _periodic):
        found = [_as_far_as_known(rank, tell(rank)) for rank in ranks]
        steps = [one for one in found if one is not None]
        if len(steps) == len(ranks) and len({len(one) for one in steps}) == 1:
            cold = max(map(_cold_steps, steps)) if tell is _periodic else 0
            return [_with_steps(rank, _from(one, cold)) for rank, one in zip(ranks, steps, strict=True)]
    return list(ranks)


def _cold_steps(steps: Steps) -> int:
    """Return how many steps at the start, of the first half, are far longer than those of the second."""
    took = steps.end_ns - steps.start_ns
    early = took[: len(took) // 2] > FAR_LONGER * median(took[len(took) // 2 :])
    return int(np.argmin(np.append(early, False)))


def _from(steps: Steps, first: int) -> Steps:
    if not first:
        return steps
    start, end = steps.start_ns[first:], steps.end_ns[first:]
    left_out = f"without {first} far longer at the start"
    return replace(unnamed_steps(start, end, f"{steps.told_by}, {left_out}"), after_cold=True)


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
    if found is None or _within_one_update(rank, found[0]):
        return None
    start, end, confidence = found
    if (calls := _calls_around(rank, start)) is not None:
        return calls
    return unnamed_steps(start, end, f"the period of the sequence of kernels (confidence {confidence:.2f})")


def _calls_around(rank: Rank, starts: Int64s) -> Steps | None:
    """Return the ranges of one name that hold all launches, each of them several periods: layers of a step."""
    trace, launches = rank.trace, rank.work.launch_row[rank.work.launch_row >= 0]
    asked = np.sort(trace["ts_ns"][launches])
    rows = np.flatnonzero(of_kinds(rank.kinds, (EventKind.HOST_OP, EventKind.ANNOTATION)))
    rows = rows[trace["dur_ns"][rows] > np.diff(starts).min()]
    for name in np.unique(trace["name"][rows]).tolist():
        ranges = _spans(trace, rows[trace["name"][rows] == name])
        periods, held = (np.diff(np.searchsorted(x, ranges), axis=1) for x in (starts, asked))
        if len(ranges) > _MIN_STEPS and periods.min() > 1 and held.sum() >= _MIN_FITTING * len(asked):
            edges = np.append(ranges[:, 0], ranges[-1, 1])
            return unnamed_steps(edges[:-1], edges[1:], f"the calls of {trace.strings[name]}")
    return None


def _within_one_update(rank: Rank, starts: Int64s) -> bool:
    """Return whether the kernels recur inside one update of the optimizer, as they do for every parameter."""
    ranges = np.flatnonzero(rank.kinds == EventKind.ANNOTATION)
    updates = _spans(rank.trace, rows_named(rank.trace, ranges, lambda s: bool(_OPTIMIZER.match(s))))
    begun = np.searchsorted(starts, updates)
    return bool((begun[:, 1] - begun[:, 0] > 1).any())


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
    last_ns, around = end.max() + 1, _range_around(rank, first_ns, end.max()) if rank.has_device else None
    if around is not None:
        first_ns, last_ns = rank.trace["ts_ns"][around], rank.trace["ts_ns"][around] + rank.trace["dur_ns"][around]
    whole = unnamed_steps(
        np.array([first_ns], np.int64), np.array([last_ns], np.int64), "the whole window", is_window=True
    )
    return whole if around is None else replace(whole, named=rank.trace.strings[rank.trace["name"][around]])


def _range_around(rank: Rank, first_ns: int, last_ns: int) -> int | None:
    """Return the row of the shortest range that holds all launches, and mostly work of the device; None without one."""
    rows = np.flatnonzero(rank.kinds == int(EventKind.ANNOTATION))
    start, dur = rank.trace["ts_ns"][rows], rank.trace["dur_ns"][rows]
    worked_ns = int(rank.work.end_ns.max() - rank.work.start_ns.min())
    fits = np.flatnonzero((start <= first_ns) & (start + dur >= last_ns) & (dur <= 2 * worked_ns))
    return int(rows[fits[np.argmin(dur[fits])]]) if len(fits) else None


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
# Every second step of the optimizer differs from the one before it, and neither is representative of the run: the
# round is. Rounds are counted from 0 in the log, and those of the window by the same numbers.

# of a round: what is rarer recurs in some steps, and is separate from the ordinary step
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
    """Return a run whose steps are rounds, with a note; the same run where its steps are steps."""
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
    is_so_from_the_start = first - log.step[0] <= 2 * size  # before the recorder has found the loop's modules
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


# Windows triggered by an alarm: the steps since the alarm are their baseline, not the steps before the change.


class WindowTrigger(NamedTuple):
    """The command or alarm that started a window, and the first affected step of an alarm."""

    by: str
    since: int | None


def pulled_window(description: Mapping[str, Any], window: int) -> WindowTrigger | None:
    """Return what triggered a window according to `run.json`; None for a window of the settings."""
    windows = description.get("windows")
    for known in windows if isinstance(windows, list) else []:
        ranks = known.get("ranks") if isinstance(known, dict) and known.get("window") == window else None
        for rank in ranks.values() if isinstance(ranks, dict) else []:
            by, since = (rank.get("asked_by"), rank.get("since")) if isinstance(rank, dict) else (None, None)
            if isinstance(by, str) and by:
                return WindowTrigger(by, since if isinstance(since, int) and not isinstance(since, bool) else None)
    return None


def steps_it_stands_for(
    logs: Sequence[StepLog], description: dict[str, Any], pulled: WindowTrigger | None
) -> tuple[tuple[StepLog, ...], dict[str, Any], list[str]]:
    """Return the logs and the description of a window: the steps since its alarm, where there are enough of them."""
    if pulled is None or pulled.since is None:
        return tuple(logs), description, []
    since = [log_since(log, pulled.since) for log in logs]
    step = unprofiled_step(since)
    if step is None or step.num_steps < 10:
        return tuple(logs), description, []
    line = f"this window was pulled for what is so since step {pulled.since}: the steps before are not in this report"
    # The recorder's own warnings compare the steps after the first window with those before it.
    return tuple(since), {**description, "unprofiled_step_ms": ms(step.median_ns), "warnings": []}, [line]


# Events that no analysis reads.

# spans around the whole recording, and joins that the other events carry as well
_HARMLESS = {"trace", "trace_root", "external_correlation"}
_MAX_NAMED = 4


def unread_lines(ranks: tuple[Rank, ...]) -> list[str]:
    """Return one line per category (or process, for events without one) of spans that no analysis reads."""
    most = sum((_unread(rank) for rank in ranks), Counter[str]()).most_common()
    lines = [f"{count:,} events {what} are not understood and in no number here" for what, count in most[:_MAX_NAMED]]
    if len(most) > _MAX_NAMED:
        rest = sum(count for _, count in most[_MAX_NAMED:])
        lines.append(f"{rest:,} events of {len(most) - _MAX_NAMED} more categories are not understood either")
    return lines


def _unread(rank: Rank) -> Counter[str]:
    trace = rank.trace
    rows = np.flatnonzero((rank.kinds == EventKind.OTHER) & (trace["ph"] == ord("X")))
    out: Counter[str] = Counter()
    for i, n in Counter(trace["cat"][rows].tolist()).items():
        if i != NO_STRING and trace.strings[i].lower() not in _HARMLESS:
            out[f"of category {trace.strings[i]!r}"] = n
    bare = rows[trace["cat"][rows] == NO_STRING]
    if len(bare):
        names = {pid: text for (pid, _), text in labels(trace, "process_name").items()}
        for pid, n in Counter(trace["pid"][bare].tolist()).items():
            out[f"without a category, of process {names.get(pid) or trace.id_text(pid)!r}"] += n
    return out


# The same rank recorded by PyTorch's profiler and by Nsight Systems: compared where both were recording.

# share by which the device's time may differ before the two are reported to disagree
_MAX_APART = 0.02


def is_nsight(trace: Trace) -> bool:
    """Return whether a trace was read from an export of Nsight Systems."""
    return _process_of(trace) is not None


def _process_of(trace: Trace) -> int | None:
    about = trace.header.get("nsight")
    process = about.get("process") if isinstance(about, dict) else None
    return process if isinstance(process, int) else None


def _second_recording(kineto: Trace, nsight: Trace, *, rank: int) -> str:
    names = f"rank {rank}: {Path(nsight.path).name} (Nsight Systems) and {Path(kineto.path).name}"
    ours, theirs = _kernels(kineto), _kernels(nsight)
    if not len(ours) or not len(theirs):
        return f"{names} both record it, and one of them has no kernels; the latter is used"
    begin, end = max(ours[:, 0].min(), theirs[:, 0].min()), min(ours[:, 1].max(), theirs[:, 1].max())
    if begin >= end:
        return f"{names} cover different times ({(begin - end) / 1e9:,.1f} s between them); the latter is used"
    both = [of[(of[:, 0] >= begin) & (of[:, 1] <= end)] for of in (ours, theirs)]
    count, busy = [len(of) for of in both], [int((of[:, 1] - of[:, 0]).sum()) for of in both]
    told = f"{count[1]:,} and {count[0]:,} kernels, {busy[1] / NS_PER_MS:,.1f} and {busy[0] / NS_PER_MS:,.1f} ms"
    agree = count[0] == count[1] and abs(busy[0] - busy[1]) <= _MAX_APART * max(*busy, 1)
    return f"{names} {'agree' if agree else 'disagree'} where both record ({told}); the latter is used"


def _kernels(trace: Trace) -> npt.NDArray[np.int64]:
    rows = np.flatnonzero(np.isin(event_kinds(trace), (EventKind.KERNEL, EventKind.COMM_KERNEL)))
    start = trace["ts_ns"][rows]
    return np.stack((start, start + trace["dur_ns"][rows]), axis=1)


def _one_recording_each(
    traces: list[Trace], root: Path | None, warn: Callable[[str], None]
) -> tuple[list[Trace], list[tuple[int, str]]]:
    of_file = Counter(t.path for t in traces)
    # The name of a file that holds several ranks is of none of them.
    named = [
        (stated_name(Path(t.path), root=root) if of_file[t.path] == 1 else "", rank_in_header(t.header)) for t in traces
    ]
    by_kineto = [i for i, t in enumerate(traces) if not is_nsight(t)]
    if not by_kineto or len(by_kineto) == len(traces):
        return traces, assign_ranks(named)
    first = assign_ranks([named[i] for i in by_kineto])
    kineto = {rank: traces[i] for i, (rank, _) in zip(by_kineto, first, strict=True)}
    kept, known = [traces[i] for i in by_kineto], list(first)
    nsight = [i for i in range(len(traces)) if is_nsight(traces[i])]
    for i, (rank, source) in zip(nsight, assign_ranks([named[i] for i in nsight]), strict=True):
        if source == "order" and len(nsight) != len(by_kineto):
            warn(f"{Path(traces[i].path).name}: which rank it is of is not known, so it is not used")
        elif rank in kineto:
            warn(_second_recording(kineto[rank], traces[i], rank=rank))
        else:
            kept.append(traces[i])
            known.append((rank, source))
    return kept, known


def _readable_traces(results: list[ReadSource], warn: Callable[[str], None]) -> tuple[list[Trace], tuple[str, ...]]:
    traces = [trace for r in results if not isinstance(r, FailedSource) for trace in r]
    failed = [r for r in results if isinstance(r, FailedSource)]
    if not traces:
        first = failed[0].error
        if len(failed) == 1:
            raise first
        raise InputError(f"none of {len(failed)} files could be read; the first: {first}") from first
    for source, error in failed:
        if not source.claimed:
            warn(f"left out, not a trace of a rank: {error}")
    return traces, tuple(str(error) for source, error in failed if source.claimed)


def _dedupe_traces(traces: list[Trace], warn: Callable[[str], None]) -> list[Trace]:
    """Return each distinct trace once.

    Ranks that did the same at the same time are no copies of each other: their headers differ.
    """
    alike = Counter(map(_size, traces))
    seen: dict[tuple[int, int | None, int | None, str], Trace] = {}
    for trace in traces:
        first = seen.setdefault((*_size(trace), _digest(trace) if alike[_size(trace)] > 1 else ""), trace)
        if first is not trace:
            warn(f"{Path(first.path).name} and {Path(trace.path).name} hold the same trace; it counts once")
    return list(seen.values())


def _size(trace: Trace) -> tuple[int, int | None, int | None]:
    return trace.num_events, rank_in_header(trace.header), _process_of(trace)


def _digest(trace: Trace) -> str:
    content = Digest("\0".join(trace.strings).encode(errors="surrogatepass"))
    for column in ("ts_ns", "dur_ns", "name", "tid"):
        content.add(trace[column].tobytes())
    return content.text()


def _with_parts_joined(traces: list[Trace], warn: Callable[[str], None]) -> list[Trace]:
    """Join traces with one `trace_id`: the profiler gives every trace its own, so they are parts of one."""
    parts: dict[object, list[Trace]] = {}
    for trace in traces:
        of = trace.header.get("trace_id")
        parts.setdefault((rank_in_header(trace.header), of) if isinstance(of, str) and of else id(trace), []).append(
            trace
        )
    for several in parts.values():
        if len(several) > 1:
            warn(f"{', '.join(Path(t.path).name for t in several)} hold parts of one trace and are read as one")
    return [joined(several) if len(several) > 1 else several[0] for several in parts.values()]


def _refuse_double_ranks(traces: list[Trace], known: list[tuple[int, str]]) -> None:
    owner: dict[int, str] = {}
    for trace, (rank, source) in zip(traces, known, strict=True):
        if rank in owner:
            raise InputError(
                f"two traces are of rank {rank} (by {source}): {owner[rank]} and {trace.path}; "
                "the folder holds several runs or windows: pass one of them, as a folder or a glob"
            )
        owner[rank] = trace.path


def _refuse_several_runs(traces: list[Trace], known: list[tuple[int, str]]) -> None:
    """Refuse traces of different jobs: of different world sizes, or without ranks and recorded one after another."""
    worlds = [believable_world(_stated_world(trace)) for trace in traces]
    unstated = [trace for trace, (_, source) in zip(traces, known, strict=True) if source == "order"]
    if len({world for world in worlds if world is not None}) > 1:
        listed = [f"{Path(t.path).name} ({world or 'unknown'} ranks)" for t, world in zip(traces, worlds, strict=True)]
        why = "they state different numbers of ranks"
    elif len(unstated) > 1 and _one_after_another(unstated):
        listed, why = [Path(t.path).name for t in unstated], "they state no rank and were recorded one after another"
    else:
        return
    more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
    raise InputError(
        f"several runs in one folder ({why}): {', '.join(listed[:_MAX_LISTED])}{more}; "
        "pass one of them, by file or by glob"
    )


def _stated_world(trace: Trace) -> object:
    info = trace.header.get("distributedInfo")
    return info.get("world_size") if isinstance(info, dict) else None


def _one_after_another(traces: list[Trace]) -> bool:
    timed = [trace["ph"] == ord("X") for trace in traces]
    if not all(rows.any() for rows in timed):
        return False
    start = np.array([int(t["ts_ns"][rows].min()) for t, rows in zip(traces, timed, strict=True)])
    end = np.array([int((t["ts_ns"] + t["dur_ns"])[rows].max()) for t, rows in zip(traces, timed, strict=True)])
    order = np.argsort(start)
    return bool((end[order][:-1] < start[order][1:]).any())


# threads; more than that no machine has cores for, and some refuse to start
MAX_JOBS = 256
# a run of more ranks is not held in memory as a whole by default (`analyze/sampled`)
MAX_FULL_RANKS = 128
_LOAD_MAX_NAMED = 3
_MAX_LISTED = 8


@dataclass(frozen=True, eq=False, repr=False)
class Capture(ArrayRecord):
    """A trace of the capture of CUDA graphs."""

    #: None where neither the file nor its name has it: then any rank's
    rank: int | None
    trace: Rank
    owners: RankOwners | None = None


def read_captures(paths: Iterable[Path]) -> tuple[Capture, ...]:
    """Return traces that were recorded while CUDA graphs were captured, with the owners next to them."""
    found = []
    for path in paths:
        trace = read_trace(path)
        in_header = rank_in_header(trace.header)
        rank = in_header if in_header is not None else rank_in_name(path.name)
        of_job = rank_of_trace(trace, rank=rank or 0, rank_source="capture")
        of = re.search(rf"{CAPTURE}(\d+\.)?", path.name)
        owners, _ = read_owners(path.parent, [rank or 0], of=of[0]) if of else ((), [])
        found.append(Capture(rank, with_derived_steps([of_job])[0], owners[0] if owners else None))
    return tuple(found)


def _captures_in(folder: Path) -> tuple[tuple[Capture, ...], list[str]]:
    paths = sorted(
        folder.glob(f"rank*.{CAPTURE}*pt.trace.json*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)]
    )
    try:
        return read_captures(paths), []
    except InputError as error:
        return (), [f"captures of CUDA graphs are left out: {error}"]


@dataclass(frozen=True, eq=False, repr=False)
class Run(ArrayRecord):
    """All ranks of one job that could be read."""

    name: str
    #: by rank number
    ranks: tuple[Rank, ...]
    #: `run.json`, empty for a job that stepscope did not record
    description: dict[str, Any] = field(default_factory=dict)
    #: step logs of a run folder, by rank
    logs: tuple[StepLog, ...] = ()
    #: telemetry, live collectives, memory and NCCL's log, where the recorder left them
    beside: SideFiles = field(default_factory=SideFiles)
    #: who did what, of the ranks that recorded it
    owners: tuple[RankOwners, ...] = ()
    #: traces of the captures of CUDA graphs
    captures: "tuple[Capture, ...]" = ()
    #: lines of the kernels that torch.compile made, by rank
    kernel_lines: Mapping[int, tuple[KernelLines, ...]] = field(default_factory=dict)
    #: the user's source files, if recorded
    source: SourceText = field(default_factory=SourceText)
    #: kernels as Nsight Compute measured them
    measured: tuple[Row, ...] = ()
    #: one line per rank that could not be read at all
    unreadable: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    #: which of the job's profiled windows this is, from 0
    window: int = 0
    #: ranks that are worked on at once
    jobs: int = 1
    #: the same run with all its ranks, outlined; None where `ranks` are all
    everyone: "Run | None" = None
    #: which of the ranks `ranks` are, with a note on the others; empty where they are all
    sampling: str = ""
    #: share of the time in which training threads had no core, which is in no time of this run; 0 where that is little
    lost: float = 0.0
    #: how a file of the run is named: by its path, or by the address it was copied from
    shown_path: Callable[[str], str] = str

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks in the job, None where no file has it."""
        said = [*(r.world_size for r in self.ranks), believable_world(self.description.get("world_size"))]
        known = [n for n in said if n is not None]
        return max(known) if known else (1 if len(self.ranks) == 1 and not self.unreadable else None)

    @property
    def asked_by(self) -> str | None:
        """Return what requested this window while the job ran, a command or an alarm; None for one of the settings."""
        found = pulled_window(self.description, self.window)
        return found.by if found is not None else None

    @property
    def ranks_read(self) -> tuple[Rank, ...]:
        return self.everyone.ranks if self.everyone else self.ranks

    @cached_property
    def unprofiled(self) -> UnprofiledStep | None:
        return unprofiled_step(self.logs)


def load(
    given: str | Path | Sequence[str | Path],
    *,
    jobs: int | None = None,
    cache: bool = True,
    cache_folder: Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Return the run in a file, a folder, a glob or a list of them.

    `jobs` is the number of files read at once (all cores by default); a single file is parsed on that many
    threads. A rank that cannot be read is named in `unreadable`; if none can, that is an `InputError`.
    """
    sources = find_sources(given)
    name = run_name(given, sources.folder)
    return load_sources(sources, name=name, jobs=jobs, cache=cache, cache_folder=cache_folder, progress=progress)


def load_sources(
    sources: Sources,
    *,
    name: str,
    jobs: int | None = None,
    cache: bool = True,
    cache_folder: Path | None = None,
    progress: Progress | None = None,
    everyone: Sequence[Rank] = (),
    sampling: str = "",
    write_later: WriteLater | None = None,
) -> Run:
    """Return the run in these files, as `load` does. `everyone` are all its ranks where the files hold only some, and
    `sampling` describes the choice. `write_later` takes the writing of caches.
    """
    files, folder = sources.files, sources.folder
    jobs = min(jobs or os.cpu_count() or 1, MAX_JOBS)
    read = source_reader(
        files, jobs=jobs, cache=cache, cache_folder=cache_folder, progress=progress, write_later=write_later
    )
    with ThreadPoolExecutor(max_workers=min(jobs, len(files))) as pool:
        lines = list[str]()
        traces, unreadable = _readable_traces(list(pool.map(read, files)), lines.append)
        lines += sources.repeated
        traces = _with_parts_joined(_dedupe_traces(traces, lines.append), lines.append)
        traces, known = _one_recording_each(traces, folder, lines.append)
        _refuse_double_ranks(traces, known)
        _refuse_several_runs(traces, known)
        ranks = list(pool.map(_rank, traces, known))
    return_freed(sum(trace.raw_bytes for trace in traces))
    ranks = with_derived_steps(sorted(ranks, key=lambda r: r.rank))
    if any(len(rank.cut) or len(rank.moved) for rank in ranks):
        ranks = with_agreed_ends(ranks)
    about = folder
    if folder is not None and is_later_window(folder.resolve()) and (folder.resolve().parent / RUN_JSON).is_file():
        about = folder.resolve().parent
    description, damaged = run_description(about)
    device = description.get("device")
    if isinstance(device, dict) and device.get("kind") == "cpu":
        ranks = [replace(rank, without_device=True) for rank in ranks]
    logs, unreadable_logs = readable_step_logs(about) if about else ((), [])
    read_here = {source.path.name for source in files if source.path.parent == about}
    beside = side_files(about, but=read_here) if about else SideFiles()
    lost = 0.0
    if not everyone:
        ranks, logs, description, lost = on_core_time(ranks, logs, description, about)
    window = window_number(folder.resolve()) if folder is not None else 0
    logs, description, since = steps_it_stands_for(logs, description, pulled_window(description, window))
    lines += [*damaged, *unreadable_logs, *since]
    # Outlined ranks cannot be given other steps.
    if not everyone and any(PASSES_NS in log.numbers for log in logs):
        ranks, logs, description, in_words = in_rounds(ranks, logs, description)
        lines += in_words
    owners, refused = read_owners(about, [r.rank for r in ranks]) if about else ((), [])
    measured, faults = measured_launches(about, but=read_here) if about else ((), [])
    captures, damaged = _captures_in(about) if about else ((), [])
    lines += damaged
    run = Run(
        name=name,
        ranks=tuple(ranks),
        description=description,
        logs=logs,
        beside=beside,
        owners=owners,
        captures=captures,
        kernel_lines=read_kernel_lines(about, [r.rank for r in ranks]) if about else {},
        source=SourceText(about),
        measured=measured,
        unreadable=unreadable,
        window=window,
        jobs=jobs,
        sampling=sampling,
        lost=lost,
    )
    if everyone:
        run = replace(run, everyone=replace(run, ranks=tuple(everyone), sampling=""))
    return _with_warnings(run, [*lines, *refused, *faults, *_beside_warnings(run, folder)])


def _beside_warnings(run: Run, folder: Path | None) -> list[str]:
    lines = []
    others = [w for w in run.beside.windows if folder is None or w.resolve() != folder.resolve()]
    if others:
        pulled = [(window, pulled_window(run.description, window_number(window))) for window in others]
        names = ", ".join(w.name if by is None else f"{w.name} (pulled by: {by.by})" for w, by in pulled)
        lines.append(
            f"{names} of this run hold later profiled windows that are not in this report: "
            f"read {'it' if len(others) == 1 else 'each'} with stepscope report {others[0]}"
        )
    if run.beside.lost_lines:
        lines.append(f"{run.beside.lost_lines} damaged lines of telemetry, collectives or memory skipped")
    unread = run.beside.unread
    if unread:
        more = f"; and {len(unread) - _LOAD_MAX_NAMED} more" if len(unread) > _LOAD_MAX_NAMED else ""
        lines.append(f"some files next to the traces were not read: {'; '.join(unread[:_LOAD_MAX_NAMED])}{more}")
    return lines


def _rank(trace: Trace, known: tuple[int, str]) -> Rank:
    beside = Path(trace.path).parent / rank_file(known[0], FLIGHT_RECORDER)
    return rank_of_trace(trace, rank=known[0], rank_source=known[1], flight_file=beside)


def run_name(given: str | Path | Sequence[str | Path], folder: Path | None) -> str:
    """Return what a run is called: by its folder, else by its first file."""
    if folder is not None:
        return folder.resolve().name
    first = given if isinstance(given, str | Path) else given[0]
    return Path(first).name


def run_description(folder: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return `run.json` of a run folder, empty where there is none, and a line where it cannot be used."""
    if folder is None:
        return {}, []
    why = "damaged"
    try:
        parsed = read_side_json(folder / RUN_JSON)
        if isinstance(parsed.value, dict):
            return parsed.value, unusable_fields(parsed, RUN_JSON)
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        why = f"unreadable ({error.strerror})"
    except ValueError:
        pass
    return {}, [f"{RUN_JSON} is {why}: FLOPs, unprofiled steps and configuration are unknown"]


def incomplete(run: Run) -> list[str]:
    """Return what of the run was not read: ranks not in full, lost, missing, or cut off."""
    lost = [f"skipped {line}" for line in run.unreadable]
    return [*filter(None, [run.sampling]), *lost, *_missing(run), *cut_off(run.ranks_read)]


def _missing(run: Run) -> list[str]:
    present = {r.rank for r in run.ranks_read}
    missing = [n for n in range(run.world_size or 0) if n not in present]
    if not missing or len(present) >= (run.world_size or 0):  # the files are numbered otherwise than the job's ranks
        return []
    doubt = "their work is unknown, and waiting for them appears as transfer"
    return [f"ranks missing: {rank_ranges(missing)} of {run.world_size}; {doubt}"]


def _with_warnings(run: Run, warnings: list[str]) -> Run:
    recorded = run.description.get("warnings")
    if isinstance(recorded, list):
        warnings += [line for line in recorded if isinstance(line, str)]
    lost = [f"skipped {line}" for line in run.unreadable]
    lines = [*filter(None, [run.sampling]), *warnings, *lost, *_missing(run)]
    guessed = [r.rank for r in run.ranks_read if r.rank_source == "order"]
    if guessed and len(run.ranks) > 1:
        lines.append(f"rank numbers of {rank_ranges(guessed)} are by order: not in the files nor in their names")
    lines += [*quality_warnings(run.ranks_read), *unread_lines(run.ranks), *_unseen_devices(run)]
    return replace(run, warnings=tuple(lines))


def _unseen_devices(run: Run) -> list[str]:
    unseen = [r for r in run.ranks_read if r.device_unseen]
    if not unseen:
        return []
    launches, which = sum(r.joins.launches_without_work for r in unseen), rank_ranges([r.rank for r in unseen])
    seen = f" ({launches:,} launches, no kernel)" if launches else ""
    return [
        f"the device of rank {which} was not recorded{seen}: "
        f"results cover the host only, what the device did is unknown; {unseen[0].device_advice}"
    ]


Answer = TypeVar("Answer")


def each_rank(run: Run, question: Callable[[int, Rank], Answer]) -> tuple[Answer, ...]:
    """Return `question(index, rank)` of every rank; what the first of them raises is raised."""
    return side_by_side(run.jobs, question, range(len(run.ranks)), run.ranks)


def side_by_side(jobs: int, question: Callable[..., Answer], *given: Iterable[Any]) -> tuple[Answer, ...]:
    """Return `map(question, *given)`, computed on `jobs` threads."""
    rows = tuple(zip(*given, strict=True))
    threads = min(jobs, len(rows))
    if threads <= 1:
        return tuple(question(*row) for row in rows)
    with ThreadPoolExecutor(threads) as pool:
        return tuple(pool.map(lambda row: question(*row), rows))
