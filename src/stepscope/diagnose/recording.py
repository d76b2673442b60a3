"""What kind of recording this is, and what it can prove.

A `Limit` is one reason why a recording cannot prove some conclusions: missing ranks, a cold start, a graph capture, a
fragment. It names the verdicts it rules out; findings of those categories are not made, and the verdict is `unclear` where
such a category would have been the largest. A `Need` is what a kind of finding requires before its silence means that the
fault is absent; the report lists what was not examined.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.budget import Cause
from stepscope.analyze.host_time import (
    calls_that_free,
    computing_operators,
    data_loading,
    host_calls,
    is_allocation,
    is_synchronisation,
    records_operators,
    runtime_rows,
    spans,
)
from stepscope.analyze.kernels import INEFFICIENT
from stepscope.analyze.owner_places import MOSTLY
from stepscope.analyze.phases import graph_launches, marks_of, trains
from stepscope.cost.chips import Chip, built_in_chips, mfu_peak
from stepscope.cost.operators import function_of
from stepscope.errors import TraceError
from stepscope.intervals import Intervals, clip, complement, covered_ns, union, union_of
from stepscope.records import ArrayRecord, dataclass, once_per_record
from stepscope.run.device_work import DEVICE_KINDS, Rows, enclosing, lookup
from stepscope.run.rank import Rank
from stepscope.run.steps import DECODE, SERVING
from stepscope.stats.robust import distinct, median
from stepscope.trace.table import GRAPH_NAME, EventKind, Int64s, by_string, of_kinds
from stepscope.units import NS_PER_MS, printable, rank_ranges

# What a recording can prove.

_HOST_ONLY = frozenset(("host-bound",))
HOST_CATEGORIES = _HOST_ONLY | {"data-bound"}
_OTHER_RANKS = frozenset(("communication-bound", "straggler-bound", "pipeline-bound"))
_IDLE = HOST_CATEGORIES | _OTHER_RANKS | {"copy-bound", "unclear"}
EVERYTHING = _IDLE | {"compute-bound"}
HOST_ONLY = "host-only"
# of compute as the largest part: whether memory, arithmetic or something else bounds it
MEMORY = "memory-bound"
_KIND_OF_COMPUTE = frozenset((MEMORY,))

# what idle time without a known cause is, and how to find its cause
_WHY_UNKNOWN = {
    "queued": ("the device idles although work is queued", "record with --nsys to see what the host does meanwhile"),
    "other_stream": ("one stream waits for another", "the timeline shows which (stepscope view)"),
    "profiler": ("the profiler's own buffers", "--unprofiled-step-ms subtracts them"),
    "unknown": ("the trace shows no cause for the idle device", "record with --stacks or --nsys"),
}
# a call that neither waits nor copies and takes longer on an idle device loads modules or creates a context
_COLD_CALL_NS = 4_000_000
# of the step: less first-call initialisation changes no conclusion
_COLD_SHARE = 0.05
# steps that cover less of what was recorded do not represent it
_COVERED_SHARE = 0.1
# operators from which gaps in the profiler's numbers are no chance
_MANY_OPERATORS = 256
# of the operators' time in calling them: computing does not bound the job; of the recorded time: worth naming
_MUCH = 0.25
# for calling an operator: more than any idle host takes
_SLOW_CALL_NS = 50_000
# operators that only describe a tensor or reserve its memory: their own time is that of calling an operator
COMPUTE_NOTHING = frozenset(
    f"aten::{name}"
    for name in (
        "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal", "empty", "empty_like", "empty_strided", "expand",
        "expand_as", "flatten", "narrow", "permute", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t",
        "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as",
    )
)  # fmt: skip
# 32-bit results per 64-bit result, by compute capability (CUDA C++ Programming Guide, throughput of native arithmetic
# instructions); 2 on chips for data centres
_SLOWER_IN_64_BIT = {(5, 2): 32, (6, 1): 32, (7, 5): 32, (8, 6): 64, (8, 9): 64, (12, 0): 64}
# of torch.compile; what was compiled runs under other names
_DYNAMO = r"^(?!CUDAGraph).*\(dynamo_timed\)"
# ranges of compilers: nvFuser, NVRTC, torch.compile
_COMPILES = re.compile(rf"(?<![Pp]re)[Cc]ompile(?![dr])|nvrtc(?!Create)|{_DYNAMO}")
# gradients and updates, as in a captured step whose graph the host launches without operators
_UPDATES = re.compile(r"multi_tensor_apply|[Oo]ptimizer|[Ff]used_?[Aa]dam|[wd]grad|_bwd|[Bb]ackward")
# dropout, and batch norm with the statistics of the batch
_TRAINING_MODE = re.compile(
    r"native_dropout|fused_dropout|aten::bernoulli_|bn_fw_tr|batch_norm_(?:collect|update)_stat"
)
_NEVER = np.iinfo(np.int64).max
# of the host's processor, from which shares mean something
_MANY_SAMPLES = 20
# device operations without a step from which idle time has a pattern
_FEW_OPERATIONS = 64
# times that an operator runs in a loop
_OFTEN = 3


@dataclass(frozen=True)
class Limit:
    """One reason why a recording cannot prove some conclusions."""

    #: what such a recording is called; empty where that says nothing about its kind
    kind: str
    #: the reason in one clause, None where the limit does not hold
    reason: Callable[[Account], str | None]
    #: verdicts that cannot be proved
    unprovable: frozenset[str]
    cannot_show: str
    #: how to record what is missing; names in braces stand for what records each
    again: str


@dataclass(frozen=True, eq=False, repr=False)
class Recording(ArrayRecord):
    """What was recorded, and the limits on what it proves."""

    kind: str
    ranks_missing: tuple[int, ...]
    limits: tuple[tuple[Limit, str], ...]

    @cached_property
    def unprovable(self) -> frozenset[str]:
        """Return the verdicts, and the categories of findings, that the recording cannot prove."""
        return frozenset[str]().union(*(limit.unprovable for limit, _ in self.limits))

    def rules_out(self, category: str | None) -> bool:
        """Return whether findings of a category are not proved; those of none are facts of any recording of a run."""
        return self.unprovable >= EVERYTHING if category is None else category in self.unprovable

    def unshown(self, category: str | None) -> list[str]:
        """Return what a recording would have to show for findings of a category."""
        needed = EVERYTHING if category is None else {category}
        limits = (limit for limit, _ in self.limits if limit.unprovable >= needed)
        return [f"a recording that shows {limit.cannot_show}" for limit in limits]

    def limit_on(self, verdict: str) -> str | None:
        """Return why a verdict cannot be proved and what to do, None where it can be."""
        found = (f"{reason}; {limit.again}" for limit, reason in self.limits if verdict in limit.unprovable)
        return next(found, None)

    @property
    def cannot_show(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(limit.cannot_show for limit, _ in self.limits))

    @property
    def line(self) -> str | None:
        """Return the first limit with its remedy, in one sentence; None for a recording without limits."""
        if not self.limits:
            return None
        limit, reason = self.limits[0]
        return f"{reason[:1].upper()}{reason[1:]}; {limit.again}."


@once_per_record
def recording_of(account: Account) -> Recording:
    """Return the kind of a recording and what it cannot prove, the most limiting reason first."""
    tools = {"host": _host_tool(account), "device": _device_tool(account), **_WHOLE_TOOLS[uses_torch(account)]}
    held = [
        (replace(limit, again=limit.again.format(**tools)), reason)
        for limit in LIMITS
        if (reason := limit.reason(account)) is not None
    ]
    named = [limit.kind for limit, _ in held if limit.kind]
    return Recording(named[0] if named else _job(account), ranks_missing(account), tuple(held))


def _job(account: Account) -> str:
    """Return what a run does; inference only where no operator or kernel is one of training."""
    if account.serving or trains(account.strategy.passes):
        return "serving" if account.serving else "training"
    names = [name for rank in account.run.ranks for name in rank.names(EventKind.HOST_OP, EventKind.KERNEL)]
    for job, named in (("training", _UPDATES), ("forward-only", _TRAINING_MODE)):
        if any(named.search(name) for name in names):
            return job
    return "inference"


@once_per_record
def uses_torch(account: Account) -> bool:
    """Return whether the program is a PyTorch job: every trace of its profiler is, one of Nsight Systems may be."""
    return any(
        "nsight" not in rank.trace.header or any("at::native" in s or "torch" in s.lower() for s in rank.trace.strings)
        for rank in account.run.ranks
    )


def trains_with_torch(account: Account) -> bool:
    """Return whether the program is a PyTorch job that trains, as far as the trace tells."""
    return uses_torch(account) and trains(account.strategy.passes)


def _host_tool(account: Account) -> str:
    if not all("nsight" in rank.trace.header for rank in account.run.ranks):
        return "ProfilerActivity.CPU"
    ranges = "torch.autograd.profiler.emit_nvtx()" if uses_torch(account) else "NVTX ranges in the program"
    return f"{ranges}, nsys profile --trace=cuda,nvtx"


_STEPS = "record whole steps with CPU and device activities (stepscope record)"
# by whether the program uses PyTorch: an export of Nsight Systems mostly holds all of a program
_WHOLE_TOOLS = {
    True: {"whole": _STEPS, "code": _STEPS, "longer": "record several steps after a warm-up (stepscope record)"},
    False: {
        "whole": "record whole iterations: nsys profile --trace=cuda,nvtx",
        "code": "shorten what the host does there (nsys profile --sample=cpu --trace=cuda,nvtx,osrt shows it)",
        "longer": "record a longer run",
    },
}


def ranks_missing(account: Account) -> tuple[int, ...]:
    """Return the ranks of the job, or of a group that communicates, without a recording."""
    run = account.run
    sizes = [group.size or 0 for rank in run.ranks for group in rank.collectives.groups]
    world, present = max(run.world_size or 1, *sizes, 1), {rank.rank for rank in run.ranks_read}
    return tuple(n for n in range(world) if n not in present) if len(present) < world else ()


def _ranks_missing(account: Account) -> str | None:
    missing, step = ranks_missing(account), account.step
    if not missing:
        return None
    recorded = f"{len(missing)} of {len(missing) + len(account.run.ranks_read)} ranks not recorded"
    if step is None or not account.collectives:
        return recorded
    waited, spent = step.ns("wait"), step.ns("exposed_transfer") + step.ns("pipeline_bubble") + step.unmatched_ns
    exposed = sorted(account.collectives, key=lambda row: -row.exposed_ns)
    ops = list(dict.fromkeys(row.op.replace("_", "-") for row in exposed if row.exposed_ns or row is exposed[0]))
    most = "communication" if ops[0] == "unknown" else ops[0] if len(ops) == 1 else f"communication (mostly {ops[0]})"
    known = (
        f"; {_ms(waited)} ms more are waits among the recorded ranks" if waited >= _COLD_SHARE * step.step_ns else ""
    )
    if spent < _COLD_SHARE * step.step_ns:
        where = f"on rank {rank_ranges([rank.rank for rank in account.run.ranks_read])}"
        return f"{recorded}; exposed communication takes {_ms(spent)} of {_ms(step.step_ns)} ms {where}{known}"
    return f"can't tell a late rank from a slow network: {_ms(spent)} of {_ms(step.step_ns)} ms in {most}, {recorded}{known}"


def _graph_capture(account: Account) -> str | None:
    took, window, _ = _capture_times(account)
    if not took or took < MOSTLY * window:
        return None
    return f"this is a graph capture, not a run: launches were captured into graphs for {_ms(took)} ms"


def _idle_capture(account: Account) -> str | None:
    took, window, idle = _capture_times(account)
    if took < max(MOSTLY * idle, _COLD_SHARE * window, 1):
        return None
    return f"launches were captured into graphs for {_ms(took)} of the {_ms(idle)} ms in which the device idled"


@once_per_record
def _capture_times(account: Account) -> tuple[float, float, float]:
    """Return how long launches were captured into graphs, the window and its idle time, on the average rank."""
    windows = [(view.rank, view.window) for view in account.ranks if view.window is not None]
    took = sum(clip(_captures(rank), w.start_ns, w.end_ns).total_ns for rank, w in windows)
    count = max(len(windows), 1)
    return took / count, sum(w.window_ns for _, w in windows) / count, sum(w.idle_ns for _, w in windows) / count


def _captures(rank: Rank) -> Intervals:
    begin, end = (_starts(rank, word) for word in ("StreamBeginCapture", "StreamEndCapture"))
    last = np.append(end, np.full(len(begin), rank.trace["ts_ns"].max(initial=0)))  # a capture may outlast the trace
    return union(begin, np.maximum(last[: len(begin)], begin))


def _starts(rank: Rank, word: str) -> Int64s:
    return np.sort(rank.trace["ts_ns"][rank.rows_named(lambda s: word in s, EventKind.RUNTIME)])


def _few_steps(account: Account) -> str | None:
    marked = (r.steps.by_profiler or r.steps.told_by == SERVING for r in account.run.ranks)
    ranks = [r for r, is_marked in zip(account.run.ranks, marked, strict=True) if r.has_device and not is_marked]
    step, known = account.step, [r.steps.known for r in ranks]
    if step is None or not any(known):
        return None
    starts = [r.steps.start_ns[0] if r.steps.after_cold else r.work.start_ns.min() for r in ranks]
    span = float(np.mean([r.work.end_ns.max() - start for r, start in zip(ranks, starts, strict=True)]))
    covered = step.profiled_ns * float(np.mean(known))
    if covered >= _COVERED_SHARE * span:
        return None
    return f"cannot be diagnosed: the steps cover {_ms(covered)} of {_ms(span)} ms spanned by device operations"


def _mostly_start(account: Account) -> str | None:
    """Return the same of a program that calls the device's runtime for most of the time: it starts and ends."""
    found, part_ns, span_ns = _mostly_host(account)
    return found if part_ns > MOSTLY * span_ns and not uses_torch(account) else None


