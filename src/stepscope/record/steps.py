"""The times of steps: regions, evaluation, device times, and the step log.

Time is *exclusive*: a region's time is its span minus the regions inside it, so the regions of a step never
sum to more than the step. Forward and backward inside `optimizer.step` (LBFGS, Lightning closures) thereby
leave only the optimizer's own work to `optimizer_step`.

    begin optimizer_step 0, begin forward_pass 2, end forward_pass 7, end optimizer_step 10
    -> optimizer_step 5, forward_pass 5
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import torch
import torch.cuda.nvtx

from stepscope.contract.step_line import (
    BACKWARD,
    CHECKPOINT,
    CLIPPING,
    DATA_LOADING,
    EVALUATION,
    FORWARD,
    GRADIENT_SYNC,
    LOADER_START,
    LR_SCHEDULING,
    OPTIMIZER,
    RegionTimes,
)
from stepscope.record.thread_samples import KernelCounts
from stepscope.record.window.guards import Interruptions

# which evaluation has as well, and they are then part of it
OF_TRAINING = frozenset((DATA_LOADING, FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER))
_STANDARD = frozenset((*OF_TRAINING, LR_SCHEDULING, CLIPPING, LOADER_START, CHECKPOINT))


def summed(a: RegionTimes, b: RegionTimes) -> RegionTimes:
    """Return the regions of two parts of one step together."""
    names = dict.fromkeys((*a, *b))
    return {
        name: {key: sum(part[name][key] for part in (a, b) if name in part) for key in ("ns", "n")} for name in names
    }


class _OpenRegion:
    name: str
    since_ns: int
    child_ns = 0
    steps_old = 0
    mark: Any = None
    nvtx = False


class Regions:
    """The open regions of every thread, and the time per region name on the training thread.

    Only the training thread's regions are timed: those of other threads overlap it and do not sum to a step.
    `marker`, when set, opens a mark in the trace (`record_function`); `nvtx` pushes and pops ranges.
    """

    def __init__(self, *, nvtx: Any = None, on_first: Callable[[], None] | None = None) -> None:
        self.marker: Any = None
        self.nvtx = nvtx
        self.interruptions: Interruptions | None = None
        self._on_first = on_first
        self.training_thread = threading.get_ident()
        self._stacks: dict[int, list[_OpenRegion]] = {}
        self._totals: dict[str, list[int]] = {}

    def begin(self, name: str, at_ns: int | None = None) -> None:
        """Open a region on the calling thread, now or at the earlier time `at_ns`."""
        thread = threading.get_ident()
        stack = self._stacks.get(thread)
        if stack is None:
            stack = self._stacks[thread] = []
            if self._on_first is not None and len(self._stacks) == 1:
                self._on_first()
        opened = _OpenRegion()
        opened.name, opened.since_ns = name, perf_counter_ns() if at_ns is None else at_ns
        if self.interruptions and thread == self.training_thread:
            self._interrupt(stack, opened.since_ns)
        if self.marker is not None:
            opened.mark = self.marker(name)
        if self.nvtx is not None:
            if at_ns is None:
                self.nvtx.range_push(name)
            opened.nvtx = True
        stack.append(opened)

    def end(self, name: str, at_ns: int | None = None) -> None:
        """Close the innermost open region of that name, and any left open inside it; if none, do nothing."""
        thread = threading.get_ident()
        stack = self._stacks.get(thread)
        if not stack:
            return
        if stack[-1].name != name and not any(r.name == name for r in stack):
            return
        now_ns = perf_counter_ns() if at_ns is None else at_ns
        if self.interruptions and thread == self.training_thread:
            self._interrupt(stack, now_ns)
        while True:
            region = stack.pop()
            if (region.nvtx and at_ns is None) or region.mark is not None:
                self._close_marks(region)
            if thread == self.training_thread:
                span_ns = now_ns - region.since_ns
                total = self._totals.get(region.name)
                if total is None:
                    total = self._totals[region.name] = [0, 0]
                total[0] += span_ns - region.child_ns
                total[1] += region.steps_old == 0
                if stack:
                    stack[-1].child_ns += span_ns
            if region.name == name:
                return

    def innermost(self) -> str | None:
        """Return the current region of the training thread, None outside of any; for other threads, read-only."""
        newest = (self._stacks.get(self.training_thread) or [])[-1:]  # a copy: the stack may change meanwhile
        return newest[0].name if newest else None

    def leave_out(self, paused_ns: int) -> None:
        """Leave a pause of ours, which just ended, out of the regions that are open on this thread."""
        for region in self._stacks.get(threading.get_ident(), ()):
            region.since_ns += paused_ns

    def split_step(self, now_ns: int) -> RegionTimes:
        """Return `{name: {"ns", "n"}}` for the step that ends now; open regions go on into the next step.

        A standard region that was open when the step began lost its end to an exception: it is dropped.
        """
        self.training_thread = threading.get_ident()
        stack = self._stacks.get(self.training_thread)
        if self.interruptions:
            self._interrupt(stack, now_ns)
        if stack:
            self._split_open(stack, now_ns)
        totals, self._totals = self._totals, {}
        return {name: {"ns": ns, "n": n} for name, (ns, n) in totals.items()}

    def _interrupt(self, stack: list[_OpenRegion] | None, now_ns: int) -> None:
        assert self.interruptions is not None
        for interruption in self.interruptions.taken(before_ns=now_ns):
            self._add(interruption.name, interruption.own_ns, 1)
            if stack and stack[-1].since_ns <= interruption.begin_ns:
                stack[-1].child_ns += interruption.own_ns

    def _split_open(self, stack: list[_OpenRegion], now_ns: int) -> None:
        inner_ns = 0
        for region in reversed(stack):
            span_ns = now_ns - region.since_ns
            self._add(region.name, span_ns - region.child_ns - inner_ns, 1 if region.steps_old == 0 else 0)
            region.since_ns, region.child_ns = now_ns, 0
            region.steps_old += 1
            inner_ns = span_ns
        leaked = [r for r in stack if r.steps_old > 1 and r.name in _STANDARD]
        for region in reversed(leaked):
            self._close_marks(region)
            stack.remove(region)

    def _add(self, name: str, own_ns: int, count: int) -> None:
        total = self._totals.get(name)
        if total is None:
            self._totals[name] = [own_ns, count]
        else:
            total[0] += own_ns
            total[1] += count

    def _close_marks(self, region: _OpenRegion) -> None:
        if region.nvtx and self.nvtx is not None:
            self.nvtx.range_pop()
        if region.mark is not None:
            region.mark.__exit__(None, None, None)
            region.mark = None


# NVTX's stack of ranges as torch has it, without the Python functions that torch puts around it.
#
# Eight ranges are pushed and popped in a step that is only timed: each such function is a Python call in a step with
# cold processor caches. Without a listening tool they are useless: NVTX's return value shows that, and NVTX checks for
# a tool only once in the life of a process.


def nvtx_functions() -> Any:
    """Return an object with `range_push(name)` and `range_pop()`, None where no tool listens to ranges."""
    inner = getattr(torch.cuda.nvtx, "_nvtx", None)
    push, pop = getattr(inner, "rangePushA", None), getattr(inner, "rangePop", None)
    found: Any = SimpleNamespace(range_push=push, range_pop=pop)
    if push is None or pop is None:  # a torch that keeps them elsewhere
        found = torch.cuda.nvtx
    depth = found.range_push("stepscope")
    found.range_pop()
    return None if isinstance(depth, int) and depth < 0 else found


# evaluations that recur after as few steps are part of the routine, as a rollout of reinforcement learning is
_MAX_STEPS_BETWEEN = 3


class StepTimes:
    """The current step, by `perf_counter_ns`: its begin and regions, and its evaluation.

    Evaluation is a region of the step that begins after it. It includes what was loaded and computed in it; other
    regions (a checkpoint, a collection) keep their names.
    """

    def __init__(self, regions: Regions) -> None:
        self.start_ns = perf_counter_ns()
        self.last_ns = 0  # how long the last step took, without its evaluation
        self._regions = regions
        self._held: tuple[int, RegionTimes] | None = None  # a moment at which the step may have ended
        self._evaluation: RegionTimes = {}
        self._evaluated_until_ns: int | None = None
        self._evaluation_step: int | None = None  # the last one that had some
        self._steps_between: int | None = None  # from the one before to it

    def begin(self) -> None:
        """Let the step begin now: what passed since the last one ended is in no step."""
        self.start_ns = perf_counter_ns()
        if self._regions.interruptions:
            self._regions.interruptions.taken(before_ns=self.start_ns)

    def may_end(self, at_ns: int) -> int:
        """Return the moment at which the step may turn out to have ended: `end(at_ns=...)`."""
        self._held = (at_ns, self._regions_until(at_ns))
        return at_ns

    def end(self, now_ns: int, at_ns: int | None) -> tuple[int, RegionTimes]:
        """Return the step's time and its regions, at a moment before now where that is known only later."""
        held = self._held
        regions = held[1] if held is not None and held[0] == at_ns else self._regions_until(now_ns)
        self._held = None
        evaluation, self._evaluation, self._evaluated_until_ns = self._evaluation, {}, None
        if evaluation:
            regions = summed(evaluation, regions)
        dur_ns = (now_ns if at_ns is None else at_ns) - self.start_ns
        self.last_ns = dur_ns - evaluation.get(EVALUATION, {"ns": 0})["ns"]
        return dur_ns, regions

    def is_routine(self, step: int) -> bool:
        """Return whether there was evaluation a few steps ago as well."""
        return self._evaluation_step is not None and step - self._evaluation_step <= _MAX_STEPS_BETWEEN

    def begins_round(self, step: int) -> int:
        """Return the first step from `step` on that begins with evaluation where that is routine, else `step`."""
        last, between = self._evaluation_step, self._steps_between
        if last is None or between is None or between > _MAX_STEPS_BETWEEN:
            return step
        return step + (last - step) % between

    def end_evaluation(self, step: int) -> None:
        """Count all that passed since the step began, or since the last call, as evaluation."""
        now_ns = perf_counter_ns()
        until_ns = self._evaluated_until_ns
        kept = {name: time for name, time in self._regions_until(now_ns).items() if name not in OF_TRAINING}
        since_ns = self.start_ns if until_ns is None else until_ns
        own_ns = max(0, now_ns - since_ns - sum(time["ns"] for time in kept.values()))
        found = {**kept, EVALUATION: {"ns": own_ns, "n": int(until_ns is None)}}
        self._evaluation = summed(self._evaluation, found)
        self._evaluated_until_ns = now_ns
        if self._evaluation_step is not None and self._evaluation_step != step:
            self._steps_between = step - self._evaluation_step
        self._evaluation_step = step

    def leave_out(self, paused_ns: int, *, of_evaluation: bool) -> None:
        """Take out what the recorder itself took in this step."""
        self.start_ns += paused_ns
        self._regions.leave_out(paused_ns)
        if of_evaluation and self._evaluated_until_ns is not None:
            self._evaluated_until_ns += paused_ns

    def _regions_until(self, now_ns: int) -> RegionTimes:
        held, self._held = self._held, None
        times = self._regions.split_step(now_ns)
        return times if held is None else summed(held[1], times)


