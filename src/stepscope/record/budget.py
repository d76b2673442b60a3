"""What a profiled window may cost, and which of its limits was met first.

The profiler does not say how many events it holds. Three things bound them: the count of one step seen before the
window, the growth of the process's own memory (about 200 bytes per event while recording), and time.
"""

import time
from pathlib import Path

from stepscope.record.config import RecordConfig

BYTES_PER_EVENT = 200
_STATUS = Path("/proc/self/status")
_LOOK_EVERY_S = 0.05


class Budget:
    """The limits of one window, from the moment it is made."""

    def __init__(self, config: RecordConfig, *, events_per_step: int | None) -> None:
        self._config = config
        self._events_per_step = events_per_step
        self._begin_s = self._looked_s = time.monotonic()
        self._begin_bytes = anonymous_bytes()

    def spent_at_step(self, steps_done: int) -> str | None:
        """Return which limit does not leave room for another step, or None."""
        if self._events_per_step is not None:
            expected = self._events_per_step * (steps_done + 1)
            if expected > self._config.max_events:
                return f"event budget: {expected} events expected, {self._config.max_events} allowed"
        held = self._growth_bytes() // BYTES_PER_EVENT
        if held > self._config.max_events:
            return f"event budget: about {held} events held, {self._config.max_events} allowed"
        return self._spent(time.monotonic())

    def spent_inside_step(self) -> str | None:
        """Return which limit was met in the middle of a step, looking a few times a second at most."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return None
        self._looked_s = now_s
        return self._spent(now_s)

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
    """Return this process's own memory (no mapped files), None where the system does not tell."""
    try:
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None
