"""The steps that a profiler watches, and their results: the windows and the steps after them, one by one.

    before(step)    starts or stops the profilers as the coming step needs; includes requested windows
    busy_step       the next step before which there is something to do: until then the training thread does nothing

A window's recording is sent to the helper as soon as it is closed.
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from stepscope.contract.live import WindowPlan
from stepscope.contract.step_line import FIRST_STEPS, WARMUP
from stepscope.record.after_window import AfterWindow
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import say
from stepscope.record.helper.handover import JobFacts, hand_over_collectives, hand_over_files, hand_over_window
from stepscope.record.helper.open_run import OpenRun
from stepscope.record.samplers import Samplers
from stepscope.record.steps import Regions
from stepscope.record.window.budget import TypicalStep, anonymous_bytes
from stepscope.record.window.guards import ProfilerGuard
from stepscope.record.window.kineto import launch_ns
from stepscope.record.window.schedule import NEVER, next_busy_step, phase_of
from stepscope.record.window.window import Watchdog, Window, replaces_export


class WatchedSteps:
    """The profilers of one process. Before `open` none of them runs; `on_tick` is called a few times a second then."""

    _run: OpenRun
    _window: Window
    _after: AfterWindow

    def __init__(
        self,
        config: RecordConfig,
        *,
        known: JobFacts,
        regions: Regions,
        samplers: Samplers,
        begins_round: Callable[[int], int],
        on_trace_ready: Callable[[Any], Any] | None,
        on_tick: Callable[[], None],
    ) -> None:
        self.guard = ProfilerGuard()
        self.phase = phase_of(0, config)[0]
        self.busy_step = next_busy_step(1, config, also=FIRST_STEPS) or NEVER
        self._config = config
        self._known, self._regions, self._samplers = known, regions, samplers
        self._begins_round, self._on_trace_ready = begins_round, on_trace_ready
        self._watchdog = Watchdog(on_tick)
        self._longest_ns: int | None = None  # of the steps before the first window
        self._first_bytes: int | None = None  # of memory after the first steps, which are slow and do not count
        self._asked: tuple[WindowPlan, ...] = ()  # windows requested while the job runs
        self._planning = threading.Lock()  # between the thread that receives them and the training thread
        self._step = 0
        self.is_open = False

    def open(self, run: OpenRun) -> None:
        """Begin: from now on steps may be watched, where this rank is one of those that are to be."""
        config, self._run = self._config, run
        chosen = config.ranks is None or run.place.rank in config.ranks
        self._window = Window(
            config if chosen else replace(config, light=True),
            guard=self.guard,
            scratch=run.scratch,
            on_open=self._window_opened,
            on_closed=self._window_closed,
            on_trace_ready=self._on_trace_ready,
            asked=(lambda: self._asked) if chosen else tuple,
        )
        self._after = AfterWindow(
            config if chosen and not replaces_export(self._on_trace_ready) else replace(config, owners=False),
            self.guard,
            run=run,
            known=self._known,
            set_marker=self._mark_regions,
            begins_round=self._begins_round,
        )
        self.is_open = True

    @property
    def after_window(self) -> bool:
        """Whether the current step is one of those that are watched after a window."""
        return self.is_open and self._after.is_watching

    def step_over(self) -> bool:
        """End what is marked by step; return whether the step that ended was watched."""
        self._window.after_step()
        self._after.step_over()
        return self._window.is_recording or self._after.is_watching

    def before(self, step: int) -> bool:
        """Get ready for a step; return whether that took more than a moment."""
        self._step = step
        was_watching = self._window.is_recording or self._after.is_watching
        paused = self._after.end(step)
        if paused:
            self._watchdog.stop()
        asked = self._asked
        phase = phase_of(step, self._config, asked)[0]
        if phase == WARMUP and phase_of(step - 1, self._config, asked)[0] != WARMUP:
            self._run.probe_clock(f"before{step}")
            self._time_launches("before")
            self._known.send(self._run)  # a job that dies in its window leaves them too
            self._run.outbox.put({"do": "window soon", "thread": threading.get_native_id()})
        if step == FIRST_STEPS:
            self._first_bytes = anonymous_bytes()
            self._known.send(self._run)
        elif phase == WARMUP or self._window.usual.longest_s is None:
            self._window.usual = self._typical_step(step)
        paused |= self._window.before_step(step)
        if not self._window.is_recording and self._after.begin(step, self._window.usual):
            self._watchdog.start()
            paused = True
        is_watching = self._window.is_recording or self._after.is_watching
        if was_watching and not is_watching:
            self._time_launches("after")
        self._samplers.tell("on_watch", is_watching)
        self.phase = phase
        self._plan_next(step)
        return paused

    def note_usual(self, dur_ns: int) -> None:
        """A step that nothing watched took this long; those before the first window are the measure for it."""
        if not self._known.windows:
            self._longest_ns = max(self._longest_ns or 0, dur_ns)

    def asked_for(self, plan: WindowPlan) -> None:
        """Take in a window that all ranks will profile; called on a thread of ours."""
        with self._planning:
            self._asked = (*self._asked, plan)
            self.busy_step = min(self.busy_step, plan.first - plan.warmup)
        if self.is_open and self._run.place.rank == 0 and plan.by:
            say(f"steps {plan.first} to {plan.last - 1} will be profiled, requested by {plan.by}")

    def evaluation_began(self) -> None:
        """End what watches training steps: evaluation is none."""
        if self.is_open:
            self._window.evaluation_began()
            self._after.evaluation_began()

    def look_at_budget(self) -> None:
        """End what has met a limit."""
        if self.is_open:
            self._window.look_at_budget()
            self._after.look_at_budget()

    def finish(self) -> None:
        """End what runs because training is over; complete steps of a window are exported."""
        self._watchdog.stop()
        self._after.abandon()  # of a step that did not end
        self._window.finish()

    def abandon(self) -> None:
        """End what runs without a word: nothing can be written anyway."""
        self._regions.marker = None
        self._watchdog.stop()
        if self.is_open:
            self._after.abandon()
            self._window.abandon()

    def _time_launches(self, when: str) -> None:
        """Note what a launch takes before the first profiler of the process, or after one."""
        known = self._known.noted("launch_ns") or {}
        if when == "before" and known:
            return
        with contextlib.suppress(Exception):  # then nothing is known of it
            if (taken := launch_ns()) is not None:
                self._known.note({"launch_ns": {**known, when: taken}})

    def _typical_step(self, step: int) -> TypicalStep:
        now_bytes, steps = anonymous_bytes(), step - FIRST_STEPS
        grew = now_bytes - self._first_bytes if now_bytes is not None and self._first_bytes is not None else 0
        per_step = max(0, grew) // steps if steps > 0 else 0
        return TypicalStep(None, self._longest_ns / 1e9 if self._longest_ns else None, per_step)

    def _plan_next(self, step: int) -> None:
        after = self._after.next_step(step)
        with self._planning:
            planned = (next_busy_step(step + 1, self._config, also=FIRST_STEPS, asked=self._asked), after)
            self.busy_step = min((step for step in planned if step is not None), default=NEVER)

    def _mark_regions(self, wanted: bool) -> None:
        self._regions.marker = _mark if wanted else None

    def _window_opened(self) -> None:
        self._mark_regions(True)
        self._watchdog.start()
        self._samplers.tell("on_window_start")

    def _window_closed(self, outcome: dict[str, Any]) -> None:
        self._mark_regions(False)
        self._watchdog.stop()
        self._samplers.tell("on_window_end")
        self._known.windows.append(hand_over_window(self._run, outcome))
        self._known.because("flight_recorder", hand_over_collectives(self._run, outcome["window"]))
        self._known.because("samplers", hand_over_files(self._run, partial(self._samplers.tell, "after_window")))
        if self._config.light and outcome["status"] == "exported":
            self._after.count_flops_of(self._step)
        self._run.probe_clock(f"after{outcome['window']}")
        self._known.send(self._run, window_complete=True)


def _mark(name: str) -> Any:
    mark = torch.profiler.record_function(name)
    mark.__enter__()
    return mark
