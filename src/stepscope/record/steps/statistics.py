"""What a rank's steps took with and without the profiler, kept up to date line by line in bounded memory.

The unprofiled steps around the window are what a conclusion is drawn from; the profiled ones say what the profiler
cost. Steps that cannot stand for the others are left out of the statistics (they stay in the log): the first ones
of the job, and the first after the window, when ranks still wait for each other's export.
"""

import statistics
from collections import deque
from typing import Any

FIRST_STEPS = 2
SETTLING_STEPS = 1
_KEPT = 2_000


class StepStatistics:
    """Counts and durations by phase; the newest steps stand for a long run."""

    def __init__(self) -> None:
        self.count = 0
        self.last: int | None = None
        self._settling = 0
        self._durations: dict[str, deque[tuple[int, int | None]]] = {
            phase: deque(maxlen=_KEPT) for phase in ("before", "window", "after")
        }

    def add(self, line: dict[str, Any]) -> None:
        """Take in one line of the step log; the header and unknown lines are passed over."""
        if "step" not in line:
            return
        self.count += 1
        self.last = line["step"]
        if line["profiled"]:
            self._settling = SETTLING_STEPS
            if line["phase"] == "window":
                self._durations["window"].append((line["dur_ns"], line["device_ns"]))
        elif self._settling:
            self._settling -= 1
        elif line["phase"] in ("before", "after") and line["step"] >= FIRST_STEPS:
            self._durations[line["phase"]].append((line["dur_ns"], line["device_ns"]))

    def summary(self) -> dict[str, Any]:
        """Return `{"count", "last", "before", "window", "after", "unprofiled"}`, None where there were none."""
        parts = {phase: _median_of(list(kept)) for phase, kept in self._durations.items()}
        both = [*self._durations["before"], *self._durations["after"]]
        return {"count": self.count, "last": self.last, **parts, "unprofiled": _median_of(both)}


def _median_of(steps: list[tuple[int, int | None]]) -> dict[str, Any] | None:
    if not steps:
        return None
    host = [dur for dur, _ in steps]
    device = [ns for _, ns in steps if ns is not None]
    return {
        "steps": len(host),
        "median_ns": int(statistics.median(host)),
        "mean_ns": int(statistics.fmean(host)),
        "min_ns": min(host),
        "max_ns": max(host),
        "device_median_ns": int(statistics.median(device)) if device else None,
    }