def _mostly_before(account: Account) -> str | None:
    return _mostly_host(account)[0] if _mostly_start(account) is None else None


@once_per_record
def _mostly_host(account: Account) -> tuple[str | None, float, float]:
    """Return how little of what the host recorded the window covers, where it is the time with device work alone; with the
    longest part of the rest, and the whole.
    """
    ranks = [r for r in account.run.ranks if r.has_device]
    if account.num_steps or account.step is None or not ranks:
        return None, 0.0, 0.0
    spans = []
    for rank in ranks:
        rows = np.flatnonzero(of_kinds(rank.kinds, (EventKind.RUNTIME, EventKind.HOST_OP)))
        start = rank.trace["ts_ns"][rows]
        spans.append(float((start + rank.trace["dur_ns"][rows]).max() - start.min()) if len(rows) else 0.0)
    span = float(np.mean(spans))
    if account.step.profiled_ns >= _COVERED_SHARE * span:
        return None, 0.0, span
    worked = float(np.mean([r.work.intervals(*DEVICE_KINDS).total_ns for r in ranks]))
    parts = _times_of_calls(ranks)
    part, took = max(parts.items(), key=lambda one: one[1])
    named = f" ({part} took {_ms(took)})" if took > _MUCH * span else ""
    seen = "" if named else _host_was_in(ranks[0], _without_device(ranks[0]))
    named = named or seen or f" (calls of its runtime took {_ms(sum(parts.values()))})"
    unsaid = "" if seen else "cannot be diagnosed: "
    return f"{unsaid}the device worked for {_ms(worked)} of {_ms(span)} recorded ms{named}", took, span


