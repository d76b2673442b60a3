"""How many Python calls a step makes, counted before one is watched with frames: each costs the profiler 20 us to stop.

Counting costs under a microsecond per call and ends by itself at the limit. Whoever has a profile function of their own
(`cProfile`, a debugger) keeps it: nothing is counted then, and no step is watched with frames, which would replace it.
"""

import sys
from typing import Any

_CALLS = frozenset({"call", "c_call"})


class CallCount:
    """Counts on the thread that begins it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._is_over = False
        self._callback = self._note  # one object, to be recognised
        self.why_not: str | None = None  # a step should not be watched with frames

    def begin(self) -> None:
        """Count from now on, unless somebody else's profile function is there."""
        self.why_not = why_not_traced()
        if self.why_not is None:
            sys.setprofile(self._callback)

    def end(self) -> None:
        """Stop counting."""
        self._is_over = True  # on another thread the next call there takes it off
        if sys.getprofile() is self._callback:
            sys.setprofile(None)

    def _note(self, _frame: Any, event: str, _arg: Any) -> None:
        if event in _CALLS:
            self._count += 1
        if self._is_over:
            sys.setprofile(None)
        elif self._count > self._limit:
            self.why_not = (
                f"a step makes over {self._limit} Python calls; watched with frames, all of them would have to be kept"
            )
            self.end()


def why_not_traced() -> str | None:
    """Return why this thread's calls are not ours to watch, None where they are."""
    if sys.getprofile() is not None:
        return "a profile function (sys.setprofile) is set on the training thread, and stays there"
    return None
