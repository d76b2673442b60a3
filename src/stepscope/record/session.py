"""The recorder of this process: regions and steps come in; step log, profiled window and facts go out.

Step finders (hooks in an unmodified script, `stepscope.profile`, an integration) get it by `Recorder.start` or
`current` and call `region_begin`, `region_end` and `step_end`; nothing else of the recorder is on the training path.
Any failure in here is one line on stderr, after which the recorder is off and training goes on. Forked children of a
run have none.
"""

import atexit
import contextlib
import functools
import os
import sys
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

from stepscope.contract.step_line import BEFORE, FIRST_STEPS
from stepscope.record.config import WARMUP_STEPS, RecordConfig, has_other_ranks, place_of_process, set_kineto_settings
from stepscope.record.failsafe import explain, say
from stepscope.record.groups import whereabouts
from stepscope.record.helper.handover import JobFacts, hand_over_files, introduce
from stepscope.record.helper.open_run import OpenRun
from stepscope.record.lifetime import LIFETIME
from stepscope.record.samplers import Samplers, standard_samplers
from stepscope.record.steps import SENT_AT_ONCE, PastStep, Regions, StepLog, StepTimes, device_timer, nvtx_functions
from stepscope.record.trial_end import end_trial
from stepscope.record.watched_steps import WatchedSteps
from stepscope.record.window.schedule import NEVER

_current: "Recorder | None" = None


def current() -> "Recorder | None":
    """Return this process's recorder, or None."""
    return _current


def _while_on(method: Any) -> Any:

    @functools.wraps(method)
    def guarded(self: "Recorder", *args: Any, **kwargs: Any) -> None:
        if self.on:
            self._try(method, self, *args, **kwargs)

    return guarded