def _times_of_calls(ranks: Sequence[Rank]) -> dict[str, float]:
    """Return what data loading and each call of the device's runtime took, on the average rank."""
    took = {"data loading": float(np.mean([data_loading(rank).total_ns for rank in ranks]))}
    for rank in ranks:
        rows = np.flatnonzero(of_kinds(rank.kinds, (EventKind.RUNTIME,)))
        name, dur = rank.trace["name"][rows], rank.trace["dur_ns"][rows]
        for one in distinct(name).tolist():
            text = rank.trace.strings[one]
            took[text] = took.get(text, 0.0) + float(dur[name == one].sum()) / len(ranks)
    return took


def _without_device(rank: Rank) -> Intervals:
    """Return when neither the device worked nor the host was in a call of its runtime."""
    start, end = _judged_span(rank)
    return complement(union_of(rank.work.intervals(*DEVICE_KINDS), spans(rank, runtime_rows(rank))), start, end)


def _host_was_in(rank: Rank, within: Intervals, num_steps: int = 1) -> str:
    """Return the functions in which Nsight Systems saw the host for much of a time, as the end of a clause."""
    if "nsight" not in rank.trace.header:
        return ""
    from stepscope.trace.nsight import host_activity  # only where there is such a file

    try:
        seen = host_activity(rank.trace, marks_of(rank).main_thread, within)
    except (TraceError, OSError):  # a report that was exported for this analysis alone
        return ""
    calls = [f"{name} {_ms(ns / num_steps)} ms" for name, ns in seen.call_ns.items() if ns > 0.1 * within.total_ns]
    if sum(seen.call_ns.values()) > _MUCH * within.total_ns and calls:
        return f"; the host was in {', '.join(calls[:2])}"
    count = sum(seen.samples.values())
    often = [f"{_function(name)} {n / count:.0%}" for name, n in seen.samples.items() if n > 0.1 * count]
    if count < _MANY_SAMPLES or not often:
        return ""
    return f"; CPU samples of the host: {', '.join(often[:2]).replace('%', ' %')}"


def _function(symbol: str) -> str:
    """Return the name of a function without its arguments.

    >>> _function("float std::generate_canonical<float, 24ul>(engine&)"), _function("__random")
    ('float std::generate_canonical', '__random')
    """
    return printable(re.split(r"[<(]", symbol, maxsplit=1)[0] or symbol, width=40)


def _lost_records(account: Account) -> str | None:
    ranks = [r for r in account.run.ranks if r.has_device]
    lost = sum(r.joins.launches_without_work for r in ranks)
    launches = lost + sum(len(distinct(r.work.launch_row[r.work.launch_row >= 0])) for r in ranks)
    if not lost or lost <= MOSTLY * launches:
        return None
    return f"cannot be diagnosed: {lost:,} of {launches:,} launches have no record of their work on the device"


def _unrecorded_graphs(account: Account) -> str | None:
    found = [graph_launches(rank) for rank in account.run.ranks if rank.has_device]
    launches, lost = (sum(len(rows[k]) for rows in found) for k in (0, 1))
    if lost <= MOSTLY * launches:
        return None
    return (
        f"{lost:,} of {launches:,} launches of CUDA graphs have no record of their kernels: time after them is not idle"
    )