# How long the device took for each step, by events on the training stream and without any synchronisation.
#
# At the end of a step an event is recorded on the current stream; a step's device time is the distance between two
# such events. Events are queried and never waited for, so a step's time is known a few steps later. All calls stay on
# the training thread: querying an event from another one would break a CUDA graph capture.
#
# An event costs 20 us with cold processor caches, and a query half as much again. So steps that are only timed share
# one until 50 ms have passed, or eight of them: each has the mean of theirs.

_MAX_PENDING = 64
_SHARED_NS = 50_000_000
_MAX_SHARED = 8  # steps of one event


def device_timer(*, shared: bool = True) -> "DeviceTimer | None":
    """Return a timer where this process uses CUDA, else None; `shared`: whether steps may share an event."""
    return DeviceTimer(shared=shared) if torch.cuda.is_available() and torch.cuda.is_initialized() else None


class DeviceTimer:
    """Events of the newest steps, and a pool of reusable ones."""

    def __init__(self, *, shared: bool = True) -> None:
        self._max_shared = _MAX_SHARED if shared else 1
        self._free: list[Any] = []
        self._last: Any = None
        self._stream_known_by: Any = None
        self._stream: Any = None  # cached, because making the object takes longer than recording the event
        self._lines: list[dict[str, Any]] = []  # of steps since the last event
        self._next_ns = 0  # when the next event is due
        self._pending: deque[tuple[list[dict[str, Any]], Any, Any]] = deque()
        # torch's own functions without those of Python around them, each of which costs as much as its work
        self._is_capturing = torch._C._cuda_isCurrentStreamCapturing
        self._device_now = torch._C._cuda_getDevice
        self._stream_now = torch._C._cuda_getCurrentStream
        self._record_event = torch.cuda.Event.__mro__[1].record

    def step_end(self, line: dict[str, Any] | None = None) -> dict[str, Any]:
        """Mark the end of a step; its line is returned, and by `finished()` with its time.

        Without a line the step was only timed: it gets a new one, and may share its event with the next.
        """
        now_ns = perf_counter_ns()
        if line is None:
            self._lines.append(line := {})
            if now_ns < self._next_ns and len(self._lines) < self._max_shared:
                return line
        else:
            self._lines.append(line)
        self._next_ns = now_ns + _SHARED_NS
        lines, self._lines = self._lines, []
        event = self._record()
        self._pending.append((lines, self._last, event))
        self._last = event
        return line

    def restart(self) -> None:
        """Let the next step begin here, after a pause that is no part of it."""
        if self._lines:
            self._pending.append((self._lines, None, None))
            self._lines = []
        self._last = self._record()

    def finished(self, *, all_of_them: bool = False) -> list[tuple[dict[str, Any], int | None]]:
        """Return `(line, device time in ns)` of the steps whose end has passed, oldest first.

        The time is None for a step without a beginning, and for one given up because too many wait. Nothing is queried
        while a CUDA graph is captured: that would break the capture.
        """
        out: list[tuple[dict[str, Any], int | None]] = []
        capturing = bool(self._pending) and self._is_capturing()
        while self._pending:
            lines, begin, end = self._pending[0]
            passed = end is None or (not capturing and end.query())
            if not (passed or all_of_them or len(self._pending) > _MAX_PENDING):
                break
            self._pending.popleft()
            known = passed and begin is not None and end is not None
            device_ns = round(begin.elapsed_time(end) * 1e6 / len(lines)) if known else None
            out += [(line, device_ns) for line in lines]
            if known:
                self._free.append(begin)
        if all_of_them:
            out += [(line, None) for line in self._lines]
            self._lines = []
        return out

    def _record(self) -> Any:
        if self._is_capturing():
            return None
        known_by = self._stream_now(self._device_now())
        if self._stream_known_by != known_by:
            self._stream_known_by, self._stream = known_by, torch.cuda.current_stream()
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        self._record_event(event, self._stream)
        return event


