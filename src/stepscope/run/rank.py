"""One rank: its trace with kinds, steps, device work and collectives joined. What the analyses work on."""

import json
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OP_CODE, element_bytes, is_comm_annotation, op_name
from stepscope.errors import InputError, TraceError
from stepscope.intervals import Intervals, union
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.sources import rank_in_header
from stepscope.side_file import parsed_json
from stepscope.stats.robust import among, distinct, distinct_places, median, numbered, union_of_values
from stepscope.trace.scanner.scanner import call_stack_parents, stacked
from stepscope.trace.table import (
    NO_STRING,
    EventKind,
    Int64s,
    Kinds,
    SparseColumn,
    Trace,
    by_string,
    coded_rows,
    codes_of_names,
    event_kinds,
    labels,
    names_by_kind,
    of_kinds,
    rows_named,
)

# Process groups of a rank, and their members.

# larger groups are not written out
_MAX_RANKS = 1 << 20
MAX_RANK = 1 << 30


@dataclass(frozen=True)
class Group:
    """One process group as one rank names it. `ranks` and `size` are None where the trace does not say."""

    name: str
    desc: str
    ranks: tuple[int, ...] | None
    size: int | None


UNKNOWN_GROUP = Group(name="?", desc="unknown", ranks=None, size=None)


def header_groups(header: dict[str, Any]) -> dict[str, Group]:
    """Return the groups listed in `distributedInfo.pg_config`, by name."""
    info = header.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict):
            name, size = str(entry.get("pg_name", "?")), entry.get("pg_size")
            is_size = isinstance(size, int) and not isinstance(size, bool) and 0 < size <= _MAX_RANKS
            desc, ranks = str(entry.get("pg_desc", "")), _rank_tuple(entry.get("ranks"))
            groups[name] = Group(name, desc, ranks, size if is_size else None)
    return groups


def group_of_record(trace: Trace, record: dict[str, int], known: dict[str, Group]) -> Group:
    """Return the group that a `record_param_comms` names; `record` holds its argument values by column.

    Long rank lists are shortened in the trace (`[0, 1, ..., 63]`): then start and stride, or the header, tell.
    """
    name = trace.text(record["group_name"]) or "?"
    listed = known.get(name)
    desc = trace.text(record["group_desc"]) or (listed.desc if listed else "")
    size = record["group_size"] if 0 < record["group_size"] <= _MAX_RANKS else (listed.size if listed else None)
    ranks = _parse_ranks(trace.text(record["group_ranks"]))
    if ranks is None or (size is not None and len(ranks) != size):
        ranks = listed.ranks if listed and listed.ranks else _regular(record, size)
    if name == "?" and ranks is None and size is None:
        return UNKNOWN_GROUP
    return Group(name=name, desc=desc, ranks=ranks, size=size if size is not None else len(ranks or ()) or None)


def _regular(record: dict[str, int], size: int | None) -> tuple[int, ...] | None:
    start, stride = record["group_start"], record["group_stride"]
    if size is None or not 0 < size <= _MAX_RANKS or not 0 <= start <= MAX_RANK or not 0 < stride <= MAX_RANK:
        return None
    return tuple(range(start, start + stride * size, stride))


def _parse_ranks(text: str | None) -> tuple[int, ...] | None:
    try:
        return _rank_tuple(parsed_json(text).value) if text else None
    except ValueError:
        return None


def _rank_tuple(ranks: object) -> tuple[int, ...] | None:
    if (
        isinstance(ranks, list)
        and 0 < len(ranks) <= _MAX_RANKS
        and all((isinstance(r, int) and not isinstance(r, bool) and 0 <= r <= MAX_RANK) for r in ranks)
    ):
        return tuple(ranks)
    return None


# Recorded steps, and the step of each moment.
#
# The profiler marks them (`ProfilerStep#7`). Otherwise the first of these is used:
#
#     ranges in which the loop itself names whole steps      `step_7`, `train_step#7`, `training_step`, `train_batch`
#     steps of a serving engine                              `execute_...`, `step[DECODE ...]`
#     the loader's batches and the optimizer's steps
#     the period of the sequence of kernels
#     the whole window                                       one stretch of work, no step
#
# The last three need all ranks. They separate steps, but they do not bound the window.

# Steps of serving engines by the names of their ranges.
#
#     vLLM            execute_context_9(8155)_generation_37(37)
#                     execute_8192_context_9(sq8155sk8430...)_generation_37(sq37...)
#                     execute_new_9_cached_37
#     SGLang          step[EXTEND bs=15 toks=15360], step[DECODE bs=64]
#     TensorRT-LLM    [Executor] _forward_step 12: 3 ctx reqs, 4096 ctx tokens, 8 gen reqs
#
# Context requests are prefill: all tokens of their prompts at once. Generation requests are decode: one token each,
# unless the name says more (speculation).

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"

_TOKENS = r"\((?:sq)?(\d{1,12})[^)]*\)"
_VLLM = re.compile(rf"^execute(?:_\d{{1,12}})?_context_(\d{{1,9}}){_TOKENS}_generation_(\d{{1,9}}){_TOKENS}$")
_VLLM_OLD = re.compile(r"^execute_new_(\d{1,9})_cached_(\d{1,9})$")
_SGLANG = re.compile(r"^step\[(EXTEND|PREFILL|DECODE|MIXED|TARGET_VERIFY)\b([^\]]*)\]$", re.IGNORECASE)
_SGLANG_FIELD = re.compile(r"(bs|toks)=(\d{1,12})")
_TENSORRT = re.compile(
    r"^(?:\[Executor\]\s*)?_forward_step (\d{1,12}): (\d{1,9}) ctx reqs,(?: (\d{1,12}) ctx tokens,)? (\d{1,9}) gen reqs"
)
_ANY = re.compile(r"^(execute_(\d|context|new)|step\[|(\[Executor\]\s*)?_forward_step )", re.IGNORECASE)


@dataclass(frozen=True)
class ServingStep:
    """One step of a serving engine. None: the name does not say."""

    #: prefill, decode, or mixed where a step did both
    kind: str
    prefill_requests: int | None
    prefill_tokens: int | None
    decode_requests: int | None
    decode_tokens: int | None

    @property
    def tokens(self) -> int | None:
        """Return the tokens that the step computed, None where either part is unknown."""
        if self.prefill_tokens is None or self.decode_tokens is None:
            return None
        return self.prefill_tokens + self.decode_tokens


@lru_cache(maxsize=4096)
def serving_step(name: str) -> ServingStep | None:
    """Return what the step of that name ran, None for any other range.

    >>> serving_step("step[DECODE bs=64]").decode_tokens
    64
    """
    if not _ANY.match(name):
        return None
    if found := _VLLM.match(name):
        return _step(*(int(group) for group in found.groups()))
    if found := _VLLM_OLD.match(name):
        fresh, running = (int(group) for group in found.groups())
        return _step(fresh, None if fresh else 0, running, running)
    if found := _SGLANG.match(name):
        return _sglang(found.group(1).upper(), found.group(2))
    if found := _TENSORRT.match(name):
        context, generating = int(found.group(2)), int(found.group(4))
        tokens = int(found.group(3)) if found.group(3) else None if context else 0
        return _step(context, tokens, generating, generating)
    return None


def _sglang(mode: str, rest: str) -> ServingStep:
    said = {key: int(value) for key, value in _SGLANG_FIELD.findall(rest)}
    size, tokens = said.get("bs"), said.get("toks")
    if mode in ("DECODE", "TARGET_VERIFY"):
        return ServingStep(DECODE, 0, 0, size, tokens if tokens is not None else size)
    if mode == "MIXED":
        return ServingStep(MIXED, None, None, None, None)
    return ServingStep(PREFILL, size, tokens, 0, 0)


def _step(prefill: int, prefill_tokens: int | None, decode: int, decode_tokens: int | None) -> ServingStep:
    kind = MIXED if prefill and decode else PREFILL if prefill else DECODE
    return ServingStep(kind, prefill, prefill_tokens, decode, decode_tokens)


PROFILER_STEP = "ProfilerStep"
_PROFILER_STEP = re.compile(r"^(ProfilerStep)#(\d{1,18})$")
# A bare `step` may be the optimizer's: it needs a number, or to say whose step it is.
_LOOP_STEP = re.compile(
    r"^(?:\[\w+\])*[#\s]*((?:\w+\.)?(?:train(?:ing)?|ddp|fsdp|tp|pp|global)[_ ]step|run_training_batch"
    r"|(?:\w+\.)?train[_ ](?:batch|iteration|iter|one_step)"
    r"|(?:step|iteration|iter)(?=[_ #:-]*\d))[_ #:-]*(\d{1,18})?[#\s]*$",
    re.IGNORECASE,
)
SERVING = "the ranges of a serving engine"
# of an ordinary step: a shorter one in which the host calls nothing is none
_EMPTY_SHARE = 0.1
_AUTOGRAD = "autograd::engine::evaluate_function"


