"""What the steps before a window are like: the measure for what is too long or too much inside it."""

from stepscope.record.steps.statistics import FIRST_STEPS
from stepscope.record.window.budget import TypicalStep, anonymous_bytes


class StepsBeforeWindow:
    """The longest of them, and the memory after the first ones; the first, which are slow, do not count."""

    def __init__(self) -> None:
        self._longest_ns: int | None = None
        self._first_bytes: int | None = None

    def note(self, dur_ns: int) -> None:
        """A step that stands for the others took this long."""
        self._longest_ns = max(self._longest_ns or 0, dur_ns)

    def note_memory(self) -> None:
        """The first steps are over: what memory grows by from here on is the job's own."""
        self._first_bytes = anonymous_bytes()

    def typical(self, step: int) -> TypicalStep:
        """Return what a step was like, up to this one."""
        now_bytes, steps = anonymous_bytes(), step - FIRST_STEPS
        grew = now_bytes - self._first_bytes if now_bytes is not None and self._first_bytes is not None else 0
        per_step = max(0, grew) // steps if steps > 0 else 0
        return TypicalStep(None, self._longest_ns / 1e9 if self._longest_ns else None, per_step)
