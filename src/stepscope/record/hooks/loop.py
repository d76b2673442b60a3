"""What the training thread is doing right now, as the hooks see it: one part inside another, told on once.

    hook                 part        not counted inside            (it is then part of that)
    data loader          DATA        data, forward, backward
    module call          FORWARD     data, forward, backward       recomputation belongs to backward
    autograd engine      BACKWARD    data, forward, backward       forces by autograd.grad belong to forward
    optimizer, scaler    OPTIMIZER   optimizer                     a wrapper steps its inner optimizer

A part that counts becomes a region of the recorder and an event of the step finder. Other threads (prefetching,
replicas) are not the loop: what they do is left alone, unless training itself moves to another thread.
"""

import functools
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from stepscope.record import regions
from stepscope.record.hooks.optimizers_alive import OptimizersAlive
from stepscope.record.hooks.parameter_watch import ParameterWatch
from stepscope.record.hooks.steps import StepFinder
from stepscope.record.undisturbed import explain, say

DATA, FORWARD, BACKWARD, OPTIMIZER = 1, 2, 4, 8
_WORK = DATA | FORWARD | BACKWARD
FIRST_STEPS = 8  # in which those who learn about the job are told of each
_HIDDEN_INSIDE = {DATA: _WORK, FORWARD: _WORK, BACKWARD: _WORK, OPTIMIZER: OPTIMIZER}
_REGION = {
    DATA: regions.DATA_LOADING,
    FORWARD: regions.FORWARD,
    BACKWARD: regions.BACKWARD,
    OPTIMIZER: regions.OPTIMIZER,
}


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

    def __init__(self, start_recorder: Callable[[], Any]) -> None:
        self.recorder: Any = None
        self.optimizers = OptimizersAlive()
        self.parameters = ParameterWatch()
        self.steps = 0
        self.forwards = self.backwards = 0  # that counted in this step
        self.on_step: list[Callable[[Loop], None]] = []
        self.on_first_steps: list[Callable[[Loop], None]] = []
        self.watcher: Any = None  # told `part_begins(part)` and `part_ends(part)`, while it is needed
        self.on_unused_batch: Callable[[], None] | None = None  # a batch is asked for and the last met nothing
        self._batch_unused = False
        self._start_recorder = start_recorder
        self._inside = 0
        self._thread = threading.main_thread().ident
        self._optimizer: Any = None  # the one that is stepping
        self._stepper: Any = None  # who steps it: itself, or a scaler
        self._optimizer_seen = False
        self._on = True
        self._finder = StepFinder(self, optimizers=self.optimizers.keys, parameters_changed=self.parameters.changed)

    @training_first
    def start(self) -> None:
        """Start the recorder, once: this process takes part in training."""
        if self.recorder is None and self._on:
            self.recorder = self._start_recorder()
            self._on = self.recorder is not None

    def stop(self) -> None:
        """See nothing more."""
        self._on = False

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
        if self._on and not self._inside:
            self._finder.finish()

    @training_first
    def data_begins(self) -> bool:
        """Return whether this load counts; if so `data_ends` must follow."""
        if not self._enters(DATA):
            return False
        self._finder.load_begins()
        if self._batch_unused and self.on_unused_batch is not None:
            self.on_unused_batch()
        return self._begin(DATA)

    @training_first
    def data_ends(self, *, got_batch: bool) -> None:
        """End a load that counted."""
        self._end(DATA)
        self._finder.load_ends(got_batch=got_batch)

    @training_first
    def forward_begins(self, *, grad: bool, own: bool) -> bool:
        """Return whether this call of a module counts; if so `forward_ends` must follow."""
        if not self._enters(FORWARD):
            return False
        if not self._inside & OPTIMIZER:
            self._finder.forward_begins(grad=grad, own=own)
        self.forwards += 1
        return self._begin(FORWARD)

    @training_first
    def forward_ends(self) -> None:
        """End a forward that counted."""
        self._end(FORWARD)

    @training_first
    def backward_begins(self) -> bool:
        """Return whether this backward counts; if so `backward_ends` must follow."""
        self._adopt_thread()
        if not self._enters(BACKWARD):
            return False
        if self.recorder is None:
            self.start()
        if not self._inside & OPTIMIZER:
            self._finder.backward_begins()
        self.backwards += 1
        return self._begin(BACKWARD)

    @training_first
    def gradient_sync_begins(self) -> None:
        """All gradients are computed; the rest of this backward waits for their reduction."""
        if self._inside & BACKWARD and threading.get_ident() == self._thread and self.recorder is not None:
            self.recorder.region_begin(regions.GRADIENT_SYNC)

    @training_first
    def backward_ends(self) -> None:
        """End a backward that counted, and the wait for reductions inside it."""
        self._end(BACKWARD)
        if not self._optimizer_seen:
            self.parameters.remember()

    @training_first
    def schedule_begins(self) -> None:
        """A pipeline schedule begins its step."""
        if self._enters(DATA):
            self._finder.schedule_begins()

    @training_first
    def optimizer_begins(self, optimizer: Any, by: Any) -> None:
        """An optimizer begins to step, `by` itself or by the scaler that will decide about it."""
        self._adopt_thread()
        if not self._on:
            return
        if self._inside & OPTIMIZER:
            if by is not self._stepper:
                self.optimizers.is_inner(optimizer, of=self._optimizer)
                return
            self._end(OPTIMIZER)  # it raised last time and so never ended
        if threading.get_ident() == self._thread or self._inside & BACKWARD:
            self.start()
            self._optimizer_seen = True
            self._finder.optimizer_begins(id(optimizer))
            self._optimizer, self._stepper = optimizer, by
            self._begin(OPTIMIZER)

    @training_first
    def optimizer_ends(self, by: Any) -> None:
        """End what `by` began."""
        if self._inside & OPTIMIZER and by is self._stepper:
            key = id(self._optimizer)
            self._optimizer = self._stepper = None
            self._end(OPTIMIZER)
            self._finder.optimizer_ends(key, perf_counter_ns())

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
        self.forwards = self.backwards = 0

    def step_may_end(self) -> int:
        """Ask the recorder, for the step finder, to remember this moment."""
        return int(self.recorder.step_may_end()) if self.recorder is not None else perf_counter_ns()

    def step_begin(self) -> None:
        """Tell the recorder, as the step finder decided."""
        if self.recorder is not None:
            self.recorder.step_begin()

    def _enters(self, part: int) -> bool:
        return self._on and not self._inside & _HIDDEN_INSIDE[part] and threading.get_ident() == self._thread

    def _adopt_thread(self) -> None:
        if not self._inside:
            self._thread = threading.get_ident()

    def _begin(self, part: int) -> bool:
        self._inside |= part
        self._batch_unused = part == DATA
        if self.watcher is not None:
            self.watcher.part_begins(part)
        if self.recorder is not None:
            self.recorder.region_begin(_REGION[part])
        return True

    def _end(self, part: int) -> None:
        self._inside &= ~part
        if self.recorder is not None:
            self.recorder.region_end(_REGION[part])
        if self.watcher is not None:
            self.watcher.part_ends(part)
