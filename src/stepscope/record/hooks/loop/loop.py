"""What the training thread is doing right now, as the hooks see it: one part inside another, told on once.

    hook                 part        not counted inside            (it is then part of that)
    data loader          DATA        data, forward, backward
    loader's iterator    LOADER      the same                      the start of its workers
    module call          FORWARD     data, forward, backward       recomputation belongs to backward
    autograd engine      BACKWARD    data, forward, backward       forces by autograd.grad belong to forward
    optimizer, scaler    OPTIMIZER   optimizer                     a wrapper steps its inner optimizer

A part that counts becomes a region of the recorder and an event of the step finder. Other threads (prefetching,
replicas, a second training loop) are not the loop: what they do is left alone, unless training itself moves to another
thread: the loop's own has ended, or waits for others.

Each hook's method asks the `routine` first: where a step goes like the last one, noting the time is all there is to do.

What is called very often is not timed call by call. After `MAX_IN_A_ROW` forwards, or optimizer steps, with nothing
else between, the following ones are a *row*: one region from the next call on to whatever comes after the last, during
which their hooks are off. So a loop that calls a cell for every token, or an optimizer for every parameter, pays for
some calls per step and no more. Of many micro-batches that go alike, most are in a *stretch* (see `stretch`), in which
neither loads, forwards nor backwards are told of.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

from stepscope.record.failsafe import explain, say
from stepscope.record.hooks.loop.optimizers_alive import OptimizersAlive
from stepscope.record.hooks.loop.parameter_watch import ParameterWatch
from stepscope.record.hooks.loop.parts import (
    BACKWARD,
    DATA,
    FORWARD,
    HIDDEN_INSIDE,
    LOADER,
    OPTIMIZER,
    REGION,
    SAVING,
    WORK,
)
from stepscope.record.hooks.loop.pattern import Event, Pattern
from stepscope.record.hooks.loop.routine import SHORT_STEP_NS, Repeats, Routine
from stepscope.record.hooks.loop.step_unit import StepUnit
from stepscope.record.hooks.loop.steps import StepFinder
from stepscope.record.hooks.loop.stretch import MAX_STRETCHES, StretchPlan, StretchTimes
from stepscope.record.hooks.loop.threads import is_of_autograd, is_over, is_waiting
from stepscope.record.steps import regions
from stepscope.record.window.interruptions import Interruptions

_QUIET = 64  # a row of forwards without gradients
_STRETCH = 128  # micro-batches that are not timed
MAX_IN_A_ROW = 4
MAX_IN_A_STEP = 64
"""forwards that are timed by themselves: beyond it, every forward begins a row"""
MAX_QUIET_CALLS = 64
"""forwards without gradients in a row, before any with: from here on it is evaluation or generation"""
FIRST_STEPS = 8  # in which those who learn about the job are told of each
# What events are recognised by. Optimizers have their own, larger ones: where they lie in memory.
_DATA_BEGINS, _DATA_ENDS, _NO_BATCH, _BACKWARD_BEGINS, _BACKWARD_ENDS, _SYNC_BEGINS, _SCHEDULE_BEGINS = range(1, 8)
_FORWARD_ENDS, _FORWARD_BEGINS = 8, 9  # up to 12: with gradients or without, of a trained model or another one
_LOADER_BEGINS, _LOADER_ENDS, _ROW_BEGINS, _QUIET_ROW_BEGINS, _ROW_ENDS, _STEPS_ROW_ENDS = range(13, 19)
_STRETCH_ENDS, _STRETCH_BEGINS = 19, 1000  # and its number of micro-batches added
_ANY_LENGTH_NS = 1 << 62
_STEPS_ROW = 1  # added to an optimizer's token where it begins a row


def training_first(method: Any) -> Any:
    """Return a method of the loop that cannot raise: the first failure is one line, then the hooks are off."""

    @functools.wraps(method)
    def guarded(self: "Loop", *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as e:  # noqa: BLE001 - training comes first
            self.stop()
            say(f"steps are no longer followed, training goes on: {explain(e)}")
            return False

    return guarded


class Loop:
    """One per process. Without a recorder yet it follows the loop all the same, so that step 0 is right."""

    def __init__(self, start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> None:
        self.recorder: Any = None
        self.optimizers = OptimizersAlive()
        self.parameters = ParameterWatch()
        self.steps = 0
        self.forwards = self.backwards = 0  # that counted in this step
        self.on_step: list[Callable[[Loop], None]] = []
        self.on_first_steps: list[Callable[[Loop], None]] = []
        self.watcher: Any = None  # told `part_begins(part)` and `part_ends(part)`, while it is needed
        self.on_unused_batch: Callable[[], None] | None = None  # a batch is asked for and the last met nothing
        self.interruptions = Interruptions()
        self.row = 0  # FORWARD, _QUIET or OPTIMIZER while a row of them lasts, or _STRETCH
        self.backwards_left = 0  # in the stretch that lasts; negative inside one of them
        self._plan: StretchPlan | None = None
        self._stretches = StretchTimes()
        self._stretches_wanted = False  # in this step
        self.rest_optimizers: Callable[[bool], None] | None = None  # turns the optimizers' hooks off and on
        self._in_a_row = 0  # forwards, or optimizer steps, with nothing else between
        self._row_of = 0
        self._quiet_calls = 0  # in the row that lasts
        self._gone = 0  # the optimizer that is stepping, where it exists no more
        self._wake: list[Callable[[], None]] = []
        self._batch_unused = False
        self._start_recorder = start_recorder
        self._inside = 0
        self._lock = threading.RLock()
        self.thread = threading.main_thread().ident
        self._optimizer: Any = None  # the one that is stepping
        self._stepper: Any = None  # who steps it: itself, or a scaler
        self.optimizer_seen = False
        self._on = True
        self._happening: int | None = None  # the event that may be the first of a step
        self._repeats = Repeats()
        self.routine = Routine(whole_steps=self._steps_passed, open_step=self._follow_open_step)
        self._events = self._known_events()
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

    def stop(self) -> None:
        """See nothing more."""
        self._on = False
        self.row = self.backwards_left = 0
        self.routine.forget()

    def step_unit(self) -> str | None:
        """Return what one step is in this job, None before the first."""
        return self._finder.describe() if self.steps else None

    def is_training_thread(self, thread: int) -> bool:
        """Return whether this is the thread whose steps are followed."""
        return thread == self.thread and self._on and self.recorder is not None

    def is_inside(self, part: int) -> bool:
        """Return whether the loop is inside a part now."""
        if self.row == _STRETCH:
            return part == BACKWARD and self.backwards_left < 0
        return bool((self.routine.inside() if self.routine.on else self._inside) & part)

    def in_forked_child(self) -> None:
        """A run that has begun is the parent's alone; where it has not, ranks may be forked from here."""
        if self.recorder is not None:
            self.stop()

    @training_first
    def safely(self, act: Callable[..., Any], *args: Any) -> Any:
        """Return `act(*args)`, or False where it failed, after which the hooks are off."""
        return act(*args)

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

    def data_begins(self) -> bool:
        """Return whether this load counts; if so `data_ends` must follow."""
        if self.row:
            self._end_row()
        return self.routine.takes(_DATA_BEGINS, WORK) or (not self.routine.ignores(DATA) and self._data_begins())

    @training_first
    def _data_begins(self, at_ns: int | None = None) -> bool:
        if not self._enters(DATA):
            return False
        self._happening = _DATA_BEGINS
        self._finder.load_begins()
        if self.routine.on:
            return True
        if self._batch_unused and self.on_unused_batch is not None:
            self.on_unused_batch()
        return self._begin(DATA, _DATA_BEGINS, at_ns)

    def data_ends(self, *, got_batch: bool) -> None:
        """End a load that counted."""
        if not self.routine.takes(_DATA_ENDS if got_batch else _NO_BATCH):
            self._data_ends(got_batch)

    @training_first
    def _data_ends(self, got_batch: bool, at_ns: int | None = None) -> None:
        self._end(DATA, _DATA_ENDS if got_batch else _NO_BATCH, at_ns)
        self._finder.load_ends(got_batch=got_batch)

    def loader_begins(self) -> bool:
        """Return whether this creation of a loader's iterator counts; if so `loader_ends` must follow."""
        if self.row:
            self._end_row()
        return self.routine.takes(_LOADER_BEGINS, WORK) or (not self.routine.ignores(LOADER) and self._loader_begins())

    @training_first
    def _loader_begins(self, at_ns: int | None = None) -> bool:
        if not self._enters(LOADER):
            return False
        self._happening = _LOADER_BEGINS
        self._finder.loader_begins()
        return True if self.routine.on else self._begin(LOADER, _LOADER_BEGINS, at_ns)

    def loader_ends(self) -> None:
        """End what counted."""
        if not self.routine.takes(_LOADER_ENDS):
            self._loader_ends()

    @training_first
    def _loader_ends(self, at_ns: int | None = None) -> None:
        self._end(LOADER, _LOADER_ENDS, at_ns)

    @training_first
    def saving_begins(self) -> bool:
        """Return whether this checkpoint counts; if so `saving_ends` must follow."""
        if self.recorder is None or not self._on or threading.get_ident() != self.thread:
            return False
        self._end_row()
        self._something_else()
        return self._enters(SAVING) and self._begin(SAVING, None, None)

    @training_first
    def saving_ends(self) -> None:
        """End what counted."""
        self._end(SAVING, None, None)
        self._finder.saved(perf_counter_ns())

    def in_row(self, *, grad: bool) -> bool:
        """Return whether a forward belongs to the row that lasts; one of another kind ends it."""
        if self.row == _STRETCH:
            return True
        if self.row == (FORWARD if grad else _QUIET) or (self.row == FORWARD and not grad):
            self._quiet_calls += not grad
            if self._quiet_calls == MAX_QUIET_CALLS:
                self._evaluation_goes_on()
            return True
        if threading.get_ident() == self.thread:
            self._end_row()
        return False

    @training_first
    def _evaluation_goes_on(self) -> None:
        """Tell the recorder, which otherwise hears of it only once it is over."""
        if self.recorder is not None and not self.routine.on and self._finder.only_evaluated():
            self.recorder.evaluation_goes_on()

    def wake_after_row(self, act: Callable[[], None]) -> None:
        """Call `act` when the row is over."""
        self._wake.append(act)

    def forward_begins(self, *, grad: bool, own: bool) -> bool:
        """Return whether this call of a module counts; if so `forward_ends` must follow.

        Not where it begins a row: that ends with whatever comes next.
        """
        routine = self.routine
        if routine.on:
            row = _ROW_BEGINS if grad else _QUIET_ROW_BEGINS
            if routine.expects(row):
                routine.takes(row)
                self.row = FORWARD if grad else _QUIET
                return False
            if routine.takes(_FORWARD_BEGINS + grad + 2 * own, WORK):
                return True
            if routine.ignores(FORWARD):
                return False
        return bool(self._forward_begins(grad, own))

    @training_first
    def _forward_begins(self, grad: bool, own: bool, at_ns: int | None = None) -> bool:
        if not self._enters(FORWARD):
            return False
        token = self._happening = _FORWARD_BEGINS + grad + 2 * own
        if not self._inside & OPTIMIZER:
            self._finder.forward_begins(grad=grad, own=own)
            if self.routine.on:
                return True
        self.forwards += 1
        if self._begins_row(FORWARD if grad else _QUIET, most=MAX_IN_A_ROW if self.forwards <= MAX_IN_A_STEP else 0):
            self._forward_row_begins(grad, at_ns)
            return False
        return self._begin(FORWARD, token, at_ns)

    def _forward_row_begins(self, grad: bool, at_ns: int | None = None) -> None:
        self._begin(FORWARD, _ROW_BEGINS if grad else _QUIET_ROW_BEGINS, at_ns)
        self.row = FORWARD if grad else _QUIET

    def _begins_row(self, kind: int, *, most: int) -> bool:
        """Return whether this call, of which others came right before, begins a row."""
        self._in_a_row = self._in_a_row + 1 if self._row_of == kind else 1
        self._row_of = kind
        return self._in_a_row > most and self.watcher is None and self.recorder is not None

    @training_first
    def _end_row(self) -> None:
        """End the row, if there is one: something else begins."""
        kind, self.row = self.row, 0
        if not kind:
            return
        self._quiet_calls = 0
        wake, self._wake = self._wake, []
        for act in wake:
            act()
        if kind == _STRETCH:
            if self.backwards_left:  # it was to go on: learn again how many micro-batches there are
                self._plan = None
            self.backwards_left = 0
            if not self.routine.takes(_STRETCH_ENDS):
                self._stretch_ends()
        elif kind == OPTIMIZER:
            self._rest_optimizers(False)
            if not self.routine.takes(_STEPS_ROW_ENDS):
                self._steps_row_ends()
        elif not self.routine.takes(_ROW_ENDS):
            self._row_ends()

    def _row_ends(self, at_ns: int | None = None) -> None:
        self.row = 0
        self._in_a_row = 0
        self._end(FORWARD, _ROW_ENDS, at_ns)

    def _steps_row_ends(self, at_ns: int | None = None) -> None:
        self.row = 0
        self._in_a_row = 0
        if self._inside & OPTIMIZER and self._optimizer is not None:
            key = id(self._optimizer)
            self._optimizer = self._stepper = None
            self._end(OPTIMIZER, _STEPS_ROW_ENDS, at_ns)
            self._finder.optimizer_ends(key, perf_counter_ns() if at_ns is None else at_ns)

    def _rest_optimizers(self, rest: bool) -> None:
        if self.rest_optimizers is not None:
            self.rest_optimizers(rest)

    def forward_ends(self) -> None:
        """End a forward that counted."""
        if not self.routine.takes(_FORWARD_ENDS):
            self._forward_ends()

    @training_first
    def _forward_ends(self, at_ns: int | None = None) -> None:
        self._end(FORWARD, _FORWARD_ENDS, at_ns)

    def backward_begins(self) -> bool:
        """Return whether this backward counts; if so `backward_ends` must follow."""
        if self.row:
            self._end_row()
        return self.routine.takes(_BACKWARD_BEGINS, WORK) or (
            not self.routine.ignores(BACKWARD) and bool(self._backward_begins())
        )

    @training_first
    def _backward_begins(self, at_ns: int | None = None) -> bool:
        self._adopt_thread()
        if not self._enters(BACKWARD):
            return False
        if self.recorder is None:
            self.start()
        if not self._inside & OPTIMIZER:
            self._happening = _BACKWARD_BEGINS
            self._finder.backward_begins()
            if self.routine.on:
                return True
        self.backwards += 1
        return self._begin(BACKWARD, _BACKWARD_BEGINS, at_ns)

    @training_first
    def gradient_sync_begins(self, *, of_every_step: bool = True) -> None:
        """All gradients are computed; the rest of this backward waits for their reduction.

        `of_every_step` is False where only some backwards are watched for it.
        """
        if of_every_step and self.routine.takes(_SYNC_BEGINS):
            return
        self._sync_begins(of_every_step)

    def _sync_begins(self, of_every_step: bool = True, at_ns: int | None = None) -> None:
        if self._inside & BACKWARD and threading.get_ident() == self.thread and self.recorder is not None:
            self.recorder.enter(regions.GRADIENT_SYNC, at_ns)
            if of_every_step:
                self._repeats.add(self._events[_SYNC_BEGINS])

    def backward_ends(self) -> None:
        """End a backward that counted, and the wait for reductions inside it."""
        if self.row:
            self._end_row()
        if not self.routine.takes(_BACKWARD_ENDS):
            self._backward_ends()
        if self._plan is not None:
            self._stretch_may_begin(self._plan)

    @training_first
    def _backward_ends(self, at_ns: int | None = None) -> None:
        self._end(BACKWARD, _BACKWARD_ENDS, at_ns)
        if not self.optimizer_seen:
            self.parameters.remember()

    @training_first
    def _stretch_may_begin(self, plan: StretchPlan) -> None:
        """A backward ended: leave the coming ones alone if the plan says so."""
        if self.routine.on:
            token = _STRETCH_BEGINS + plan.units
            if not self.routine.expects(token) or not self.routine.takes(token):
                return
        elif not self._stretches_wanted or self._inside or self.backwards not in plan.begins_after or not self._on:
            return
        else:
            self._stretch_begins(plan)
        self.row = _STRETCH
        self.backwards_left = plan.backwards

    def _stretch_begins(self, plan: StretchPlan, at_ns: int | None = None) -> None:
        now_ns = perf_counter_ns() if at_ns is None else at_ns
        self.backwards += plan.backwards
        follow = partial(self._stretch_begins, plan)
        self._repeats.add(Event(_STRETCH_BEGINS + plan.units, None, follow, stretch_units=plan.units))
        self._stretches.begins(now_ns, self.recorder.regions.so_far(now_ns), plan.units)

    def stretch_ends(self) -> None:
        """The last backward of a stretch returned."""
        self._end_row()

    def _stretch_ends(self, at_ns: int | None = None) -> None:
        now_ns = perf_counter_ns() if at_ns is None else at_ns
        self._repeats.add(self._events[_STRETCH_ENDS])
        if self._stretches.ends(now_ns, self.recorder.regions.so_far(now_ns)) == MAX_STRETCHES:
            self._add_stretches()

    def _add_stretches(self) -> None:
        """Give the stretches of this step to its regions."""
        times = self._stretches.taken()
        if times and self.recorder is not None:
            self.recorder.regions.add(times)

    def schedule_begins(self) -> None:
        """A pipeline schedule begins its step."""
        if self.row:
            self._end_row()
        if not self.routine.takes(_SCHEDULE_BEGINS, WORK) and not self.routine.ignores(DATA):
            self._schedule_begins()

    @training_first
    def _schedule_begins(self, at_ns: int | None = None) -> None:
        if self._enters(DATA):
            self._happening = _SCHEDULE_BEGINS
            self._finder.schedule_begins()
            if not self.routine.on:
                self._repeats.add(self._events[_SCHEDULE_BEGINS])

    def optimizer_begins(self, optimizer: Any, by: Any) -> None:
        """An optimizer begins to step, `by` itself or by the scaler that will decide about it."""
        if self.row:
            if self.row == OPTIMIZER:
                return
            self._end_row()
        token = id(optimizer) + id(by)
        if self.routine.on and self.routine.expects(token + _STEPS_ROW):
            self.routine.takes(token + _STEPS_ROW)
            self.row = OPTIMIZER
            self._rest_optimizers(True)
        elif not self.routine.takes(token) and not self.routine.is_elsewhere():
            self._optimizer_begins(optimizer, by)

    @training_first
    def _optimizer_begins(self, optimizer: Any, by: Any, at_ns: int | None = None) -> None:
        self._adopt_thread()
        if not self._on or not self._speaks():
            return
        if self._inside & OPTIMIZER:
            if by is not self._stepper:
                self.optimizers.is_inner(optimizer, of=self._optimizer)
                self._repeats.add(self._optimizer_event(optimizer, by, None))
                return
            self._repeats.break_off()
            self._end(OPTIMIZER, None, None)  # it raised last time and so never ended
        self.start()
        self._add_stretches()
        self.optimizer_seen = True
        self._happening = None
        self._finder.optimizer_begins(id(optimizer), type(optimizer).__name__)
        self._optimizer, self._stepper = optimizer, by
        is_row = self._begins_row(OPTIMIZER, most=MAX_IN_A_ROW)
        self._repeats.add(self._optimizer_event(optimizer, by, ("begin", regions.OPTIMIZER), is_row=is_row))
        self._begin(OPTIMIZER, None, at_ns)
        if is_row:
            self.row = OPTIMIZER
            self._rest_optimizers(True)

    def optimizer_ends(self, by: Any) -> None:
        """End what `by` began."""
        if self.row != OPTIMIZER and not self.routine.takes(-id(by)) and not self.routine.is_elsewhere():
            self._optimizer_ends(by)

    @training_first
    def _optimizer_ends(self, by: Any, at_ns: int | None = None) -> None:
        if not self._speaks():
            return
        counts = self._inside & OPTIMIZER and by is self._stepper
        self._repeats.add(self._optimizer_end(by, ("end", regions.OPTIMIZER) if counts else None))
        if counts:
            key = id(self._optimizer)
            self._optimizer = self._stepper = None
            self._end(OPTIMIZER, None, at_ns)
            self._finder.optimizer_ends(key, perf_counter_ns() if at_ns is None else at_ns)

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

    def step_may_end(self) -> int:
        """Ask the recorder, for the step finder, to remember this moment."""
        self._repeats.break_off()
        return int(self.recorder.step_may_end()) if self.recorder is not None else perf_counter_ns()

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
                self.routine.begin(
                    pattern, steps=steps, mark=self.recorder.mark_step_end, nvtx=self.recorder.regions.nvtx
                )

    @training_first
    def _steps_passed(self, pattern: Pattern, times: list[int], ends: list[Any]) -> None:
        """Tell the recorder of steps that went like the last one."""
        count = len(pattern.tokens)
        self.steps += len(ends)
        interruptions = [i for i in self.interruptions.taken(before_ns=times[-1]) if i.begin_ns >= times[0]]
        steps = zip(times[count::count], pattern.steps(times, interruptions), ends, strict=True)
        self.recorder.steps_passed(list(steps))

    @training_first
    def _follow_open_step(self, events: Sequence[Event], times: list[int]) -> None:
        """Follow what happened in this step up to now, at which it goes another way than the last."""
        self._repeats.break_off()
        for event, at_ns in zip(events, times, strict=True):
            event.follow(at_ns)

    def _something_else(self) -> None:
        """The script marks a region of its own, or saves: no routine in a step that has some."""
        if threading.get_ident() == self.thread:
            if self.row == _STRETCH:
                self._end_row()
            self.routine.end()
            self._repeats.break_off()

    def _enters(self, part: int) -> bool:
        return self._on and not self._inside & HIDDEN_INSIDE[part] and threading.get_ident() == self.thread

    def _speaks(self) -> bool:
        """Return whether this is the training thread, or one that works for it in a backward."""
        here = threading.get_ident()
        return here == self.thread or bool(self._inside & BACKWARD and is_of_autograd(here))

    def _adopt_thread(self) -> None:
        """Follow training to this thread where the one that it was on has ended or waits for others."""
        here = threading.get_ident()
        if here == self.thread:
            return
        with self._lock:
            if not is_over(self.thread) and (self._inside or not is_waiting(self.thread)):
                return
            self.thread = here
            self.row = self.backwards_left = 0
            self.routine.end()
            self._inside = 0
            self._repeats.break_off()

    def _begin(self, part: int, token: int | None, at_ns: int | None) -> bool:
        self._inside |= part
        self._batch_unused = part == DATA
        if part != self._row_of and not (part == FORWARD and self._row_of == _QUIET):
            self._in_a_row = 0
        if self.watcher is not None:
            self.watcher.part_begins(part)
        if token is not None:
            self._repeats.add(self._events[token])
        if self.recorder is not None:
            self.recorder.enter(REGION[part], at_ns)
        return True

    def _end(self, part: int, token: int | None, at_ns: int | None) -> None:
        self._inside &= ~part
        if self.recorder is not None:
            self.recorder.leave(REGION[part], at_ns)
        if token is not None:
            self._repeats.add(self._events[token])
        if self.watcher is not None:
            self.watcher.part_ends(part)

    def _known_events(self) -> dict[int, Event]:
        """Return the events that are the same in every step; made once."""
        follow: dict[int, tuple[tuple[str, str] | None, Callable[[int], Any]]] = {
            _DATA_BEGINS: (("begin", regions.DATA_LOADING), self._data_begins),
            _DATA_ENDS: (("end", regions.DATA_LOADING), partial(self._data_ends, True)),
            _NO_BATCH: (("end", regions.DATA_LOADING), partial(self._data_ends, False)),
            _FORWARD_ENDS: (("end", regions.FORWARD), self._forward_ends),
            _BACKWARD_BEGINS: (("begin", regions.BACKWARD), self._backward_begins),
            _BACKWARD_ENDS: (("end", regions.BACKWARD), self._backward_ends),
            _SYNC_BEGINS: (("begin", regions.GRADIENT_SYNC), partial(self._sync_begins, True)),
            _SCHEDULE_BEGINS: (None, self._schedule_begins),
            _LOADER_BEGINS: (("begin", regions.LOADER_START), self._loader_begins),
            _LOADER_ENDS: (("end", regions.LOADER_START), self._loader_ends),
            _ROW_BEGINS: (("begin", regions.FORWARD), partial(self._row_again, True)),
            _QUIET_ROW_BEGINS: (("begin", regions.FORWARD), partial(self._row_again, False)),
            _ROW_ENDS: (("end", regions.FORWARD), self._row_ends),
            _STEPS_ROW_ENDS: (("end", regions.OPTIMIZER), self._steps_row_ends),
            _STRETCH_ENDS: (None, self._stretch_ends),
        }
        for grad in (False, True):
            for own in (False, True):
                token = _FORWARD_BEGINS + grad + 2 * own
                follow[token] = ("begin", regions.FORWARD), partial(self._forward_begins, grad, own)
        return {token: Event(token, edge, act) for token, (edge, act) in follow.items()}

    def _row_again(self, grad: bool, at_ns: int) -> None:
        """Follow the begin of a row that the routine took."""
        self.forwards += 1
        self._forward_row_begins(grad, at_ns)

    def _optimizer_event(self, optimizer: Any, by: Any, edge: tuple[str, str] | None, *, is_row: bool = False) -> Event:
        alive, alive_by, key = weakref.ref(optimizer), weakref.ref(by), id(optimizer)

        def follow(at_ns: int) -> None:
            if (o := alive()) is not None and (b := alive_by()) is not None:
                self._optimizer_begins(o, b, at_ns)
            elif edge is not None:  # dropped since: its step counts all the same
                self._gone = key
                self._finder.optimizer_begins(key)
                self._begin(OPTIMIZER, None, at_ns)

        return Event(id(optimizer) + id(by) + is_row, edge, follow)

    def _optimizer_end(self, by: Any, edge: tuple[str, str] | None) -> Event:
        alive = weakref.ref(by)

        def follow(at_ns: int) -> None:
            if (b := alive()) is not None:
                self._optimizer_ends(b, at_ns)
            elif edge is not None:
                self._end(OPTIMIZER, None, at_ns)
                self._finder.optimizer_ends(self._gone, at_ns)

        return Event(-id(by), edge, follow)
