"""Where did the hours of a job go? Each moment from launch to end belongs to one part; the parts sum to the whole.

    launch                                  F: first rank that fails                                        end
    |- startup -|- compile -|- steps, evaluation, saves -|- restart -|- load -|- compile -|- steps -|- shutdown -|

Every rank is accounted for on its own, and the job is the mean over ranks. Within a step, regions of the step log are
their own parts: `evaluation`, `checkpoint`, `compilation`, `data_loading`, `garbage_collection`. The rest is the
training time of the step, compared with the rank's median over the whole job:

    first two steps     training time above the median is compilation and first-call initialisation
    long steps          above 1.5 times the median: what exceeds the median slowed the step down
    stalls              above ten times the median and 30 s: a hang that ended
    late ranks          a rank that is late in most steps (`log_stragglers`) slows every step of all ranks by that much
    others' work        a rank that waits for another one's checkpoint, evaluation or compilation: part of that

Work is lost where a restart begins before it: after the last checkpoint that was complete when the first rank failed,
or the one that the restart read. Where neither a save nor a load was seen it is unknown, not productive.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyze.log_stragglers import has_waits, late_ranks, region_ns, shows_late_ranks
from stepscope.contract.step_line import (
    BACKWARD,
    CHECKPOINT,
    COMPILATION,
    DATA_LOADING,
    EVALUATION,
    FIRST_STEPS,
    GARBAGE_COLLECTION,
    GRADIENT_SYNC,
    HOST_WAIT,
    LOADER_START,
    LONG_STEP,
)
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.attempts import CLOSED, KILLED, LOAD, RUNNING, SAVE, Attempt, CheckpointFile, RankLife
from stepscope.run.side_files import side_files

Floats = npt.NDArray[np.float64]

PARTS = (
    *("startup", "compile", "productive", "slowed", "evaluation", "checkpoint_save", "checkpoint_load"),
    *("hang", "lost_work", "restart", "shutdown", "unknown"),
)
# a part and, after the slash, what it consists of; the order is that within a step
EVAL, COMPILE, DATA, PRODUCTIVE = "evaluation", "compile", "slowed/data", "productive"
STRAGGLER, HOST, PROFILER, HANG = "slowed/straggler", "slowed/host", "slowed/profiler", "hang"
SAVED, LOADED, LOST, UNKNOWN = "checkpoint_save", "checkpoint_load", "lost_work", "unknown"
LAUNCHER, IMPORTS, GROUP, MODEL = (
    "startup/launcher",
    "startup/imports",
    "startup/process_group",
    "startup/model_and_data",
)
RESTART, SHUTDOWN = "restart", "shutdown"
_IN_A_STEP = (EVAL, COMPILE, DATA, PRODUCTIVE, STRAGGLER, HOST, PROFILER, HANG, SAVED)
_OF_STEPS = (DATA, PRODUCTIVE, STRAGGLER, HOST, PROFILER)
_LABELS = (*_IN_A_STEP, LAUNCHER, IMPORTS, GROUP, MODEL, LOADED, LOST, RESTART, SHUTDOWN, UNKNOWN)
_CODE = {label: code for code, label in enumerate(_LABELS)}
_PART_OF = np.array([PARTS.index(label.partition("/")[0]) for label in _LABELS])

_STALL, _STALL_NS = 10.0, 30e9
# without a step at the end of an attempt that failed: below this the step under way was lost, else it was a hang
_MIN_STALL_NS = 1e9
# for which a rank may outlive the first one that failed before that is a hang: launchers take a few seconds
_OUTLIVES_NS = 10e9
_WINDOW_STEPS = 1_000
_BINS = 400
_DRAWN_RANKS = 64

# from when to when in ns, and what for
Segment = tuple[float, float, str]


class _Segments(NamedTuple):
    """Stretches of time that follow each other, with the codes of their labels."""

    start: Floats
    end: Floats
    code: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Ledger(ArrayRecord):
    """The time of a job by part, as the mean over its ranks."""

    name: str
    total_ns: float
    #: by part, or part/detail
    parts_ns: Mapping[str, float]
    attempts: tuple[Row, ...]
    #: what most ranks did, from the start of the job
    timeline: tuple[Segment, ...]
    step_ns: float | None
    late_ranks: tuple[int, ...]
    #: of each attempt, by rank and part: starts and ends in epoch ns
    spans: tuple[Mapping[int, Mapping[str, tuple[Floats, Floats]]], ...]
    warnings: tuple[str, ...]

    def part_ns(self, part: str) -> float:
        return sum(ns for label, ns in self.parts_ns.items() if label.partition("/")[0] == part)


def ledger_of(attempts: Sequence[Attempt]) -> Ledger:
    """Return the ledger of a job."""
    warnings = [f"{one.name}: {line}" for one in attempts for line in one.warnings]
    warnings += [
        f"{one.name}: no steps of {one.world_size - len(one.ranks)} of {one.world_size} ranks; they are left out"
        for one in attempts
        if len(one.ranks) < one.world_size
    ]
    warnings += [
        f"{one.name}: when its processes started was not recorded; their start-up is missing"
        for one in attempts
        if not one.has_start
    ]
    failed = [_failed(attempts, k) for k in range(len(attempts))]
    usual = _usual_ns(attempts)
    tables = [_StepTable(one, usual) for one in attempts]
    if not all(table.shows_late_ranks for table in tables):
        warnings.append("time lost to a rank that is late in every step is unknown: with NCCL ranks wait on the device")
    kept = [_kept_until(attempts, k, failed[k], warnings) for k in range(len(attempts))]
    windows = _windows(attempts, failed, warnings)
    totals = np.zeros(len(_LABELS))
    drawn: list[list[_Segments]] = []
    lost: list[int | None] = []
    spans, launches = [], [0]
    offset = 0.0
    for k, (begin_ns, end_ns) in enumerate(windows):
        after = k > 0 and failed[k - 1] and _is_same_launch(attempts[k - 1], attempts[k])
        context = _Context(attempts[k], windows[k], attempts[k - 1].end_ns if after else None, failed[k])
        until = list(takewhile(lambda at: at != inf, kept[k:]))  # later ones build on an attempt saved as a whole
        ranks = [_of_rank(context, row, tables[k], until) for row in range(len(attempts[k].ranks))]
        for segments, _ in ranks:
            spent = segments.end - segments.start
            totals += np.bincount(segments.code, spent, len(_LABELS)) / len(ranks)
        spans.append(
            {rank.rank: _by_part(one, begin_ns) for rank, (one, _) in zip(attempts[k].ranks, ranks, strict=True)}
        )
        if k:
            launches.append(launches[-1] + (not _is_same_launch(attempts[k - 1], attempts[k])))
        drawn.append([_Segments(one.start + offset, one.end + offset, one.code) for one, _ in ranks[:_DRAWN_RANKS]])
        offset += end_ns - begin_ns
        lost.append(None if any(count is None for _, count in ranks) else max(count or 0 for _, count in ranks))
    return Ledger(
        name=attempts[0].name,
        total_ns=float(totals.sum()),
        parts_ns={label: ns for label, ns in zip(_LABELS, totals.tolist(), strict=True) if ns > 0},
        attempts=tuple(_summary(one, launches[k], failed[k], tables[k], lost[k]) for k, one in enumerate(attempts)),
        timeline=tuple(_timeline(drawn, offset)),
        step_ns=float(np.median(list(usual.values()))) if usual else None,
        late_ranks=tuple(sorted({rank for table in tables for rank in table.late})),
        spans=tuple(spans),
        warnings=tuple(dict.fromkeys(warnings)),
    )


# Which attempts failed, and the stretch of time that each accounts for.


def _failed(attempts: Sequence[Attempt], k: int) -> bool:
    one, later = attempts[k], attempts[k + 1] if k + 1 < len(attempts) else None
    if any(rank.failed for rank in one.ranks):
        return True
    if later is not None and (later.restarts > one.restarts or any(rank.ended == RUNNING for rank in one.ranks)):
        return True  # a host that crashes records no end
    return one.exit_code not in (None, 0)


def _end_ns(one: Attempt, failed: bool) -> int:
    """Return when the attempt was over: where it failed, when the first rank did."""
    if not failed:
        return one.end_ns
    return min(rank.end_ns for rank in [rank for rank in one.ranks if rank.failed] or one.ranks)


def _windows(attempts: Sequence[Attempt], failed: Sequence[bool], warnings: list[str]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    between_ns = 0.0
    for k, one in enumerate(attempts):
        launched = [rank.launched_ns for rank in one.ranks if rank.launched_ns is not None]
        begin: float = min([*launched, one.start_ns])
        if k and _is_same_launch(attempts[k - 1], one):
            begin = found[-1][1]
        elif k:
            between_ns += max(0.0, begin - found[-1][1])
        is_last = k + 1 == len(attempts) or not _is_same_launch(one, attempts[k + 1])
        end: float = _end_ns(one, failed[k])
        if is_last:
            end = max(one.end_ns, one.launch_end_ns or 0)
        found.append((begin, max(end, begin)))
    if between_ns:
        warnings.append(f"{between_ns / 1e9:,.0f} s between launches of the job are not counted")
    return found


def _is_same_launch(one: Attempt, later: Attempt) -> bool:
    same_slurm = one.slurm_job is not None and one.slurm_job == later.slurm_job
    return same_slurm or (one.launch_id is not None and one.launch_id == later.launch_id)


# Steps: what each took on every rank, by part.


def _usual_ns(attempts: Sequence[Attempt]) -> dict[tuple[int, int], float]:
    """Return the median training time of a step by world size and rank, over all attempts."""
    times: dict[tuple[int, int], list[Floats]] = {}
    for one in attempts:
        for rank in one.ranks:
            log = rank.log
            own: Floats = log.dur_ns - np.sum([_known(rank, name) for name in _KNOWN], axis=0)
            settled = own[FIRST_STEPS:][log.unprofiled[FIRST_STEPS:]]
            times.setdefault((one.world_size, rank.rank), []).append(settled if len(settled) else own[-1:])
    return {key: max(float(np.median(np.concatenate(several))), 1.0) for key, several in times.items()}


_KNOWN = (EVALUATION, CHECKPOINT, COMPILATION, DATA_LOADING, LOADER_START, GARBAGE_COLLECTION)


def _known(rank: RankLife, name: str) -> Floats:
    found = np.nan_to_num(region_ns(rank.log, name), nan=0.0, posinf=0.0, neginf=0.0)
    return np.clip(found, 0.0, rank.log.dur_ns)


class _StepTable:
    """The steps of one attempt: `parts[label][rank, step]` in ns."""

    def __init__(self, one: Attempt, usual: Mapping[tuple[int, int], float]) -> None:
        numbers = np.unique(np.concatenate([rank.log.step for rank in one.ranks]))
        self.at = [np.searchsorted(numbers, rank.log.step) for rank in one.ranks]
        self.usual = np.array([usual[one.world_size, rank.rank] for rank in one.ranks])[:, None]
        self._shape = (len(one.ranks), len(numbers))
        self._ranks = one.ranks
        logs = [rank.log for rank in one.ranks]
        times = None if has_waits(logs, HOST_WAIT) else side_files(one.folder).collective_times
        self.shows_late_ranks = shows_late_ranks(logs, times, one.description)
        late = late_ranks(logs, times, window_steps=_WINDOW_STEPS)
        self.late = {one.rank for one in late}
        self._late_ns = float(max((one.late_ns for one in late), default=0))
        self.evaluations = int((self._column(EVALUATION) > 0).any(0).sum()) + self._after(EVALUATION)
        self.saves = int((self._column(CHECKPOINT) > 0).any(0).sum()) + self._after(CHECKPOINT)
        self.steps = len(numbers)
        self.parts = self._split(one)

    def _after(self, region: str) -> int:
        return int(any((rank.after_ns or {}).get(region) for rank in self._ranks))

    def _matrix(self, columns: Sequence[npt.NDArray[Any]]) -> Floats:
        found = np.zeros(self._shape)
        for row, at, column in zip(found, self.at, columns, strict=True):
            row[at] = column
        return found

    def _column(self, *names: str) -> Floats:
        return self._matrix([np.sum([_known(rank, name) for name in names], axis=0) for rank in self._ranks])

    def _split(self, one: Attempt) -> dict[str, Floats]:
        dur = self._matrix([rank.log.dur_ns for rank in one.ranks])
        parts = {
            EVAL: self._column(EVALUATION),
            SAVED: self._column(CHECKPOINT),
            COMPILE: self._column(COMPILATION),
            DATA: self._column(DATA_LOADING, LOADER_START),
            HOST: self._column(GARBAGE_COLLECTION),
        }
        train = np.maximum(dur - sum(parts.values()), 0.0)
        excess = np.maximum(train - self.usual, 0.0)
        for label in (SAVED, EVAL, COMPILE):
            excess = _with_others(parts[label], excess)
        parts[COMPILE][:, :FIRST_STEPS] += excess[:, :FIRST_STEPS]
        excess[:, :FIRST_STEPS] = 0.0
        profiled = self._matrix([~rank.log.unprofiled for rank in one.ranks]) > 0
        long = ~profiled & (excess > (LONG_STEP - 1) * self.usual)
        stalled = long & (excess > np.maximum(_STALL * self.usual, _STALL_NS))
        waited = self._waited(excess, long)
        parts[PROFILER] = np.where(profiled, excess, 0.0)
        parts[HANG] = np.where(stalled, excess, 0.0)
        parts[STRAGGLER] = np.where(long & ~stalled & waited, excess, 0.0)
        parts[HOST] += np.where(long & ~stalled & ~waited, excess, 0.0)
        rest = np.maximum(dur - sum(parts.values()), 0.0)
        always = np.minimum(self._late_ns, 0.9 * rest)
        always[:, :FIRST_STEPS] = 0.0
        parts[STRAGGLER] += always
        parts[PRODUCTIVE] = rest - always
        return parts

    def _waited(self, excess: Floats, long: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the steps that some ranks spent waiting in backward for others that were busy elsewhere."""
        backward = self._column(BACKWARD, GRADIENT_SYNC)
        in_backward = backward - np.median(backward, axis=1, keepdims=True) >= 0.5 * excess
        return np.broadcast_to((long & in_backward).any(0) & (long & ~in_backward).any(0), excess.shape)


