"""The training loop as the hooks see it: which part of the step it is in, and where steps end.

    hook                 part        not counted inside            (it is then part of that)
    data loader          DATA        data, forward, backward
    loader's iterator    LOADER      the same                      the start of its workers
    module call          FORWARD     data, forward, backward       recomputation belongs to backward
    autograd engine      BACKWARD    data, forward, backward       forces by autograd.grad belong to forward
    optimizer, scaler    OPTIMIZER   optimizer                     a wrapper steps its inner optimizer

A part that counts becomes a region of the recorder and an event of the step finder. Every hook checks the `routine`
first: where a step repeats the last one, recording the time is all there is to do.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

from stepscope.contract import step_line as regions
from stepscope.record.failsafe import explain, say
from stepscope.record.lifetime import LIFETIME
from stepscope.record.loop.routine import (
    BACKWARD,
    BACKWARD_BEGINS,
    BACKWARD_ENDS,
    DATA,
    DATA_BEGINS,
    DATA_ENDS,
    FORWARD,
    FORWARD_BEGINS,
    FORWARD_ENDS,
    LOADER,
    LOADER_BEGINS,
    LOADER_ENDS,
    NO_BATCH,
    OPTIMIZER,
    QUIET,
    QUIET_ROW_BEGINS,
    REGION,
    ROW_BEGINS,
    ROW_ENDS,
    SAVING,
    SCHEDULE_BEGINS,
    STEPS_ROW,
    STEPS_ROW_ENDS,
    SYNC_BEGINS,
    WORK,
    Event,
    Pattern,
    Repeats,
    Routine,
    is_of_autograd,
    is_over,
    is_waiting,
)
from stepscope.record.loop.steps import StepFinder, StepUnit
from stepscope.record.loop.updates import Optimizers, ParameterWatch
from stepscope.record.window.guards import Interruptions


def _training_first(method: Any) -> Any:

    @functools.wraps(method)
    def guarded(self: "Loop", *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as e:  # noqa: BLE001 - training comes first
            self.stop()
            say(f"steps are no longer followed; training continues: {explain(e)}")
            return False

    return guarded


# parts inside which another one does not count
_HIDDEN_INSIDE = {
    DATA: WORK,
    FORWARD: WORK,
    BACKWARD: WORK,
    OPTIMIZER: OPTIMIZER,
    LOADER: WORK | LOADER,
    SAVING: SAVING,
}
_FORWARDS = {FORWARD_BEGINS + grad + 2 * own: (grad, own) for grad in (False, True) for own in (False, True)}
_BEGINS = {DATA_BEGINS: DATA, LOADER_BEGINS: LOADER, BACKWARD_BEGINS: BACKWARD, **dict.fromkeys(_FORWARDS, FORWARD)}
_ENDS = {DATA_ENDS: DATA, NO_BATCH: DATA, LOADER_ENDS: LOADER, BACKWARD_ENDS: BACKWARD, FORWARD_ENDS: FORWARD}
_PART = {**_BEGINS, **_ENDS, SCHEDULE_BEGINS: DATA}

# A step is only timed where it is shorter than this, or than this per event: following a longer one costs it nothing.
SHORT_STEP_NS = 100_000_000
_SHORT_EVENT_NS = 10_000_000
_ANY_LENGTH_NS = 1 << 62
_FIRST_STEPS = 8  # whose ends are reported to `on_first_steps`
_MAX_IN_A_ROW = 4
# forwards in a row from which on only the first of a row is timed on its own
_LONG_ROW = 32
# forwards without gradients in a row, before any with: from here on it is evaluation or generation
_MAX_QUIET_CALLS = 64


class Loop:
    """The training loop as the hooks see it. Before there is a recorder it is followed too, so that step 0 is right.

    Other threads (prefetching, replicas, a second training loop) are ignored, unless training itself moves to another
    thread: the loop's own has ended, or waits for others.

    After `_MAX_IN_A_ROW` forwards, or optimizer steps, with nothing else between, the following ones are a *row*: one
    region up to the next other event, during which their hooks are off. So a loop that calls a cell for every token,
    or an optimizer for every parameter, pays for a few calls per step. Where the first steps had `_LONG_ROW` forwards
    in a row, later rows begin with their second call.
    """

    def __init__(self, start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> None:
        self.recorder: Any = None
        self.optimizers = Optimizers()
        self.parameters = ParameterWatch()
        self.interruptions = Interruptions()
        self.watcher: Any = None  # its `part_begins(part)` and `part_ends(part)` are called
        self.on_step: list[Callable[[Any], None]] = []
        self.on_first_steps: list[Callable[[Any], None]] = []
        self.on_unused_batch: Callable[[], None] | None = None  # a batch is requested and the last was not used
        self.rest_optimizers: Callable[[bool], None] = lambda rest: None  # turns the optimizers' hooks off and on
        self.after_row: list[Callable[[], None]] = []  # called when the current row is over
        self.thread = threading.main_thread().ident
        self.steps = 0
        self.forwards = self.backwards = 0  # that counted in this step
        self.optimizer_seen = False
        self.row = 0  # FORWARD, QUIET or OPTIMIZER in a row of them
        self._row_of = self._in_a_row = 0  # the kind of the last events, and how many with nothing else between
        self._quiet_calls = 0  # in the current row
        self._most_forwards_in_a_row = 0  # with gradients
        self._batch_unused = False
        self._inside = 0
        self._optimizer: Any = None  # the one that is stepping
        self._stepper: Any = None  # who steps it: itself, or a scaler
        self._dropped_optimizer: Any = None  # the role of the one that is stepping, where it no longer exists
        self._on = True
        self._lock = threading.RLock()
        self._start_recorder = start_recorder
        self._happening: int | None = None  # the event that may be the first of a step
        self._followed_ns = 0  # time of an event that is followed later
        self._repeats = Repeats()
        self.routine = Routine(whole_steps=self._steps_passed, open_step=self._follow_open_step)
        self._finder = finder = StepFinder(
            self,
            optimizers=self.optimizers.expected,
            parameters=self.parameters,
            unit=unit,
        )
        self._find_step: dict[int, Callable[[], Any]] = {
            DATA_BEGINS: finder.load_begins,
            LOADER_BEGINS: finder.work_begins,
            SCHEDULE_BEGINS: finder.work_begins,
            BACKWARD_BEGINS: finder.backward_begins,
            **{token: partial(finder.forward_begins, grad=g, own=o) for token, (g, o) in _FORWARDS.items()},
        }
        self._events = {
            **{token: Event(token, ("begin", REGION[p]), partial(self._begins, token)) for token, p in _BEGINS.items()},
            **{token: Event(token, ("end", REGION[p]), partial(self._ends, token)) for token, p in _ENDS.items()},
            SCHEDULE_BEGINS: Event(SCHEDULE_BEGINS, None, partial(self._begins, SCHEDULE_BEGINS)),
            SYNC_BEGINS: Event(SYNC_BEGINS, ("begin", regions.GRADIENT_SYNC), partial(self._sync_begins, True)),
            ROW_BEGINS: Event(ROW_BEGINS, ("begin", regions.FORWARD), partial(self._row_begins, True)),
            QUIET_ROW_BEGINS: Event(QUIET_ROW_BEGINS, ("begin", regions.FORWARD), partial(self._row_begins, False)),
            ROW_ENDS: Event(ROW_ENDS, ("end", regions.FORWARD), self._row_ends),
            STEPS_ROW_ENDS: Event(STEPS_ROW_ENDS, ("end", regions.OPTIMIZER), self._steps_row_ends),
        }

    @_training_first
    def start(self) -> None:
        """Start the recorder, once: this process takes part in training."""
        with self._lock:
            if self.recorder is None and self._on:
                self.recorder = self._start_recorder()
                self._on = self.recorder is not None
                if self._on:
                    self.recorder.on_own_region = self._something_else
                    self.recorder.regions.interruptions = self.interruptions

    def stop(self) -> None:
        """Ignore all further events."""
        self._on = self.routine.on = False
        self.row = 0

    @_training_first
    def finish(self) -> None:
        """End the last step: training is over, or its process groups are about to be destroyed."""
        self._end_row()
        here = threading.get_ident()
        if self.routine.on and self.thread != here and is_over(self.thread):
            self.thread = self.recorder.regions.training_thread = here  # its open step is followed from here
        self.routine.end()
        if self._on and not self._inside:
            self._finder.finish()

    def in_forked_child(self) -> None:
        """Stop where a run has begun, which is the parent's; else ranks may be forked from here."""
        if self.recorder is not None:
            self.stop()

    @_training_first
    def safely(self, act: Callable[..., Any], *args: Any) -> Any:
        """Return `act(*args)`, or False where it failed, after which the hooks are off."""
        return act(*args)

    def is_training_thread(self, thread: int) -> bool:
        """Return whether this is the thread whose steps are followed."""
        return thread == self.thread and self._on and self.recorder is not None

    def is_inside(self, part: int) -> bool:
        """Return whether the loop is inside a part now."""
        return bool((self.routine.inside() if self.routine.on else self._inside) & part)

    def step_unit(self) -> str | None:
        """Return what one step is in this job, None before the first."""
        return self._finder.describe() if self.steps else None

    # Loads, loader starts, forwards, backwards and pipeline schedules.

    def begins(self, token: int) -> bool:
        """Return whether this event counts; if so `ends` must follow, except after a pipeline schedule."""
        if self.row:
            self._end_row()
        return self.routine.takes(token, WORK) or (not self.routine.ignores(_PART[token]) and self._begins(token))

    def forward_begins(self, *, grad: bool, own: bool) -> bool:
        """Return whether this call of a module counts; if so `ends` must follow.

        Not where it begins a row, which ends with the next other event.
        """
        routine = self.routine
        if routine.on:
            row = ROW_BEGINS if grad else QUIET_ROW_BEGINS
            if routine.expected == row:
                routine.takes(row)
                self.row = FORWARD if grad else QUIET
                return False
            if routine.takes(FORWARD_BEGINS + grad + 2 * own, WORK):
                return True
            if routine.ignores(FORWARD):
                return False
        return bool(self._begins(FORWARD_BEGINS + grad + 2 * own))

    @_training_first
    def _begins(self, token: int, at_ns: int | None = None) -> bool:
        part = _PART[token]
        if part == BACKWARD:
            self._adopt_thread()
        if not self._enters(part):
            return False
        if part == BACKWARD and self.recorder is None:
            self.start()
        if part not in (FORWARD, BACKWARD) or not self._inside & OPTIMIZER:
            self._happening = token
            self._find_step[token]()
            if self.routine.on:
                return True
        if token == SCHEDULE_BEGINS:
            self._repeats.add(self._events[token])
            return True
        if part == DATA and self._batch_unused and self.on_unused_batch is not None:
            self.on_unused_batch()
        elif part == BACKWARD:
            self.backwards += 1
        elif part == FORWARD:
            grad, _ = _FORWARDS[token]
            if grad and self.recorder is None:
                LIFETIME.mark("work_ns")
            most = _MAX_IN_A_ROW if self._most_forwards_in_a_row < _LONG_ROW else 1
            if self._counts_to_row(FORWARD if grad else QUIET, most=most):
                self._row_begins(grad, at_ns)
                return False
            self.forwards += 1
        return self._begin(part, self._events[token], at_ns)

    def ends(self, token: int) -> None:
        """End what counted."""
        if self.row:
            self._end_row()
        if not self.routine.takes(token):
            self._ends(token)

    @_training_first
    def _ends(self, token: int, at_ns: int | None = None) -> None:
        part = _PART[token]
        self._end(part, self._events[token], at_ns)
        if part == DATA:
            self._finder.load_ends(got_batch=token == DATA_ENDS)
        elif part == BACKWARD and not self.optimizer_seen:
            self.parameters.backward_ends()

    @_training_first
    def gradient_sync_begins(self, *, of_every_step: bool = True) -> None:
        """All gradients are computed; the rest of this backward waits for their reduction.

        `of_every_step` is False where only some backwards are watched for it.
        """
        if not of_every_step or not self.routine.takes(SYNC_BEGINS):
            self._sync_begins(of_every_step)

    def _sync_begins(self, of_every_step: bool, at_ns: int | None = None) -> None:
        if self._inside & BACKWARD and threading.get_ident() == self.thread and self.recorder is not None:
            self.recorder.enter(regions.GRADIENT_SYNC, at_ns)
            if of_every_step:
                self._repeats.add(self._events[SYNC_BEGINS])

    @_training_first
    def saving_begins(self) -> bool:
        """Return whether this checkpoint counts; if so `saving_ends` must follow."""
        if self.recorder is None or not self._on or threading.get_ident() != self.thread:
            return False
        self._end_row()
        self._something_else()
        return self._enters(SAVING) and self._begin(SAVING, None, None)

    @_training_first
    def saving_ends(self) -> None:
        """End what counted."""
        self._end(SAVING, None, None)
        self._finder.saved(perf_counter_ns())

    # Optimizer steps, by the optimizer itself or by a scaler that decides about it; a wrapper's may hold another's.

    def optimizer_begins(self, optimizer: Any, by: Any) -> None:
        """An optimizer begins to step, `by` itself or by the scaler that will decide about it."""
        if self.row:
            if self.row == OPTIMIZER:
                return
            self._end_row()
        token = id(optimizer) + id(by)
        if self.routine.on and self.routine.expected == token + STEPS_ROW:
            self.routine.takes(token + STEPS_ROW)
            self.row = OPTIMIZER
            self.rest_optimizers(True)
        elif not self.routine.takes(token) and not self.routine.is_elsewhere():
            self._optimizer_begins(optimizer, by)

    @_training_first
    def _optimizer_begins(self, optimizer: Any, by: Any, at_ns: int | None = None) -> None:
        self._adopt_thread()
        if not self._on or not self._is_heard():
            return
        if self._inside & OPTIMIZER:
            if by is not self._stepper:
                self.optimizers.is_inner(optimizer, of=self._optimizer)
                self._repeats.add(self._optimizer_event(optimizer, by, None))
                return
            self._repeats.break_off()
            self._end(OPTIMIZER, None, None)  # it raised last time and so never ended
        self.start()
        self.optimizer_seen = True
        self._happening = None
        role = self.optimizers.role(optimizer)
        self._finder.optimizer_begins(role, type(optimizer).__name__)
        self._optimizer, self._stepper = optimizer, by
        is_row = self._counts_to_row(OPTIMIZER, most=_MAX_IN_A_ROW)
        edge = ("begin", regions.OPTIMIZER)
        self._begin(OPTIMIZER, self._optimizer_event(optimizer, by, edge, is_row=is_row), at_ns)
        if is_row:
            self.row = OPTIMIZER
            self.rest_optimizers(True)

    def optimizer_ends(self, by: Any) -> None:
        """End what `by` began."""
        if self.row != OPTIMIZER and not self.routine.takes(-id(by)) and not self.routine.is_elsewhere():
            self._optimizer_ends(by)

    @_training_first
    def _optimizer_ends(self, by: Any, at_ns: int | None = None) -> None:
        if not self._is_heard():
            return
        counts = self._inside & OPTIMIZER and by is self._stepper
        self._repeats.add(self._optimizer_end(by, ("end", regions.OPTIMIZER) if counts else None))
        if counts:
            self._end_optimizer(None, at_ns)

    def _end_optimizer(self, event: Event | None, at_ns: int | None) -> None:
        role = self.optimizers.role(self._optimizer)
        self._optimizer = self._stepper = None
        self._end(OPTIMIZER, event, at_ns)
        self._finder.optimizer_ends(role, perf_counter_ns() if at_ns is None else at_ns)

    def _optimizer_event(self, optimizer: Any, by: Any, edge: tuple[str, str] | None, *, is_row: bool = False) -> Event:
        alive, alive_by, role = weakref.ref(optimizer), weakref.ref(by), self.optimizers.role(optimizer)

        def follow(at_ns: int) -> None:
            if (o := alive()) is not None and (b := alive_by()) is not None:
                self._optimizer_begins(o, b, at_ns)
            elif edge is not None:  # no longer exists; its step counts all the same
                self._dropped_optimizer = role
                self._finder.optimizer_begins(role)
                self._begin(OPTIMIZER, None, at_ns)

        return Event(id(optimizer) + id(by) + is_row, edge, follow)

    def _optimizer_end(self, by: Any, edge: tuple[str, str] | None) -> Event:
        alive = weakref.ref(by)

        def follow(at_ns: int) -> None:
            if (b := alive()) is not None:
                self._optimizer_ends(b, at_ns)
            elif edge is not None:
                self._end(OPTIMIZER, None, at_ns)
                self._finder.optimizer_ends(self._dropped_optimizer, at_ns)

        return Event(-id(by), edge, follow)

    def graph_steps(self, optimizer: Any) -> None:
        """Count the step that an optimizer made in a replayed graph; such steps follow each other and are no row."""
        self._in_a_row = 0
        self.optimizer_begins(optimizer, by=optimizer)
        self.optimizer_ends(by=optimizer)

    # Rows.

    def in_row(self, *, grad: bool) -> bool:
        """Return whether a forward belongs to the current row; one of another kind ends it."""
        if self.row == (FORWARD if grad else QUIET) or (self.row == FORWARD and not grad):
            self._quiet_calls += not grad
            if self._quiet_calls == _MAX_QUIET_CALLS:
                self._evaluation_goes_on()
            return True
        if threading.get_ident() == self.thread:
            self._end_row()
        return False

    @_training_first
    def _evaluation_goes_on(self) -> None:
        if self.recorder is not None and not self.routine.on and self._finder.only_evaluated():
            self.recorder.evaluation_goes_on()

    def _counts_to_row(self, kind: int, *, most: int) -> bool:
        self._in_a_row = self._in_a_row + 1 if self._row_of == kind else 1
        self._row_of = kind
        if kind == FORWARD:
            self._most_forwards_in_a_row = max(self._most_forwards_in_a_row, self._in_a_row)
        return self._in_a_row > most and self.watcher is None and self.recorder is not None

    def _row_begins(self, grad: bool, at_ns: int | None) -> None:
        self.forwards += 1
        self._begin(FORWARD, self._events[ROW_BEGINS if grad else QUIET_ROW_BEGINS], at_ns)
        self.row = FORWARD if grad else QUIET

    @_training_first
    def _end_row(self) -> None:
        kind, self.row = self.row, 0
        if not kind:
            return
        self._quiet_calls = 0
        after, self.after_row = self.after_row, []
        for act in after:
            act()
        if kind == OPTIMIZER:
            self.rest_optimizers(False)
            if not self.routine.takes(STEPS_ROW_ENDS):
                self._steps_row_ends()
        elif not self.routine.takes(ROW_ENDS):
            self._row_ends()

    def _row_ends(self, at_ns: int | None = None) -> None:
        self.row = self._in_a_row = 0
        self._end(FORWARD, self._events[ROW_ENDS], at_ns)

    def _steps_row_ends(self, at_ns: int | None = None) -> None:
        self.row = self._in_a_row = 0
        if self._inside & OPTIMIZER and self._optimizer is not None:
            self._end_optimizer(self._events[STEPS_ROW_ENDS], at_ns)

    # The open parts, and the thread that training runs on.

    def _enters(self, part: int) -> bool:
        return self._on and not self._inside & _HIDDEN_INSIDE[part] and threading.get_ident() == self.thread

    def _is_heard(self) -> bool:
        here = threading.get_ident()
        return here == self.thread or bool(self._inside & BACKWARD and is_of_autograd(here))

    def _adopt_thread(self) -> None:
        here = threading.get_ident()
        if here == self.thread:
            return
        with self._lock:
            if not is_over(self.thread) and (self._inside or not is_waiting(self.thread)):
                return
            self.thread = here
            self.row = 0
            self.routine.end()
            self._inside = 0
            self._repeats.break_off()

    def _begin(self, part: int, event: Event | None, at_ns: int | None) -> bool:
        self._inside |= part
        self._batch_unused = part == DATA
        if part != self._row_of and not (part == FORWARD and self._row_of == QUIET):
            self._in_a_row = 0
        if self.watcher is not None:
            self.watcher.part_begins(part)
        if event is not None:
            self._repeats.add(event)
        if self.recorder is not None:
            self.recorder.enter(REGION[part], at_ns)
        return True

    def _end(self, part: int, event: Event | None, at_ns: int | None) -> None:
        self._inside &= ~part
        if self.recorder is not None:
            self.recorder.leave(REGION[part], at_ns)
        if event is not None:
            self._repeats.add(event)
        if self.watcher is not None:
            self.watcher.part_ends(part)

    def _something_else(self) -> None:
        if threading.get_ident() == self.thread:
            self.routine.end()
            self._repeats.break_off()

    # Step ends, as the step finder reports them, and the steps that are only timed.

    def step_end(self, at_ns: int | None = None) -> None:
        """A step ended, now or at a moment in the past."""
        self.steps += 1
        if self.recorder is not None:
            self.recorder.step_end(at_ns=at_ns)
        for report in (*self.on_step, *(self.on_first_steps if self.steps <= _FIRST_STEPS else ())):
            report(self)
        repeats = self._repeats.next_step()
        self.forwards = self.backwards = 0
        if repeats and at_ns is None:
            self._begin_routine()

    def step_may_end(self, *, expected: bool) -> int:
        """Return this moment, at which a later `step_end(at_ns)` may place the end of a step.

        `expected`: the previous steps, which continued, did the same.
        """
        if not expected:
            self._repeats.break_off()
        at_ns = self._followed_ns or perf_counter_ns()
        return int(self.recorder.step_may_end(at_ns)) if self.recorder is not None else at_ns

    def step_begin(self) -> None:
        """A step begins now; the time since the last one is in no step."""
        self._repeats.break_off()
        if self.recorder is not None:
            self.recorder.step_begin()

    def _begin_routine(self) -> None:
        pattern, recorder = self._repeats.pattern, self.recorder
        if self.watcher is not None or self._inside or not self.optimizer_seen or recorder is None or pattern is None:
            return
        short_ns = max(SHORT_STEP_NS, len(pattern.tokens) * _SHORT_EVENT_NS)
        steps = recorder.steps_to_time(short_ns) if pattern.tokens[0] == self._happening else 0
        if steps > 0:
            self.routine.begin(
                pattern,
                steps=steps,
                mark=recorder.mark_step_end,
                nvtx=recorder.regions.nvtx,
                waits=recorder.waits_on_host,
            )

    @_training_first
    def _steps_passed(self, pattern: Pattern, times: list[int], ends: list[Any]) -> int:
        count = len(pattern.tokens)
        self.steps += len(ends)
        interruptions = [i for i in self.interruptions.taken(before_ns=times[-1]) if i.begin_ns >= times[0]]
        steps = zip(times[count::count], pattern.steps(times, interruptions), ends, strict=True)
        self.recorder.steps_passed(list(steps))
        return int(self.recorder.steps_to_time(_ANY_LENGTH_NS))

    @_training_first
    def _follow_open_step(self, events: Sequence[Event], times: list[int]) -> None:
        self._repeats.break_off()
        for event, at_ns in zip(events, times, strict=True):
            self._followed_ns = at_ns
            event.follow(at_ns)
        self._followed_ns = 0
