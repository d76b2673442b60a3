"""The profiled window: opened and closed by step number, dropped at the first sign of danger.

    state     idle -> prepared -> recording -> idle            (once per window)
    a danger  another profiler, an error, a budget             -> the window ends, training goes on

Every recorded step is in a span `ProfilerStep#N`, N being the job's own step number. A window that ended has an
outcome: the file that it was exported to, or the reason why there is none.
"""

import atexit
import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from stepscope.contract.live import WindowPlan
from stepscope.contract.step_line import AFTER, WARMUP, WINDOW
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.groups import group_timeout_s
from stepscope.record.owners.line_times import is_ours
from stepscope.record.window.budget import Budget, TypicalStep
from stepscope.record.window.guards import NO_SIGN, ProfilerGuard, at_thread_end, this_thread
from stepscope.record.window.kineto import Kineto, why_not_available
from stepscope.record.window.schedule import phase_of

_OURS = str(Path(__file__).parents[1])
# modules directly in here call the script's own code; the rest of the recorder does not
_AROUND_TRAINING = str(Path(__file__).parents[1] / "hooks")
_BACKWARD = str(Path(__file__).parents[1] / "hooks" / "backward.py")


class Watchdog:
    """Calls `look()` on the main thread from `start()` to `stop()`."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._is_asked = False
        self._stopped: threading.Event | None = None
        self._called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)  # C holds no reference to it

    def start(self) -> None:
        """Begin, where this is the main thread and it has no trace function of the user's."""
        is_traced = sys.gettrace() is not None and not is_ours(sys.gettrace())
        if threading.get_ident() != threading.main_thread().ident or is_traced:
            return
        if self._stopped is None:
            self._stopped = threading.Event()
            threading.Thread(target=self._ask, args=(self._stopped,), name="stepscope watchdog", daemon=True).start()

    def stop(self) -> None:
        """End; a pending call still arrives and does nothing."""
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped.set()

    def _ask(self, stopped: threading.Event) -> None:
        while not stopped.wait(0.1):
            if not self._is_asked:
                self._is_asked = True
                if ctypes.pythonapi.Py_AddPendingCall(self._called, None) != 0:  # too many other pending calls
                    self._is_asked = False

    def _call(self, _: object) -> int:
        if self._stopped is not None and may_interrupt(sys._getframe().f_back):
            self._look()
        self._is_asked = False  # last: no function is called after it
        return 0


def may_interrupt(frame: FrameType | None) -> bool:
    """Return whether a thread that is at `frame` runs the script's own code, and none that must not be interrupted."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False  # a compilation, or a mode of the script's that would see what we call
    innermost = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _BACKWARD:
            return False
        if innermost is None and file.startswith(_OURS):
            innermost = file
        frame = frame.f_back
    return innermost is None or innermost.rsplit("/", 1)[0] == _AROUND_TRAINING


# A window for an outside tool: `cudaProfilerStart` and `Stop` around the same steps, which nsys and ncu wait for.


class CudaRange:
    """Has the shape of our own profiler, and leaves the recording to the tool that the job runs under."""

    def prepare(self) -> None:
        """Nothing to prepare: the tool is attached already."""

    def start(self) -> None:
        torch.cuda.profiler.start()

    def stop(self, *, about: dict[str, Any]) -> None:
        """Close the range once the device has done the window's work."""
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()

    def cancel(self, *, prepared: bool) -> None:
        if not prepared:
            torch.cuda.profiler.stop()


IDLE, PREPARED, RECORDING = "idle", "prepared", "recording"
_OTHER_THREAD = "the steps run in several threads, and only the one that started the profiler could stop it"
_OTHER_PROFILER = "another profiler is active in this process; ours stays out of its way"


def replaces_export(on_trace_ready: Callable[[Any], Any] | None) -> bool:
    """Return whether a callback takes over the trace; one with `exports_too` set only reads the profiler."""
    return on_trace_ready is not None and not getattr(on_trace_ready, "exports_too", False)


