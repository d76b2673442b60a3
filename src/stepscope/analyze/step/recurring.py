"""What recurs in some steps of the training and not in the ordinary one, rank by rank and step by step.

A loader that starts its workers again, a checkpoint, an evaluation: each is time of the host in a few steps. In every
step the job waits for the rank that is busy longest with it:

    rank 0   |  checkpoint 90  |            |
    rank 1   |                 |  gc 10     |      2 of 10 steps: (90 + 10) / 10 = 10 per step
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepscope.contract.step_line import DATA_LOADING, LOADER_START
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.stats.middle import median

Floats = npt.NDArray[np.float64]

DATA_CAUSES = (DATA_LOADING, LOADER_START)
OUTSIDE = "outside every region"
"""host time of a step in none of its regions: code of the loop itself"""
COMMUNICATION = "collectives outside every region"
"""the same in steps with more collectives than the others: parameters averaged every few steps, metrics gathered"""


@dataclass(frozen=True, eq=False, repr=False)
class Recurring(ArrayRecord):
    """Time beyond the ordinary step."""

    causes: tuple[str, ...]
    """names of regions, or OUTSIDE"""
    ranks: tuple[int, ...]
    excess_ns: Floats
    """by cause, rank and step; the steps are those that all ranks logged"""
    scale: float = 1.0
    """of that time lengthens the step: below 1 where the device's queue hides some, above where it slows the rest"""
    other_ns: float = 0.0
    """per step: longer steps for which no cause is known"""

    @property
    def total_ns(self) -> float:
        """Return what it adds to the mean step."""
        return self.scale * self._modelled_ns + self.other_ns

    @property
    def _modelled_ns(self) -> float:
        return float(self.excess_ns.sum(axis=0).max(axis=0).mean()) if self.excess_ns.size else 0.0

    def rank_ns(self, cause: str) -> Floats:
        """Return per rank what a cause adds to its mean step."""
        if cause not in self.causes or not self.excess_ns.size:
            return np.zeros(len(self.ranks))
        return np.asarray(self.scale * self.excess_ns[self.causes.index(cause)].mean(axis=1))

    def waiting_ns(self) -> Floats:
        """Return per rank how long it waits, per step, for others in which something recurs."""
        if not self.excess_ns.size:
            return np.zeros(len(self.ranks))
        own = self.excess_ns.sum(axis=0).mean(axis=1)
        return np.asarray(self.scale * np.maximum(self._modelled_ns - own, 0))

    def num_steps_with(self, cause: str) -> tuple[int, int]:
        """Return in how many steps a cause shows on any rank, and of how many."""
        if not self.excess_ns.size:
            return 0, 0
        shown = self.excess_ns[self.causes.index(cause)].max(axis=0) > 0
        return int(shown.sum()), len(shown)

    def without(self, causes: Sequence[str]) -> "Recurring":
        """Return the same with some causes gone from every rank."""
        kept = np.array([c not in causes for c in self.causes], float)
        return replace(self, excess_ns=self.excess_ns * kept[:, None, None])

    def with_ranks_like_others(self, ranks: Sequence[int]) -> "Recurring":
        """Return the same with what is beyond the others' median gone from some ranks."""
        late = np.array([rank in ranks for rank in self.ranks], bool)
        if late.all() or not late.any():
            return self
        usual = np.median(self.excess_ns[:, ~late], axis=1, keepdims=True)
        kept = np.where(late[None, :, None], np.minimum(self.excess_ns, usual), self.excess_ns)
        return replace(self, excess_ns=kept)

    def late_ns(self) -> dict[int, float]:
        """Return per rank what recurs there beyond the others' median, per step."""
        own = self.excess_ns.sum(axis=0).mean(axis=1) if self.excess_ns.size else np.zeros(len(self.ranks))
        if len(own) < 2:
            return {}
        return {
            rank: float(self.scale * max(own[i] - median(np.delete(own, i)), 0.0)) for i, rank in enumerate(self.ranks)
        }


NOTHING_RECURS = Recurring((), (), np.zeros((0, 0, 0)))