def _unexplained(account: Account) -> str | None:
    step = account.step
    unknown = step.ns("unknown") - step.unmatched_ns if step is not None else 0.0
    if step is None or unknown <= MOSTLY * step.step_ns or not all(r.has_device for r in account.run.ranks):
        return None
    if _no_operators(account) is not None:  # which is why
        return None
    return (
        f"cannot be diagnosed: {_ms(unknown)} of {_ms(step.step_ns)} ms per {account.whole} have no known cause"
        f"{why_unknown(account, how=False)}"
    )


def why_unknown(account: Account, *, how: bool) -> str:
    """Return what the trace shows of idle time without a known cause, and `how` to find it, as the end of a sentence."""
    if applies(account, Scope.HOST):
        stacks = any(of_kinds(rank.kinds, (EventKind.PYTHON,)).any() for rank in account.run.ranks)
        return (
            f": no operator runs{'' if stacks else ', and Python code was not recorded; record with with_stack=True'}"
        )
    idle = account.step.idle_ns if account.step else {}
    known = {cause: ns for cause, ns in idle.items() if cause in _WHY_UNKNOWN}
    if not known:
        return ""
    why, action = _WHY_UNKNOWN[max(known, key=lambda cause: known[cause])]
    return f": {why}{_unknown_host(account) or f'; {action}' * how}"


def _unknown_host(account: Account) -> str:
    """Return where the host was while the device idled without a known cause, as the end of a clause."""
    for view in account.ranks:
        if view.budget is not None and view.budget.idle is not None:
            slices = view.budget.idle.slices.of(Cause.UNKNOWN, Cause.QUEUED, Cause.OTHER_STREAM)
            return _host_was_in(view.rank, slices, len(view.budget.periods))
    return ""


def _removed_events(account: Account) -> str | None:
    """Return how few of the operators that the profiler numbered are in the files, where most were removed."""
    held, numbered = 0, 0
    for rank in account.run.ranks:
        ids = rank.trace.arg("external_id")
        of_operators = ids.values[of_kinds(rank.kinds.take(ids.rows), (EventKind.HOST_OP,))]
        known = distinct(of_operators[of_operators > 0].astype(np.int64))
        held, numbered = held + len(known), numbered + (int(known[-1] - known[0]) + 1 if len(known) else 0)
    if held < _MANY_OPERATORS or held >= _COVERED_SHARE * numbered:
        return None
    return (
        f"cannot be diagnosed: the file holds {held:,} of about {numbered:,} operators; the others were removed from it"
    )


def _device_unseen(account: Account) -> str | None:
    unseen = [r for r in account.run.ranks if r.device_unseen]
    if not unseen or account.step is None:
        return None
    waited = sum(int(r.trace["dur_ns"][r.waiting_reads].sum()) for r in unseen) / len(unseen)
    total = account.step.step_ns * max(account.num_steps, 1)
    reads = f" (the host waits for it in .item() for {_ms(waited)} of {_ms(total)} ms)"
    return f"nothing that the device of rank {rank_ranges([r.rank for r in unseen])} did is in the trace" + (
        reads if waited >= _COLD_SHARE * total else ""
    )


def _device_tool(account: Account) -> str:
    return next((r.device_advice for r in account.run.ranks if r.device_unseen), "record with ProfilerActivity.CUDA")


def _device_only(account: Account) -> str | None:
    with_device = [r for r in account.run.ranks if r.has_device]
    if not with_device or any((r.work.launch_row >= 0).any() for r in with_device):
        return None
    if any(map(records_operators, with_device)):
        return "no device operation is linked to its launch: what the device waited for is unknown"
    return "the trace has device activity only: what the host did while the device idled is unknown"


def _no_operators(account: Account) -> str | None:
    with_device = [r for r in account.run.ranks if r.has_device]
    if not with_device or any(map(records_operators, with_device)) or not _has_launches(account):
        return None
    step = account.step
    unknown = step.ns("unknown") - step.unmatched_ns if step is not None else 0.0
    if step is None:
        return "the trace has no operators of the host: idle time has no known cause"
    if unknown < _COLD_SHARE * step.step_ns:  # launches explain the idle time
        return None
    return (
        f"the trace has no operators of the host: {_ms(unknown)} of {_ms(step.step_ns)} ms have no known cause"
        f"{_unknown_host(account)}"
    )


def _graphs_as_a_whole(account: Account) -> str | None:
    graphs = [k for k in account.kernels.kernels if k.name.startswith(GRAPH_NAME)]
    took, total = sum(k.total_ns for k in graphs), account.kernels.total_ns
    if not graphs or took <= MOSTLY * total:
        return None
    return (
        f"CUDA graphs recorded as a whole take {_ms(took)} of {_ms(total)} ms of kernels: what ran in them is unknown"
    )


def _unknown_kernels(account: Account) -> str | None:
    """Return the longest kernel of unknown work, where most of the time is spent in such kernels."""
    if missing(account, Need.KERNELS) is None or _graphs_as_a_whole(account) is not None:
        return None
    total_ns = account.kernels.total_ns
    longest = next(k for k in account.kernels.kernels if k.bound is None and k.family != "communication")
    name, arguments = function_of(longest.name), longest.name.rpartition("(")[2]
    if longest.total_ns <= MOSTLY * total_ns:
        return f"whether memory or arithmetic limits most kernels was not recorded (such as {name}, {_ms(longest.total_ns)} ms)"
    took = (
        f"kernel {name} takes {_ms(longest.total_ns)} of {_ms(total_ns)} ms of kernels{_in_64_bit(account, arguments)}"
    )
    return f"{took}; whether memory or arithmetic limits it was not recorded"


def _inefficient_kernels(account: Account) -> str | None:
    """Return the longest kernel that is far slower than its operations and its bytes need, where most time is in such."""
    slow = [k for k in account.kernels.kernels if k.bound == INEFFICIENT]
    took, total = sum(k.total_ns for k in slow), account.kernels.total_ns
    if not slow or took <= MOSTLY * total:
        return None
    name = printable(function_of(slow[0].name), width=40)
    return (
        f"kernels that take over ten times as long as their operations and bytes need (mostly {name}) are {_ms(took)} of "
        f"{_ms(total)} ms"
    )


