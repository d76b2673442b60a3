"""What follows from the end of a step: the recorder hears of it, and the coming steps are only timed if they may be."""

import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from stepscope.record.hooks.loop.pattern import Event, Pattern
from stepscope.record.hooks.loop.routine import SHORT_STEP_NS, Routine
from stepscope.record.hooks.loop.rows import Rows
from stepscope.record.hooks.loop.state import training_first
from stepscope.record.hooks.loop.step_unit import StepUnit
from stepscope.record.hooks.loop.steps import StepFinder
from stepscope.record.hooks.loop.threads import is_over

FIRST_STEPS = 8  # in which those who learn about the job are told of each
_ANY_LENGTH_NS = 1 << 62


class StepEnds(Rows):
    """Between the step finder, which decides where a step ends, and the recorder and those who learn about the job."""

    def __init__(self, start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> None:
        super().__init__()
        self.steps = 0
        self.on_step: list[Callable[[Any], None]] = []
        self.on_first_steps: list[Callable[[Any], None]] = []
        self.optimizer_seen = False
        self._start_recorder = start_recorder
        self._happening: int | None = None  # the event that may be the first of a step
        self._followed_ns = 0  # when the event happened that is followed only now
        self.routine = Routine(whole_steps=self._steps_passed, open_step=self._follow_open_step)
        self._finder = StepFinder(
            self,
            optimizers=self.optimizers.keys,
            parameters_changed=self.parameters.changed,
            gradients_reset=self.parameters.gradients_reset,
            unit=unit,
        )

    @training_first
    def start(self) -> None:
        """Start the recorder, once: this process takes part in training."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        if self.recorder is None and self._on:
            self.recorder = self._start_recorder()
            self._on = self.recorder is not None
            if self._on:
                self.recorder.on_own_region = self._something_else
                self.recorder.regions.interruptions = self.interruptions

    @training_first
    def finish(self) -> None:
        """End the last step: training is over, or its process groups are about to go."""
        self._end_row()
        here = threading.get_ident()
        if self.routine.on and self.thread != here and is_over(self.thread):
            self.thread = self.recorder.regions.training_thread = here  # what it left open is followed from here
        self.routine.end()
        if self._on and not self._inside:
            self._finder.finish()

    def step_unit(self) -> str | None:
        """Return what one step is in this job, None before the first."""
        return self._finder.describe() if self.steps else None

    def step_end(self, at_ns: int | None = None) -> None:
        """Tell the recorder, as the step finder decided."""
        self.steps += 1
        if self.recorder is not None:
            self.recorder.step_end(at_ns=at_ns)
        for tell in self.on_step:
            tell(self)
        if self.steps <= FIRST_STEPS:
            for tell in self.on_first_steps:
                tell(self)
        self._stretches.taken()
        repeats = self._repeats.next_step()
        self._plan_stretches(repeats=repeats)
        self.forwards = self.backwards = 0
        if repeats and at_ns is None:
            self._begin_routine()

    def step_may_end(self, *, expected: bool) -> int:
        """Ask the recorder, for the step finder, to remember this moment."""
        if not expected:
            self._repeats.break_off()
        at_ns = self._followed_ns or perf_counter_ns()
        return int(self.recorder.step_may_end(at_ns)) if self.recorder is not None else at_ns

    def step_begin(self) -> None:
        """Tell the recorder, as the step finder decided."""
        self._repeats.break_off()
        if self.recorder is not None:
            self.recorder.step_begin()

    def _plan_stretches(self, *, repeats: bool) -> None:
        """Plan them once a step goes like the last one; plan again where steps changed."""
        pattern = self._repeats.pattern
        if pattern is None:
            return
        if self._plan is None:
            self._plan = pattern.plan if repeats and self.optimizer_seen else None
        elif pattern.stretches and self.backwards != self._plan.step_backwards:
            self._plan = None
        self._stretches_wanted = (
            self._plan is not None
            and self.watcher is None
            and self.recorder is not None
            and self.recorder.steps_to_time(_ANY_LENGTH_NS) > 0
        )

    def _begin_routine(self) -> None:
        """Only time the coming steps, where this event begins one as it began the last and nobody wants more."""
        pattern = self._repeats.pattern
        if self._stretches_wanted and pattern is not None and not pattern.stretches:
            return  # the next step has some
        if self.watcher is None and not self._inside and self.optimizer_seen and self.recorder is not None and pattern:
            steps = self.recorder.steps_to_time(SHORT_STEP_NS) if pattern.tokens[0] == self._happening else 0
            if steps > 0:
                recorder = self.recorder
                self.routine.begin(
                    pattern,
                    steps=steps,
                    mark=recorder.mark_step_end,
                    nvtx=recorder.regions.nvtx,
                    waits=recorder.waits_on_host,
                )

    @training_first
    def _steps_passed(self, pattern: Pattern, times: list[int], ends: list[Any]) -> int:
        """Tell the recorder of steps that went like the last one; return how many more need only be timed."""
        count = len(pattern.tokens)
        self.steps += len(ends)
        interruptions = [i for i in self.interruptions.taken(before_ns=times[-1]) if i.begin_ns >= times[0]]
        steps = zip(times[count::count], pattern.steps(times, interruptions), ends, strict=True)
        self.recorder.steps_passed(list(steps))
        return int(self.recorder.steps_to_time(_ANY_LENGTH_NS))

    @training_first
    def _follow_open_step(self, events: Sequence[Event], times: list[int]) -> None:
        """Follow what happened in this step up to now, at which it goes another way than the last."""
        self._repeats.break_off()
        for event, at_ns in zip(events, times, strict=True):
            self._followed_ns = at_ns
            event.follow(at_ns)
        self._followed_ns = 0
