"""How long the device took for each step, by events on the training stream and without any synchronisation.

At the end of a step an event is recorded on the current stream; a step's device time is the distance between two
such events. An event is asked whether it has passed and is never waited for, so a step's time is known a few steps
later. All calls stay on the training thread: querying an event from another one would break a CUDA graph capture.

An event costs 20 us where nothing of it is in the processor's caches, and half as much again when it is asked. So steps
that are only timed share one until 50 ms have passed, or eight of them: each has the mean of theirs.
"""

from collections import deque
from time import perf_counter_ns
from typing import Any

import torch

_MAX_PENDING = 64
_SHARED_NS = 50_000_000
_MAX_SHARED = 8  # steps of one event


def device_timer(*, shared: bool = True) -> "DeviceTimer | None":
    """Return a timer where this process uses CUDA, else None; `shared`: whether steps may share an event."""
    return DeviceTimer(shared=shared) if torch.cuda.is_available() and torch.cuda.is_initialized() else None


class DeviceTimer:
    """Events of the newest steps, and those kept for use again."""

    def __init__(self, *, shared: bool = True) -> None:
        self._max_shared = _MAX_SHARED if shared else 1
        self._free: list[Any] = []
        self._last: Any = None
        self._stream_known_by: Any = None
        self._stream: Any = None  # kept, because making the object takes longer than recording the event
        self._lines: list[dict[str, Any]] = []  # of steps since the last event
        self._next_ns = 0  # when the next event is due
        self._pending: deque[tuple[list[dict[str, Any]], Any, Any]] = deque()
        # torch's own functions without those of Python around them, each of which costs as much as its work
        self._is_capturing = torch._C._cuda_isCurrentStreamCapturing
        self._device_now = torch._C._cuda_getDevice
        self._stream_now = torch._C._cuda_getCurrentStream
        self._record_event = torch.cuda.Event.__mro__[1].record

    def step_end(self, line: dict[str, Any] | None = None) -> dict[str, Any]:
        """Mark the end of a step; its line is returned, and by `finished()` with its time.

        Without a line the step was only timed: it gets a new one, and may share its event with the next.
        """
        now_ns = perf_counter_ns()
        if line is None:
            self._lines.append(line := {})
            if now_ns < self._next_ns and len(self._lines) < self._max_shared:
                return line
        else:
            self._lines.append(line)
        self._next_ns = now_ns + _SHARED_NS
        lines, self._lines = self._lines, []
        event = self._record()
        self._pending.append((lines, self._last, event))
        self._last = event
        return line

    def restart(self) -> None:
        """Let the next step begin here, after a pause that is no part of it."""
        if self._lines:
            self._pending.append((self._lines, None, None))
            self._lines = []
        self._last = self._record()

    def finished(self, *, all_of_them: bool = False) -> list[tuple[dict[str, Any], int | None]]:
        """Return `(line, device time in ns)` of the steps whose end has passed, oldest first.

        The time is None for a step without a beginning, and for one given up because too many wait.
        """
        out: list[tuple[dict[str, Any], int | None]] = []
        while self._pending:
            lines, begin, end = self._pending[0]
            passed = end is None or end.query()
            if not (passed or all_of_them or len(self._pending) > _MAX_PENDING):
                break
            self._pending.popleft()
            known = passed and begin is not None and end is not None
            device_ns = round(begin.elapsed_time(end) * 1e6 / len(lines)) if known else None
            out += [(line, device_ns) for line in lines]
            if known:
                self._free.append(begin)
        if all_of_them:
            out += [(line, None) for line in self._lines]
            self._lines = []
        return out

    def _record(self) -> Any:
        """Return an event on the current stream, None while that stream is being captured into a graph."""
        if self._is_capturing():
            return None
        known_by = self._stream_now(self._device_now())
        if self._stream_known_by != known_by:
            self._stream_known_by, self._stream = known_by, torch.cuda.current_stream()
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        self._record_event(event, self._stream)
        return event