def _with_others(part: Floats, excess: Floats) -> Floats:
    """Add to a part what ranks waited for another one's, in the same step or the next; return the excess left."""
    missing = part.max(axis=0) - part
    here = np.minimum(excess, missing)
    excess, missing = excess - here, missing - here
    later = np.minimum(excess[:, 1:], missing[:, :-1])
    excess[:, 1:] -= later
    part += here
    part[:, 1:] += later
    return excess


# Lost work: how far back the next attempt restarted.


def _kept_until(attempts: Sequence[Attempt], k: int, failed: bool, warnings: list[str]) -> float | None:
    """Return until when the work of attempts up to `k` was saved: infinity for all, None for unknown."""
    one, again = attempts[k], attempts[k + 1] if k + 1 < len(attempts) else None
    saves = [(n, rank, save) for n, earlier in enumerate(attempts[: k + 1]) for rank, save in earlier.files(SAVE)]
    saved_ns, written = _complete_ns(saves), {save.path for _, _, save in saves}
    at_first = {load.path for _, load in attempts[0].files(LOAD)} - written
    loads = [load for _, load in again.files(LOAD) if load.path is None or load.path not in at_first] if again else []
    paths = {load.path for load in loads if load.path}
    exact_ns = _complete_ns([entry for entry in saves if entry[2].path in paths])
    if not failed:
        return exact_ns or inf
    if again is None:
        if not saved_ns:
            warnings.append(f"{one.name} failed; no checkpoint save was seen, so its steps count as productive")
        return saved_ns or inf
    if not saved_ns:
        warnings.append(
            f"{again.name} read a checkpoint whose save was not seen; steps repeated from {one.name} are unknown"
            if loads
            else f"{again.name}: neither a checkpoint save before the restart nor a load after it was seen; whether "
            f"the steps of {one.name} were repeated is unknown"
        )
        return None
    if not loads:
        warnings.append(
            f"{again.name} read no checkpoint (torch.load, distributed checkpoint, safetensors): the steps before it "
            "count as lost"
        )
        return 0.0
    folders = {_folder(path) for path in paths}
    near_ns = exact_ns or _complete_ns(
        [entry for entry in saves if entry[2].path and _folder(entry[2].path) in folders]
    )
    if not near_ns:
        warnings.append(
            f"{again.name} read a checkpoint from another place than it was saved to; the last save is assumed"
        )
    return near_ns or saved_ns


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _complete_ns(saves: Sequence[tuple[int, int, CheckpointFile]]) -> float:
    """Return when the last checkpoint was complete on all ranks of its attempt that write some, 0 for none."""
    last: dict[int, dict[int, int]] = {}
    for attempt, rank, save in saves:
        ranks = last.setdefault(attempt, {})
        ranks[rank] = max(ranks.get(rank, 0), save.end_ns or 0)
    return float(max((min(ranks.values()) for ranks in last.values()), default=0))


