"""Accelerate: a handler in the style of `ProfileKwargs`, so that `accelerator.profile()` records a run.

    from stepscope.integrations.accelerate import StepscopeKwargs

    accelerator = Accelerator(kwargs_handlers=[StepscopeKwargs(output_trace_dir="run")])
    with accelerator.profile():
        for batch in loader:
            ...

It takes what `ProfileKwargs` takes. `output_trace_dir` is the run folder; `schedule_option` is counted in optimizer
steps, which are found by themselves: `step()` of what `profile()` yields may be called or left out. Without a schedule
the whole block is recorded, as Accelerate does, until a budget ends it. What `profile()` yields has the tables of
torch's profiler: `key_averages()`, `events()`, `export_chrome_trace(path)`.
"""

import gzip
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import trace_file
from stepscope.errors import UsageError
from stepscope.integrations.loop_recording import LoopRecording, missing
from stepscope.record.config import place_of_process
from stepscope.record.failsafe import say

try:
    from accelerate.utils import ProfileKwargs
except ImportError as e:
    raise missing("accelerate", e) from e

_SCHEDULE = ("wait", "warmup", "active", "repeat", "skip_first")
# for a callback that wants every window until the block ends


@dataclass
class StepscopeKwargs(ProfileKwargs):  # type: ignore[misc]
    """Settings of a recording. `settings` holds those of `stepscope.profile` that `ProfileKwargs` has no name for."""

    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.out: str | None = vars(self)["output_trace_dir"]
        self.output_trace_dir = None  # else Accelerate exports a second time

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return ProfileKwargs

    def build(self) -> "AccelerateRecording":
        """Return what `accelerator.profile()` enters."""
        names = ("activities", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
        same = {name: getattr(self, name) for name in names}
        option = self.schedule_option
        schedule = {"wait": 0, "warmup": 0, "active": 1_000_000} if option is None else _schedule_from(option)
        if option is not None and not option.get("repeat"):
            if self.on_trace_ready is not None:
                schedule["repeat"] = 1_000_000
            else:
                say("one window is recorded; repeat=N in schedule_option gives N windows")
        kept = KeptProfiler(self.on_trace_ready)
        return AccelerateRecording(kept, **{"out": self.out, **same, **schedule, **self.settings})


class KeptProfiler:
    """Keeps the torch profiler of the last window, for the tables that the script asks for, and tells the script."""

    def __init__(self, on_trace_ready: Callable[[Any], Any] | None) -> None:
        self.exports_too = on_trace_ready is None
        self.last: Any = None
        self._on_trace_ready = on_trace_ready

    def __call__(self, profiler: Any) -> None:
        self.last = profiler
        if self._on_trace_ready is not None:
            self._on_trace_ready(profiler)


class AccelerateRecording(LoopRecording):
    """A recording with the tables of torch's profiler, of the last window that has ended."""

    def __init__(self, kept: KeptProfiler, **settings: Any) -> None:
        super().__init__(on_trace_ready=kept, **settings)
        self._kept = kept

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        """Return operators summed by name, as torch's profiler does."""
        return self._profiler().key_averages(*args, **kwargs)

    def events(self) -> Any:
        """Return the events of the window, as torch's profiler does."""
        return self._profiler().events()

    def export_chrome_trace(self, path: str) -> None:
        """Write the trace of this rank to `path`, gzipped where it ends in .gz."""
        self._profiler()
        if not self._kept.exports_too:
            self._profiler().export_chrome_trace(path)
            return
        trace = None if self.run_folder is None else self.run_folder / trace_file(place_of_process().rank)
        if trace is None or not trace.exists():
            raise UsageError("the trace is written when the block of accelerator.profile() ends; export it after that")
        if path.endswith(".gz"):
            shutil.copyfile(trace, path)
            return
        with gzip.open(trace) as packed, Path(path).open("wb") as plain:
            shutil.copyfileobj(packed, plain)

    def _profiler(self) -> Any:
        if self._kept.last is None:
            raise UsageError("no window has ended yet, so there is nothing to show; ask after the profiled steps")
        return self._kept.last


def _schedule_from(option: dict[str, int]) -> dict[str, int]:
    """Return our settings for torch's: `skip_first` lengthens the wait; `repeat=0` (for ever) is left out.

    >>> schedule_from({"skip_first": 3, "wait": 1, "warmup": 1, "active": 2, "repeat": 0})
    {'wait': 4, 'warmup': 1, 'active': 2}
    """
    unknown = [name for name in option if name not in _SCHEDULE]
    if unknown:
        raise UsageError(f"schedule_option: there is no {unknown[0]!r}; use {', '.join(_SCHEDULE)}")
    ours = {name: option[name] for name in ("wait", "warmup", "active", "repeat") if option.get(name) is not None}
    if option.get("skip_first"):
        ours["wait"] = ours.get("wait", 0) + option["skip_first"]
    return {name: value for name, value in ours.items() if (name, value) != ("repeat", 0)}
