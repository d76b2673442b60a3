"""Which modules does the training loop itself call? Found by watching Python's calls between the loop's parts.

`sys.setprofile` sees every call on this thread. It is on only between the parts that we already see (not inside a
load, a forward, a backward or an optimizer step) and only during the first steps, so what it slows down is the
loop's own glue. Global module hooks would be simpler, but torch.compile warns of them and traces them in.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

_MODULE_CALL = torch.nn.Module._wrapped_call_impl.__code__
_FIRST_CALLS_AT_ONCE = 20_000
# times as many calls after a search that gave up: a loop that sorts by a key calls as much in every step
_MORE = 4
# in all searches that gave up: about a second
_MAX_CALLS = 4_000_000
_MAX_PERIODS = 2_000


class CallSearch:
    """Off until `resume()`; pauses when another Python profiler is active, or after too many calls."""

    def __init__(self, found: Callable[[torch.nn.Module], None]) -> None:
        self.wanted = True
        self._found = found
        self._see: Any = self._look  # one object, so that we recognise it
        self._at_once, self._calls_left = _FIRST_CALLS_AT_ONCE, 0
        self._calls_to_lose, self._periods_left = _MAX_CALLS, _MAX_PERIODS

    def resume(self) -> None:
        """Watch calls from now on, if still wanted and no other profiler does."""
        if self.wanted and self._periods_left > 0 and self._calls_to_lose > 0 and sys.getprofile() is None:
            self._calls_left = self._at_once
            self._periods_left -= 1
            sys.setprofile(self._see)

    def pause(self) -> None:
        """Stop watching."""
        if sys.getprofile() is self._see:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        self._calls_left -= 1
        if code is _MODULE_CALL:
            self.pause()
            if torch._C._get_tracing_state() is None:  # a model that is being traced must not contain our code
                self._found(frame.f_locals["self"])
        elif self._calls_left <= 0:  # an import, a compilation or a large sort: a longer pause next time
            self.pause()
            self._calls_to_lose -= self._at_once
            self._at_once *= _MORE


def step_aside() -> None:
    """Pause a search on this thread; it resumes after the loop's next part."""
    if isinstance(getattr(sys.getprofile(), "__self__", None), CallSearch):
        sys.setprofile(None)