# One rank of one attempt as segments that fill its stretch of time.


class _Context(NamedTuple):
    attempt: Attempt
    window: tuple[float, float]
    #: when the last rank of the attempt before ended, where that failed
    previous_ns: int | None
    failed: bool


def _of_rank(
    context: _Context, row: int, table: _StepTable, untils: Sequence[float | None]
) -> tuple[_Segments, int | None]:
    """Return the segments from the start of the window, and how many steps were lost, None where unknown."""
    rank = context.attempt.ranks[row]
    begin_ns, end_ns = context.window
    steps, lost = _steps(
        rank,
        {label: part[row, table.at[row]] for label, part in table.parts.items()},
        untils,
        loader=MODEL if context.previous_ns is None else RESTART,
    )
    whole = [
        _segments(_before_steps(rank, begin_ns, context.previous_ns)),
        steps,
        _segments(_after_steps(rank, context)),
    ]
    rest = SHUTDOWN if rank.ended == CLOSED or context.failed else UNKNOWN
    return _filled(_Segments(*map(np.concatenate, zip(*whole, strict=True))), begin_ns, end_ns, rest), lost


def _segments(found: Iterable[Segment]) -> _Segments:
    start, end, labels = zip(*found, strict=True)
    return _Segments(np.array(start, float), np.array(end, float), np.array([_CODE[label] for label in labels]))


