"""What of a run can be compared: its steps in order, and per step its budget, idle causes, kernels and operators.

A step of the job is one sample, not one per rank: ranks that wait for each other take equally long. The step times
are medians over ranks, everything else means over ranks. Steps of the warm-up are left out.
"""

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.units import NS_PER_MS

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class StepTimes(ArrayRecord):
    """Step times after the warm-up, in order."""

    dur_ns: Int64s
    warm_up_steps: int
    source: str
    """`step logs`, `recorded steps` or `device periods`"""

    @property
    def ms(self) -> Floats:
        """Return the times in the unit of the report, in which differences are given."""
        return np.asarray(self.dur_ns / NS_PER_MS)


@dataclass(frozen=True, eq=False, repr=False)
class PerStepTimes(ArrayRecord):
    """Times by name, mean over ranks: one row per step, one column per name."""

    names: tuple[str, ...]
    ms: Floats
    count: Floats
    """how often each ran; 1 where nothing is counted"""


@dataclass(frozen=True, eq=False, repr=False)
class StepSamples(ArrayRecord):
    """The steps of one run for a comparison."""

    name: str
    logged: StepTimes | None
    """steps that ran without the profiler, None where no step log has any"""
    recorded: StepTimes | None
    """the host's spans of the profiled steps"""
    periods: StepTimes | None
    """profiled steps, from the device's end of one to that of the next"""
    unprofiled_ns: int | None
    """the step without the profiler, as the report gives it"""
    profiled_ns: int | None


@dataclass(frozen=True, eq=False, repr=False)
class RunSamples(StepSamples):
    """One run for a comparison."""

    part_ms: Floats | None
    """the budget as the report gives it, by `PARTS`: sums to the unprofiled step where known"""
    profiled_part_ms: Floats | None
    """the same with the profiler's cost in it: sums to the profiled step"""
    parts: PerStepTimes
    causes: PerStepTimes
    kernels: PerStepTimes
    operators: PerStepTimes
    """time on the device where there is one, else on the host, without what other operators took"""