def _in_64_bit(account: Account, arguments: str) -> str:
    floats = re.findall(r"\b(?:double|float|__half|__nv_bfloat16)\b", arguments)
    if not floats or floats.count("double") <= MOSTLY * len(floats):
        return ""
    known = [rank.device.properties for rank in account.run.ranks if rank.has_device]
    rates = {_SLOWER_IN_64_BIT.get((of.get("computeMajor", 0), of.get("computeMinor", 0))) for of in known}
    slower = rates.pop() if len(rates) == 1 else None
    return f" on 64-bit numbers{f' (32-bit ones are {slower} times faster on this device)' if slower else ''}"


def _slow_calls(account: Account) -> str | None:
    text, each = _calling_operators(account)
    return f"{text}: a slow host, or the profiler's overhead" if each >= _SLOW_CALL_NS else None


def _small_tensors(account: Account) -> str | None:
    text, each = _calling_operators(account)
    return f"{text}: the tensors are small" if 0 < each < _SLOW_CALL_NS else None


@once_per_record
def _calling_operators(account: Account) -> tuple[str, float]:
    """Return the least time that calling operators takes, and that of one call; 0 where it is little of a job that
    computes on the host.

    Views compute nothing: the median of their own time is what any call takes, one that calls others or one that does not.
    """
    if not applies(account, Scope.HOST):
        return "", 0.0
    took = total = dearest = 0.0
    for rank in account.run.ranks:
        calls = host_calls(rank)
        own_ns = calls.self_ns()
        is_view = by_string(rank.trace, calls.name, lambda name: name in COMPUTE_NOTHING).astype(bool)
        is_operator = by_string(rank.trace, calls.name, lambda name: name.startswith("aten::")).astype(bool)
        calls_others = np.isin(np.arange(len(calls)), calls.parent)
        total += float(own_ns.sum())
        for group in (calls_others, ~calls_others):
            if (is_view & group).any():
                each = median(own_ns[is_view & group])
                took += float(np.minimum(own_ns[is_operator & group], each).sum())
                dearest = max(dearest, each)
    if took <= _MUCH * total:
        return "", 0.0
    ranks = len(account.run.ranks)
    return (
        f"calling operators takes at least {_ms(took / ranks)} of {_ms(total / ranks)} ms, whatever they compute "
        f"({_ms(dearest)} ms for one without work)"
    ), dearest


def _fallback(account: Account) -> str | None:
    """Return the operator that takes most of a job on the host, where PyTorch itself calls it slow."""
    longest = longest_operator(account) if applies(account, Scope.HOST) else None
    if longest is None or "slow_" not in longest[0] or longest[1] <= MOSTLY:
        return None
    return f"operator {longest[0]} takes {100 * longest[1]:.0f} % of the time: a fallback, used without oneDNN"


def longest_operator(account: Account) -> tuple[str, float] | None:
    """Return the operator with most own time on the host, and its share of all; None without operators."""
    operators = account.operators.operators
    longest = max(operators, key=lambda one: one.host_self_ns, default=None)
    if longest is None:
        return None
    return longest.name, longest.host_self_ns / max(sum(one.host_self_ns for one in operators), 1.0)


def _hardly_any_operation(account: Account) -> str | None:
    """Return how few operations were recorded, where not even what they compute shows: one, or calls of small tensors."""
    count = max(len(rank.work) if rank.has_device else _innermost(rank) for rank in account.run.ranks)
    if count == 1 and not account.num_steps:
        return "cannot be diagnosed: the trace has a single operation"
    small = _few_operations(account) is not None and _calling_operators(account)[0]
    return f"cannot be diagnosed: the trace has {count} operations on small tensors" if small else None


def _few_operations(account: Account) -> str | None:
    count = _count_operations(account)
    if account.num_steps >= _OFTEN or count >= _FEW_OPERATIONS or _computes_on_host(account):
        return None
    if _never_idles(account) and not _calling_operators(account)[0]:
        return None
    were = "operation was" if count == 1 else "operations were"
    return f"only {count} {were} recorded, and no step that recurs often: their times are not those of a job"


def _never_idles(account: Account) -> bool:
    step = account.step
    if step is not None and applies(account, Scope.HOST):
        return step.ns("unknown") + step.ns("host_stall") < MOSTLY * step.step_ns
    windows = [view.window for view in account.ranks if view.window is not None and view.rank.has_device]
    return bool(windows) and all(window.idle_ns < _COLD_SHARE * window.window_ns for window in windows)


def _computes_on_host(account: Account) -> bool:
    """Return whether operators that recur on the host explain the window, however little the device did in it."""
    took, window = 0, 0
    for view in account.ranks:
        if view.window is None:
            return False
        rows, trace = computing_operators(view.rank), view.rank.trace
        _, place, count = np.unique(trace["name"][rows], return_inverse=True, return_counts=True)
        rows = rows[count[place] >= _OFTEN]
        start = trace["ts_ns"][rows]
        computed = clip(union(start, start + trace["dur_ns"][rows]), view.window.start_ns, view.window.end_ns)
        took, window = took + computed.total_ns, window + view.window.window_ns
    return took > MOSTLY * window


@once_per_record
def _count_operations(account: Account) -> int:
    """Return how much work the busiest rank recorded: operations that the host launched on the device (all of them where
    launches were not recorded; unified memory moves pages without one), else operators that call no other.
    """

    def count(rank: Rank) -> int:
        launched = int((rank.work.launch_row >= 0).sum())
        return launched or len(rank.work) if rank.has_device else _innermost(rank)

    return max(map(count, account.run.ranks))


def _innermost(rank: Rank) -> int:
    calls = host_calls(rank)
    return len(calls) - len(distinct(calls.parent[calls.parent >= 0]))