def _filled(given: _Segments, begin_ns: float, end_ns: float, rest: str) -> _Segments:
    """Return segments that fill the window: pauses between steps are the profiler's."""
    end = np.minimum(given.end, end_ns)
    start = np.maximum(given.start, np.maximum.accumulate(np.append(begin_ns, end))[:-1])
    whole = end > start
    start, end, code = start[whole], end[whole], given.code[whole]
    before = np.append(begin_ns, end[:-1]) if len(end) else end
    gaps = np.where(code < len(_IN_A_STEP), _CODE[PROFILER], code)
    last = end[-1] if len(end) else begin_ns
    edges = np.append(np.stack([before, start], 1).ravel(), [last, end_ns]) - begin_ns
    codes = np.append(np.stack([gaps, code], 1).ravel(), _CODE[rest])
    there = np.flatnonzero(np.diff(edges) > 0)
    there = there[np.diff(codes[there], prepend=-1) != 0]  # segments of one part that follow each other are one
    return _Segments(edges[there], np.append(edges[there[1:]], edges[-1:])[: len(there)], codes[there])


def _by_part(given: _Segments, begin_ns: float) -> dict[str, tuple[Floats, Floats]]:
    part = _PART_OF[given.code]
    found = {name: part == index for index, name in enumerate(PARTS)}
    return {name: (given.start[own] + begin_ns, given.end[own] + begin_ns) for name, own in found.items() if own.any()}


