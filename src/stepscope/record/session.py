"""The recorder of one process: regions and steps come in; step log, profiled window and facts go out.

Whoever finds the steps (hooks in an unmodified script, `stepscope.profile`, an integration) calls
`region_begin`, `region_end` and `step_end`; nothing else of the recorder is on the training path. Any failure
in here is one line on stderr, after which the recorder is off and training goes on.
"""

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from stepscope.contract.live import WindowPlan
from stepscope.contract.step_line import BEFORE, WARMUP, RegionTimes
from stepscope.record.after_window import AfterWindow
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.helper.handover import (
    JobFacts,
    hand_over_collectives,
    hand_over_files,
    hand_over_window,
    introduce,
)
from stepscope.record.helper.open_run import OpenRun
from stepscope.record.live.whereabouts import whereabouts
from stepscope.record.rank import has_other_ranks, place_of_process
from stepscope.record.samplers.samplers import Samplers
from stepscope.record.samplers.standard import standard_samplers
from stepscope.record.steps.before_window import StepsBeforeWindow
from stepscope.record.steps.device_timer import device_timer
from stepscope.record.steps.evaluation import Evaluation
from stepscope.record.steps.log import PastStep, StepLog
from stepscope.record.steps.regions import Regions, summed
from stepscope.record.steps.statistics import FIRST_STEPS
from stepscope.record.trial.ending import end_trial
from stepscope.record.window.kineto_settings import set_kineto_settings
from stepscope.record.window.profiler_guard import ProfilerGuard
from stepscope.record.window.schedule import NEVER, next_busy_step, phase_of
from stepscope.record.window.watchdog import Watchdog
from stepscope.record.window.window import Window, replaces_export

_current: "Recorder | None" = None


def current() -> "Recorder | None":
    """Return this process's recorder, or None."""
    return _current