def _cold_start(account: Account) -> str | None:
    """Return how long the host spent in first calls that initialise the device or compile, where that distorts the steps."""
    took, whole, names = 0, 0, dict[str, int]()
    for rank in account.run.ranks:
        start, end = _judged_span(rank)
        rows = np.concatenate((_cold_calls(rank), _compilations(rank)))
        ts, dur = rank.trace["ts_ns"][rows], rank.trace["dur_ns"][rows]
        inside = (ts >= start) & (ts < end)
        rows, ts, dur = rows[inside], ts[inside], dur[inside]
        spent = union(ts, ts + dur)
        if rank.steps.is_window and (first := int(rank.steps.start_ns[0])) > start:
            window = int(rank.steps.end_ns[0]) - first
            if window >= _COVERED_SHARE * (end - start) and clip(spent, first, end).total_ns < _COLD_SHARE * window:
                continue  # the window begins after them
        took, whole = took + spent.total_ns, whole + end - start
        for row, ns in zip(rows.tolist(), dur.tolist(), strict=True):
            name = rank.trace.strings[rank.trace["name"][row]]
            names[name] = names.get(name, 0) + ns
    ranks, step = len(account.run.ranks), account.step
    if not took or took < _COLD_SHARE * whole:
        return None
    if step is not None and ranks * step.profiled_ns > MOSTLY * whole and _never_idles(account):
        return None  # no conclusion rests on the host
    longest = max(names, key=lambda name: names[name])
    return f"first-call initialisation takes {_ms(took / ranks)} of the recorded {_ms(whole / ranks)} ms (mostly {longest})"


def compiling(rank: Rank) -> Intervals:
    """Return when torch.compile compiled on a rank."""
    rows = rank.rows_named(lambda name: bool(re.match(_DYNAMO, name)), EventKind.ANNOTATION, EventKind.HOST_OP)
    start_ns = rank.trace["ts_ns"][rows]
    return union(start_ns, start_ns + rank.trace["dur_ns"][rows])


def _compilations(rank: Rank) -> Rows:
    """Return annotated compilations on a rank, where they do not recur in most steps."""
    rows = rank.rows_named(lambda name: bool(_COMPILES.search(name)), EventKind.ANNOTATION, EventKind.HOST_OP)
    steps = distinct(rank.steps.of(rank.trace["ts_ns"][rows]))
    often = rank.steps.known > 2 and (steps >= 0).sum() >= MOSTLY * rank.steps.known
    return rows[:0] if often else rows


def _judged_span(rank: Rank) -> tuple[int, int]:
    """Return the recorded steps; all that was recorded where these are too few or too short to leave out a first one."""
    rows = np.flatnonzero(of_kinds(rank.kinds, (EventKind.RUNTIME, *DEVICE_KINDS)))
    start = rank.trace["ts_ns"][rows]
    whole = (int(start.min()), int((start + rank.trace["dur_ns"][rows]).max())) if len(rows) else (0, 0)
    if rank.steps.is_window:  # a range around all launches begins before the first of them
        whole = min(whole[0], int(rank.steps.start_ns[0])), max(whole[1], int(rank.steps.end_ns[0]))
    chosen = rank.steps.by_profiler or rank.steps.after_cold
    if not len(rank.steps) or not (chosen or rank.steps.known > 2):
        return whole
    first, last = int(rank.steps.start_ns[0]), int(rank.steps.end_ns.max())
    return (first, last) if chosen or last - first >= _COVERED_SHARE * (whole[1] - whole[0]) else whole


def _cold_calls(rank: Rank) -> Rows:
    """Return long calls that neither wait nor copy while the device idles: modules are loaded, a context is created.

    None of them recurs in most steps, and a launch is the first of its kernel.
    """
    trace, work = rank.trace, rank.work
    rows = rank.rows_named(_may_initialise, EventKind.RUNTIME)
    rows = rows[trace["dur_ns"][rows] >= _COLD_CALL_NS]
    if not len(rows):
        return rows
    start, dur = trace["ts_ns"][rows], trace["dur_ns"][rows]
    rows = rows[covered_ns(work.intervals(*DEVICE_KINDS), start, start + dur) <= 0.1 * dur]
    # An allocator grows, or empties its cache, and freeing waits for work, that of launches without a record too. A call
    # that frees and does none of these creates the context of a library.
    first_launch = trace["ts_ns"][rank.rows_named(lambda name: "Launch" in name, EventKind.RUNTIME)].min(initial=_NEVER)
    waits = rank.joins.launches_without_work > 0
    of_memory = by_string(trace, trace["name"][rows], lambda s: is_allocation(s) and (waits or "Free" not in s)).astype(
        bool
    )
    rows = rows[~of_memory | (trace["ts_ns"][rows] < first_launch)]
    rows = np.setdiff1d(rows, np.concatenate(calls_that_free(rank)))
    launched = np.flatnonzero(work.launch_row >= 0)
    launched = launched[np.argsort(trace["ts_ns"][work.launch_row[launched]], kind="stable")]
    kernel = lookup(work.launch_row[launched], work.name[launched], rows)
    what = np.where(kernel >= 0, kernel, -1 - trace["name"][rows])  # the kernel of a launch, else the call
    if rank.steps.known > 2:
        step = rank.steps.of(trace["ts_ns"][rows])
        often = [w for w in distinct(what).tolist() if len(distinct(step[what == w])) >= MOSTLY * rank.steps.known]
        rows = rows[~np.isin(what, often)]
    first = launched[np.unique(work.name[launched], return_index=True)[1]]
    return rows[~np.isin(rows, np.setdiff1d(work.launch_row[launched], work.launch_row[first]))]


def _may_initialise(name: str) -> bool:
    return name.startswith(("cu", "hip")) and not is_synchronisation(name) and "Memcpy" not in name


def _ms(time_ns: float) -> str:
    time_ms = time_ns / NS_PER_MS
    return f"{time_ms:,.0f}" if time_ms >= 100 else f"{time_ms:.3g}"


_WARM = "record again after a few warm-up steps"

