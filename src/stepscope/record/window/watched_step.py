"""One step under a profiler of its own, outside the window: bounded as a window is, and the user's profiler goes first.

Never a step before the window: any session slows the steps that follow. Where there is a device it is watched as well,
even if only operators matter: Kineto detaches CUPTI after sessions of the device alone.
"""

import atexit
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from stepscope.record.collectives.groups import group_timeout_s
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain
from stepscope.record.window.budget import Budget, TypicalStep
from stepscope.record.window.kineto import activities_of, why_not_available
from stepscope.record.window.open_spans import end_open_spans
from stepscope.record.window.profiler_guard import ProfilerGuard
from stepscope.record.window.thread_end import NO_SIGN, at_thread_end, this_thread


class WatchedStep:
    """Watches one step: `begin()` before it, `end()` after it. `purpose` is what the step is for ("be counted")."""

    def __init__(
        self, guard: ProfilerGuard, config: RecordConfig, usual: TypicalStep, *, purpose: str, **switches: bool
    ) -> None:
        self._guard = guard
        self._config = config
        self._usual = usual
        self._purpose = purpose
        self._switches = switches
        self._budget: Budget | None = None
        self._profiler: Any = None
        self._thread = (0, 0)
        self.why_not: str | None = None
        self.was_stopped = False  # in the middle of the step: another one may do

    @property
    def is_on(self) -> bool:
        """Whether the profiler runs."""
        return self._profiler is not None

    def begin(self) -> None:
        """Start watching unless another profiler is at work; whatever fails, the step is not watched, and no more."""
        try:
            self._begin()
        except Exception as e:  # noqa: BLE001 - training comes first
            self._profiler = self._guard.give_way = None
            self.why_not = f"the profiler failed: {explain(e)}"

    def _begin(self) -> None:
        self.why_not = why_not_available()
        if self.why_not is None and not self._guard.is_free():
            self.why_not = f"another profiler was active when the step was to {self._purpose}"
        elif self.why_not is None and not at_thread_end(self._thread_ends):
            self.why_not = NO_SIGN
        if self.why_not is not None:
            return
        self._thread = this_thread()
        self._guard.give_way = self.give_way
        on_device = ProfilerActivity.CUDA in activities_of(self._config)
        self._profiler = autograd_profiler.profile(
            use_cpu=True, use_device="cuda" if on_device else None, use_kineto=True, **self._switches
        )
        self._budget = Budget(self._config, usual=self._usual, group_timeout_s=group_timeout_s())
        with self._guard.ours():
            self._profiler._prepare_trace()
            self._profiler._start_trace()

    def end(self) -> Any:
        """Return the profiler's results, None where the step could not be watched."""
        if self._profiler is None:
            return None
        if this_thread() != self._thread:  # only that one can stop it, and will as it ends
            self.why_not, self._guard.left_behind = self._other_thread, True
            atexit.register(self._thread_ends)  # the main thread's end
            return None
        self._profiler = None
        self._guard.give_way = None
        with self._guard.ours():
            results = torch.autograd._disable_profiler()
        end_open_spans()
        return results

    def look_at_budget(self) -> None:
        """Stop in the middle of the step where a limit was met; called when a region ends."""
        if self._profiler is None or self._budget is None or this_thread() != self._thread:
            return
        spent = self._budget.spent_inside_step()
        if spent is not None:
            self.stop(f"the step to {self._purpose} was too much to watch ({spent})")

    def stop(self, why_not: str) -> None:
        """Stop at once and keep nothing."""
        if self._profiler is not None and this_thread() == self._thread:
            self._profiler = self._guard.give_way = None
            with self._guard.ours():
                torch.autograd._disable_profiler()
            end_open_spans()
            self.why_not, self.was_stopped = why_not, True

    def give_way(self) -> None:
        """Stop at once: the user starts a profiler of their own."""
        self.end()
        self.why_not = f"another profiler was started in the step to {self._purpose}"

    @property
    def _other_thread(self) -> str:
        return f"the step to {self._purpose} ended on another thread than it began"

    def _thread_ends(self) -> None:
        if self._profiler is not None and this_thread() == self._thread:
            self.end()
            self.why_not, self._guard.left_behind = self._other_thread, False