@dataclass(frozen=True, eq=False, repr=False)
class Steps(ArrayRecord):
    """The recorded steps of one rank on the host's clock, by start."""

    number: Int64s
    start_ns: Int64s
    end_ns: Int64s
    #: what the ranges are called, without their numbers
    named: str = PROFILER_STEP
    #: whether their names give the numbers; if not they count from 0
    numbered: bool = True
    #: the source of the steps where no range names them, in words
    told_by: str = ""
    #: whether they are one stretch of work, because steps are unknown
    is_window: bool = False
    #: whether far longer ones before them were left out
    after_cold: bool = False
    #: where each is a round of several: the steps that were recorded
    in_rounds: "Steps | None" = None

    def __len__(self) -> int:
        return len(self.number)

    @property
    def by_profiler(self) -> bool:
        """Return whether the profiler marked them."""
        return self.named == PROFILER_STEP

    @property
    def bound_window(self) -> bool:
        """Return whether they bound the window: the profiler marked them, or it is a range around all launches."""
        return self.by_profiler or (self.is_window and bool(self.named))

    @property
    def recorded(self) -> "Steps":
        """Return the steps as they were recorded, of which several may be a round."""
        return self if self.in_rounds is None else self.in_rounds

    @property
    def known(self) -> int:
        """Return how many steps are known; the whole window is none."""
        return 0 if self.is_window else len(self)

    def of(self, moment_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the index of the step of each moment, -1 before the first and after the last.

        A moment between two steps belongs to the earlier one, unless a step between them was not recorded.
        """
        if not len(self):
            return np.full(len(moment_ns), -1, np.int32)
        i = np.searchsorted(self.start_ns, moment_ns, side="right") - 1
        i[moment_ns >= self.end_ns.max()] = -1
        for gap in np.flatnonzero(np.diff(self.number) > 1) if self.by_profiler else ():
            i[(i == gap) & (moment_ns >= self.end_ns[gap])] = -1
        return i.astype(np.int32)


def recorded_steps(trace: Trace, kinds: Kinds) -> Steps:
    """Return the steps of a trace; of one that was cut off only those that are there as a whole, never its last."""
    ranges = np.flatnonzero(kinds == int(EventKind.ANNOTATION))
    said = trace.header.get("stepscope")
    last = said.get("last_step") if isinstance(said, dict) else None
    left_out = said.get("left_out") if isinstance(said, dict) else None
    left_out = left_out if isinstance(left_out, list) else []

    def is_whole(name: str) -> bool:
        found = _PROFILER_STEP.match(name)
        number = int(found.group(2)) if found else -1
        return number >= 0 and not (isinstance(last, int) and number >= last) and number not in left_out

    marked = rows_named(trace, ranges, is_whole)
    if len(marked):
        steps = _steps(trace, kinds, marked, _PROFILER_STEP)
        held = _holds_work(trace, kinds, steps)
        if held.all():
            return steps
        if held.any():
            return replace(steps, number=steps.number[held], start_ns=steps.start_ns[held], end_ns=steps.end_ns[held])
    loop = _steps(trace, kinds, _longest_family(trace, ranges, _loop_name), _LOOP_STEP)
    if len(loop):
        return loop
    own = rows_named(trace, ranges, lambda s: s.startswith("step[") and serving_step(s) is not None)
    served = _longest_family(trace, own if len(own) else ranges, _served_name)
    if len(served):
        served = served[np.argsort(trace["ts_ns"][served], kind="stable")]
        start = trace["ts_ns"][served]
        keep = slice(None, -1) if trace.quality.truncated else slice(None)
        return unnamed_steps(start[keep], (start + trace["dur_ns"][served])[keep], SERVING)
    return loop


def _holds_work(trace: Trace, kinds: Kinds, steps: Steps) -> npt.NDArray[np.bool_]:
    """Return which steps are more than two calls of the profiler's `step` in a row: none that a host call falls into.

    A long step without a call is a stall of the host, where other steps have calls.
    """
    calls = np.sort(trace["ts_ns"][of_kinds(kinds, (EventKind.HOST_OP, EventKind.RUNTIME))])
    filled = np.searchsorted(calls, steps.end_ns) > np.searchsorted(calls, steps.start_ns)
    took = steps.end_ns - steps.start_ns
    usual = median(took[filled]) if filled.any() else float(calls[-1] - calls[0]) if len(calls) else 0.0
    return np.asarray(filled | (took >= _EMPTY_SHARE * usual))


def unnamed_steps(start: Int64s, end: Int64s, told_by: str, *, is_window: bool = False) -> Steps:
    """Return steps that no range numbers."""
    number = np.arange(len(start), dtype=np.int64)
    return Steps(number, start, end, named="", numbered=False, told_by=told_by, is_window=is_window)


def _steps(trace: Trace, kinds: Kinds, rows: npt.NDArray[np.intp], pattern: re.Pattern[str]) -> Steps:
    rows = rows[np.argsort(trace["ts_ns"][rows], kind="stable")]
    found = [pattern.match(trace.strings[i]) for i in trace["name"][rows]]
    named = found[0].group(1) if found and found[0] else PROFILER_STEP
    in_name = [int(f.group(2)) if f and f.group(2) else None for f in found]
    numbered = None not in in_name
    number = np.array(in_name if numbered else range(len(rows)), np.int64)
    first = np.sort(np.unique(number, return_index=True)[1])  # the same step on a second thread counts once
    rows, number = rows[first], number[first]
    start = trace["ts_ns"][rows]
    steps = Steps(number, start, start + trace["dur_ns"][rows], named, numbered)
    if not trace.quality.truncated or not len(steps):
        return steps
    keep = (steps.end_ns <= _known_until_ns(trace, kinds, trace["tid"][rows])) & (start < start.max())
    return Steps(number[keep], start[keep], steps.end_ns[keep], named, numbered)


def _longest_family(
    trace: Trace, ranges: npt.NDArray[np.intp], family: Callable[[str], str | None]
) -> npt.NDArray[np.intp]:
    """Return the ranges of one family of names that follow each other on one thread, the longest in all where several
    families do.
    """
    families: dict[tuple[str, int], list[int]] = {}
    for row in rows_named(trace, ranges, lambda s: family(s) is not None).tolist():
        name = family(trace.strings[trace["name"][row]]) or ""
        families.setdefault((name, int(trace["tid"][row])), []).append(row)
    best, longest = np.empty(0, np.intp), 0
    for rows in families.values():
        mine = np.array(rows, np.intp)
        mine = mine[np.argsort(trace["ts_ns"][mine], kind="stable")]
        start, end = trace["ts_ns"][mine], trace["ts_ns"][mine] + trace["dur_ns"][mine]
        if (start[1:] >= end[:-1]).all() and (end - start).sum() > longest:
            best, longest = mine, int((end - start).sum())
    return best


def _loop_name(name: str) -> str | None:
    found = _LOOP_STEP.match(name)
    return found.group(1).lower() if found else None


def _served_name(name: str) -> str | None:
    return re.split(r"[\d\[]", name, maxsplit=1)[0] if serving_step(name) is not None else None


def _known_until_ns(trace: Trace, kinds: Kinds, step_threads: Int64s) -> int:
    """Return until when a trace that was cut off is complete.

    The profiler writes the host's events first, thread by thread or in time, and then the launched work in the same
    way. So the last rows of the host and of the device show how far it is complete: not at all where launches of the
    loop's thread or of the autograd engine's are missing, or all of them on a rank with a device.
    """
    host = np.flatnonzero(of_kinds(kinds, (EventKind.HOST_OP, EventKind.RUNTIME, EventKind.ANNOTATION)))
    device = np.flatnonzero(of_kinds(kinds, (EventKind.KERNEL, EventKind.COMM_KERNEL, EventKind.COPY, EventKind.SET)))
    calls = np.flatnonzero(kinds == EventKind.RUNTIME)
    if len(calls) or trace.header.get("deviceProperties"):
        nodes = rows_named(trace, np.flatnonzero(kinds == EventKind.HOST_OP), lambda s: s.startswith(_AUTOGRAD))
        needed = union_of_values(step_threads, trace["tid"][nodes])
        if not among(needed, trace["tid"][calls]).all():
            return int(np.iinfo(np.int64).min)
    return min(int(trace["ts_ns"][rows[-1]]) for rows in (host, device) if len(rows))


# What ran on the device, which host call launched it, which operator caused it, and in which step.
#
#     kernel --correlation--> runtime call --external id or enclosing range--> host operator
#                                 |--start--> step
#
# Work launched before the window has no launch event: it is in the window, but in no recorded step.

Rows = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]

# of one rank, over all its devices
MAX_STREAMS = 2_048

# Calls after which device work of their own is expected.
_LAUNCHES = re.compile(
    r"^(cuda|cu|hip)(Ext|Module|Graph)?Launch|^(cuda|cu|hip)(Memcpy|Memset)\w*|^hipExtModuleLaunch|Enqueue"
)


@dataclass(frozen=True, eq=False, repr=False)
class DeviceWork(ArrayRecord):
    """Kernels, copies and sets of one rank, by start. Rows are -1 where there is none."""

    #: in the event table
    row: Rows
    kind: Kinds
    start_ns: Int64s
    end_ns: Int64s
    name: npt.NDArray[np.int32]
    device: Int64s
    stream: Int64s
    #: runtime call that launched it
    launch_row: Rows
    #: innermost host operator around that call
    op_row: Rows
    #: index of the step that launched it, -1 for work from before the window
    step: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.row)

    def intervals(self, *kinds: EventKind) -> Intervals:
        keep = of_kinds(self.kind, kinds)
        return union(self.start_ns[keep], self.end_ns[keep])


@dataclass(frozen=True)
class JoinCounts:
    """What could and could not be joined."""

    device_events: int
    #: launched before the window, or the launch was not recorded
    without_launch: int
    #: launched, but no host operator around the launch
    without_op: int
    launches_without_work: int
    #: launches that share their correlation id with another launch
    reused_correlation: int


DEVICE_KINDS = (EventKind.KERNEL, EventKind.COMM_KERNEL, EventKind.COPY, EventKind.SET)


def device_work(trace: Trace, kinds: Kinds, steps: Steps) -> tuple[DeviceWork, JoinCounts]:
    """Return the device's work joined to launches, operators and steps, with what stayed unjoined."""
    row = np.flatnonzero(of_kinds(kinds, DEVICE_KINDS))
    row = row[np.argsort(trace["ts_ns"][row], kind="stable")]
    start = trace["ts_ns"][row]
    launch_row, launches, reused = _launch_rows(trace, kinds, row)
    launched = np.flatnonzero(launch_row >= 0)
    step = np.full(len(row), -1, np.int32)
    step[launched] = steps.of(trace["ts_ns"][launch_row[launched]])
    op_row = np.full(len(row), -1, np.int64)
    op_row[launched] = _op_rows(trace, kinds, launch_row[launched])
    work = DeviceWork(
        row=row,
        kind=kinds[row],
        start_ns=start,
        end_ns=start + trace["dur_ns"][row],
        name=trace["name"][row],
        device=_first_of(trace.arg("device").at(row, missing=-1), trace["pid"][row]),
        stream=_first_of(trace.arg("stream").at(row, missing=-1), trace["tid"][row]),
        launch_row=launch_row,
        op_row=op_row,
        step=step,
    )
    count = _num_streams(work)
    if count > MAX_STREAMS:
        raise TraceError(
            f"{trace.path}: work on {count:,} streams, where a rank has a few dozen; at most {MAX_STREAMS:,} are read: "
            "pass the trace of one rank, as the profiler wrote it"
        )
    counts = JoinCounts(
        device_events=len(row),
        without_launch=int((launch_row < 0).sum()),
        without_op=int((op_row[launched] < 0).sum()),
        launches_without_work=int((~among(launches, launch_row)).sum()),
        reused_correlation=reused,
    )
    return work, counts


# A stream runs one operation after another, and nothing runs before it is launched. Times that contradict this are
# damaged where few do; where many do, the device works differently or has another clock. Healthy traces overlap by
# microseconds.
_MAX_DAMAGED = 0.02
_IMPOSSIBLE_NS = 50_000
# times as long as three quarters of at least three equal operations
_IMPOSSIBLE_TIMES, _MIN_EQUAL = 20, 3
# from the end of an operation to the start of one that waits for it
_HANDOVER_NS = 20_000


def with_possible_times(trace: Trace, work: DeviceWork) -> tuple[Trace, Rows, Rows]:
    """Return the trace with impossible times of device operations corrected, and the rows cut and moved.

    Impossible are a start before the launch or before those launched earlier on the stream, and a duration that the
    stream has no time for; next to these also one many times that of equal operations, which alone may be another
    process on the device. A queued operation that begins when no other ends has
    waited for the damaged one, whose end is then known; else it takes as long as its equals, as soon as its stream is
    free.
    """
    launched = np.flatnonzero(work.launch_row >= 0)
    launch = np.full(len(work), np.iinfo(np.int64).min)
    launch[launched] = trace["ts_ns"][work.launch_row[launched]]
    start, took = work.start_ns.copy(), work.end_ns - work.start_ns
    early = _if_few(np.flatnonzero((launch > start + _IMPOSSIBLE_NS) | _out_of_order(work, launch)), work)
    in_time = np.delete(np.arange(len(work)), early)
    order = in_time[np.lexsort((start[in_time], work.stream[in_time], work.device[in_time]))]
    room = np.full(len(work), np.iinfo(np.int64).max)
    same = (np.diff(work.stream[order]) == 0) & (np.diff(work.device[order]) == 0)
    room[order[:-1][same]] = np.diff(start[order])[same]
    overlong = in_time[(took - room > np.maximum(_IMPOSSIBLE_NS, took // 2))[in_time]]
    overlong = _if_few(overlong, work)
    if not len(early) and not len(overlong):
        return trace, early, overlong
    equal = _equal_operations(trace, work)
    long = np.union1d(overlong, _if_few(np.intersect1d(in_time, _outlasting(work, equal)), work))
    sound = np.setdiff1d(in_time, long)
    waited = _unexplained_starts(trace, work, sound)
    for place in long.tolist():
        usual = np.sort(took[sound[equal[sound] == equal[place]]])
        ends = waited[work.device[waited] == work.device[place]]
        known = start[ends] - start[place]
        known = known[(known > 0) & (known <= room[place])]
        expected = int(usual[len(usual) // 2]) if len(usual) else took[place]
        if len(usual) and work.kind[place] != EventKind.COMM_KERNEL:  # one that waits for other ranks takes any time
            known = known[(known >= usual[0] // 2) & (known <= 2 * usual[-1])]
        took[place] = known[np.abs(known - expected).argmin()] if len(known) else min(room[place], expected)
    for place in early.tolist():
        stream = in_time[_same_stream(work, place)[in_time]]
        before, after = stream[launch[stream] < launch[place]], stream[launch[stream] > launch[place]]
        first = max(launch[place], int((start + took)[before].max(initial=0)))
        last = int(start[after].min(initial=np.iinfo(np.int64).max))
        ends = start[waited[work.device[waited] == work.device[place]]]
        ends = ends[(ends >= first + took[place] - _IMPOSSIBLE_NS) & (ends <= last)]
        start[place] = max(first, int(ends.min()) - took[place]) if len(ends) else first
        took[place] = min(took[place], max(last - start[place], 0))
    counts = ((len(long), "were too long"), (len(early), "began too early"))
    said = " and ".join(f"{n:,} {what}" for n, what in counts if n)
    note = f"device operations with impossible times, corrected: {said}"
    return _with_times(trace, work.row, start, took, note), work.row[long], work.row[early]


def _with_times(trace: Trace, rows: Rows, start_ns: Int64s, took_ns: Int64s, note: str) -> Trace:
    columns = {**trace.columns, "ts_ns": trace["ts_ns"].copy(), "dur_ns": trace["dur_ns"].copy()}
    columns["ts_ns"][rows], columns["dur_ns"][rows] = start_ns, took_ns
    return replace(trace, columns=columns, quality=replace(trace.quality, notes=(*trace.quality.notes, note)))


def _equal_operations(trace: Trace, work: DeviceWork) -> Int64s:
    """Return a number for each operation, the same for those of one name that do as much."""
    number = work.name.astype(np.int64)
    for column in ("grid", "bytes"):
        own = numbered(trace.arg(column).at(work.row, missing=-1).astype(np.int64))[1]
        number = numbered((number << 32) + own)[1]
    return number


def _outlasting(work: DeviceWork, equal: Int64s) -> Rows:
    """Return operations many times as long as their equals; those that wait for other ranks take any time."""
    took = work.end_ns - work.start_ns
    own = np.flatnonzero((took > _IMPOSSIBLE_NS) & ~of_kinds(work.kind, (EventKind.COMM_KERNEL,)))
    order = np.lexsort((took, equal))
    first = np.searchsorted(equal[order], equal[own])
    count = np.searchsorted(equal[order], equal[own], side="right") - first
    usual = took[order[first + 3 * (count - 1) // 4]]
    return own[(count >= _MIN_EQUAL) & (took[own] > np.maximum(_IMPOSSIBLE_TIMES * usual, usual + _IMPOSSIBLE_NS))]


def _unexplained_starts(trace: Trace, work: DeviceWork, sound: Rows) -> Rows:
    """Return queued operations that begin when none of the sound ones ends: they waited for one that is not sound."""
    call = work.launch_row[sound]  # without one it was launched before the recording began
    returned = np.where(call < 0, np.iinfo(np.int64).min, trace["ts_ns"][call] + trace["dur_ns"][call])
    queued = sound[work.start_ns[sound] - _IMPOSSIBLE_NS > returned]
    ends = np.sort(work.end_ns[sound])
    before = np.searchsorted(ends, work.start_ns[queued], side="right")
    latest = ends[np.maximum(before - 1, 0)]
    return queued[(before == 0) | (work.start_ns[queued] - latest > _HANDOVER_NS)]


def _out_of_order(work: DeviceWork, launch: Int64s) -> npt.NDArray[np.bool_]:
    order = np.lexsort((work.start_ns, launch, work.stream, work.device))
    change = (np.diff(work.stream[order]) != 0) | (np.diff(work.device[order]) != 0)
    place, start = np.cumsum(np.append(0, change)), work.start_ns[order] - work.start_ns.min(initial=0)
    latest = np.maximum.accumulate(start + place * (1 << 50)) - place * (1 << 50)  # per stream: no window is that long
    found = np.zeros(len(work), bool)
    found[order] = (latest - start > _IMPOSSIBLE_NS) & (launch[order] > np.iinfo(np.int64).min)
    return found


def _if_few(places: Rows, work: DeviceWork) -> Rows:
    return places if len(places) <= _MAX_DAMAGED * len(work) else places[:0]


def _same_stream(work: DeviceWork, place: int) -> npt.NDArray[np.bool_]:
    return (work.stream == work.stream[place]) & (work.device == work.device[place])


def _num_streams(work: DeviceWork) -> int:
    if len(distinct(work.device)) <= 1:
        return len(distinct(work.stream))
    return len(np.unique(np.stack((work.device, work.stream)), axis=1).T)


def lookup(keys: Numbers, values: Numbers, wanted: Int64s) -> Rows:
    """Return for each wanted key the value of its last occurrence in `keys`, -1 where there is none.

    Dense where the keys span a moderate range (correlation ids do), because sorting permuted ids is slow.
    """
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low <= 8 * (len(keys) + len(wanted)) + 1_000_000:
        table = np.full(high - low + 2, -1, np.int32)  # of rows; in the last place that of no key
        table[np.subtract(keys, low, dtype=np.intp)] = values
        inside = (wanted >= low) & (wanted <= high)
        return table[np.where(inside, wanted - low, -1)].astype(np.int64)
    order = np.argsort(keys, kind="stable")
    i = np.searchsorted(keys[order], wanted, side="right") - 1
    at = order[np.maximum(i, 0)]
    return np.where((i >= 0) & (keys[at] == wanted), values[at], np.int64(-1))


def _launch_rows(trace: Trace, kinds: Kinds, device_rows: Rows) -> tuple[Rows, Rows, int]:
    found, launches, reused = _calls_by(trace, kinds, "correlation", device_rows)
    if len(found) and (found < 0).all():  # old ROCm profilers number the calls by external ids
        by_id, calls, shared = _calls_by(trace, kinds, "external_id", device_rows)
        if not shared:  # else they are ids of operators, each around several calls
            return by_id, calls, shared
    return found, launches, reused


def _calls_by(trace: Trace, kinds: Kinds, column: str, device_rows: Rows) -> tuple[Rows, Rows, int]:
    """Return the call whose number each device operation has, all launching calls, and how many share a number."""
    numbers = trace.arg(column)
    [calls] = _of_each_kind(numbers, kinds, EventKind.RUNTIME)
    has = np.flatnonzero(calls.values > 0)
    runtime, key = calls.rows[has].astype(np.int64), calls.values[has]
    found = lookup(key, runtime, numbers.at(device_rows, missing=-1))
    launching = np.flatnonzero(by_string(trace, trace["name"][runtime], lambda s: bool(_LAUNCHES.search(s))))
    reused = len(launching) - len(distinct(key[launching]))
    return found, runtime[launching], reused


def _op_rows(trace: Trace, kinds: Kinds, launch_rows: Rows) -> Rows:
    """Return the innermost host operator around each launch: by external id where it names one on the same
    thread around the launch, else by the call stack.
    """
    ops, calls = _of_each_kind(trace.arg("external_id"), kinds, EventKind.HOST_OP, EventKind.RUNTIME)
    found = lookup(ops.values, ops.rows, calls.at(launch_rows, missing=-1))
    found[~_encloses(trace, found, launch_rows)] = -1
    missing = np.flatnonzero(found < 0)
    if len(missing):
        all_ops = np.flatnonzero(of_kinds(kinds, (EventKind.HOST_OP,)))
        found[missing] = enclosing(trace, all_ops, launch_rows[missing])
    return found


def _of_each_kind(arg: SparseColumn, kinds: Kinds, *wanted: EventKind) -> list[SparseColumn]:
    found = kinds.take(arg.rows)
    places = [np.flatnonzero(found == int(kind)) for kind in wanted]
    return [SparseColumn(arg.rows.take(of_kind), arg.values.take(of_kind)) for of_kind in places]


def _encloses(trace: Trace, outer: Rows, inner: Rows) -> npt.NDArray[np.bool_]:
    ts, dur, tid = trace["ts_ns"], trace["dur_ns"], trace["tid"]
    same = (outer >= 0) & (tid[outer] == tid[inner])
    outer_start, inner_start = ts[outer], ts[inner]
    return same & (outer_start <= inner_start) & (outer_start + dur[outer] >= inner_start + dur[inner])


def enclosing(trace: Trace, outer: Rows, inner: Rows) -> Rows:
    """Return for each inner row the innermost outer row of its thread around it, -1 where there is none."""
    if not len(outer) or not len(inner):
        return np.full(len(inner), -1, np.int64)
    if not (inner[1:] > inner[:-1]).all():
        once, place = distinct_places(inner)
        return enclosing(trace, outer, once)[place]
    rows = np.concatenate((outer, inner))
    start, thread = trace["ts_ns"].take(rows), trace["tid"].take(rows)
    is_inner = np.arange(len(rows)) >= len(outer)
    order, *columns = stacked(thread, start, start + trace["dur_ns"].take(rows), is_inner)
    parent, is_inner = call_stack_parents(*columns), is_inner.take(order)
    places = np.flatnonzero(is_inner)
    around = parent.take(places)
    # An inner row's parent may be another inner row (a launch within a launch): climb to an outer one.
    while (climb := (around >= 0) & is_inner[around]).any():
        around = np.where(climb, parent[around], around)
    found = np.empty(len(inner), np.int64)
    found[order[places] - len(outer)] = np.where(around >= 0, rows[order[around]], -1)
    return found


def _first_of(value: Int64s, fallback: Int64s) -> Int64s:
    return np.where(value >= 0, value, fallback)


# Collectives of one rank: times, groups and bytes.
#
# On devices the kernel has the time and the host has the meaning:
#
#     kernel --launch--> inside record_param_comms           one record around the launch
#                   `--> inside nccl:coalesced               the records since the group's previous launch
#
# Newer versions write the arguments of the record on the kernel too, which covers launches before the window. Traces
# without arguments (old versions) still name the operation in the range around the launch and its tensor in
# `Input Dims`. Nearly all kernels of a job repeat, so each distinct combination is parsed once. On gloo the operator
# (`c10d::`) has the meaning and the `gloo:` span the time.

# Input sizes from the shapes and types that the profiler writes.
#
# Shapes are not trusted: a malformed one is unknown, never an error.

# a tensor of more than a petabyte is no tensor
_MAX_ELEMENTS = 1 << 50
_UNKNOWN = -1


def shape_bytes(dims: str | None, types: str | None) -> int:
    """Return the bytes of the first input whose shape and type are recorded, UNKNOWN where there is none.

    >>> shape_bytes("[[6144], []]", '["float", ""]')
    24576
    """
    for shape, kind in zip(_listed(dims), _listed(types), strict=False):
        size = element_bytes(kind if isinstance(kind, str) else None)
        elements = _shape_elements(shape)
        if size and elements is not None:
            return elements * size
    return _UNKNOWN


@lru_cache(maxsize=4096)
def element_counts(dims: str | None) -> frozenset[int]:
    """Return how many elements each of the inputs has, those in lists of tensors too.

    >>> sorted(element_counts("[[[4, 8], [10]], [3], []]"))
    [3, 10, 32]
    """
    counts = set()
    for shape in _listed(dims):
        each = [shape] if _shape_elements(shape) is not None else shape if isinstance(shape, list) else []
        counts |= {n for n in map(_shape_elements, each) if n is not None}
    return frozenset(counts)


def _listed(text: str | None) -> list[Any]:
    try:
        found = parsed_json(text or "[]").value
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _shape_elements(shape: Any) -> int | None:
    if not isinstance(shape, list) or not 0 < len(shape) <= 64:
        return None
    if not all(type(n) is int and n >= 0 for n in shape):
        return None
    elements = math.prod(shape)
    return elements if elements <= _MAX_ELEMENTS else None


FLIGHT_RECORDER = "flight_recorder.jsonl"
# torch records 2,000 by default
_MAX_CALLS = 20_000


@dataclass(frozen=True)
class FlightCall:
    """One call as torch's flight recorder noted it."""

    op: str
    created_ns: int
    #: of its input, -1 unknown
    size_bytes: int
    group: Group


def flight_calls(path: Path) -> tuple[FlightCall, ...]:
    """Return the calls of a flight recorder's file, oldest first; none where it is missing or damaged.

    Without a file of the recorder's, an imported dump next to it is read.
    """
    dump = path.parent / path.name.replace(FLIGHT_RECORDER, "flight_recorder.dump")
    if not path.exists() and not dump.is_file():
        return ()
    from stepscope.trace.flight_recorder import read_flight_dump  # only where there is such a file

    try:
        found = read_flight_dump(path if path.exists() else dump)
    except InputError:
        return ()
    groups = {g.name: Group(g.name, g.desc, g.ranks, len(g.ranks) if g.ranks else None) for g in found.groups.values()}
    calls = [
        FlightCall(
            e.op,
            e.created_ns,
            _input_bytes(e.input_sizes, e.input_dtypes),
            groups.get(e.group) or Group(e.group, e.group_desc, None, None),
        )
        for e in found.entries[-_MAX_CALLS:]
        if e.created_ns is not None
    ]
    return tuple(sorted(calls, key=lambda call: call.created_ns))


def calls_of_operators(calls: Sequence[FlightCall], ops: Sequence[str], called_ns: Int64s) -> list[FlightCall | None]:
    """Return the call that each operator made, None where the recorder no longer holds it.

    `ops` and `called_ns` are the operators in the order they were called. Where they fit in several places, the one
    in which the times between calls agree best is theirs.
    """
    held = np.array([_runs_as(call.op) for call in calls], np.int64)
    wanted = np.array([_runs_as(op) for op in ops], np.int64)
    created = np.array([call.created_ns for call in calls], np.int64)
    fits = [(0, at) for at in _fits(held, wanted)] or [(lost, 0) for lost in _overrun(held, wanted)]
    if not fits:
        return [None] * len(ops)

    def disagreement(fit: tuple[int, int]) -> float:
        lost, at = fit
        apart = created[at : at + len(ops) - lost] - called_ns[lost:]
        return median(np.abs(apart - median(apart)))

    lost, at = min(fits, key=disagreement)
    return [*[None] * lost, *calls[at : at + len(ops) - lost]]


def _fits(held: Int64s, wanted: Int64s) -> list[int]:
    starts = np.flatnonzero(held[: max(len(held) - len(wanted) + 1, 0)] == wanted[0]) if len(wanted) else wanted
    return [at for at in starts.tolist() if np.array_equal(held[at : at + len(wanted)], wanted)]


def _overrun(held: Int64s, wanted: Int64s) -> list[int]:
    most = len(wanted) // 2
    return [
        lost
        for lost in range(max(1, len(wanted) - len(held)), most + 1)
        if np.array_equal(held[: len(wanted) - lost], wanted[lost:])
    ]


def _runs_as(op: str) -> int:
    return OP_CODE["all_reduce" if op == "reduce_scatter" else op]


def _input_bytes(shapes: Sequence[Sequence[int]], types: Sequence[str]) -> int:
    elements = [_shape_elements(list(shape)) if shape else 1 for shape in shapes]
    known = [
        n * size for n, kind in zip(elements, types, strict=False) if n is not None and (size := element_bytes(kind))
    ]
    return sum(known) if known and len(known) == len(shapes) == len(types) else _UNKNOWN


# The communication operations of one rank as a table: one row per kernel or gloo span, and one per message.


@dataclass(frozen=True, eq=False, repr=False)
class Collectives(ArrayRecord):
    """Communication operations of one rank, by start: one row per communication kernel or gloo span."""

    start_ns: Int64s
    end_ns: Int64s
    #: when the host issued it; NONE_NS where that was before the window
    issue_ns: Int64s
    #: code in `collective_names.OPS`
    op: npt.NDArray[np.uint8]
    #: index into `groups`
    group: npt.NDArray[np.int32]
    #: sent by this rank, -1 unknown
    in_bytes: Int64s
    #: received by this rank, -1 unknown
    out_bytes: Int64s
    #: other rank of a point-to-point operation, -1 otherwise
    peer: npt.NDArray[np.int32]
    #: index of the step that issued it, -1 for before the window
    step: npt.NDArray[np.int32]
    #: row in the rank's DeviceWork, -1 on gloo
    device_index: Rows
    #: event row of its record or operator, -1 where none was found
    record_row: Rows
    groups: tuple[Group, ...]
    #: sends and receives, one row per message; a coalesced operation has several
    messages: "Messages"
    #: operators of a CPU rank whose execution is not in the trace
    unanswered: int = 0

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def full_bytes(self) -> Int64s:
        """Return the full buffer of each operation: what a gather receives, what a scatter sends. -1 unknown."""
        gathers = (self.op == OP_CODE["all_gather"]) | (self.op == OP_CODE["gather"])
        scatters = (self.op == OP_CODE["reduce_scatter"]) | (self.op == OP_CODE["scatter"])
        larger = np.maximum(self.in_bytes, self.out_bytes)
        return np.where(gathers, self.out_bytes, np.where(scatters, self.in_bytes, larger))

    @property
    def unjoined(self) -> int:
        return int(((self.record_row < 0) & (self.step >= 0)).sum())


@dataclass(frozen=True, eq=False, repr=False)
class Messages(ArrayRecord):
    """Point-to-point messages of one rank, in the order they were issued."""

    #: row in Collectives
    collective: npt.NDArray[np.int64]
    is_send: npt.NDArray[np.bool_]
    peer: npt.NDArray[np.int32]
    size_bytes: Int64s

    def __len__(self) -> int:
        return len(self.collective)


@dataclass(frozen=True)
class Meaning:
    """What a communication kernel turned out to be."""

    op: str
    group: Group
    in_bytes: int = -1
    out_bytes: int = -1
    peer: int = -1
    #: `(is_send, peer, bytes)` of each point-to-point message it carries
    messages: tuple[tuple[bool, int, int], ...] = ()


def _collective_table(
    meanings: list[Meaning],
    meaning: Int64s,
    *,
    start_ns: Int64s,
    end_ns: Int64s,
    issue_ns: Int64s,
    step: npt.NDArray[np.int32],
    device_index: Rows,
    record_row: Rows,
    unanswered: int = 0,
) -> Collectives:
    groups: dict[Group, int] = {}
    group = np.array([groups.setdefault(m.group, len(groups)) for m in meanings], np.int32)
    messages = [(i, *message) for i, number in enumerate(meaning.tolist()) for message in meanings[number].messages]
    return Collectives(
        start_ns=start_ns,
        end_ns=end_ns,
        issue_ns=issue_ns,
        op=np.array([OP_CODE[m.op] for m in meanings], np.uint8)[meaning],
        group=group[meaning],
        in_bytes=_masked_column(m.in_bytes for m in meanings)[meaning],
        out_bytes=_masked_column(m.out_bytes for m in meanings)[meaning],
        peer=_masked_column((m.peer for m in meanings), most=MAX_RANK).astype(np.int32)[meaning],
        step=step,
        device_index=device_index,
        record_row=record_row,
        groups=tuple(groups),
        messages=Messages(
            collective=np.array([m[0] for m in messages], np.int64),
            is_send=np.array([m[1] for m in messages], bool),
            peer=_masked_column((m[2] for m in messages), most=MAX_RANK).astype(np.int32),
            size_bytes=_masked_column(m[3] for m in messages),
        ),
        unanswered=unanswered,
    )


def _masked_column(values: Iterable[int], *, most: int = 1 << 60) -> Int64s:
    return np.array([value if value <= most else -1 for value in values], np.int64)


RECORD = "record_param_comms"

# the values of a `_Record` or a `_Range`, which is what they are made into once they differ from all before
_Said = tuple[int, ...]
# records, range and name of a kernel; several records are a coalesced group
_SaidOfKernel = tuple[tuple[_Said, ...], _Said, int]


class _Record(NamedTuple):
    collective: int
    in_elems: int
    out_elems: int
    dtype: int
    group_size: int
    group_name: int
    group_desc: int
    group_ranks: int
    group_start: int
    group_stride: int
    src_rank: int
    dst_rank: int
    input_dims: int
    input_types: int


class _Range(NamedTuple):
    name: int
    input_dims: int
    input_types: int


_GROUP_ARGS = tuple(name for name in _Record._fields if name.startswith("group_"))


def device_collectives(trace: Trace, work: DeviceWork) -> Collectives:
    """Return the communication kernels of a rank with their meaning."""
    index = np.flatnonzero(work.kind == int(EventKind.COMM_KERNEL))
    kernel, launch = work.row[index], work.launch_row[index]
    launches = distinct(launch[launch >= 0])
    records, ranges = _records_and_ranges(trace)
    inside, around = enclosing(trace, records, launches), enclosing(trace, ranges, launches)
    coalesced = _coalesced(trace, records, launches, inside)
    record = lookup(launches, inside, launch)
    own = trace.arg("collective").at(kernel, missing=NO_STRING) != NO_STRING
    record = np.where((record < 0) & own, kernel, record)
    by_records = zip(record.tolist(), _said_by_records(trace, record), strict=True)
    said: list[tuple[_Said, ...]] = [(one,) if row >= 0 else () for row, one in by_records]
    if coalesced:
        said_at = dict(zip(records.tolist(), _said_by_records(trace, records), strict=True))
        for i in np.flatnonzero(among(launch, np.array(list(coalesced), np.int64))).tolist():
            rows = coalesced[int(launch[i])]
            record[i], said[i] = rows[0], tuple(said_at[row] for row in rows)
    range_row = lookup(launches, around, launch)
    range_name = np.where(range_row >= 0, trace["name"][range_row], NO_STRING).tolist()
    shapes = (trace.arg(name).at(range_row, missing=NO_STRING).tolist() for name in ("input_dims", "input_types"))
    named = zip(range_name, *shapes, strict=True)
    numbers: dict[_SaidOfKernel, int] = {}
    kernels = zip(said, named, trace["name"][kernel].tolist(), strict=True)
    meaning = np.array([numbers.setdefault(one, len(numbers)) for one in kernels], np.int64)
    known = header_groups(trace.header)

    @cache
    def group_of(*arguments: int) -> Group:
        return group_of_record(trace, dict(zip(_GROUP_ARGS, arguments, strict=True)), known)

    return _collective_table(
        [_meaning(trace, *one, group_of) for one in numbers],
        meaning,
        start_ns=work.start_ns[index],
        end_ns=work.end_ns[index],
        issue_ns=np.where(launch >= 0, trace["ts_ns"][launch], np.iinfo(np.int64).min),
        step=work.step[index],
        device_index=index,
        record_row=record,
    )


def _records_and_ranges(trace: Trace) -> tuple[Rows, Rows]:
    rows, code = coded_rows(
        trace, lambda s: 2 if s == RECORD else is_comm_annotation(s), (EventKind.HOST_OP, EventKind.ANNOTATION)
    )
    records, ranges = rows[code == 2], rows[code != 2]
    waits = by_string(trace, trace.arg("collective").at(records, missing=NO_STRING), lambda s: s == "wait")
    return records[waits == 0], ranges


def _coalesced(trace: Trace, records: Rows, launches: Rows, inside: Rows) -> dict[int, list[int]]:
    bare = set(launches[inside < 0].tolist())
    waiting = records[~among(records, inside)]
    if not bare or not len(waiting):
        return {}
    rows = np.concatenate((waiting, launches))
    rows = rows[np.argsort(trace["ts_ns"][rows], kind="stable")]
    launching = set(launches.tolist())
    pending: dict[int, list[int]] = {}
    out = {}
    for row, thread in zip(rows.tolist(), trace["tid"][rows].tolist(), strict=True):
        mine = pending.setdefault(thread, [])
        if row not in launching:
            mine.append(row)
        elif pending.pop(thread) and row in bare:
            out[row] = mine
    return out


def _said_by_records(trace: Trace, rows: Rows) -> list[_Said]:
    return list(zip(*(trace.arg(name).at(rows, missing=-1).tolist() for name in _Record._fields), strict=True))


def _meaning(
    trace: Trace, said: tuple[_Said, ...], around: _Said, name: int, group_of: Callable[..., Group]
) -> Meaning:
    wrapper = _Range(*around)
    kernel_name = trace.text(wrapper.name) or trace.text(name) or ""
    if not said:
        return Meaning(op=op_name(kernel_name), group=UNKNOWN_GROUP)
    records = [_Record(*record) for record in said]
    group = group_of(*(getattr(records[0], argument) for argument in _GROUP_ARGS))
    ops = [op_name(trace.text(r.collective) or kernel_name) for r in records]
    sizes = [_bytes(trace, r, wrapper, op=op, group=group) for r, op in zip(records, ops, strict=True)]
    messages = tuple(
        (op == "send", r.dst_rank if op == "send" else r.src_rank, max(size))
        for r, op, size in zip(records, ops, sizes, strict=True)
        if op in ("send", "recv")
    )
    names, peers = set(ops), {peer for _, peer, _ in messages}
    return Meaning(
        op=ops[0] if len(names) == 1 else "send_recv" if names <= {"send", "recv"} else "unknown",
        group=group,
        in_bytes=_sum([size[0] for size in sizes]),
        out_bytes=_sum([size[1] for size in sizes]),
        peer=peers.pop() if len(peers) == 1 else -1,
        messages=messages,
    )


def _bytes(trace: Trace, record: _Record, wrapper: _Range, *, op: str, group: Group) -> tuple[int, int]:
    size = element_bytes(trace.text(record.dtype))
    if size and record.in_elems >= 0 and record.out_elems >= 0:
        sent, received = record.in_elems * size, record.out_elems * size
    else:
        sent = _shape_bytes(trace, record)
        sent = _shape_bytes(trace, wrapper) if sent < 0 else sent
        received = _received_bytes(sent, op=op, ranks=group.size)
    if op in ("send", "recv"):
        return (sent, 0) if op == "send" else (0, received)
    return sent, received


def _received_bytes(sent: int, *, op: str, ranks: int | None) -> int:
    """Return what a rank that sends its `sent` bytes receives; -1 where that takes the group's size.

    >>> received_bytes(100, op="all_gather", ranks=4), received_bytes(100, op="reduce_scatter", ranks=4)
    (400, 25)
    """
    if sent < 0 or (op in ("all_gather", "reduce_scatter") and not ranks):
        return -1
    if op == "all_gather":
        return sent * (ranks or 1)
    return sent // (ranks or 1) if op == "reduce_scatter" else sent


def _shape_bytes(trace: Trace, said: _Record | _Range) -> int:
    return shape_bytes(trace.text(said.input_dims), trace.text(said.input_types))


def _sum(sizes: list[int]) -> int:
    return sum(sizes) if all(s >= 0 for s in sizes) else -1


# Collectives of a CPU rank: gloo executes them on its own threads.
#
# The operator on the calling thread (`c10d::allreduce_`) is the request; the span on a gloo thread
# (`gloo:all_reduce`) has the times. Gloo's threads take operators in call order, so a span belongs to the first
# pending operator of a fitting kind and size. Gloo carries out a reduce-scatter as an all-reduce: the meaning is the
# operator's. Only the flight recorder has the group; without its file the group is known where the rank
# has just one.

# operators on one flat buffer (`c10d::_allgather_base_`): what they receive is their first input, what they send the
# second
_BASE = "_base_"
# where `c10d::send` and `c10d::recv_` have the other rank among their inputs, counted in the group
_PEER_AT = 2


def gloo_collectives(trace: Trace, kinds: Kinds, steps: Steps, *, flight: Sequence[FlightCall] = ()) -> Collectives:
    """Return the gloo spans of a rank with the operators that issued them, and the flight recorder's groups."""
    spans = span_rows(trace, kinds)
    asked = _by_start(
        trace, rows_named(trace, _host(kinds), lambda s: s.startswith("c10d::") and is_comm_annotation(s))
    )
    operator_of = _match(trace, spans, asked)
    called = trace["ts_ns"][np.array(asked, np.int64)]
    calls = dict(zip(asked, calls_of_operators(flight, [_op(trace, row) for row in asked], called), strict=True))
    groups = list(header_groups(trace.header).values())
    group = groups[0] if len(groups) == 1 else UNKNOWN_GROUP
    meanings = [
        _gloo_meaning(trace, span, op, group, calls.get(op)) for span, op in zip(spans, operator_of, strict=True)
    ]
    rows, ops = np.array(spans, np.int64), np.array(operator_of, np.int64)
    issue = np.where(ops >= 0, trace["ts_ns"][ops], np.iinfo(np.int64).min)
    start = trace["ts_ns"][rows]
    return _collective_table(
        meanings,
        np.arange(len(meanings)),
        start_ns=start,
        end_ns=start + trace["dur_ns"][rows],
        issue_ns=issue,
        step=steps.of(np.where(ops >= 0, issue, start)),
        device_index=np.full(len(rows), -1, np.int64),
        record_row=ops,
        unanswered=len(set(asked) - set(operator_of)),
    )


def span_rows(trace: Trace, kinds: Kinds) -> list[int]:
    """Return the event row of each gloo collective, in the order of `gloo_collectives`."""
    return _by_start(trace, rows_named(trace, _host(kinds), lambda s: s.startswith("gloo:")))


def _host(kinds: Kinds) -> Rows:
    return np.flatnonzero((kinds == EventKind.HOST_OP) | (kinds == EventKind.ANNOTATION))


def _by_start(trace: Trace, rows: np.ndarray) -> list[int]:
    return rows[np.argsort(trace["ts_ns"][rows], kind="stable")].tolist()


def _match(trace: Trace, spans: list[int], asked: list[int]) -> list[int]:
    """Return the operator row of each span, -1 where the operator was called before the window.

    A truncated trace may have lost the spans of a whole thread. Where it holds fewer spans than operators, it is
    unknown which are left: none is joined.
    """
    waiting: dict[str, deque[int]] = {}
    for row in asked:
        op = _op(trace, row)
        for runs_as in (op, "all_reduce") if op == "reduce_scatter" else (op,):
            waiting.setdefault(runs_as, deque()).append(row)
    if trace.quality.truncated:
        held = [_op(trace, span) for span in spans]
        waiting = {op: queue for op, queue in waiting.items() if len(queue) <= held.count(op)}
    taken: set[int] = set()
    out = []
    for span in spans:
        queue = waiting.get(_op(trace, span), deque())
        while queue and queue[0] in taken:
            queue.popleft()
        out.append(_first_that_fits(trace, span, (row for row in queue if row not in taken)))
        taken.add(out[-1])
    return out


def _first_that_fits(trace: Trace, span: int, queue: Iterable[int]) -> int:
    first, began = -1, trace["ts_ns"][span]
    size = element_counts(_text(trace, "input_dims", span))
    for row in takewhile(lambda row: trace["ts_ns"][row] <= began, queue):
        if size & element_counts(_text(trace, "input_dims", row)):
            return row
        first = row if first < 0 else first
    return first


def _gloo_meaning(trace: Trace, span: int, operator: int, group: Group, call: FlightCall | None) -> Meaning:
    op = _op(trace, operator if operator >= 0 else span)
    group = call.group if call is not None and call.group is not UNKNOWN_GROUP else group
    sent = _bytes_at(trace, span)
    if sent < 0:
        sent = call.size_bytes if call is not None else _bytes_at(trace, operator)
    received = _received_bytes(sent, op=op, ranks=group.size)
    if received < 0 and _BASE in _name(trace, operator):
        received = _bytes_at(trace, operator)
    peer = _peer(trace, operator, group) if op in ("send", "recv") else -1
    return Meaning(
        op=op,
        group=group,
        in_bytes=sent if op != "recv" else 0,
        out_bytes=received if op != "send" else 0,
        peer=peer,
        messages=((op == "send", peer, sent),) if peer >= 0 else (),
    )


def _bytes_at(trace: Trace, row: int) -> int:
    return shape_bytes(_text(trace, "input_dims", row), _text(trace, "input_types", row)) if row >= 0 else -1


def _peer(trace: Trace, operator: int, group: Group) -> int:
    """Return the other rank of a send or receive, -1 where unknown.

    Without the values of the inputs it is known in a group of two: the other one.
    """
    said = _text(trace, "concrete", operator) if operator >= 0 else None
    own = rank_in_header(trace.header)
    if said is None and own is not None:
        others = [rank for rank in group.ranks or () if rank != own]
        return others[0] if len(others) == 1 else -1
    try:
        return dict(enumerate(group.ranks or ()))[int(json.loads(said or "[]")[_PEER_AT])]
    except (ValueError, LookupError, TypeError, RecursionError):
        return -1


def _name(trace: Trace, row: int) -> str:
    return trace.text(int(trace["name"][row])) or "" if row >= 0 else ""


def _op(trace: Trace, row: int) -> str:
    return op_name(_name(trace, row))


def _text(trace: Trace, column: str, row: int) -> str | None:
    return trace.text(int(trace.arg(column).at(np.array([row], np.int64), missing=-1)[0]))


CPU = "CPU"
# an allocation that takes longer creates a device's context
_CONTEXT_NS = 100_000_000
# reading a number from memory of the host never takes as long: several such reads wait for a device
_WAITING_READ_NS = 1_000_000
_MIN_WAITING_READS = 3
# the same where the trace lists a device: less is needed to show that the job used it
_LISTED_READ_NS = 20_000
# operators and ranges of libraries that only devices have
_DEVICE_LIBRARY = re.compile(
    r"cudnn|miopen|^[nr]ccl:|^aten::_(flash|efficient)_attention_|^triton_(poi|red|per|tem)_|^(aiter|flash_attn|sgl_kernel)::"
)
_RANGE_PROFILER = "cuda_profiler_range"
_APPLE = re.compile(r"^aten::(?:linear_backward$|_?mps_|\w+_mps)")
# labels of processes that say nothing of the chip
_NO_NAME = re.compile(r"^(GPU|CPU|python|pt_)", re.IGNORECASE)

# First match wins.
_ARCHITECTURES = (
    (re.compile(r"(?<![a-z0-9])sm_?(\d{2,3})a?(?=[_.x]|$)", re.IGNORECASE), "NVIDIA GPU of compute capability {}"),
    (re.compile(r"(gfx\d+[a-z]?)"), "AMD GPU {}"),
    (re.compile(r"(?<![a-z])(volta|turing|ampere|hopper|blackwell)_"), "NVIDIA {} GPU"),
    (re.compile(r"(Cijk_)"), "AMD GPU"),
)


@dataclass(frozen=True)
class Device:
    """The device of a rank as its trace shows it."""

    #: as the driver gives it, `CPU` where nothing was launched; None where nothing names it
    name: str | None
    #: properties, kernels or metadata
    source: str | None
    #: the header's entry, empty where there is none
    properties: dict[str, Any]


def device_of(trace: Trace, work: DeviceWork, *, launches: int) -> Device:
    """Return the device of a rank that ran `work` and called `launches` launches whose work was not recorded."""
    found = trace.header.get("deviceProperties")
    listed = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    if not len(work) and not launches and not (listed and trace.quality.truncated):
        return Device(CPU, None, {})
    devices, count = np.unique(work.device, return_counts=True)
    properties = _entry(listed, int(devices[count.argmax()]) if len(work) else 0)
    name = str(properties.get("name") or "").strip()
    if name:
        return Device(name, "properties", properties)
    for said, source in ((_by_kernels(trace, work), "kernels"), (_by_metadata(trace, work), "metadata")):
        if said:
            return Device(said, source, properties)
    return Device(None, None, properties)


def _entry(listed: Sequence[dict[str, Any]], used: int) -> dict[str, Any]:
    own = next((entry for entry in listed if entry.get("id") == used), None)
    if own is not None:
        return own
    kinds = {(str(entry.get("name")), str(entry.get("totalGlobalMem")), str(entry.get("numSms"))) for entry in listed}
    names = {name for name, _, _ in kinds}
    if len(kinds) == 1:
        return listed[0]
    return {"name": listed[0].get("name")} if len(names) == 1 and listed else {}


def _by_kernels(trace: Trace, work: DeviceWork) -> str | None:
    ids, count = np.unique(work.name[work.name >= 0], return_counts=True)
    found: Counter[str | None] = Counter()
    for i, n in list(zip(ids.tolist(), count.tolist(), strict=True))[:20_000]:
        found[_architecture(trace.strings[i])] += n
    del found[None]
    return max(found, key=lambda said: found[said], default=None)


def _architecture(kernel: str) -> str | None:
    for pattern, words in _ARCHITECTURES:
        match = pattern.search(kernel)
        if match:
            digits = match.group(1)
            spelt = f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else digits.capitalize()
            return words.format(digits if digits.startswith("gfx") else spelt)
    return None


def _by_metadata(trace: Trace, work: DeviceWork) -> str | None:
    for path in (("metadata", "system", "gpu"), ("metadata", "gpu"), ("gpu_name",), ("device_name",)):
        names = set(_texts(_inside(trace.header, path)))
        if len(names) == 1:
            return names.pop()
    pids, count = np.unique(trace["pid"][work.row], return_counts=True)
    named = {pid: text for (pid, _), text in labels(trace, "process_name").items()}
    said = named.get(int(pids[count.argmax()])) if len(pids) else None
    return said if said and not _NO_NAME.match(said) else None


def _inside(header: dict[str, Any], path: Iterable[str]) -> object:
    value: object = header
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _texts(value: object) -> list[str]:
    values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [v.strip() for v in values if isinstance(v, str) and v.strip()]


@dataclass(frozen=True, eq=False, repr=False)
class Rank(ArrayRecord):
    """One rank of a run."""

    rank: int
    #: how the rank is known: `distributedInfo`, `file name` or `order`
    rank_source: str
    trace: Trace
    kinds: Kinds
    steps: Steps
    work: DeviceWork
    collectives: Collectives
    joins: JoinCounts
    #: in the event table: device operations with an impossible duration, and with an impossible start; both estimated
    cut: Rows
    moved: Rows

    @property
    def num_events(self) -> int:
        return self.trace.num_events

    @property
    def estimated_ns(self) -> float:
        """Return the time per step of device operations whose recorded times were impossible."""
        took = self.trace["dur_ns"]
        return float(took[self.cut].sum() + took[self.moved].sum()) / max(len(self.steps), 1)

    @property
    def has_device(self) -> bool:
        """Return whether anything ran on a device; if not the host is what computed."""
        return len(self.work) > 0

    def names(self, *kinds: EventKind) -> list[str]:
        there = names_by_kind(self.trace)[list(kinds)].any(axis=0)
        return [self.trace.strings[i] for i in np.flatnonzero(there).tolist()]

    def rows_named(self, matches: Callable[[str], bool], *kinds: EventKind) -> Rows:
        return self.coded_rows(matches, *kinds)[0]

    def coded_rows(self, rule: Callable[[str], int], *kinds: EventKind) -> tuple[Rows, Kinds]:
        return coded_rows(self.trace, rule, kinds)

    def codes_of_names(self, rule: Callable[[str], int], *kinds: EventKind) -> Kinds:
        """Return the number that `rule` gives to each string that names rows of these kinds; 0 for all others, and in
        one more place for no name.
        """
        return codes_of_names(self.trace, rule, kinds)

    @property
    def host(self) -> str | None:
        name = self.trace.header.get("host_name") or self.trace.header.get("hostname")
        return str(name) if name else None

    @cached_property
    def device(self) -> Device:
        return device_of(self.trace, self.work, launches=0 if self.has_device else self._unseen_launches)

    @cached_property
    def _unseen_launches(self) -> int:
        """Return launches without device work; where no call was recorded, operators of libraries for devices, reads
        that wait, or new tensors that took long: memory of the host is reserved at once, the first one of a device
        creates its context.
        """
        of_library = self.rows_named(
            lambda name: bool(_DEVICE_LIBRARY.search(name)), EventKind.HOST_OP, EventKind.ANNOTATION
        )
        new = self.rows_named(lambda name: name in ("aten::empty", "aten::empty_strided"), EventKind.HOST_OP)
        on_device = int((self.trace["dur_ns"][new] >= _CONTEXT_NS).sum())
        known = self.joins.launches_without_work or len(of_library) or len(self._apple_operators) or on_device
        return known or len(self.waiting_reads)

    @cached_property
    def waiting_reads(self) -> Rows:
        """Return reads of single values that waited for a device: several long ones, or most of the time of all of them
        where the trace lists a device.
        """
        read = self.rows_named(lambda name: name == "aten::_local_scalar_dense", EventKind.HOST_OP)
        took = self.trace["dur_ns"][read]
        long = read[took >= _WAITING_READ_NS]
        if self.trace.header.get("deviceProperties"):
            longer = took >= _LISTED_READ_NS
            return read[longer] if 2 * took[longer].sum() > took.sum() else read[:0]
        return long if len(long) >= _MIN_WAITING_READS else read[:0]

    @cached_property
    def _apple_operators(self) -> Rows:
        """Return operators that only Apple's devices have: others run a linear layer's backward as matrix products."""
        return self.rows_named(lambda name: bool(_APPLE.match(name)), EventKind.HOST_OP)

    @property
    def device_name(self) -> str | None:
        return self.device.name

    @property
    def device_unseen(self) -> bool:
        """Return whether a device was used of which nothing was recorded: only the host is known."""
        return not self.has_device and self.device_name != CPU

    @property
    def device_advice(self) -> str:
        """Return what records the device, by why nothing of it was recorded."""
        if self.trace.quality.truncated:
            return "the file is cut off: export it again"
        if len(self._apple_operators):
            return "its operators are those of Apple devices: use torch.mps.profiler and Instruments"
        if _RANGE_PROFILER in self.trace.strings:
            return "record without hardware counters: range profiling replaces the times of kernels"
        if self.joins.launches_without_work:
            return (
                "CUPTI lost the kernels of recorded launches: end other profilers, check driver permissions, avoid WSL"
            )
        return "record with ProfilerActivity.CUDA"

    @property
    def distributed(self) -> dict[str, Any]:
        info = self.trace.header.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @property
    def world_size(self) -> int | None:
        """Return the number of ranks in the job by this rank's trace; None where it is not recorded."""
        return believable_world(self.distributed.get("world_size"))


def believable_world(said: object) -> int | None:
    """Return a number of ranks that was read somewhere, None where it is none."""
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 < said <= _MAX_RANKS else None


def rank_of_trace(trace: Trace, *, rank: int, rank_source: str, flight_file: Path | None = None) -> Rank:
    """Return the rank with everything joined that its trace allows, and its flight recorder's file on gloo."""
    kinds = event_kinds(trace)
    steps = recorded_steps(trace, kinds)
    work, joins = device_work(trace, kinds, steps)
    trace, cut, moved = with_possible_times(trace, work)
    if len(cut) or len(moved):
        work, joins = device_work(trace, kinds, steps)
    if len(work):
        collectives = device_collectives(trace, work)
    else:
        flight = flight_calls(flight_file) if flight_file is not None else ()
        collectives = gloo_collectives(trace, kinds, steps, flight=flight)
    return Rank(rank, rank_source, trace, kinds, steps, work, collectives, joins, cut, moved)


def with_collective_ends(rank: Rank, rows: Rows, end_ns: Int64s) -> Rank:
    """Return the rank with the ends of some collectives where the other ranks show them.

    A collective that was cut, or is too long, keeps its start; any other one keeps its duration.
    """
    c, at = rank.collectives, rank.work.row[rank.collectives.device_index[rows]]
    keeps_start = (
        (c.start_ns[rows] < end_ns) & (np.isin(at, rank.cut) | (c.end_ns[rows] > end_ns)) & ~np.isin(at, rank.moved)
    )
    start = np.where(keeps_start, c.start_ns[rows], end_ns - (c.end_ns - c.start_ns)[rows])
    note = f"collectives whose times the other ranks rule out, corrected: {len(rows):,}"
    trace = _with_times(rank.trace, at, start, end_ns - start, note)
    work, joins = device_work(trace, rank.kinds, rank.steps)
    cut, moved = np.union1d(rank.cut, at[keeps_start]), np.union1d(rank.moved, at[~keeps_start])
    collectives = device_collectives(trace, work)
    return replace(rank, trace=trace, work=work, joins=joins, collectives=collectives, cut=cut, moved=moved)


# Warnings about losses in the traces.

_MAX_NAMED = 4

_COUNTED: tuple[tuple[Callable[[Rank], int], str], ...] = (
    (lambda r: r.trace.quality.malformed, "events that are no valid JSON are lost"),
    (lambda r: r.trace.quality.bad_time, "events dropped for a time that is missing or no finite number"),
    (lambda r: r.trace.quality.negative_duration, "events dropped for a negative duration"),
    (
        lambda r: r.trace.quality.far_times,
        "events skipped: time overflows or is far outside the window",
    ),
    (lambda r: r.trace.quality.repaired, "events with bad JSON were repaired"),
    (lambda r: r.trace.quality.bad_text, "names with invalid characters, replaced"),
    (lambda r: r.trace.quality.shortened, "names longer than the limit, shortened"),
    (lambda r: r.trace.quality.bad_args, "argument values of the wrong type or out of range, left out"),
    (
        lambda r: r.joins.without_launch,
        "device operations were launched before recording began and are not assigned to any step",
    ),
    (lambda r: r.joins.launches_without_work, "launches without device work in the trace"),
    (lambda r: r.collectives.unanswered, "collectives called but not executed within the trace"),
    (lambda r: r.joins.reused_correlation, "launches that share a correlation id with another"),
    (
        lambda r: r.collectives.unjoined,
        "communication operations without a record: their bytes and group are unknown",
    ),
)


def quality_warnings(ranks: Sequence[Rank]) -> list[str]:
    """Return one line per kind of loss, with its count and the ranks it is largest on."""
    lines = []
    for count, what in _COUNTED:
        counts = [(count(rank), rank.rank) for rank in ranks]
        total = sum(n for n, _ in counts)
        if total:
            lines.append(f"{total:,} {what}{_where(counts)}")
    return [*cut_off(ranks), *lines] + [f"rank {r.rank}: {note}" for r in ranks for note in r.trace.quality.notes]


def cut_off(ranks: Sequence[Rank]) -> list[str]:
    """Return the line that names the traces which end too early, if any do."""
    cut = [r.rank for r in ranks if r.trace.quality.truncated]
    if not cut:
        return []
    return [
        f"cut off: the trace of rank{'s' if len(cut) > 1 else ''} {rank_ranges(cut)}; "
        "what was readable is used, without an incomplete last step"
    ]


def rank_ranges(numbers: Sequence[int]) -> str:
    """Return `0-3, 7` for [0, 1, 2, 3, 7]."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def _where(counts: list[tuple[int, int]]) -> str:
    if len(counts) == 1:
        return ""
    worst = sorted((c for c in counts if c[0]), reverse=True)
    named = ", ".join(f"rank {rank}: {n:,}" for n, rank in worst[:_MAX_NAMED])
    return f" ({named}{', ...' if len(worst) > _MAX_NAMED else ''})"