# the most limiting first
LIMITS = (
    Limit("graph-capture", _graph_capture, EVERYTHING, "how the captured graphs run",
          "record again once the graphs are replayed"),
    Limit("graph-capture", _idle_capture, HOST_CATEGORIES, "why the device idles in a run",
          "record again once the graphs are replayed"),
    Limit(HOST_ONLY, _device_unseen, EVERYTHING - {"data-bound"}, "what the device did", "{device}"),
    Limit("cold-start", _cold_start, _HOST_ONLY, "host costs of a warm step", _WARM),
    Limit("fragment", _lost_records, EVERYTHING, "what the device did",
          "record fewer steps, so that the profiler's buffers hold them"),
    Limit("fragment", _removed_events, EVERYTHING, "what ran between the events in the file",
          "read the file as the profiler wrote it"),
    Limit("short", _mostly_start, EVERYTHING, "what the program does once it has started", "{longer}"),
    Limit("mostly-host", _mostly_before, EVERYTHING, "what most of the recorded time was spent on", "{code}"),
    Limit("fragment", _few_steps, EVERYTHING, "what most of the window did", "{whole}"),
    Limit("fragment", _unrecorded_graphs, _IDLE, "what ran in CUDA graphs",
          "record kernels in graphs (torch.profiler, or nsys profile --cuda-graph-trace=node)"),
    Limit("fragment", _unexplained, _IDLE, "where most of the time went", "{code}"),
    Limit("short", _hardly_any_operation, EVERYTHING, "how a job runs", "{longer}"),
    Limit("device-only", _device_only, HOST_CATEGORIES, "why the device idled",
          "record with {host} and device activity"),
    Limit("short", _few_operations, _HOST_ONLY, "idle time of a job", "{longer}"),
    Limit("no-operators", _no_operators, frozenset(("unclear",)), "what the host did between launches",
          "record host activity as well ({host})"),
    Limit("", _graphs_as_a_whole, _KIND_OF_COMPUTE, "which kernels ran in CUDA graphs",
          "record with nsys profile --cuda-graph-trace=node"),
    Limit("", _unknown_kernels, _KIND_OF_COMPUTE, "what limits the kernels",
          "measure with ncu --set full"),
    Limit("", _inefficient_kernels, _KIND_OF_COMPUTE, "what a better kernel takes",
          "try another implementation (torch.backends.cudnn.benchmark, channels_last, torch.compile)"),
    Limit("", _slow_calls, _KIND_OF_COMPUTE, "what computing takes",
          "record on an idle machine without shapes, stacks and memory"),
    Limit("", _small_tensors, _KIND_OF_COMPUTE, "what computing takes",
          "compute more per call (larger batches), or fuse operators (torch.compile)"),
    Limit("", _fallback, _KIND_OF_COMPUTE, "what a library's operator takes",
          "use a build of PyTorch with oneDNN (torch.backends.mkldnn.is_available()), or a device"),
    Limit("", _ranks_missing, _OTHER_RANKS, "whether communication waits for a late rank or for the network",
          "record every rank: stepscope record --ranks all, or a profiler on each"),
)  # fmt: skip


def memory_bound_decoding(account: Account) -> str | None:
    """Return why decoding is bound by memory bandwidth, None where it is not or where tokens or chip are unknown.

    Every step reads all weights once: a step of T tokens does T operations per byte of 16-bit weights, and a chip needs
    its peak over its memory bandwidth to be bound by compute.
    """
    served, chip = account.serving, account.chip.chip
    if served is None:
        return None
    needed = [
        ratio for one in ((chip,) if chip is not None else built_in_chips()) if (ratio := _operations_per_byte(one))
    ]
    longest = max(served.kinds, key=lambda kind: kind.steps * kind.step_ns)
    if longest.kind != DECODE or not longest.tokens_per_step or longest.tokens_per_step >= min(needed, default=0.0):
        return None
    tokens = f"{longest.tokens_per_step:.0f} token{'' if longest.tokens_per_step == 1 else 's'}"
    return (
        f"decoding {tokens} per step does about as many operations per byte of weights, and "
        f"{chip.name if chip is not None else 'any chip'} needs {min(needed):.0f} to be bound by compute"
    )


def _operations_per_byte(chip: Chip) -> float | None:
    peak = mfu_peak(chip)
    return peak.flops_per_s / (chip.memory_gb_per_s * 1e9) if peak is not None and chip.memory_gb_per_s else None


# What a kind of finding requires.


class Need(Enum):
    """Something that a trace, or a set of traces, may lack."""

    STEPS = "steps"
    ALL_RANKS = "all ranks"
    DEVICE = "device activity"
    HOST = "host activity"
    LAUNCHES = "launches"
    SHAPES = "shapes"
    SIZES = "message sizes"
    KERNELS = "work of kernels"
    PEAK = "device peak"
    PASSES = "forward and backward separated"
    MEMORY = "memory"
    UNPROFILED = "unprofiled step time"
    LINES = "lines of the user's code"


class Scope(Enum):
    """Which jobs a rule is about."""

    ANY = "any job"
    SEVERAL_RANKS = "jobs of several ranks"
    DEVICE = "jobs with a device"
    HOST = "jobs that compute on the host"


def applies(account: Account, scope: Scope) -> bool:
    """Return whether a job can have the fault at all."""
    ranks = account.run.ranks
    if scope is Scope.SEVERAL_RANKS:
        return len(ranks) > 1 or (account.run.world_size or 1) > 1 or any(len(r.collectives) for r in ranks)
    if scope is Scope.HOST:
        return bool(ranks) and not any(r.has_device or r.device_unseen for r in ranks)
    return scope is Scope.ANY or any(r.has_device or r.device_unseen or _calls(r) for r in ranks)


def missing(account: Account, need: Need) -> str | None:
    """Return what is lacking and how to get it, None where it is there."""
    return None if _IS_THERE[need](account) else _HOW[need](account)


def _calls(rank: Rank) -> bool:
    return bool(of_kinds(rank.kinds, (EventKind.RUNTIME,)).any())


def _ranks_said(account: Account) -> str:
    read = len(account.run.ranks_read)
    return f"all {read + len(ranks_missing(account))} ranks: {read} recorded"


def _has_operators(account: Account) -> bool:
    return all(map(records_operators, account.run.ranks))


def _has_launches(account: Account) -> bool:
    with_device = [r for r in account.run.ranks if r.has_device]
    return not with_device or all((r.work.launch_row >= 0).any() for r in with_device)


@once_per_record
def _has_shapes(account: Account) -> bool:
    shapes = [(r.kinds, r.trace.arg("input_dims")) for r in account.run.ranks]
    of_shapes = (kinds.take(known.rows[known.values >= 0]) for kinds, known in shapes)
    return any(of_kinds(kinds, (EventKind.HOST_OP,)).any() for kinds in of_shapes)


def _has_sizes(account: Account) -> bool:
    talking = [r for r in account.run.ranks if len(r.collectives)]
    return all((r.collectives.full_bytes > 0).any() for r in talking)


