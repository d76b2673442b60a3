"""What a rank's steps took with and without the profiler, kept up to date line by line in bounded memory.

The unprofiled steps before the window are what a conclusion is drawn from: no profiler has run in the process yet.
Those after it check them: where they differ by more than chance, the profiler left something behind, or the job
changed. The profiled ones say what the profiler cost. Steps that cannot stand for the others are left out of the
statistics (they stay in the log): the first ones of the job, and the first after the window, when ranks still wait for
each other's export.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any

FIRST_STEPS = 2
SETTLING_STEPS = 1
MIN_BEFORE = 3
"""steps before the window that can stand for the others; with fewer, those after it do"""
_MIN_COMPARED = 5
_ERRORS = 3.0  # of the ratio: wider than usual, because neighbouring steps resemble each other
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
        """Return `{"count", "last", "before", "window", "after", "unprofiled", "unprofiled_from", "after_to_before"}`.

        None where there were no steps of the kind.
        """
        parts = {phase: _median_of(list(kept)) for phase, kept in self._durations.items()}
        before, after = list(self._durations["before"]), list(self._durations["after"])
        source = "before" if len(before) >= MIN_BEFORE or not after else "after"
        return {
            "count": self.count,
            "last": self.last,
            **parts,
            "unprofiled": parts[source],
            "unprofiled_from": source,
            "after_to_before": _ratio(before, after),
        }


def _ratio(before: list[tuple[int, int | None]], after: list[tuple[int, int | None]]) -> dict[str, float] | None:
    """Return how much longer steps after the window take, with an interval: medians and their spread."""
    if min(len(before), len(after)) < _MIN_COMPARED:
        return None
    sides = [_known(before), _known(after)]
    (first, error), (second, other) = ((statistics.median(side), error_of_median(side)) for side in sides)
    if first <= 0:
        return None
    ratio = second / first
    spread = _ERRORS * ratio * ((error / first) ** 2 + (other / max(second, 1)) ** 2) ** 0.5
    return {"ratio": ratio, "low": ratio - spread, "high": ratio + spread}


def _known(steps: list[tuple[int, int | None]]) -> list[int]:
    """Return the times by the device where it tells, else the host's."""
    device = [ns for _, ns in steps if ns is not None]
    return device if len(device) >= _MIN_COMPARED else [dur for dur, _ in steps]


def error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median, from the median deviation."""
    middle = statistics.median(values)
    deviation = 1.4826 * statistics.median([abs(value - middle) for value in values])
    return float(1.2533 * deviation / len(values) ** 0.5)


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