# How long the training thread ran in each step and how long it was ready and had no core, by the kernel. The rest is a
# wait: for a lock, for the device, for other ranks. It leaves with the step: a job that is killed has it too.
#
# Reading both takes 20 us where nothing of it is in the processor's caches: once for all steps that are only timed.


class ThreadClock:
    """CPU time of the training thread and its wait for a core, from step to step."""

    def __init__(self) -> None:
        self._last: tuple[int, ...] = (0, 0)

    def read(self) -> tuple[int, ...]:
        """Return the calling thread and its times."""
        now = (threading.get_ident(), time.thread_time_ns())
        waited_ns = KernelCounts(threading.get_native_id()).delay_ns()
        return now if waited_ns is None else (*now, waited_ns)

    def since_last(self, reading: tuple[int, ...], steps: int = 1) -> dict[str, int]:
        """Return what passed per step since the reading given before, nothing where that was of another thread."""
        last, self._last = self._last, reading
        if last[0] != reading[0]:
            return {}
        times = zip(_CPU_TIMES, reading[1:], last[1:], strict=False)
        return {name: (now - then) // steps for name, now, then in times}


_CPU_TIMES = ("run_ns", "delay_ns")


# The light log: one line per step (`contract.step_line`), profiled or not, on its way to `rankNNNNN.steps.jsonl`.
#
# On a CUDA device a line waits, in memory, for its device time, which is known when the device has passed the step's
# end.
#
# Each line leaves the process at once in the first steps, where jobs are short or fail, and while the profiler runs.
# Later lines leave two to ten times a second: several at once cost a fraction, because after a step's work nothing of
# ours is in the processor's caches. So a job that is killed loses at most its last half second.

_PERIOD_NS = 100_000_000
SENT_AT_ONCE = 8  # steps

# when it ended by `perf_counter_ns`, its regions, and what `mark_end` returned then
PastStep = tuple[int, RegionTimes, dict[str, Any]]


class StepLog:
    """Builds lines and sends them on, in the order of the steps."""

    def __init__(self, send: Callable[..., None], timer: DeviceTimer | None, *, each_clock: bool = False) -> None:
        self.on_device = timer is not None
        self._send = send
        self._timer = timer
        self._each_clock = each_clock  # of steps that are only timed too: they are compared one by one
        self._cpu = ThreadClock()
        self._ready: list[dict[str, Any]] = []
        self._next_send_ns = 0

    def add(self, line: dict[str, Any]) -> None:
        """Take in one step; it is sent soon, once its device time is known."""
        line["end_ns"] = end_ns = time.time_ns() - line.pop("late_ns", 0)
        line["start_ns"] = end_ns - line["dur_ns"]
        line["device_ns"] = None
        if cpu := self._cpu.since_last(self._cpu.read()):
            line["cpu"] = cpu
        if self._timer is None:
            self._ready.append(line)
        else:
            self._timer.step_end(line)
        self._take_finished(all_of_them=False)
        is_soon = self._next_send_ns - _PERIOD_NS <= end_ns < self._next_send_ns  # False where the clock was set back
        if not is_soon or line["step"] < SENT_AT_ONCE or line["profiled"]:
            self._next_send_ns = end_ns + _PERIOD_NS
            self._send_ready()

    @property
    def mark_end(self) -> Callable[[], dict[str, Any]]:
        """What returns the line, incomplete so far, of a step that ends now; `add_past` takes it in."""
        mark: Callable[[], dict[str, Any]] = dict if self._timer is None else self._timer.step_end
        return partial(self._mark_with_clock, mark) if self._each_clock else mark

    def _mark_with_clock(self, mark: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        line = mark()
        line["cpu"] = self._cpu.read()
        return line

    def add_past(self, steps: Sequence[PastStep], *, first: int, start_ns: int, phase: str) -> int:
        """Take in steps whose end was marked, by `perf_counter_ns`; return the longest one's time."""
        epoch_ns, longest_ns = time.time_ns() - time.perf_counter_ns(), 0
        mean = {} if self._each_clock else self._cpu.since_last(self._cpu.read(), max(len(steps), 1))
        for step, (end_ns, regions, line) in enumerate(steps, first):
            dur_ns = end_ns - start_ns
            cpu = self._cpu.since_last(line.pop("cpu")) if self._each_clock else mean
            line["text"] = (  # by hand: json takes three times as long
                f'{{"step": {step}, "start_ns": {start_ns + epoch_ns}, "end_ns": {end_ns + epoch_ns}, '
                f'"dur_ns": {dur_ns}, "profiled": false, "phase": "{phase}", '
                f'"regions": {{{_text_of(regions)}}}, {_text_of_cpu(cpu)}"device_ns": '
            )
            if self._timer is None:
                self._ready.append(line)
            longest_ns = max(longest_ns, dur_ns)
            start_ns = end_ns
        self._take_finished(all_of_them=False)
        self._next_send_ns = start_ns + epoch_ns + _PERIOD_NS
        self._send_ready()
        return longest_ns

    def restart(self) -> None:
        """Let the next step's times begin after a pause."""
        self._cpu.since_last(self._cpu.read())
        if self._timer is not None:
            self._timer.restart()

    def flush(self) -> None:
        """Send every line that still waits, with or without its device time."""
        self._take_finished(all_of_them=True)
        self._send_ready()

    def _take_finished(self, *, all_of_them: bool) -> None:
        if self._timer is None:
            return
        for line, device_ns in self._timer.finished(all_of_them=all_of_them):
            if "text" in line or "step" in line:  # not where its step was given up
                line["device_ns"] = device_ns
                self._ready.append(line)

    def _send_ready(self) -> None:
        ready, self._ready = self._ready, []
        if ready:
            self._send(*map(_text, ready))


def _text(line: dict[str, Any]) -> str:
    begun, device_ns = line.get("text"), line.get("device_ns")
    if begun is None:
        return json.dumps(line)
    return f"{begun}{'null' if device_ns is None else device_ns}}}"


def _text_of(regions: RegionTimes) -> str:
    return ", ".join([f'"{name}": {{"ns": {own["ns"]}, "n": {own["n"]}}}' for name, own in regions.items()])


def _text_of_cpu(cpu: dict[str, int]) -> str:
    times = ", ".join([f'"{name}": {ns}' for name, ns in cpu.items()])
    return f'"cpu": {{{times}}}, ' if cpu else ""