class Window:
    """The windows of one rank, one after the other."""

    def __init__(
        self,
        config: RecordConfig,
        *,
        guard: ProfilerGuard,
        scratch: Path,
        on_open: Callable[[], None],
        on_closed: Callable[[dict[str, Any]], None],
        on_trace_ready: Callable[[Any], Any] | None = None,
        asked: Callable[[], Sequence[WindowPlan]] = tuple,
    ) -> None:
        self.state = IDLE
        self.usual = TypicalStep()
        self._config = config
        self._guard = guard
        self._scratch = scratch
        self._on_open = on_open
        self._on_closed = on_closed
        self._on_trace_ready = on_trace_ready
        self._asked = asked  # windows requested while the job runs
        self._number = -1  # the newest window that was begun
        self._first_step = 0
        self._steps_done = 0
        self._left_out: list[int] = []  # steps of the window in which evaluation began
        self._paused = False  # in such a step
        self._profiler: Any = None
        self._step_mark: Any = None
        self._budget: Budget | None = None
        self._thread = (0, 0)
        self._left: Any = None  # a profiler that runs on another thread

    @property
    def is_recording(self) -> bool:
        return self.state == RECORDING and not self._paused

    def before_step(self, step: int) -> bool:
        """Bring the profiler to where the coming step wants it; return whether that took more than a moment."""
        asked = self._asked()
        phase, number = phase_of(step, self._config, asked)
        if self.state == RECORDING and not self._on_its_thread():
            self._lose(_OTHER_THREAD)
            return True
        if self.state == RECORDING:
            self._resume()
            self._steps_done += 1
            spent = self._budget.spent_at_step(self._steps_done) if self._budget else None
            if phase == WINDOW and number == self._number and spent is None:
                self._mark_step(step)
                return False
            self._close(spent if phase == WINDOW and number == self._number else None)
            return True
        if phase == WARMUP and self.state == IDLE and number > self._number:
            return self._guarded(lambda: self._prepare(number))
        if phase == WINDOW and (self.state == PREPARED or number > self._number):
            return self._guarded(lambda: self._open(step, number))
        if phase == AFTER and number > self._number and any(plan.window == number for plan in asked):
            self._number, self._first_step, self._steps_done = number, step, 0
            self._drop("this rank heard of it after its last step")
        return False

    def after_step(self) -> None:
        mark, self._step_mark = self._step_mark, None
        if mark is not None and self._on_its_thread():
            mark.__exit__(None, None, None)

    def look_at_budget(self) -> None:
        """End the window in the middle of a step where a limit was met; called when a region ends."""
        if self.state == RECORDING and self._budget and self._on_its_thread():
            spent = self._budget.spent_inside_step()
            if spent is not None:
                self._close(f"{spent}; step {self._last()} is incomplete")

    def evaluation_began(self) -> None:
        """Go on with the next step: evaluation is not training. Where none is complete, the window begins anew there.

        A range of an outside tool ends for good: the tool may stop with it.
        """
        if self.state != RECORDING or self._paused or not self._on_its_thread():
            return
        if not self._steps_done:
            self._guarded(self._cancel_to_reopen)
        elif self._config.tool == "cuda":
            self._close(f"evaluation began after step {self._last() - 1}; what followed is no training step")
        else:
            self.after_step()
            self._left_out.append(self._last())
            self._paused = True
            self._profiler.pause()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._profiler.resume()
            if self._budget is not None:
                self._budget.step_left_out()

    def _cancel_to_reopen(self) -> None:
        self._guard.give_way = None
        self._profiler.cancel(prepared=False)
        self.after_step()
        self.state, self._profiler = IDLE, None
        self._number -= 1  # the next step of the window opens it
        self._left_out = [self._first_step]

    def abandon(self) -> None:
        """End whatever is open silently: nothing can be written anyway."""
        if self.state != IDLE and self._on_its_thread():
            self._guarded(lambda: self._profiler.cancel(prepared=self.state == PREPARED))
        self.state = IDLE

    def finish(self) -> None:
        """End whatever is open because training is over; complete steps are exported."""
        if self.state == RECORDING and self._on_its_thread():
            self._close("training ended inside the window")
        elif self.state == RECORDING:
            self._lose("the training thread has exited, and only it could stop the profiler")
        elif self.state == PREPARED:
            self._guarded(lambda: self._profiler.cancel(prepared=True))
            self._drop("training ended before the window")

    def _prepare(self, number: int) -> None:
        self._number = number
        self._thread = this_thread()
        why_not = why_not_available() if self._config.tool == "torch" else None
        if why_not is not None or not self._guard.is_free():
            self._drop(why_not or (_OTHER_THREAD if self._guard.left_behind else _OTHER_PROFILER))
            return
        if self._config.tool == "cuda":
            self._profiler = CudaRange()
        else:
            self._profiler = Kineto(self._config, self._guard, keep_events=self._on_trace_ready is not None)
        self._guard.give_way = self._give_way
        self._profiler.prepare()
        self.state = PREPARED

    def _open(self, step: int, number: int) -> None:
        if self.state == IDLE:
            self._prepare(number)
        if self.state != PREPARED:
            return
        if not at_thread_end(self._thread_ends):
            self._drop(NO_SIGN)
            return
        self._first_step, self._steps_done = step, 0
        self._left_out = [early for early in self._left_out if early == step - 1]  # the window was to begin there
        self._thread = this_thread()
        self._profiler.start()
        self.state = RECORDING
        if self._config.tool != "cuda":  # another tool holds its own events, and its own limit: launches, or seconds
            self._budget = Budget(self._config, usual=self.usual, group_timeout_s=group_timeout_s())
        self._on_open()
        self._mark_step(step)

    def _mark_step(self, step: int) -> None:
        self._step_mark = torch.profiler.record_function(f"ProfilerStep#{step}")
        self._step_mark.__enter__()

    def _close(self, cut: str | None) -> None:
        self._guarded(lambda: self._stop_and_export(cut))

    def _stop_and_export(self, cut: str | None) -> None:
        self._guard.give_way = None
        self._resume()
        self._profiler.stop(about=self._steps())
        self.after_step()  # of a step cut short: only now, so that the trace has it as unfinished
        self.state = IDLE
        profiler, self._profiler = self._profiler, None
        outcome = self._outcome(cut=cut)
        if self._config.tool == "cuda":
            self._on_closed({**outcome, "status": "left to the tool that the job runs under"})
            return
        if self._on_trace_ready is not None:
            self._on_trace_ready(profiler.torch_profiler)
            if replaces_export(self._on_trace_ready):
                self._on_closed({**outcome, "status": "handed to on_trace_ready"})
                return
        plain = self._scratch / f"window{self._number}.json"
        profiler.export(str(plain))
        self._on_closed({**outcome, "status": "exported", "plain": str(plain)})

    def _give_way(self) -> None:
        if self.state != IDLE and self._on_its_thread():
            self._resume()
            self._profiler.cancel(prepared=self.state == PREPARED)
        self._drop(_OTHER_PROFILER)

    def _on_its_thread(self) -> bool:
        return this_thread() == self._thread

    def _lose(self, reason: str) -> None:
        self._left, self._guard.left_behind = self._profiler, True
        atexit.register(self._thread_ends)  # the main thread's end
        self._drop(reason)

    def _thread_ends(self) -> None:
        if not self._on_its_thread():
            return
        if self._left is not None:
            left, self._left, self._guard.left_behind = self._left, None, False
            self._guarded(lambda: left.cancel(prepared=False))
        elif self.state == RECORDING and self._steps_done:
            self._close("the thread that trained ended inside the window")
        elif self.state == RECORDING:
            self._guarded(lambda: self._profiler.cancel(prepared=False))
            self._drop(_OTHER_THREAD)

    def _drop(self, reason: str) -> None:
        self.state = IDLE
        self._profiler = None
        self._step_mark = None
        self._guard.give_way = None
        say(f"no trace of this window: {reason}")
        self._on_closed({**self._outcome(cut=None), "status": "dropped", "reason": reason})

    def _outcome(self, *, cut: str | None) -> dict[str, Any]:
        plan = next((plan for plan in self._asked() if plan.window == self._number), None)
        asked = {"asked_by": plan.by, "since": plan.since} if plan is not None else {"asked_by": None}
        return {**self._steps(), "cut": cut, **asked}

    def _steps(self) -> dict[str, Any]:
        left_out = [step for step in self._left_out if step < self._last()]
        return {
            "window": self._number,
            "first_step": self._first_step,
            "last_step": self._last(),
            **({"left_out": left_out} if left_out else {}),
        }

    def _last(self) -> int:
        return self._first_step + self._steps_done

    def _guarded(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - training comes first
            profiler, self._profiler = self._profiler, None
            with contextlib.suppress(Exception):  # the first error is the one to report
                if profiler is not None and self.state != IDLE:
                    profiler.cancel(prepared=False)
            self._drop(f"the profiler failed: {explain(e)}")
        return True
