"""Time against size of one operation among so many ranks, as fitted to measurements."""

from dataclasses import dataclass

import numpy as np

from stepscope.cost.collectives.alpha_beta_pieces import LeftOutErrors, Pieces
from stepscope.records import ArrayRecord


@dataclass(frozen=True, eq=False, repr=False)
class Curve(ArrayRecord):
    """Time against size of one operation among so many ranks."""

    op: str
    world_size: int
    pieces: Pieces
    left_out: LeftOutErrors
    r2: float
    """of log time"""
    mean_error: float
    max_error: float
    """relative, on the points it was fitted to; `left_out` has the honest ones"""
    points: tuple[tuple[int, float], ...]
    """`(bytes, ns)` as measured"""

    @property
    def left_out_error(self) -> float | None:
        """Return the mean relative error on sizes that the fit did not see, None with a single size."""
        ratio = np.exp(-self.left_out.log_ratio)
        return float(np.abs(ratio - 1).mean()) if np.isfinite(ratio).all() else None