class Recorder:
    """One per process; opens a run with its first step. Off after the first failure and after `close()`."""

    def __init__(self, config: RecordConfig, *, on_trace_ready: Callable[[Any], Any] | None = None) -> None:
        self.config = config = replace(config, out=str(Path(config.out).absolute()))  # training may change folder
        self.on = True
        self.step = 0
        self.waits_on_host = False  # whether the training thread itself waits for other ranks
        self.regions = Regions(on_first=self.begin)
        self.samplers = Samplers()
        self.on_own_region: Callable[[], None] | None = None  # called before a region that the script marks itself
        self._edges_matter = False  # whether a sampler needs the edges of regions
        self._created_ns = time.time_ns()
        self._begun = False
        self._times = StepTimes(self.regions)
        self._known = JobFacts()
        self._watched = WatchedSteps(
            config,
            known=self._known,
            regions=self.regions,
            samplers=self.samplers,
            begins_round=self._times.begins_round,
            on_trace_ready=on_trace_ready,
            on_tick=self._look_at_budget,
        )
        self._turn_end = WARMUP_STEPS if config.turn_address else NEVER
        self._log: StepLog | None = None
        self._run: OpenRun | None = None
        self._opening = threading.Lock()  # two threads that train at once open one run
        self._pid = os.getpid()

    @classmethod
    def start(cls, config: RecordConfig, *, on_trace_ready: Callable[[Any], Any] | None = None) -> "Recorder":
        """Return the recorder of this process, made now unless there is one already."""
        global _current
        if _current is None:
            _current = recorder = cls(config, on_trace_ready=on_trace_ready)
            for sampler in standard_samplers(config):
                recorder.add_sampler(sampler)
            set_kineto_settings(os.environ)
            recorder._watched.guard.install()
            atexit.register(recorder.close)
            if parent_process() is not None:  # children of multiprocessing leave without atexit
                Finalize(None, recorder.close, exitpriority=0)
        return _current

    def close(self) -> None:
        """Finish: end the window, hand over what is left, let the helper complete the folder. Safe to call twice."""
        global _current
        if _current is not self:
            return
        _current = None
        atexit.unregister(self.close)
        unopened = self._run is None and self.on and os.getpid() == self._pid
        if unopened and (has_other_ranks() or self.samplers.have_unsaved):
            self._try(self._open_run)  # other ranks will wait for the message that this one recorded nothing
        self._try(self._close)
        self.on = False

    @property
    def run_folder(self) -> Path | None:
        """Where this run is written; None until a step has ended and the ranks have agreed."""
        if self._run is None:
            return None
        self._run.wait_for_folder()
        return self._run.folder

    def begin(self) -> None:
        """Begin the first step now, unless its first region has begun it."""
        if self._begun or not self.on:
            return
        self._begun = True
        self.samplers.tell("on_begin")
        self._times.begin()
        if self._watched.phase != BEFORE:
            self._before_first_step()

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
            if self.regions.marker is not None or self._watched.after_window:
                self._look_at_budget()

    def step_end(self, *, at_ns: int | None = None) -> None:
        """Say that one optimizer step, with all its micro-batches, is complete.

        `at_ns` is when, by `perf_counter_ns`, where that is known only later; see `step_may_end`.
        """
        if self.on:
            self._try(self._step_end, at_ns)
            if self.step == self._turn_end:
                self._try(self._wait_for_turn)
            if self.step in (self.config.trial_steps, self._turn_end):
                end_trial(self)

    def step_may_end(self, at_ns: int) -> int:
        """Return this moment, `at_ns` by `perf_counter_ns`; `step_end(at_ns=...)` may say later that a step ended here.

        If so, regions up to here are that step's and later ones the next step's; if not, all are one step's.
        """
        return self._times.may_end(at_ns) if self.on else at_ns

    def steps_to_time(self, short_ns: int) -> int:
        """Return how many coming steps need nothing but their times; 0 where steps are not short."""
        if not self.on or self._log is None or self._edges_matter or self.step < SENT_AT_ONCE:
            return 0
        watched = self._watched
        if self._times.last_ns >= short_ns or self.regions.marker is not None or watched.after_window:
            return 0
        return min(watched.busy_step, self._turn_end) - self.step - 1

    @property
    def mark_step_end(self) -> Callable[[], dict[str, Any]]:
        """What returns the line of a step that ends now, to be given to `steps_passed`."""
        assert self._log is not None
        return self._log.mark_end

    @_while_on
    def steps_passed(self, steps: list[PastStep]) -> None:
        """Say that steps ended: when by `perf_counter_ns`, their regions, and what `mark_step_end` returned then."""
        assert self._log is not None
        longest_ns = self._log.add_past(
            steps, first=self.step, start_ns=self._times.start_ns, phase=self._watched.phase
        )
        self._watched.note_usual(longest_ns)
        self.step += len(steps)
        self._times.start_ns = steps[-1][0]
        self.samplers.tell("on_steps_passed", len(steps))

    @_while_on
    def step_begin(self) -> None:
        """Resume training: the time since the last step ended was evaluation.

        It is a separate region in the step that begins, with all that was loaded and computed in it.
        """
        is_routine = self._times.is_routine(self.step)
        self._times.end_evaluation(self.step)
        if not is_routine:
            self._leave_evaluation_out(ended=True)

    @_while_on
    def evaluation_goes_on(self) -> None:
        """Say that an evaluation is under way, which is not to be profiled."""
        if not self._times.is_routine(self.step):
            self._leave_evaluation_out(ended=False)

    def note(self, **facts: Any) -> None:
        """Keep facts for run.json; the last value of a name wins. Objects are held weakly."""
        self._known.note(facts)

    def add_sampler(self, sampler: Any) -> None:
        """Let `sampler` see windows and steps; see `samplers` for the methods it may have."""
        self.samplers.add(sampler)
        self._edges_matter = self.samplers.has("on_region_end")

    @_while_on
    def groups_end(self) -> None:
        """Send the facts: the process groups are about to be destroyed."""
        if self._run is not None:
            self._known.send(self._run)

    def _try(self, act: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            act(*args, **kwargs)
        except Exception as e:  # noqa: BLE001 - training comes first
            say(f"recording stopped; training continues: {explain(e)}")
            with contextlib.suppress(Exception):
                self._stand_down()

    @_while_on
    def _look_at_budget(self) -> None:
        self._watched.look_at_budget()

    @_while_on
    def _before_first_step(self) -> None:
        self._open_run()
        self._watched.before(self.step)
        self._times.start_ns = perf_counter_ns()

    def _open_run(self) -> None:
        with self._opening:
            if not self._watched.is_open:
                self._open_new_run()

    def _open_new_run(self) -> None:
        place = place_of_process()
        run = OpenRun(self.config, place, on_asked=self._watched.asked_for, where=self._where)
        self._run = run
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.waits_on_host = place.world_size > 1 and not cuda
        self.regions.nvtx = nvtx_functions() if self.config.nvtx and cuda else None
        in_trial = self.config.trial_steps is not None
        self._log = StepLog(run.outbox.put_step, device_timer(shared=not in_trial), each_clock=in_trial)
        self._watched.open(run)
        self.samplers.tell("on_open", functools.partial(hand_over_files, run))
        introduce(run, created_ns=self._created_ns)

    def _leave_evaluation_out(self, *, ended: bool) -> None:
        since_ns = perf_counter_ns()
        self._watched.evaluation_began()
        self._times.leave_out(perf_counter_ns() - since_ns, of_evaluation=ended)

    def _step_end(self, at_ns: int | None) -> None:
        now_ns = perf_counter_ns()
        end_ns = now_ns if at_ns is None else at_ns
        if not self._watched.is_open:
            self._open_run()
        assert self._run is not None and self._log is not None
        if self._run.failed:
            self._stand_down()
            return
        profiled = self._watched.step_over()
        dur_ns, regions = self._times.end(now_ns, at_ns)
        line = {
            "step": self.step,
            "dur_ns": dur_ns,
            "profiled": profiled,
            "phase": self._watched.phase,
            "regions": regions,
            **self.samplers.of_step(self.step),
        }
        self._log.add({**line, "late_ns": perf_counter_ns() - end_ns})
        if not profiled and self.step >= FIRST_STEPS:
            self._watched.note_usual(self._times.last_ns)
        self.step += 1
        if self.step >= self._watched.busy_step and self._watched.before(self.step):
            self._log.restart()
            self._times.begin()  # the pause is in no step
        else:
            self._times.start_ns = end_ns

    def _wait_for_turn(self) -> None:
        from stepscope.record.turns import steps_of_turn  # few jobs run in turn with another one

        assert self._log is not None
        since_ns, retries = perf_counter_ns(), 0
        if self._log.on_device:
            torch.cuda.synchronize()
            retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
        self._turn_end += steps_of_turn(
            str(self.config.turn_address),
            world_size=place_of_process().world_size,
            pid=os.getpid(),
            step_ns=self._times.last_ns,
            on_device=self._log.on_device,
            retries=retries,
        )
        self._log.restart()
        self._times.leave_out(perf_counter_ns() - since_ns, of_evaluation=False)

    def _where(self) -> dict[str, Any]:
        return whereabouts(self.regions.training_thread, region=self.regions.innermost())

    def _stand_down(self) -> None:
        self.on = False
        self._watched.abandon()

    def _close(self) -> None:
        self._watched.guard.remove()
        if self._run is None:
            return
        assert self._log is not None
        self._run.wait_for_folder(give_up=True)
        if self._run.failed:
            self._stand_down()
            self._run.finish()
            return
        self._note_end()
        self._watched.finish()
        self._log.flush()
        self._known.send(self._run)
        hand_over_files(self._run, functools.partial(self.samplers.tell, "on_close"))
        self._run.finish()

    def _note_end(self) -> None:
        """Note what passed since the last step, and the error that ends training, if any."""
        self.note(after_steps=self._times.end(perf_counter_ns(), None)[1])
        error = sys.exc_info()[1]
        if error is None and not hasattr(sys, "ps1"):  # else of an earlier line of an interactive session
            error = getattr(sys, "last_value", None)
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            self.note(failure=type(error).__name__)

    def _forget(self) -> None:
        global _current
        LIFETIME.in_forked_child()
        if self._run is not None:
            self.on = False
            self._run.forget()
            self._run = _current = None


def _after_fork() -> None:
    if _current is not None:
        _current._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
