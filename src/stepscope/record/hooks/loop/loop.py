"""What the training thread is doing right now, as the hooks see it: one part inside another, told on once.

    hook                 part        not counted inside            (it is then part of that)
    data loader          DATA        data, forward, backward
    loader's iterator    LOADER      the same                      the start of its workers
    module call          FORWARD     data, forward, backward       recomputation belongs to backward
    autograd engine      BACKWARD    data, forward, backward       forces by autograd.grad belong to forward
    optimizer, scaler    OPTIMIZER   optimizer                     a wrapper steps its inner optimizer

A part that counts becomes a region of the recorder and an event of the step finder. Each hook's method asks the
`routine` first: where a step goes like the last one, noting the time is all there is to do.

The loop is one object, so that nothing is passed on while training runs, in layers with a file each:

    loop              what the hooks tell
    optimizer_steps   which optimizer steps, by itself or by a scaler
    step_ends         what follows from the end of a step
    rows              what is called too often to be timed call by call
    state             where training is now
"""

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

from stepscope.contract import step_line as regions
from stepscope.record.hooks.loop.event_tokens import (
    BACKWARD_BEGINS,
    BACKWARD_ENDS,
    DATA_BEGINS,
    DATA_ENDS,
    FORWARD_BEGINS,
    FORWARD_ENDS,
    LOADER_BEGINS,
    LOADER_ENDS,
    NO_BATCH,
    QUIET_ROW_BEGINS,
    ROW_BEGINS,
    ROW_ENDS,
    SCHEDULE_BEGINS,
    STEPS_ROW_ENDS,
    STRETCH_ENDS,
    SYNC_BEGINS,
)
from stepscope.record.hooks.loop.optimizer_steps import OptimizerSteps
from stepscope.record.hooks.loop.parts import BACKWARD, DATA, FORWARD, LOADER, OPTIMIZER, QUIET, SAVING, WORK
from stepscope.record.hooks.loop.pattern import Event
from stepscope.record.hooks.loop.state import training_first
from stepscope.record.hooks.loop.step_unit import StepUnit


