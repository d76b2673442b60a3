"""Limits of a profiled window, and which of them was reached first.

The number of events in the profiler is not available. Three things bound it: the count of one step where there is one,
the growth of the process's own memory (200 to 300 bytes per event while recording), and time. Memory also grows for
reasons in the job: its growth per step before the window is subtracted, and inside a step, where the job's tensors
are allocated and freed, it indicates events only once the step took far longer than usual, as with a flood of events.
There are no more events than the process had CPU time for: a busy machine makes steps long without any.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from stepscope.record.config import RecordConfig

BYTES_PER_EVENT = 300
_EVENT_NS = 1_000  # of CPU time, at least: an operator without work takes twice as long
_FLOOD = 3.0


@dataclass(frozen=True)
class TypicalStep:
    """What a step was like before the window; None where that is not known."""

    events: int | None = None
    longest_s: float | None = None
    growth_bytes: int = 0  # of the process's own memory, per step


def max_window_events(config: RecordConfig, *, group_timeout_s: float | None) -> int:
    """Return the largest number of events of a window: the configured one, limited by what other ranks can wait for.

    While this rank exports, the others wait in a collective: a quarter of their timeout is the limit.
    """
    if group_timeout_s is None:
        return config.max_events
    return max(1, min(config.max_events, int(0.25 * group_timeout_s / 20e-6)))


class Budget:
    """The limits of one window, from the moment it is made."""

    def __init__(
        self, config: RecordConfig, *, usual: TypicalStep | None = None, group_timeout_s: float | None = None
    ) -> None:
        self._config = config
        self._usual = usual or TypicalStep()
        self._max_events = max_window_events(config, group_timeout_s=group_timeout_s)
        self._begin_s = self._looked_s = self._step_s = time.monotonic()
        self._begin_bytes, self._begin_cpu_ns = anonymous_bytes(), time.process_time_ns()
        self._steps_done = 0

    def spent_at_step(self, steps_done: int) -> str | None:
        """Return which limit does not leave room for another step, or None."""
        now_s = time.monotonic()
        took_s, self._step_s = now_s - self._step_s, now_s
        self._steps_done = steps_done
        expected = (self._usual.events or 0) * (steps_done + 1)
        if expected > self._max_events:
            return f"event budget: {expected} events expected, {self._max_events} allowed"
        longest_s = self._usual.longest_s
        may_be_flood = self._usual.events is None or longest_s is None or took_s > _FLOOD * longest_s
        return (self._too_many_held() if may_be_flood else None) or self._spent(now_s)

    def step_left_out(self) -> None:
        """Give back the time of a step that was not recorded."""
        now_s = time.monotonic()
        self._begin_s += now_s - self._step_s
        self._step_s = now_s

    def spent_inside_step(self) -> str | None:
        """Return which limit was met in the middle of a step, looking a few times a second at most."""
        now_s = time.monotonic()
        if now_s - self._looked_s < 0.05:
            return None
        self._looked_s = now_s
        longest_s = self._usual.longest_s
        is_long = longest_s is not None and now_s - self._step_s > _FLOOD * longest_s
        return (self._too_many_held() if is_long else None) or self._spent(now_s)

    def _too_many_held(self) -> str | None:
        own_bytes = self._usual.growth_bytes * (self._steps_done + 1)
        held = max(0, self._growth_bytes() - own_bytes) // BYTES_PER_EVENT
        held = min(held, (time.process_time_ns() - self._begin_cpu_ns) // _EVENT_NS)
        if held <= self._max_events:
            return None
        return f"event budget: memory grew as with {held} events, {self._max_events} allowed"

    def _spent(self, now_s: float) -> str | None:
        if now_s - self._begin_s > self._config.max_seconds:
            return f"time budget: the window took over {self._config.max_seconds:g} s"
        grown_mb = self._growth_bytes() // 1_000_000
        if grown_mb > self._config.max_memory_mb:
            return f"memory budget: {grown_mb} MB more than before, {self._config.max_memory_mb} MB allowed"
        return None

    def _growth_bytes(self) -> int:
        now_bytes = anonymous_bytes()
        return 0 if now_bytes is None or self._begin_bytes is None else max(0, now_bytes - self._begin_bytes)


def anonymous_bytes() -> int | None:
    """Return this process's own memory (no mapped files), None where the system does not report it."""
    try:
        for line in Path("/proc/self/status").read_bytes().splitlines():
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None
