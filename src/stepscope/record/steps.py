"""Where in its step each rank is: a stack of named regions, their own time, and their marks in the trace.

Time is *exclusive*: a region's time is its span minus the regions inside it, so the regions of a step never
sum to more than the step. Forward and backward inside `optimizer.step` (LBFGS, Lightning closures) thereby
leave only the optimizer's own work to `optimizer_step`.

    begin optimizer_step 0, begin forward_pass 2, end forward_pass 7, end optimizer_step 10
    -> optimizer_step 5, forward_pass 5
"""

import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch

from stepscope.contract.step_line import (
    BACKWARD,
    CHECKPOINT,
    CLIPPING,
    DATA_LOADING,
    FORWARD,
    GRADIENT_SYNC,
    LOADER_START,
    LR_SCHEDULING,
    OPTIMIZER,
    RegionTimes,
)
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
        """Open a region on the calling thread; one told of later opened `at_ns`, and its range is there."""
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
        """Return the region that the training thread is in, None outside of any; for a thread that only looks."""
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


# How long the device took for each step, by events on the training stream and without any synchronisation.
#
# At the end of a step an event is recorded on the current stream; a step's device time is the distance between two
# such events. An event is asked whether it has passed and is never waited for, so a step's time is known a few steps
# later. All calls stay on the training thread: querying an event from another one would break a CUDA graph capture.
#
# An event costs 20 us where nothing of it is in the processor's caches, and half as much again when it is asked. So
# steps
# that are only timed share one until 50 ms have passed, or eight of them: each has the mean of theirs.

_MAX_PENDING = 64
_SHARED_NS = 50_000_000
_MAX_SHARED = 8  # steps of one event


def device_timer(*, shared: bool = True) -> "DeviceTimer | None":
    """Return a timer where this process uses CUDA, else None; `shared`: whether steps may share an event."""
    return DeviceTimer(shared=shared) if torch.cuda.is_available() and torch.cuda.is_initialized() else None


class DeviceTimer:
    """Events of the newest steps, and those kept for use again."""

    def __init__(self, *, shared: bool = True) -> None:
        self._max_shared = _MAX_SHARED if shared else 1
        self._free: list[Any] = []
        self._last: Any = None
        self._stream_known_by: Any = None
        self._stream: Any = None  # kept, because making the object takes longer than recording the event
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

        The time is None for a step without a beginning, and for one given up because too many wait.
        """
        out: list[tuple[dict[str, Any], int | None]] = []
        while self._pending:
            lines, begin, end = self._pending[0]
            passed = end is None or end.query()
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
