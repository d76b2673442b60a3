"""Who asked for a profile window while the job ran, and which steps does it stand for?

An alarm pulls a window because the job has changed: rank 1 is slow since step 340. Held against the steps before that,
the change would look like the profiler's own cost. So the steps since then are what such a window is held against.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.run.step_log import StepLog, log_since, unprofiled_step
from stepscope.units import ms

_MIN_STEPS = 10


@dataclass(frozen=True)
class Pulled:
    """Why there is a window."""

    by: str
    """a command, or an alarm in words"""
    since: int | None
    """the step since when it is so, by an alarm"""


def pulled_window(description: Mapping[str, Any], window: int) -> Pulled | None:
    """Return who asked for a window, as the ranks noted it in `run.json`; None where nobody did."""
    windows = description.get("windows")
    known = [w for w in windows if isinstance(w, dict)] if isinstance(windows, list) else []
    by_rank = [w["ranks"] for w in known if w.get("window") == window and isinstance(w.get("ranks"), dict)]
    for rank in (rank for ranks in by_rank for rank in ranks.values() if isinstance(rank, dict)):
        by, since = rank.get("asked_by"), rank.get("since")
        if isinstance(by, str) and by:
            return Pulled(by, since if isinstance(since, int) and not isinstance(since, bool) else None)
    return None


def steps_it_stands_for(
    logs: Sequence[StepLog], description: dict[str, Any], pulled: Pulled | None
) -> tuple[tuple[StepLog, ...], dict[str, Any], list[str]]:
    """Return the logs and the description of a window: the steps since its alarm, where there are enough of them."""
    if pulled is None or pulled.since is None:
        return tuple(logs), description, []
    since = [log_since(log, pulled.since) for log in logs]
    step = unprofiled_step(since)
    if step is None or step.num_steps < _MIN_STEPS:
        return tuple(logs), description, []
    line = f"this window was pulled for what is so since step {pulled.since}: the steps before are not in this report"
    # The recorder's own warnings compare the steps after the first window with those before it.
    return tuple(since), {**description, "unprofiled_step_ms": ms(step.median_ns), "warnings": []}, [line]