class Recorder:
    """One per process. Off after the first failure, in forked children of a run, and after `close()`."""

    def __init__(self, config: RecordConfig, *, on_trace_ready: Callable[[Any], Any] | None = None) -> None:
        self.config = config = replace(config, out=str(Path(config.out).absolute()))  # training may change folder
        self.on = True
        self.step = 0
        self.regions = Regions(on_first=self.begin)
        self.samplers = Samplers()
        self.on_own_region: Callable[[], None] | None = None  # told before a region that the script marks itself
        self._edges_matter = False  # whether a sampler looks at the edges of regions
        self._on_trace_ready = on_trace_ready
        self._created_ns = time.time_ns()
        self._step_start_ns = perf_counter_ns()
        self._pid = os.getpid()
        self._begun = False
        self._last_ns = 0  # how long the last step took
        self._held: tuple[int, RegionTimes] | None = None  # a moment at which the step may have ended
        self._known = JobFacts()
        self._guard = ProfilerGuard()
        self._watchdog = Watchdog(lambda: self._try(self._look_at_budget))
        self._before_window = StepsBeforeWindow()
        self._evaluation = Evaluation()
        self._after: AfterWindow | None = None
        self._phase = phase_of(0, config)[0]
        self._asked: tuple[WindowPlan, ...] = ()  # windows that were asked for while the job runs
        self._planning = threading.Lock()  # between the thread that hears of them and the training thread
        self._busy_step = next_busy_step(1, config, also=FIRST_STEPS) or NEVER  # until then nothing is to be done
        self._window: Window | None = None
        self._log: StepLog | None = None
        self._run: OpenRun | None = None
        self._opening = threading.Lock()  # two threads that train at once open one run

    @classmethod
    def start(cls, config: RecordConfig, *, on_trace_ready: Callable[[Any], Any] | None = None) -> "Recorder":
        """Return the recorder of this process, made now unless there is one already."""
        global _current
        if _current is None:
            _current = recorder = cls(config, on_trace_ready=on_trace_ready)
            for sampler in standard_samplers(config):
                recorder.add_sampler(sampler)
            set_kineto_settings(os.environ)
            recorder._guard.install()
            atexit.register(recorder.close)
            if parent_process() is not None:  # children of multiprocessing leave without atexit
                Finalize(None, recorder.close, exitpriority=0)
        return _current

    @property
    def run_folder(self) -> Path | None:
        """Where this run is written; None until a step has ended and the ranks have agreed."""
        if self._run is None:
            return None
        self._run.settled.wait(self.config.close_wait_s)
        return self._run.folder

    def begin(self) -> None:
        """Say that the first step begins now; the first region says so by itself."""
        if self._begun or not self.on:
            return
        self._begun = True
        self.samplers.tell("on_begin")
        self._step_start_ns = perf_counter_ns()
        if self.regions.interruptions:
            self.regions.interruptions.taken(before_ns=self._step_start_ns)  # of the time before the first step
        if phase_of(0, self.config)[0] != BEFORE:
            self._try(self._before_first_step)

    def region_begin(self, name: str) -> None:
        """Enter a region that the script marks itself, on this thread."""
        if self.on_own_region is not None:
            self.on_own_region()
        self.enter(name)

    def region_end(self, name: str) -> None:
        """Leave the innermost region of that name on this thread."""
        if self.on_own_region is not None:
            self.on_own_region()
        self.leave(name)

    def enter(self, name: str, at_ns: int | None = None) -> None:
        """Enter a region on this thread, now or, by `perf_counter_ns`, in the past."""
        if self.on:
            self.regions.begin(name, at_ns)
            if self._edges_matter and threading.get_ident() == self.regions.training_thread:
                self.samplers.tell("on_region_begin", name)

    def leave(self, name: str, at_ns: int | None = None) -> None:
        """Leave it."""
        if self.on:
            if self._edges_matter and threading.get_ident() == self.regions.training_thread:
                self.samplers.tell("on_region_end", name)
            self.regions.end(name, at_ns)
            if self.regions.marker is not None or self._is_watched():
                self._look_at_budget()

    def step_end(self, *, at_ns: int | None = None) -> None:
        """Say that one optimizer step, with all its micro-batches, is complete.

        `at_ns` is when, by `perf_counter_ns`, where that is known only later; see `step_may_end`.
        """
        if not self.on:
            return
        try:
            self._step_end(at_ns)
        except Exception as e:  # noqa: BLE001 - training comes first
            self._fail(e)
        if self.step == self.config.trial_steps:
            end_trial(self)

    def step_may_end(self) -> int:
        """Return this moment, by `perf_counter_ns`; `step_end(at_ns=...)` may say later that a step ended here.

        If so, regions up to here are that step's and later ones the next step's; if not, all are one step's.
        """
        now_ns = perf_counter_ns()
        if self.on:
            self._held = (now_ns, self._regions_until(now_ns))
        return now_ns

    def steps_to_time(self, short_ns: int) -> int:
        """Return how many coming steps need nothing but their times; 0 where steps are not short."""
        if not self.on or self._log is None or self._edges_matter or not self._log.may_wait(self.step):
            return 0
        if self._last_ns >= short_ns or self.regions.marker is not None or self._is_watched():
            return 0
        return self._busy_step - self.step - 1

    def mark_step_end(self) -> dict[str, Any]:
        """Return the line of a step that ends now, to be given to `steps_passed`."""
        assert self._log is not None
        return self._log.mark_end()

    def steps_passed(self, steps: list[PastStep]) -> None:
        """Say that steps ended: when by `perf_counter_ns`, their regions, and what `mark_step_end` returned then."""
        if self.on:
            self._try(lambda: self._steps_passed(steps))

    def step_begin(self) -> None:
        """Say that training begins again now: what passed since the last step ended was evaluation.

        It is a region of its own in the step that begins, with all that was loaded and computed in it.
        """
        if self.on:
            self._try(self._step_begin)

    def evaluation_goes_on(self) -> None:
        """Say that an evaluation is under way in which nothing was told of: it is not to be profiled."""
        if self.on:
            self._try(self._evaluation_goes_on)

    def note(self, **facts: Any) -> None:
        """Keep facts for run.json; the last value of a name wins. Objects are held weakly."""
        self._known.note(facts)

    def add_sampler(self, sampler: Any) -> None:
        """Let `sampler` see windows and steps; `samplers` says which methods it may have."""
        self.samplers.add(sampler)
        self._edges_matter = self.samplers.has("on_region_end")

    def groups_end(self) -> None:
        """Say that the process groups are about to go: what they tell is asked for now."""
        if self.on and self._run is not None:
            self._try(self._send_facts)

    def close(self) -> None:
        """Finish: end the window, hand over what is left, let the helper complete the folder. Safe to call twice."""
        global _current
        if _current is not self:
            return
        _current = None
        atexit.unregister(self.close)
        if self._run is None and self.on and os.getpid() == self._pid and has_other_ranks():
            self._try(self._open_run)  # they will wait to hear that this one recorded nothing
        self._try(self._close)
        self.on = False

    def _look_at_budget(self) -> None:
        if self.on and self._window is not None:
            self._window.look_at_budget()
        if self.on and self._after is not None:
            self._after.look_at_budget()

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - training comes first
            self._fail(e)

    def _fail(self, error: Exception) -> None:
        say(f"recording stopped, training goes on: {explain(error)}")
        with contextlib.suppress(Exception):
            self._stand_down()

    def _before_first_step(self) -> None:
        self._open_run()
        self._before_step()
        self._step_start_ns = perf_counter_ns()

    def _open_run(self) -> None:
        with self._opening:
            if self._window is None:
                self._open_run_now()

    def _open_run_now(self) -> None:
        place = place_of_process()
        config = self.config
        chosen = config.ranks is None or place.rank in config.ranks
        self._run = OpenRun(config, place, on_asked=self._window_asked, where=self._where)
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.regions.nvtx = torch.cuda.nvtx if config.nvtx and cuda else None
        self._log = StepLog(self._run.outbox.put_step, device_timer())
        self._window = Window(
            config if chosen else replace(config, light=True),
            guard=self._guard,
            scratch=self._run.scratch,
            on_open=self._window_opened,
            on_closed=self._window_closed,
            on_trace_ready=self._on_trace_ready,
            asked=(lambda: self._asked) if chosen else tuple,
        )
        self._after = AfterWindow(
            config if chosen and not replaces_export(self._on_trace_ready) else replace(config, owners=False),
            self._guard,
            run=self._run,
            known=self._known,
            set_marker=self._mark_regions,
        )
        introduce(self._run, created_ns=self._created_ns)

    def _step_begin(self) -> None:
        now_ns = perf_counter_ns()
        is_routine = self._evaluation.is_routine(self.step)
        regions = self._regions_until(now_ns)
        self._evaluation.add(regions, step=self.step, step_start_ns=self._step_start_ns, now_ns=now_ns)
        if not is_routine:
            self._evaluation.leave_out(self._leave_evaluation_out())

    def _evaluation_goes_on(self) -> None:
        if not self._evaluation.is_routine(self.step):
            self._leave_evaluation_out()

    def _leave_evaluation_out(self) -> int:
        """End what watches training steps; return how long that took, which is in no step."""
        since_ns = perf_counter_ns()
        if self._window is not None:
            self._window.evaluation_began()
        if self._after is not None:
            self._after.evaluation_began()
        paused_ns = perf_counter_ns() - since_ns
        self._step_start_ns += paused_ns
        self.regions.leave_out(paused_ns)
        return paused_ns

    def _step_end(self, at_ns: int | None = None) -> None:
        now_ns = perf_counter_ns()
        end_ns = now_ns if at_ns is None else at_ns
        if self._window is None:
            self._open_run()
        assert self._run is not None and self._window is not None and self._log is not None
        assert self._after is not None
        if self._run.failed:
            self._stand_down()
            return
        self._window.after_step()
        self._after.step_over()
        profiled = self._window.is_recording or self._after.is_watching
        held = self._held
        regions = held[1] if held is not None and held[0] == at_ns else self._regions_until(now_ns)
        self._held = None
        regions, evaluated_ns = self._evaluation.end_step(regions)
        line = {
            "step": self.step,
            "dur_ns": end_ns - self._step_start_ns,
            "profiled": profiled,
            "phase": self._phase,
            "regions": regions,
            **self.samplers.of_step(self.step),
        }
        self._log.add({**line, "late_ns": perf_counter_ns() - end_ns})
        if not profiled and self.step >= FIRST_STEPS and not self._known.windows:
            self._before_window.note(end_ns - self._step_start_ns - evaluated_ns)
        self._last_ns = end_ns - self._step_start_ns - evaluated_ns
        self.step += 1
        paused = self.step >= self._busy_step and self._before_step()
        self._step_start_ns = perf_counter_ns() if paused else end_ns
        if paused:
            self._log.restart()
            if self.regions.interruptions:
                self.regions.interruptions.taken(before_ns=self._step_start_ns)  # of the pause, which is in no step

    def _steps_passed(self, steps: list[PastStep]) -> None:
        assert self._log is not None
        longest_ns = self._log.add_past(steps, first=self.step, start_ns=self._step_start_ns, phase=self._phase)
        if not self._known.windows:
            self._before_window.note(longest_ns)
        self.step += len(steps)
        self._step_start_ns = steps[-1][0]
        self.samplers.tell("on_steps_passed", len(steps))

    def _regions_until(self, now_ns: int) -> RegionTimes:
        held, self._held = self._held, None
        times = self.regions.split_step(now_ns)
        return times if held is None else summed(held[1], times)

    def _before_step(self) -> bool:
        """Get ready for step `self.step`; return whether that took more than a moment."""
        assert self._window is not None and self._run is not None and self._after is not None
        paused = self._after.end(self.step)
        if paused:
            self._watchdog.stop()
        asked = self._asked
        phase = phase_of(self.step, self.config, asked)[0]
        if phase == WARMUP and phase_of(self.step - 1, self.config, asked)[0] != WARMUP:
            self._run.probe_clock(f"before{self.step}")
            self._send_facts()  # a job that dies in its window leaves them too
        if self.step == FIRST_STEPS:
            self._before_window.note_memory()
            self._send_facts()
        elif phase == WARMUP or self._window.usual.longest_s is None:
            self._window.usual = self._before_window.typical(self.step)
        paused |= self._window.before_step(self.step)
        if not self._window.is_recording and self._after.begin(self.step, self._window.usual):
            self._watchdog.start()
            paused = True
        self._phase = phase
        self._plan_next()
        return paused

    def _plan_next(self) -> None:
        """Set the next step before which something is to be done."""
        assert self._after is not None
        after = self._after.next_step(self.step)
        with self._planning:
            planned = (next_busy_step(self.step + 1, self.config, also=FIRST_STEPS, asked=self._asked), after)
            self._busy_step = min((step for step in planned if step is not None), default=NEVER)

    def _window_asked(self, plan: WindowPlan) -> None:
        """Take in a window that all ranks will profile; called on a thread of ours."""
        with self._planning:
            self._asked = (*self._asked, plan)
            self._busy_step = min(self._busy_step, plan.first - plan.warmup)
        if self._run is not None and self._run.place.rank == 0 and plan.by:
            say(f"steps {plan.first} to {plan.last - 1} will be profiled, asked for by {plan.by}")

    def _where(self) -> dict[str, Any]:
        """Return where the training thread is; called on a thread of ours."""
        return whereabouts(self.regions.training_thread, region=self.regions.innermost())

    def _is_watched(self) -> bool:
        return self._after is not None and self._after.is_watching

    def _mark_regions(self, wanted: bool) -> None:
        self.regions.marker = _mark if wanted else None

    def _window_opened(self) -> None:
        self.regions.marker = _mark
        self._watchdog.start()
        self.samplers.tell("on_window_start")

    def _window_closed(self, outcome: dict[str, Any]) -> None:
        assert self._run is not None
        self.regions.marker = None
        self._watchdog.stop()
        self.samplers.tell("on_window_end")
        self._known.windows.append(hand_over_window(self._run, outcome))
        self._known.because("flight_recorder", hand_over_collectives(self._run, outcome["window"]))
        self._known.because("samplers", hand_over_files(self._run, self.samplers, "after_window"))
        if self.config.light and outcome["status"] == "exported" and self._after is not None:
            self._after.count_flops_of(self.step)
        self._run.probe_clock(f"after{outcome['window']}")
        self._send_facts(window_complete=True)

    def _send_facts(self, *, window_complete: bool = False) -> None:
        assert self._run is not None
        self._known.send(self._run, window_complete=window_complete)

    def _stand_down(self) -> None:
        """Go off with nothing left running; the reason was said."""
        self.on = False
        self.regions.marker = None
        self._watchdog.stop()
        if self._after is not None:
            self._after.abandon()
        if self._window is not None:
            self._window.abandon()

    def _close(self) -> None:
        self._guard.remove()
        if self._run is None:
            return
        assert self._window is not None and self._log is not None and self._after is not None
        self._run.settled.wait(self.config.close_wait_s)
        if self._run.failed:
            self._stand_down()
            self._run.finish()
            return
        self._watchdog.stop()
        self._after.abandon()  # of a step that did not end
        self._window.finish()
        self._log.flush()
        self._send_facts()
        hand_over_files(self._run, self.samplers, "on_close")
        self._run.finish()

    def _forget(self) -> None:
        """In a forked child: a run that has begun is the parent's alone. One that has not may begin here."""
        global _current
        if self._run is not None:
            self.on = False
            self._run.forget()
            _current = None


def _mark(name: str) -> Any:
    mark = torch.profiler.record_function(name)
    mark.__enter__()
    return mark


def _after_fork() -> None:
    if _current is not None:
        _current._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
