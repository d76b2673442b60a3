"""Calls that are not timed one by one: rows of forwards or optimizer steps, and stretches of micro-batches.

After `MAX_IN_A_ROW` forwards, or optimizer steps, with nothing else between, the following ones are a *row*: one
region from the next call on to whatever comes after the last, during which their hooks are off. So a loop that calls a
cell for every token, or an optimizer for every parameter, pays for some calls per step and no more. Where the first
steps, in which every call is seen, had `LONG_ROW` forwards in a row, later rows begin with their second call: the next
three are a small part of it, and cost most of what a timed step does. Of many micro-batches that go alike, most are in
a *stretch* (see `stretch`), in which neither loads, forwards nor backwards are told of.
"""

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns

from stepscope.record.hooks.loop.event_tokens import (
    QUIET_ROW_BEGINS,
    ROW_BEGINS,
    ROW_ENDS,
    STEPS_ROW_ENDS,
    STRETCH_BEGINS,
    STRETCH_ENDS,
)
from stepscope.record.hooks.loop.parts import BACKWARD, FORWARD, OPTIMIZER, QUIET, STRETCH
from stepscope.record.hooks.loop.pattern import Event
from stepscope.record.hooks.loop.state import LoopState, training_first
from stepscope.record.hooks.loop.stretch import MAX_STRETCHES, StretchPlan, StretchTimes

MAX_IN_A_ROW = 4
LONG_ROW = 32
"""forwards in a row, in a step in which every call is seen, from which on only the first of a row is timed by itself"""
MAX_IN_A_STEP = 64
"""forwards that are timed by themselves: beyond it, every forward begins a row"""
MAX_QUIET_CALLS = 64
"""forwards without gradients in a row, before any with: from here on it is evaluation or generation"""


class Rows(LoopState):
    """The row or stretch that lasts, and when one begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.rest_optimizers: Callable[[bool], None] | None = None  # turns the optimizers' hooks off and on
        self._quiet_calls = 0  # in the row that lasts
        self._most_forwards_in_a_row = 0  # with gradients, that were told of
        self._wake: list[Callable[[], None]] = []
        self._plan: StretchPlan | None = None
        self._stretches = StretchTimes()
        self._stretches_wanted = False  # in this step

    def is_inside(self, part: int) -> bool:
        """Return whether the loop is inside a part now."""
        if self.row == STRETCH:
            return part == BACKWARD and self.backwards_left < 0
        return bool((self.routine.inside() if self.routine.on else self._inside) & part)

    def in_row(self, *, grad: bool) -> bool:
        """Return whether a forward belongs to the row that lasts; one of another kind ends it."""
        if self.row == STRETCH:
            return True
        if self.row == (FORWARD if grad else QUIET) or (self.row == FORWARD and not grad):
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

    def _forwards_before_row(self) -> int:
        """Return how many forwards with nothing else between are timed by themselves before a row begins."""
        if self.forwards > MAX_IN_A_STEP:
            return 0
        return MAX_IN_A_ROW if self._most_forwards_in_a_row < LONG_ROW else 1

    def _begins_row(self, kind: int, *, most: int) -> bool:
        """Return whether this call, of which others came right before, begins a row."""
        self._in_a_row = self._in_a_row + 1 if self._row_of == kind else 1
        self._row_of = kind
        if kind == FORWARD:
            self._most_forwards_in_a_row = max(self._most_forwards_in_a_row, self._in_a_row)
        return self._in_a_row > most and self.watcher is None and self.recorder is not None

    def _forward_row_begins(self, grad: bool, at_ns: int | None = None) -> None:
        self._begin(FORWARD, ROW_BEGINS if grad else QUIET_ROW_BEGINS, at_ns)
        self.row = FORWARD if grad else QUIET

    def _row_again(self, grad: bool, at_ns: int) -> None:
        """Follow the begin of a row that the routine took."""
        self.forwards += 1
        self._forward_row_begins(grad, at_ns)

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
        if kind == STRETCH:
            if self.backwards_left:  # it was to go on: learn again how many micro-batches there are
                self._plan = None
            self.backwards_left = 0
            if not self.routine.takes(STRETCH_ENDS):
                self._stretch_ends()
        elif kind == OPTIMIZER:
            self._rest_optimizers(False)
            if not self.routine.takes(STEPS_ROW_ENDS):
                self._steps_row_ends()
        elif not self.routine.takes(ROW_ENDS):
            self._row_ends()

    def _row_ends(self, at_ns: int | None = None) -> None:
        self.row = 0
        self._in_a_row = 0
        self._end(FORWARD, ROW_ENDS, at_ns)

    def _steps_row_ends(self, at_ns: int | None = None) -> None:
        self.row = 0
        self._in_a_row = 0
        if self._inside & OPTIMIZER and self._optimizer is not None:
            key = id(self._optimizer)
            self._optimizer = self._stepper = None
            self._end(OPTIMIZER, STEPS_ROW_ENDS, at_ns)
            self._finder.optimizer_ends(key, perf_counter_ns() if at_ns is None else at_ns)

    def _rest_optimizers(self, rest: bool) -> None:
        if self.rest_optimizers is not None:
            self.rest_optimizers(rest)

    @training_first
    def _stretch_may_begin(self, plan: StretchPlan) -> None:
        """A backward ended: leave the coming ones alone if the plan says so."""
        if self.routine.on:
            token = STRETCH_BEGINS + plan.units
            if self.routine.expected != token or not self.routine.takes(token):
                return
        elif not self._stretches_wanted or self._inside or self.backwards not in plan.begins_after or not self._on:
            return
        else:
            self._stretch_begins(plan)
        self.row = STRETCH
        self.backwards_left = plan.backwards

    def _stretch_begins(self, plan: StretchPlan, at_ns: int | None = None) -> None:
        now_ns = perf_counter_ns() if at_ns is None else at_ns
        self.backwards += plan.backwards
        follow = partial(self._stretch_begins, plan)
        self._repeats.add(Event(STRETCH_BEGINS + plan.units, None, follow, stretch_units=plan.units))
        self._stretches.begins(now_ns, self.recorder.regions.so_far(now_ns), plan.units)

    def stretch_ends(self) -> None:
        """The last backward of a stretch returned."""
        self._end_row()

    def _stretch_ends(self, at_ns: int | None = None) -> None:
        now_ns = perf_counter_ns() if at_ns is None else at_ns
        self._repeats.add(self._events[STRETCH_ENDS])
        if self._stretches.ends(now_ns, self.recorder.regions.so_far(now_ns)) == MAX_STRETCHES:
            self._add_stretches()

    def _add_stretches(self) -> None:
        """Give the stretches of this step to its regions."""
        times = self._stretches.taken()
        if times and self.recorder is not None:
            self.recorder.regions.add(times)

    def _something_else(self) -> None:
        """The script marks a region of its own, or saves: no routine in a step that has some."""
        if threading.get_ident() == self.thread:
            if self.row == STRETCH:
                self._end_row()
            self.routine.end()
            self._repeats.break_off()
