"""How long the device took for each step, by events on the training stream and without any synchronisation.

At the end of a step an event is recorded on the current stream; a step's device time is the distance between two
such events. An event is asked whether it has passed and is never waited for, so a step's time is known a few steps
later. All calls stay on the training thread: querying an event from another one would break a CUDA graph capture.
"""

from collections import deque
from typing import Any

import torch

_MAX_PENDING = 64


def device_timer() -> "DeviceTimer | None":
    """Return a timer where this process uses CUDA, else None."""
    return DeviceTimer() if torch.cuda.is_available() and torch.cuda.is_initialized() else None


class DeviceTimer:
    """Events of the newest steps, and those kept for use again."""

    def __init__(self) -> None:
        self._free: list[Any] = []
        self._last: Any = None
        self._stream: tuple[Any, Any] = (None, None)  # what torch knows the current stream by, and the stream
        self._pending: deque[tuple[Any, Any, Any]] = deque()

    def step_end(self, ticket: Any) -> None:
        """Mark the end of a step; `ticket` comes back with its time from `finished()`."""
        event = self._record()
        self._pending.append((ticket, self._last, event))
        self._last = event

    def restart(self) -> None:
        """Let the next step begin here, after a pause that is no part of it."""
        self._last = self._record()

    def finished(self, *, all_of_them: bool = False) -> list[tuple[Any, int | None]]:
        """Return `(ticket, device time in ns)` of the steps whose end has passed, oldest first.

        The time is None for a step without a beginning, and for one given up because too many wait.
        """
        out: list[tuple[Any, int | None]] = []
        while self._pending:
            ticket, begin, end = self._pending[0]
            passed = end is None or end.query()
            if not (passed or all_of_them or len(self._pending) > _MAX_PENDING):
                break
            self._pending.popleft()
            known = passed and begin is not None and end is not None
            out.append((ticket, round(begin.elapsed_time(end) * 1e6) if known else None))
            if known:
                self._free.append(begin)
        return out

    def _record(self) -> Any:
        """Return an event on the current stream, None while that stream is being captured into a graph."""
        if torch.cuda.is_current_stream_capturing():
            return None
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(self._current_stream())
        return event

    def _current_stream(self) -> Any:
        """Return the current stream; kept, because making the object takes longer than recording the event."""
        known_by = torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())
        if self._stream[0] != known_by:
            self._stream = known_by, torch.cuda.current_stream()
        return self._stream[1]
