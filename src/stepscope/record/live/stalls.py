"""Whether a rank has taken no step for longer than its steps take, and when to ask where it is.

A helper hears of steps a few times a second, or once per step where they are longer. A gap of more than twice the
longest of the last ones, and of a second at least, is worth a question: the answer is there within three step times. It
is asked again after twice the time, and so on. An evaluation or a checkpoint is such a gap too: its stack says which.
"""

from collections import deque
from typing import Any

MIN_STALL_S = 1.0
TIMES_LONGEST = 2.0
ANSWER_S = 1.0
"""for which an answer is waited for: a thread that holds the interpreter's lock lets nobody answer"""
_KEPT = 32
_MIN_GAPS = 3


class StallWatch:
    """Hears when steps arrive, by a clock that never jumps."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.asked_s: float | None = None  # when it was asked last where the rank is
        self._last_s: float | None = None
        self._gaps: deque[float] = deque(maxlen=_KEPT)
        self._ask_at_s: float | None = None

    def step_arrived(self, step: int, dur_s: float, now_s: float) -> bool:
        """Take in a step; return whether a stall has ended with it."""
        was_stalled = self.asked_s is not None
        gap_s = now_s - self._last_s if self._last_s is not None else dur_s
        if step > 0 and not was_stalled:  # the first one has everything to load
            self._gaps.append(max(gap_s, dur_s))
        self.step, self._last_s = step, now_s
        self.asked_s = self._ask_at_s = None
        return was_stalled

    @property
    def usual_s(self) -> float:
        """The longest of the last steps."""
        return max(self._gaps, default=0.0)

    def for_s(self, now_s: float) -> float:
        """Return how long ago the last step arrived."""
        return now_s - self._last_s if self._last_s is not None else 0.0

    def asks(self, now_s: float) -> bool:
        """Return whether to ask now where the rank is."""
        if self._last_s is None or len(self._gaps) < _MIN_GAPS:
            return False
        if self._ask_at_s is None:
            self._ask_at_s = self._last_s + max(TIMES_LONGEST * self.usual_s, MIN_STALL_S)
        if now_s < self._ask_at_s:
            return False
        self.asked_s = now_s
        self._ask_at_s = now_s + self.for_s(now_s)
        return True


def stall_status(watch: StallWatch, answer: dict[str, Any], now_s: float) -> dict[str, Any]:
    """Return what a rank's file says of its stall."""
    return {"step": watch.step, "for_s": round(watch.for_s(now_s), 3), "usual_s": round(watch.usual_s, 4), **answer}