def _before_steps(rank: RankLife, begin_ns: float, previous_ns: int | None) -> Iterator[Segment]:
    if previous_ns is not None:
        lingers = previous_ns - begin_ns > _OUTLIVES_NS
        marks = [(begin_ns, HANG), (float(previous_ns), RESTART)] if lingers else [(begin_ns, RESTART)]
    else:
        loaded_ns = max(rank.torch_ns or 0, rank.process_ns)  # forked processes have it from their parent
        marks = [(begin_ns, LAUNCHER), (float(rank.process_ns), IMPORTS), (float(loaded_ns), MODEL)]
        if rank.group_ns is not None:
            marks += [(float(rank.group_ns[0]), GROUP), (float(rank.group_ns[1]), MODEL)]
    around = RESTART if previous_ns is not None else MODEL
    for load in rank.checkpoints:
        if load.what == LOAD and load.end_ns is not None:
            marks += [(float(load.begin_ns), LOADED), (float(load.end_ns), around)]
    marks = sorted((mark for mark in marks if mark[0] < rank.first_ns), key=lambda mark: mark[0])
    for (start, label), (end, _) in pairwise([*marks, (float(rank.first_ns), "")]):
        yield start, end, label
    # the forward before the backward that started the recorder
    yield float(rank.first_ns), float(rank.log.start_ns.min()), COMPILE


