"""How much of the communication hid behind compute, step by step?

    compute   ======   =======          together  under both                 exposed  comm outside compute and copies
    comm         ------------           hidden    comm less exposed          efficiency  together / min(compute, comm)

Efficiency is 1 where the step is as long as the larger of the two and 0 where they follow one another. Times are of
the steps' periods (`step_periods.py`), so work from before the window does not count.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from stepscope.analyze.ranks.window import device_activity
from stepscope.analyze.step.periods import StepPeriods, step_periods
from stepscope.dataclass import dataclass
from stepscope.intervals import Intervals, covered_ns, intersect_each, subtract
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.trace.table import Int64s


@dataclass(frozen=True, eq=False, repr=False)
class Overlap(ArrayRecord):
    """Compute and communication of one rank, one value per period."""

    periods: StepPeriods
    compute: Intervals
    comm: Intervals
    memory: Intervals
    """copies and sets"""

    @cached_property
    def compute_ns(self) -> Int64s:
        """Return the compute of each period."""
        return _per_period(self.compute, self.periods)

    @cached_property
    def comm_ns(self) -> Int64s:
        """Return the communication of each period."""
        return _per_period(self.comm, self.periods)

    @cached_property
    def together_ns(self) -> Int64s:
        """Return the time of each period under both: what compute covers of the few pieces of communication."""
        period, comm = intersect_each(Intervals(self.periods.start_ns, self.periods.end_ns), self.comm)
        out = np.zeros(len(self.periods), np.int64)
        np.add.at(out, period, covered_ns(self.compute, comm.start, comm.end))
        return out

    @cached_property
    def exposed_ns(self) -> Int64s:
        """Return communication hidden neither behind compute nor behind copies."""
        return _per_period(subtract(subtract(self.comm, self.compute), self.memory), self.periods)

    @property
    def hidden_ns(self) -> Int64s:
        """Return communication behind compute or copies."""
        return self.comm_ns - self.exposed_ns

    @property
    def efficiency(self) -> float | None:
        """Return together / min(compute, comm) over the rank's steps, None where either is nothing."""
        return overlap_efficiency([self])


def rank_overlap(rank: Rank) -> Overlap | None:
    """Return how compute and communication of a rank's steps overlap, None for a trace without steps or work."""
    periods = step_periods(rank)
    return Overlap(periods, *device_activity(rank)) if periods is not None else None


def overlap_efficiency(overlaps: Sequence[Overlap | None]) -> float | None:
    """Return the overlap efficiency of all these ranks' steps taken together.

    The smaller of compute and communication is that of each rank: both add up within it.
    """
    known = [o for o in overlaps if o is not None]
    together = sum(int(o.together_ns.sum()) for o in known)
    smaller = sum(min(int(o.compute_ns.sum()), int(o.comm_ns.sum())) for o in known)
    return together / smaller if smaller else None


def _per_period(x: Intervals, periods: StepPeriods) -> Int64s:
    return covered_ns(x, periods.start_ns, periods.end_ns) if len(x) else np.zeros(len(periods), np.int64)
