"""Evaluation between two training steps: how long it took, as a region of the step that begins after it.

What was loaded and computed in it is part of it; what else was marked (a checkpoint, a collection) keeps its name.
"""

from stepscope.contract.step_line import EVALUATION, RegionTimes
from stepscope.record.steps.regions import OF_TRAINING, summed

MAX_STEPS_BETWEEN = 3
"""evaluations that come as often are part of the routine, as a rollout in every step of reinforcement learning is"""
_NO_TIME = {"ns": 0, "n": 0}


class Evaluation:
    """The evaluation since the last step ended, if there was any."""

    def __init__(self) -> None:
        self._regions: RegionTimes = {}
        self._until_ns: int | None = None
        self._last_step: int | None = None  # the last one that had some
        self._between: int | None = None  # steps from the one before to it

    def is_routine(self, step: int) -> bool:
        """Return whether there was one a few steps ago as well."""
        return self._last_step is not None and step - self._last_step <= MAX_STEPS_BETWEEN

    def next_step(self, step: int) -> int:
        """Return the first step from `step` on that begins with some where it comes every few steps, else `step`."""
        if self._last_step is None or self._between is None or self._between > MAX_STEPS_BETWEEN:
            return step
        return step + (self._last_step - step) % self._between

    def add(self, regions: RegionTimes, *, step: int, step_start_ns: int, now_ns: int) -> None:
        """All that passed up to now, since the step began or since the last call, was evaluation."""
        since_ns = step_start_ns if self._until_ns is None else self._until_ns
        kept = {name: time for name, time in regions.items() if name not in OF_TRAINING}
        own_ns = max(0, now_ns - since_ns - sum(time["ns"] for time in kept.values()))
        count = 1 if self._until_ns is None else 0
        self._regions = summed(self._regions, {**kept, EVALUATION: {"ns": own_ns, "n": count}})
        self._until_ns = now_ns
        if self._last_step is not None and self._last_step != step:
            self._between = step - self._last_step
        self._last_step = step

    def leave_out(self, paused_ns: int) -> None:
        """The recorder took this long right after; it is in no step."""
        if self._until_ns is not None:
            self._until_ns += paused_ns

    def end_step(self, regions: RegionTimes) -> tuple[RegionTimes, int]:
        """Return the regions of the step with its evaluation, and how long that was; the next step has none yet."""
        if not self._regions:
            return regions, 0
        found, self._regions, self._until_ns = self._regions, {}, None
        return summed(found, regions), found.get(EVALUATION, _NO_TIME)["ns"]
