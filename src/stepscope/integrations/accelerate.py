"""Accelerate: a handler in the style of `ProfileKwargs`, so that `accelerator.profile()` records a run.

    from stepscope.integrations.accelerate import StepscopeKwargs

    accelerator = Accelerator(kwargs_handlers=[StepscopeKwargs(output_trace_dir="run")])
    with accelerator.profile():
        for batch in loader:
            ...

It takes what `ProfileKwargs` takes. `output_trace_dir` is the run folder; `schedule_option` is counted in optimizer
steps, which are found by themselves: `step()` of what `profile()` yields may be called or left out.
"""

from dataclasses import dataclass, field
from typing import Any

from stepscope.errors import UsageError
from stepscope.integrations.loop_recording import LoopRecording, missing

try:
    from accelerate.utils import ProfileKwargs
except ImportError as e:
    raise missing("accelerate", e) from e

_SCHEDULE = ("wait", "warmup", "active", "repeat", "skip_first")


@dataclass
class StepscopeKwargs(ProfileKwargs):  # type: ignore[misc]
    """Settings of a recording. `settings` holds those of `stepscope.profile` that `ProfileKwargs` has no name for."""

    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.out: str | None = vars(self)["output_trace_dir"]
        self.output_trace_dir = None  # else Accelerate exports a second time

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Accelerate looks up the handler's exact class among its own, and has no place for a subclass."""
        return ProfileKwargs

    def build(self) -> LoopRecording:
        """Return what `accelerator.profile()` enters."""
        names = ("activities", "on_trace_ready", "record_shapes", "profile_memory", "with_stack", "with_flops")
        same = {name: getattr(self, name) for name in (*names, "with_modules")}
        schedule = schedule_from(self.schedule_option or {})
        return LoopRecording(**{"out": self.out, **same, **schedule, **self.settings})


def schedule_from(option: dict[str, int]) -> dict[str, int]:
    """Return our settings for torch's: `skip_first` lengthens the wait; `repeat=0` (for ever) is once.

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