def _steps(
    rank: RankLife, parts: Mapping[str, Floats], untils: Sequence[float | None], *, loader: str
) -> tuple[_Segments, int | None]:
    log = rank.log
    end = np.maximum.accumulate(log.end_ns.astype(np.float64))
    start = np.minimum(np.maximum(log.start_ns, np.append(0.0, end[:-1])), end)
    took = np.array([parts[label] for label in _IN_A_STEP])
    whole = took.sum(0)
    took *= np.where(whole > 0, (end - start) / np.where(whole > 0, whole, 1.0), 0.0)
    code = np.arange(len(_IN_A_STEP))[:, None].repeat(len(log), 1)
    code[_CODE[DATA], :1] = _CODE[loader]  # workers start
    of_training = np.isin(np.arange(len(_IN_A_STEP)), [_CODE[label] for label in _OF_STEPS])
    train = took[of_training].sum(0)
    lost, unknown = np.zeros(len(log), bool), np.zeros(len(log), bool)
    for until in untils:
        if until is None:
            unknown[:] = True
        else:  # a save is at the end of a step, or after the evaluation before it
            lost |= end - until > 0.5 * train
    code[np.ix_(of_training, unknown)] = _CODE[UNKNOWN]
    code[np.ix_(of_training, lost)] = _CODE[LOST]
    edges = start + np.vstack([np.zeros(len(log)), took]).cumsum(0)
    segments = _Segments(edges[:-1].T.ravel(), edges[1:].T.ravel(), code.T.ravel())
    return segments, None if (unknown & ~lost).any() else int(lost.sum())


def _after_steps(rank: RankLife, context: _Context) -> list[Segment]:
    at = float(rank.last_ns)
    found: list[Segment] = [(at, at, UNKNOWN)]
    if not context.failed:
        for region, label in ((EVALUATION, EVAL), (CHECKPOINT, SAVED)):
            took = (rank.after_ns or {}).get(region, 0)
            found.append((at, at + took, label))
            at += took
        return found
    over_ns, settled = float(_end_ns(context.attempt, failed=True)), rank.log.dur_ns[FIRST_STEPS:]
    is_hang = len(settled) >= 3 and over_ns - at > max(2.0 * float(settled.max()), _MIN_STALL_NS)
    label = HANG if is_hang else LOST
    for save in rank.checkpoints:
        if save.what == SAVE and save.begin_ns >= at:
            found += [(at, float(save.begin_ns), label), (float(save.begin_ns), float(save.end_ns or over_ns), SAVED)]
            at = float(save.end_ns or over_ns)
    found.append((at, over_ns, label))
    if context.attempt.end_ns - over_ns > _OUTLIVES_NS:
        found.append((over_ns, float(context.attempt.end_ns), HANG))
    return found


# Text output: a summary of the attempts, and a picture over time.


def _summary(one: Attempt, launch: int, failed: bool, table: _StepTable, lost: int | None) -> Row:
    first = min((rank for rank in one.ranks if rank.failed), key=lambda rank: rank.end_ns, default=None)
    if first is not None:
        reason = f"rank {first.rank} {'killed' if first.ended == KILLED else f'failed: {first.failure}'}"
    elif any(rank.ended == RUNNING for rank in one.ranks):
        reason = "stopped, its end was not recorded" if failed else "still running"
    elif one.exit_code not in (None, 0):
        reason = f"exit code {one.exit_code}"
    else:
        reason = "restarted by the launcher" if failed else "finished"
    return Row(
        name=one.name,
        launch=launch,
        start_ns=one.start_ns,
        end_ns=_end_ns(one, failed),
        reason=reason,
        failed=failed,
        num_ranks=len(one.ranks),
        steps=table.steps,
        steps_lost=lost,
        saves=table.saves,
        evaluations=table.evaluations,
    )


def _timeline(attempts: Sequence[Sequence[_Segments]], total_ns: float) -> list[Segment]:
    """Return the part that took most of each stretch of time, over ranks."""
    if total_ns <= 0:
        return []
    edges = np.linspace(0.0, total_ns, _BINS + 1)
    spent = np.zeros((len(PARTS), _BINS))
    for ranks in attempts:
        for one in ranks:
            code = _PART_OF[one.code]
            for part in set(code.tolist()):
                start, end = one.start[code == part], one.end[code == part]
                up_to = np.cumsum(end - start)
                points = np.stack([start, end], 1).ravel()
                sums = np.stack([np.append(0.0, up_to[:-1]), up_to], 1).ravel()
                spent[part] += np.diff(np.interp(edges, points, sums)) / len(ranks)
    most = spent.argmax(0)
    changes = [0, *(np.flatnonzero(np.diff(most)) + 1).tolist(), _BINS]
    return [(float(edges[a]), float(edges[b]), PARTS[most[a]]) for a, b in pairwise(changes)]