class Loop(OptimizerSteps):
    """One per process. Without a recorder yet it follows the loop all the same, so that step 0 is right."""

    def __init__(self, start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> None:
        super().__init__(start_recorder, unit)
        self.on_unused_batch: Callable[[], None] | None = None  # a batch is asked for and the last met nothing
        self._events = self._known_events()

    def data_begins(self) -> bool:
        """Return whether this load counts; if so `data_ends` must follow."""
        if self.row:
            self._end_row()
        return self.routine.takes(DATA_BEGINS, WORK) or (not self.routine.ignores(DATA) and self._data_begins())

    @training_first
    def _data_begins(self, at_ns: int | None = None) -> bool:
        if not self._enters(DATA):
            return False
        self._happening = DATA_BEGINS
        self._finder.load_begins()
        if self.routine.on:
            return True
        if self._batch_unused and self.on_unused_batch is not None:
            self.on_unused_batch()
        return self._begin(DATA, DATA_BEGINS, at_ns)

    def data_ends(self, *, got_batch: bool) -> None:
        """End a load that counted."""
        if not self.routine.takes(DATA_ENDS if got_batch else NO_BATCH):
            self._data_ends(got_batch)

    @training_first
    def _data_ends(self, got_batch: bool, at_ns: int | None = None) -> None:
        self._end(DATA, DATA_ENDS if got_batch else NO_BATCH, at_ns)
        self._finder.load_ends(got_batch=got_batch)

    def loader_begins(self) -> bool:
        """Return whether this creation of a loader's iterator counts; if so `loader_ends` must follow."""
        if self.row:
            self._end_row()
        return self.routine.takes(LOADER_BEGINS, WORK) or (not self.routine.ignores(LOADER) and self._loader_begins())

    @training_first
    def _loader_begins(self, at_ns: int | None = None) -> bool:
        if not self._enters(LOADER):
            return False
        self._happening = LOADER_BEGINS
        self._finder.loader_begins()
        return True if self.routine.on else self._begin(LOADER, LOADER_BEGINS, at_ns)

    def loader_ends(self) -> None:
        """End what counted."""
        if not self.routine.takes(LOADER_ENDS):
            self._loader_ends()

    @training_first
    def _loader_ends(self, at_ns: int | None = None) -> None:
        self._end(LOADER, LOADER_ENDS, at_ns)

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

    def forward_begins(self, *, grad: bool, own: bool) -> bool:
        """Return whether this call of a module counts; if so `forward_ends` must follow.

        Not where it begins a row: that ends with whatever comes next.
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
        return bool(self._forward_begins(grad, own))

    @training_first
    def _forward_begins(self, grad: bool, own: bool, at_ns: int | None = None) -> bool:
        if not self._enters(FORWARD):
            return False
        token = self._happening = FORWARD_BEGINS + grad + 2 * own
        if not self._inside & OPTIMIZER:
            self._finder.forward_begins(grad=grad, own=own)
            if self.routine.on:
                return True
        self.forwards += 1
        if self._begins_row(FORWARD if grad else QUIET, most=self._forwards_before_row()):
            self._forward_row_begins(grad, at_ns)
            return False
        return self._begin(FORWARD, token, at_ns)

    def forward_ends(self) -> None:
        """End a forward that counted."""
        if not self.routine.takes(FORWARD_ENDS):
            self._forward_ends()

    @training_first
    def _forward_ends(self, at_ns: int | None = None) -> None:
        self._end(FORWARD, FORWARD_ENDS, at_ns)

    def backward_begins(self) -> bool:
        """Return whether this backward counts; if so `backward_ends` must follow."""
        if self.row:
            self._end_row()
        return self.routine.takes(BACKWARD_BEGINS, WORK) or (
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
            self._happening = BACKWARD_BEGINS
            self._finder.backward_begins()
            if self.routine.on:
                return True
        self.backwards += 1
        return self._begin(BACKWARD, BACKWARD_BEGINS, at_ns)

    @training_first
    def gradient_sync_begins(self, *, of_every_step: bool = True) -> None:
        """All gradients are computed; the rest of this backward waits for their reduction.

        `of_every_step` is False where only some backwards are watched for it.
        """
        if of_every_step and self.routine.takes(SYNC_BEGINS):
            return
        self._sync_begins(of_every_step)

    def _sync_begins(self, of_every_step: bool = True, at_ns: int | None = None) -> None:
        if self._inside & BACKWARD and threading.get_ident() == self.thread and self.recorder is not None:
            self.recorder.enter(regions.GRADIENT_SYNC, at_ns)
            if of_every_step:
                self._repeats.add(self._events[SYNC_BEGINS])

    def backward_ends(self) -> None:
        """End a backward that counted, and the wait for reductions inside it."""
        if self.row:
            self._end_row()
        if not self.routine.takes(BACKWARD_ENDS):
            self._backward_ends()
        if self._plan is not None:
            self._stretch_may_begin(self._plan)

    @training_first
    def _backward_ends(self, at_ns: int | None = None) -> None:
        self._end(BACKWARD, BACKWARD_ENDS, at_ns)
        if not self.optimizer_seen:
            self.parameters.remember()

    def schedule_begins(self) -> None:
        """A pipeline schedule begins its step."""
        if self.row:
            self._end_row()
        if not self.routine.takes(SCHEDULE_BEGINS, WORK) and not self.routine.ignores(DATA):
            self._schedule_begins()

    @training_first
    def _schedule_begins(self, at_ns: int | None = None) -> None:
        if self._enters(DATA):
            self._happening = SCHEDULE_BEGINS
            self._finder.schedule_begins()
            if not self.routine.on:
                self._repeats.add(self._events[SCHEDULE_BEGINS])

    def _known_events(self) -> dict[int, Event]:
        """Return the events that are the same in every step; made once."""
        follow: dict[int, tuple[tuple[str, str] | None, Callable[[int], Any]]] = {
            DATA_BEGINS: (("begin", regions.DATA_LOADING), self._data_begins),
            DATA_ENDS: (("end", regions.DATA_LOADING), partial(self._data_ends, True)),
            NO_BATCH: (("end", regions.DATA_LOADING), partial(self._data_ends, False)),
            FORWARD_ENDS: (("end", regions.FORWARD), self._forward_ends),
            BACKWARD_BEGINS: (("begin", regions.BACKWARD), self._backward_begins),
            BACKWARD_ENDS: (("end", regions.BACKWARD), self._backward_ends),
            SYNC_BEGINS: (("begin", regions.GRADIENT_SYNC), partial(self._sync_begins, True)),
            SCHEDULE_BEGINS: (None, self._schedule_begins),
            LOADER_BEGINS: (("begin", regions.LOADER_START), self._loader_begins),
            LOADER_ENDS: (("end", regions.LOADER_START), self._loader_ends),
            ROW_BEGINS: (("begin", regions.FORWARD), partial(self._row_again, True)),
            QUIET_ROW_BEGINS: (("begin", regions.FORWARD), partial(self._row_again, False)),
            ROW_ENDS: (("end", regions.FORWARD), self._row_ends),
            STEPS_ROW_ENDS: (("end", regions.OPTIMIZER), self._steps_row_ends),
            STRETCH_ENDS: (None, self._stretch_ends),
        }
        for grad in (False, True):
            for own in (False, True):
                token = FORWARD_BEGINS + grad + 2 * own
                follow[token] = ("begin", regions.FORWARD), partial(self._forward_begins, grad, own)
        return {token: Event(token, edge, act) for token, (edge, act) in follow.items()}
