"""Names that readers of torch's profiler and of common guides know, as settings of `stepscope.profile`.

schedule=torch.profiler.schedule(wait=1, warmup=1, active=3)     wait, warmup, active, repeat
output_dir, trace_dir, log_dir, output_trace_dir                 out
rank0_only=True                                                  ranks=0
skip_first=5                                                     five more steps of wait
"""

from collections.abc import Callable
from typing import Any

from stepscope.errors import UsageError

_FOLDERS = ("output_dir", "trace_dir", "log_dir", "output_trace_dir")
_MAX_STEPS = 100_000
_NONE, _WARMUP, _RECORD, _SAVE = "NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"


def usual_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return settings by their own names for those of `given` that have usual ones, which are taken out of it."""
    found: dict[str, Any] = {}
    for name in _FOLDERS:
        if (folder := given.pop(name, None)) is not None:
            found["out"] = str(folder)
    schedule = given.pop("schedule", None)
    if schedule is not None:
        found |= window_of(schedule)
    if given.pop("rank0_only", False):
        found["ranks"] = 0
    return found


def window_of(schedule: Callable[[int], Any]) -> dict[str, int]:
    """Return the window that a schedule of torch's profiler asks for, by asking it step by step.

    One that goes on for ever is one window. A `UsageError` where it never records.
    """
    actions = _first_window(schedule)
    wait, warmup = actions.count(_NONE), actions.count(_WARMUP)
    active = len(actions) - wait - warmup
    return {"wait": wait, "warmup": warmup, "active": active, "repeat": _repeats(schedule, len(actions), wait)}


def _first_window(schedule: Callable[[int], Any]) -> list[str]:
    actions = []
    for step in range(_MAX_STEPS):
        actions.append(_name(schedule(step)))
        if actions[-1] == _SAVE:
            return actions
    raise UsageError(f"schedule: it records nothing in its first {_MAX_STEPS:,} steps; give wait, warmup and active")


def _repeats(schedule: Callable[[int], Any], length: int, wait: int) -> int:
    """Return how many windows follow each other in the same way; those of skipped first steps are shorter."""
    ends = [step for step in range(length, 20 * length) if _name(schedule(step)) == _SAVE]
    endless = len(ends) >= 2 and ends[-1] > 20 * length - 2 * (ends[1] - ends[0])
    return 1 if endless else 1 + len(ends)


def _name(action: Any) -> str:
    return str(getattr(action, "name", action))