_IS_THERE: dict[Need, Callable[[Account], bool]] = {
    Need.STEPS: lambda a: a.num_steps > 0,
    Need.ALL_RANKS: lambda a: not ranks_missing(a),
    Need.DEVICE: lambda a: any(r.has_device for r in a.run.ranks),
    Need.HOST: _has_operators,
    Need.LAUNCHES: _has_launches,
    Need.SHAPES: _has_shapes,
    Need.SIZES: _has_sizes,
    Need.KERNELS: lambda a: a.kernels.unknown_share <= MOSTLY,
    Need.PEAK: lambda a: a.chip.chip is not None and mfu_peak(a.chip.chip) is not None,
    Need.PASSES: lambda a: a.step is not None and a.step.ns("backward") > 0,
    Need.MEMORY: lambda a: a.memory is not None,
    Need.UNPROFILED: lambda a: a.step is not None and a.step.unprofiled_ns is not None,
    Need.LINES: lambda a: all(one is not None for one in a.ownership),
}
_HOW: dict[Need, Callable[[Account], str]] = {
    Need.STEPS: lambda a: "steps: profiler.step() in the loop, or stepscope record",
    Need.ALL_RANKS: _ranks_said,
    Need.DEVICE: lambda a: f"device activity: {_device_tool(a)}",
    Need.HOST: lambda a: f"operators of the host: {_host_tool(a)}",
    Need.LAUNCHES: lambda a: f"the launches of device work: {_host_tool(a)}",
    Need.SHAPES: lambda a: "shapes: record_shapes=True, or stepscope record --shapes",
    Need.SIZES: lambda a: "sizes of messages: a torch that records them, or --shapes",
    Need.KERNELS: lambda a: "what most kernels compute: neither names nor shapes show it",
    Need.PEAK: lambda a: "the device's peak: --hardware FILE",
    Need.PASSES: lambda a: "a backward pass that is separate from forward",
    Need.MEMORY: lambda a: "memory data: record with --memory",
    Need.UNPROFILED: lambda a: "the step without the profiler: --unprofiled-step-ms, or stepscope record",
    Need.LINES: lambda a: "lines of the code: stepscope record without --light and --no-owners, or with_stack=True",
}


# Which fixes has the run made already? They are not advised again.

_MIN_SHARE = 0.5
_GRAPH_LAUNCH = "GraphLaunch"
# of a training step in launch gaps: its graphs leave launches between them
_GAPS_LEFT = 0.05
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph")
_NARROW = ("half", "bfloat16", "float8")


def applied(account: Account) -> dict[str, str]:
    """Return the findings whose fix the run has made, and how that shows."""
    known = ((finding, made_already(account, finding)) for finding in _SHOWS)
    return {finding: why for finding, why in known if why is not None}


def made_already(account: Account, finding: str) -> str | None:
    """Return how it shows that the run has made a finding's fix, None where it does not."""
    return _SHOWS[finding](account) if finding in _SHOWS else None


def sixteen_bit_messages(account: Account) -> bool:
    """Return whether most bytes of the collectives travel in 16 bit or less."""
    sent = narrow = 0
    for rank in account.run.ranks:
        c = rank.collectives
        rows = np.flatnonzero((c.record_row >= 0) & (c.step >= 0) & (c.full_bytes > 0))
        types = rank.trace.arg("dtype").at(c.record_row[rows], missing=-1)
        is_narrow = by_string(rank.trace, types.astype(np.int32), _is_narrow).astype(bool)
        sent += int(c.full_bytes[rows].sum())
        narrow += int(c.full_bytes[rows][is_narrow].sum())
    return sent > 0 and narrow > _MIN_SHARE * sent


def _is_narrow(dtype: str) -> bool:
    return any(word in dtype.lower() for word in _NARROW)


@once_per_record
def _graphs(account: Account) -> str | None:
    launched = [_graph_share(rank) for rank in account.run.ranks if rank.has_device]
    share, step = float(np.mean(launched)) if launched else 0.0, account.step
    gaps = step.ns("launch_gap") / step.step_ns if step is not None and step.step_ns else 0.0
    if gaps >= _GAPS_LEFT and share < 1 - _MUCH and trains_with_torch(account):
        return None  # graphs of forward and backward alone
    return f"graphs launch {100 * share:.0f} % of the device's work already" if share > _MIN_SHARE else None


def launches_graphs(account: Account) -> bool:
    """Return whether graphs launch some of the device's work."""
    return any(_graph_share(rank) > 0 for rank in account.run.ranks if rank.has_device)


def _graph_share(rank: Rank) -> float:
    rows = rank.work.launch_row[(rank.work.launch_row >= 0) & (rank.work.step >= 0)]
    by_graph = by_string(rank.trace, rank.trace["name"][rows], lambda s: _GRAPH_LAUNCH in s)
    return float(by_graph.mean()) if len(rows) else 0.0


@once_per_record
def _compiled(account: Account) -> str | None:
    shares = [_compiled_share(rank) for rank in account.run.ranks if rank.has_device]
    share = float(np.mean(shares)) if shares else 0.0
    return f"{100 * share:.0f} % of the device's work is compiled already" if share > _MIN_SHARE else None


def is_compiled(account: Account) -> bool:
    """Return whether any of the job runs in a region of torch.compile."""
    kinds = (EventKind.HOST_OP, EventKind.ANNOTATION)
    return any(len(rank.rows_named(lambda s: s.startswith(_COMPILED), *kinds)) for rank in account.run.ranks)


def _compiled_share(rank: Rank) -> float:
    work = rank.work
    regions = rank.rows_named(lambda s: s.startswith(_COMPILED), EventKind.HOST_OP, EventKind.ANNOTATION)
    launched = np.flatnonzero((work.launch_row >= 0) & (work.step >= 0))
    if not len(regions) or not len(launched):
        return 0.0
    inside = enclosing(rank.trace, regions, work.launch_row[launched]) >= 0
    took = (work.end_ns - work.start_ns)[launched]
    return float(took[inside].sum() / max(took.sum(), 1))


_SHOWS: dict[str, Callable[[Account], str | None]] = {
    "launch-overhead": _graphs,
    "memory-bound-kernels": _compiled,
}
