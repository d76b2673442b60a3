"""One step's operators, counted while they run: how many events a step makes and how many FLOPs it does.

A profiler with shapes watches the first step after the window, never one before it: any session slows the steps that
follow. Where there is a device it is watched as well, though only operators are counted: Kineto detaches CUPTI after
sessions of the device alone. It only looks: no operator is replaced or decomposed, so results stay bit-equal, compiled
code included. It is bounded as a window is, in events, seconds and memory, whatever lies between the two steps.
"""

import atexit
import bisect
import threading
from collections.abc import Iterable
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from stepscope.record.collectives.groups import group_timeout_s
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain
from stepscope.record.window.budget import Budget, TypicalStep
from stepscope.record.window.flops import flops_of
from stepscope.record.window.kineto import activities_of, why_not_available
from stepscope.record.window.open_spans import end_open_spans
from stepscope.record.window.profiler_guard import ProfilerGuard
from stepscope.record.window.thread_end import NO_SIGN, at_thread_end

_OTHER_THREAD = "the step to be counted ended on another thread than it began"
_BACKWARD = "autograd::engine::evaluate_function"


class StepCensus:
    """Watches one step: `begin()` before it, `end()` after it."""

    def __init__(self, guard: ProfilerGuard, config: RecordConfig, usual: TypicalStep) -> None:
        self._guard = guard
        self._config = config
        self._usual = usual
        self._budget: Budget | None = None
        self._profiler: Any = None
        self._thread = 0
        self.why_not: str | None = None
        self.was_stopped = False  # in the middle of the step: another one may do

    def begin(self) -> None:
        """Start watching unless another profiler is at work; whatever fails, the step is not counted, and no more."""
        try:
            self._begin()
        except Exception as e:  # noqa: BLE001 - training comes first
            self._profiler = self._guard.give_way = None
            self.why_not = f"the profiler failed: {explain(e)}"

    def _begin(self) -> None:
        self.why_not = why_not_available()
        if self.why_not is None and not self._guard.is_free():
            self.why_not = "another profiler was active when the step was to be counted"
        elif self.why_not is None and not at_thread_end(self._thread_ends):
            self.why_not = NO_SIGN
        if self.why_not is not None:
            return
        self._thread = threading.get_ident()
        self._guard.give_way = self.give_way
        on_device = ProfilerActivity.CUDA in activities_of(self._config)
        self._profiler = autograd_profiler.profile(
            use_cpu=True, use_device="cuda" if on_device else None, use_kineto=True, record_shapes=True
        )
        self._budget = Budget(self._config, usual=self._usual, group_timeout_s=group_timeout_s())
        with self._guard.ours():
            self._profiler._prepare_trace()
            self._profiler._start_trace()

    def end(self) -> dict[str, int] | None:
        """Return `{"events", "total", "forward"}` of the watched step, None where it could not be watched."""
        if self._profiler is None:
            return None
        if threading.get_ident() != self._thread:  # only that one can stop it, and will as it ends
            self.why_not, self._guard.left_behind = _OTHER_THREAD, True
            atexit.register(self._thread_ends)  # the main thread's end
            return None
        self._profiler = None
        self._guard.give_way = None
        with self._guard.ours():
            events = torch.autograd._disable_profiler().events()
        end_open_spans()
        if len(events) > self._config.max_events:
            self.why_not = f"the step to be counted has {len(events)} events, {self._config.max_events} allowed"
            return None
        return {"events": len(events), **counted(events)}

    def look_at_budget(self) -> None:
        """Stop in the middle of the step where a limit was met; called when a region ends."""
        if self._profiler is None or self._budget is None or threading.get_ident() != self._thread:
            return
        spent = self._budget.spent_inside_step()
        if spent is not None:
            self.stop(f"the step to be counted was too much to watch ({spent})")

    def stop(self, why_not: str) -> None:
        """Stop at once and count nothing."""
        if self._profiler is not None and threading.get_ident() == self._thread:
            self._profiler = self._guard.give_way = None
            with self._guard.ours():
                torch.autograd._disable_profiler()
            end_open_spans()
            self.why_not, self.was_stopped = why_not, True

    def _thread_ends(self) -> None:
        if self._profiler is not None and threading.get_ident() == self._thread:
            self.end()
            self.why_not, self._guard.left_behind = _OTHER_THREAD, False

    def give_way(self) -> None:
        """Stop at once: the user starts a profiler of their own."""
        self.end()
        self.why_not = "another profiler was started while the step was being counted"


def counted(events: Iterable[Any]) -> dict[str, int]:
    """Return the FLOPs of profiler events: in all, and of those outside the backward pass."""
    operators, backward = [], []
    for event in events:
        name = event.name()
        if name.startswith(_BACKWARD):
            backward.append((event.start_thread_id(), event.start_ns(), event.start_ns() + event.duration_ns()))
        else:
            flops = flops_of(name, event.shapes(), event.concrete_inputs())
            if flops:
                operators.append((event.start_thread_id(), event.start_ns(), flops))
    spans = _merged(backward)
    total = sum(flops for _, _, flops in operators)
    forward = sum(flops for thread, at_ns, flops in operators if not _within(spans, thread, at_ns))
    return {"total": total, "forward": forward}


def _merged(spans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return disjoint `(thread, start, end)` in order; recomputation nests backward spans in each other."""
    out: list[tuple[int, int, int]] = []
    for thread, start_ns, end_ns in sorted(spans):
        if out and out[-1][0] == thread and start_ns <= out[-1][2]:
            out[-1] = (thread, out[-1][1], max(end_ns, out[-1][2]))
        else:
            out.append((thread, start_ns, end_ns))
    return out


def _within(spans: list[tuple[int, int, int]], thread: int, at_ns: int) -> bool:
    i = bisect.bisect_right(spans, (thread, at_ns, 1 << 63)) - 1
    return i >= 0 and spans[i][0] == thread and at_ns <= spans[i][2]
