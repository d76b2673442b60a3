"""The recorder of this process, from its start to its end: one at a time, none in the forked children of a run.

Whoever finds the steps gets it by `Recorder.start` or `current`; what it does with them is in `step_recorder`.
"""

import atexit
import os
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Any

from stepscope.record.config import RecordConfig, set_kineto_settings
from stepscope.record.rank import has_other_ranks
from stepscope.record.samplers import standard_samplers
from stepscope.record.step_recorder import StepRecorder

_current: "Recorder | None" = None


def current() -> "Recorder | None":
    """Return this process's recorder, or None."""
    return _current


class Recorder(StepRecorder):
    """One per process. Off after the first failure, in forked children of a run, and after `close()`."""

    def __init__(self, config: RecordConfig, *, on_trace_ready: Callable[[Any], Any] | None = None) -> None:
        super().__init__(config, on_trace_ready=on_trace_ready)
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
        if self._run is None and self.on and os.getpid() == self._pid and has_other_ranks():
            self._try(self._open_run)  # they will wait to hear that this one recorded nothing
        self._try(self._close)
        self.on = False

    def _forget(self) -> None:
        global _current
        if self._run is not None:
            self.on = False
            self._run.forget()
            self._run = _current = None


def _after_fork() -> None:
    if _current is not None:
        _current._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
