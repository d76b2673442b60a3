"""Statistics of a rank's steps with and without the profiler, updated line by line in bounded memory.

Conclusions are drawn from the unprofiled steps before the window: no profiler has run in the process yet. Those after
it check them: where they differ by more than chance, the profiler left something behind, or the job changed. The
profiled ones give the profiler's overhead. Unrepresentative steps are left out of the statistics (they stay in the
log): the first ones of the job, and the first after the window, when ranks still wait for each other's export.
"""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import exp
from typing import Any, NamedTuple

from stepscope.contract.lateness import median
from stepscope.contract.step_line import EVALUATION, FIRST_STEPS

_SETTLING_STEPS = 1
# steps before the window that can stand for the others; with fewer, those after it do
_MIN_BEFORE = 3
_MIN_COMPARED = 5
_MAX_LOG = 100.0  # of a factor by which nothing is known
_ERRORS = 3.0  # of the ratio: wider than usual, because neighbouring steps resemble each other
_KEPT = 2_000


class _Step(NamedTuple):
    dur_ns: int
    device_ns: int | None
    evaluated_ns: int
    run_ns: int | None = None  # of the training thread on a core


class StepStatistics:
    """Counts and durations by phase; the newest steps stand for a long run."""

    def __init__(self) -> None:
        self.count = 0
        self.last: int | None = None
        self._settling = 0
        self._durations: dict[str, deque[_Step]] = {
            phase: deque(maxlen=_KEPT) for phase in ("before", "window", "after")
        }

    def add(self, line: dict[str, Any]) -> None:
        """Take in one line of the step log; the header and unknown lines are passed over."""
        if "step" not in line:
            return
        self.count += 1
        self.last = line["step"]
        if line["profiled"]:
            self._settling = _SETTLING_STEPS
            if line["phase"] == "window":
                self._durations["window"].append(_step_of(line))
        elif self._settling:
            self._settling -= 1
        elif line["phase"] in ("before", "after") and line["step"] >= FIRST_STEPS:
            self._durations[line["phase"]].append(_step_of(line))

    def summary(self) -> dict[str, Any]:
        """Return `{"count", "last", "before", "window", "after", "unprofiled", "unprofiled_from", "after_to_before"}`.

        None where there were no steps of the kind.
        """
        parts = {phase: _median_of(list(kept)) for phase, kept in self._durations.items()}
        before, after = list(self._durations["before"]), list(self._durations["after"])
        source = "before" if len(before) >= _MIN_BEFORE or not after else "after"
        return {
            "count": self.count,
            "last": self.last,
            **parts,
            "unprofiled": parts[source],
            "unprofiled_from": source,
            "after_to_before": _ratio(before, after),
        }


def _step_of(line: dict[str, Any]) -> _Step:
    evaluated = line.get("regions", {}).get(EVALUATION, {}).get("ns", 0)
    return _Step(line["dur_ns"], line["device_ns"], evaluated, line.get("cpu", {}).get("run_ns"))


def _ratio(before: list[_Step], after: list[_Step]) -> dict[str, Any] | None:
    """Return how much longer steps after the window take, with an interval: medians and their spread.

    By the device's or the host's times, whichever differ less: a few long steps raise the device's median, where
    neighbouring steps share a measurement, and the host's may change while the device's do not. Without evaluations:
    steps with one and steps without one have no median in common.
    """
    host = [[s.dur_ns - s.evaluated_ns for s in steps] for steps in (before, after)]
    device = [[s.device_ns - s.evaluated_ns for s in steps if s.device_ns is not None] for steps in (before, after)]
    found = [_compared(before, after, sides) for sides in (device, host) if min(map(len, sides)) >= _MIN_COMPARED]
    return min((one for one in found if one is not None), key=lambda one: abs(one["ratio"] - 1), default=None)


def _compared(before: list[_Step], after: list[_Step], sides: list[list[int]]) -> dict[str, Any] | None:
    (first, error), (second, other) = ((median(side), _error_of_median(side)) for side in sides)
    if first <= 0:
        return None
    ratio = second / first
    times = exp(min(_ERRORS * ((error / first) ** 2 + (other / max(second, 1)) ** 2) ** 0.5, _MAX_LOG))
    return {"ratio": ratio, "low": ratio / times, "high": ratio * times, "why": _why(before, after, sides)}


def _why(before: list[_Step], after: list[_Step], sides: list[list[int]]) -> str | None:
    """Return why steps after the window differ, as far as the log shows it."""
    third = len(sides[1]) // 3
    parts = [sides[0], *(sides[1][i * third : (i + 1) * third] for i in range(3))]
    if third >= _MIN_COMPARED:
        medians = [median(part) for part in parts]
        if all(later > 1.03 * sooner for sooner, later in pairwise(medians)):
            return "steps grow through the run, and the report names the line where samples met it"
    ran = [[s.run_ns for s in steps if s.run_ns is not None] for steps in (before, after)]
    if min(map(len, ran)) >= _MIN_COMPARED:
        sooner, later = (median(times) for times in ran)
        if sooner and abs(later / sooner - 1) <= 0.05:
            return "the training thread's CPU time is the same: its waits changed (for a core, a device, other ranks)"
    return None


def _error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median, from the median deviation."""
    middle = median(values)
    deviation = 1.4826 * median([abs(value - middle) for value in values])
    return float(1.2533 * deviation / len(values) ** 0.5)


def _median_of(steps: list[_Step]) -> dict[str, Any] | None:
    if not steps:
        return None
    host = [s.dur_ns for s in steps]
    device = [s.device_ns for s in steps if s.device_ns is not None]
    return {
        "steps": len(host),
        "median_ns": int(median(host)),
        "mean_ns": int(sum(host) / len(host)),
        "min_ns": min(host),
        "max_ns": max(host),
        "device_median_ns": int(median(device)) if device else None,
    }
