"""Where training is: on which thread, inside which parts of the step, and whether it is followed at all.

Other threads (prefetching, replicas, a second training loop) are not the loop: what they do is left alone, unless
training itself moves to another thread: the loop's own has ended, or waits for others.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from stepscope.record.failsafe import explain, say
from stepscope.record.hooks.loop.optimizers_alive import OptimizersAlive
from stepscope.record.hooks.loop.parameter_watch import ParameterWatch
from stepscope.record.hooks.loop.parts import BACKWARD, DATA, FORWARD, HIDDEN_INSIDE, QUIET, REGION
from stepscope.record.hooks.loop.pattern import Event
from stepscope.record.hooks.loop.routine import Repeats, Routine
from stepscope.record.hooks.loop.steps import StepFinder
from stepscope.record.hooks.loop.threads import is_of_autograd, is_over, is_waiting
from stepscope.record.window.interruptions import Interruptions


def training_first(method: Any) -> Any:
    """Return a method of the loop that cannot raise: the first failure is one line, then the hooks are off."""

    @functools.wraps(method)
    def guarded(self: "LoopState", *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as e:  # noqa: BLE001 - training comes first
            self.stop()
            say(f"steps are no longer followed, training goes on: {explain(e)}")
            return False

    return guarded


class LoopState:
    """What is known of the training loop at this moment; the layers above it say what changes that."""

    routine: Routine
    _finder: StepFinder
    _events: dict[int, Event]  # those that are the same in every step

    def __init__(self) -> None:
        self.recorder: Any = None
        self.optimizers = OptimizersAlive()
        self.parameters = ParameterWatch()
        self.forwards = self.backwards = 0  # that counted in this step
        self.watcher: Any = None  # told `part_begins(part)` and `part_ends(part)`, while it is needed
        self.interruptions = Interruptions()
        self.row = 0  # FORWARD, QUIET or OPTIMIZER while a row of them lasts, or STRETCH
        self.backwards_left = 0  # in the stretch that lasts; negative inside one of them
        self.thread = threading.main_thread().ident
        self._in_a_row = 0  # forwards, or optimizer steps, with nothing else between
        self._row_of = 0
        self._batch_unused = False
        self._inside = 0
        self._lock = threading.RLock()
        self._optimizer: Any = None  # the one that is stepping
        self._stepper: Any = None  # who steps it: itself, or a scaler
        self._on = True
        self._repeats = Repeats()

    def stop(self) -> None:
        """See nothing more."""
        self._on = False
        self.row = self.backwards_left = 0
        self.routine.forget()

    def is_training_thread(self, thread: int) -> bool:
        """Return whether this is the thread whose steps are followed."""
        return thread == self.thread and self._on and self.recorder is not None

    def in_forked_child(self) -> None:
        """A run that has begun is the parent's alone; where it has not, ranks may be forked from here."""
        if self.recorder is not None:
            self.stop()

    @training_first
    def safely(self, act: Callable[..., Any], *args: Any) -> Any:
        """Return `act(*args)`, or False where it failed, after which the hooks are off."""
        return act(*args)

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
        if part != self._row_of and not (part == FORWARD and self._row_of == QUIET):
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
