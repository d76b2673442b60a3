"""Which optimizer is stepping, by itself or by a scaler that decides about it: one step, whoever else is inside it."""

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from stepscope.contract import step_line as regions
from stepscope.record.hooks.loop.event_tokens import STEPS_ROW
from stepscope.record.hooks.loop.parts import OPTIMIZER
from stepscope.record.hooks.loop.pattern import Event
from stepscope.record.hooks.loop.rows import MAX_IN_A_ROW
from stepscope.record.hooks.loop.state import training_first
from stepscope.record.hooks.loop.step_ends import StepEnds
from stepscope.record.hooks.loop.step_unit import StepUnit


class OptimizerSteps(StepEnds):
    """The steps of optimizers, of which a wrapper's may hold another's."""

    def __init__(self, start_recorder: Callable[[], Any], unit: StepUnit | None = None) -> None:
        super().__init__(start_recorder, unit)
        self._gone = 0  # the optimizer that is stepping, where it exists no more

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
