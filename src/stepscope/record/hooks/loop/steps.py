"""Where one training step ends and the next begins, from what the loop is seen to do.

    A step is over when its optimizer (all of them, where there are several) has stepped and the loop turns to new
    work: it asks for a batch, or runs a forward, a backward or a pipeline schedule.

So everything up to the next batch (scheduler, logging, checkpoint) belongs to the step that just ran, gradient
accumulation is one step, and the boundary is known in the moment it happens. Three cases need more:

- *Several optimizers* with forwards in between (a GAN) are one step: the loop's turn to new work counts only once
  all of them have stepped. Which ones belong together is learned when one of them comes round again; the first time
  the boundary is found late, but its time is kept.
- *Evaluation* is no step: a batch that met only forwards without gradients before the next batch was asked for is
  taken out, so the coming step begins after it. So are batches that met nothing before their loader ran out.
- *An optimizer that no hook sees* (an update written by hand): a parameter that changed in place after a backward.
"""

from collections.abc import Callable, Hashable
from typing import Protocol


class Steps(Protocol):
    """Who is told: where a step ends or may have ended, and the begin of one after a gap."""

    def step_end(self, at_ns: int | None = None) -> None:
        """Take note that a step ended, now or at a moment in the past."""

    def step_may_end(self) -> int:
        """Return this moment, at which a later `step_end(at_ns)` may put the end of a step."""

    def step_begin(self) -> None:
        """Take note that a step begins now and that the time since the last one is in no step."""


class StepFinder:
    """The open step of one training loop."""

    def __init__(
        self,
        steps: Steps,
        *,
        optimizers: Callable[[], frozenset[Hashable]],
        parameters_changed: Callable[[], bool],
    ) -> None:
        self._steps = steps
        self._optimizers = optimizers  # those that exist now; what a first step has to wait for
        self._parameters_changed = parameters_changed
        self._cycle: frozenset[Hashable] | None = None  # the optimizers of one step, once known
        self._interleaved = False  # whether new work begins between the optimizers of one step
        self._seen: set[Hashable] = set()
        self._loads = False  # whether batches come from a loader that we see
        self._after_evaluation = False  # the next batch begins a step
        self._idle = False  # nothing has happened since evaluation was left out
        self._open()

    def _open(self) -> None:
        self._stepped: set[Hashable] = set()
        self._stepped_ns = 0
        self._maybe_ns: int | None = None  # new work began here while optimizers were still missing
        self._went_on = False  # ... and one of them did come
        self._trained = False
        self._evaluated = False
        self._evaluated_own = False
        self._batches = 0

    def load_begins(self) -> None:
        """A batch is asked for."""
        ended = self._work_begins()
        if not ended and (self._after_evaluation or self._only_evaluated(self._evaluated)):
            self._leave_out()
            self._after_evaluation = self._idle = True
        self._evaluated = False
        self._loads = True

    def load_ends(self, *, got_batch: bool) -> None:
        """The batch came, or there are no more."""
        if got_batch:
            self._after_evaluation = self._idle = False
            self._batches += 1
        elif self._only_evaluated(self._batches > 0):
            self._after_evaluation = True

    def forward_begins(self, *, grad: bool, own: bool) -> None:
        """A module is called, with gradients or without; `own`: one that was called with gradients before."""
        self._work_begins()
        if not grad:
            self._evaluated = True
            self._evaluated_own = self._evaluated_own or own
            return
        if self._idle or (not self._loads and self._only_evaluated(self._evaluated_own)):
            self._leave_out()
        self._after_evaluation = self._idle = False

    def backward_begins(self) -> None:
        """A backward pass begins."""
        self._work_begins()
        self._trained = True

    def schedule_begins(self) -> None:
        """A pipeline schedule begins, on every stage, whether it loads data or not."""
        self._work_begins()

    def optimizer_begins(self, key: Hashable) -> None:
        """An optimizer begins to step."""
        if key not in self._seen:
            self._seen.add(key)
            self._cycle = None  # somebody new: learn again who belongs together
        if key in self._stepped:  # it comes round again, so a step ended on the way here
            self._learn()
            self._end(self._maybe_ns)
        elif self._maybe_ns is not None:
            self._maybe_ns = None
            self._went_on = True

    def optimizer_ends(self, key: Hashable, now_ns: int) -> None:
        """An optimizer has stepped, or its scaler decided to skip."""
        self._stepped.add(key)
        self._stepped_ns = now_ns

    def finish(self) -> None:
        """Training is over: the last step ended with its last optimizer."""
        if self._stepped:
            self._end(self._maybe_ns if self._maybe_ns is not None else self._stepped_ns)
        elif self._changed_by_hand():
            self._end(None)

    def _work_begins(self) -> bool:
        if not self._stepped and (self._seen or not self._changed_by_hand()):
            return False
        if self._complete():
            self._end(None)
            return True
        if self._maybe_ns is None:
            self._maybe_ns = self._steps.step_may_end()
        return False

    def _complete(self) -> bool:
        if self._cycle is None:
            return not self._seen or self._stepped >= self._optimizers()
        return not self._interleaved or self._stepped >= self._cycle

    def _learn(self) -> None:
        self._cycle = frozenset(self._stepped)
        self._interleaved = self._went_on

    def _end(self, at_ns: int | None) -> None:
        if self._cycle is None and self._seen:
            self._learn()
        self._open()
        self._steps.step_end(at_ns)

    def _only_evaluated(self, evaluated: bool) -> bool:
        return evaluated and not self._trained and not self._stepped

    def _leave_out(self) -> None:
        self._open()
        self._steps.step_begin()

    def _changed_by_hand(self) -> bool:
        return not self._seen and self._trained and self._parameters_changed()
