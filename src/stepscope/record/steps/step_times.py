"""When did the current step begin, which regions has it, and how much of it is evaluation or a pause of ours?"""

from time import perf_counter_ns

from stepscope.contract.step_line import RegionTimes
from stepscope.record.steps.evaluation import Evaluation
from stepscope.record.steps.regions import Regions, summed


class StepTimes:
    """The step that runs, by `perf_counter_ns`."""

    def __init__(self, regions: Regions) -> None:
        self.start_ns = perf_counter_ns()
        self.last_ns = 0  # how long the last step took, without its evaluation
        self._regions = regions
        self._held: tuple[int, RegionTimes] | None = None  # a moment at which the step may have ended
        self._evaluation = Evaluation()

    def begin(self) -> None:
        """Let the step begin now: what passed since the last one ended is in no step."""
        self.start_ns = perf_counter_ns()
        if self._regions.interruptions:
            self._regions.interruptions.taken(before_ns=self.start_ns)

    def may_end(self, at_ns: int) -> int:
        """Return the moment at which the step may turn out to have ended: `end(at_ns=...)`."""
        self._held = (at_ns, self._regions_until(at_ns))
        return at_ns

    def end(self, now_ns: int, at_ns: int | None) -> tuple[int, RegionTimes]:
        """Return the step's time and its regions, at a moment before now where that is known only later."""
        end_ns = now_ns if at_ns is None else at_ns
        held = self._held
        regions = held[1] if held is not None and held[0] == at_ns else self._regions_until(now_ns)
        self._held = None
        regions, evaluated_ns = self._evaluation.end_step(regions)
        dur_ns = end_ns - self.start_ns
        self.last_ns = dur_ns - evaluated_ns
        return dur_ns, regions

    def is_routine(self, step: int) -> bool:
        """Return whether evaluation in this step is part of what every few steps do."""
        return self._evaluation.is_routine(step)

    def begins_round(self, step: int) -> int:
        """Return the first step from `step` on that begins with evaluation where that is routine, else `step`."""
        return self._evaluation.next_step(step)

    def end_evaluation(self, step: int) -> None:
        """Take what passed since the step began for evaluation."""
        now_ns = perf_counter_ns()
        self._evaluation.add(self._regions_until(now_ns), step=step, step_start_ns=self.start_ns, now_ns=now_ns)

    def leave_out(self, paused_ns: int, *, of_evaluation: bool) -> None:
        """Take out what the recorder itself took in this step."""
        self.start_ns += paused_ns
        self._regions.leave_out(paused_ns)
        if of_evaluation:
            self._evaluation.leave_out(paused_ns)

    def _regions_until(self, now_ns: int) -> RegionTimes:
        held, self._held = self._held, None
        times = self._regions.split_step(now_ns)
        return times if held is None else summed(held[1], times)
