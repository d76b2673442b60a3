"""Recorded steps, and the step of each moment."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepscope.records import ArrayRecord, dataclass
from stepscope.stats.robust import among, median, union_of_values
from stepscope.trace.table import EventKind, Int64s, Kinds, Trace, of_kinds, rows_named

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
