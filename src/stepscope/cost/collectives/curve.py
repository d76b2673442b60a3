"""Time against size of one operation among so many ranks, as fitted to measurements."""

import numpy as np

from stepscope.cost.collectives.alpha_beta_pieces import LeftOutErrors, Pieces
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord

_MIN_R2 = 0.8
_MAX_ERROR = 1.0
"""a prediction off by its own size says little"""


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

    @property
    def doubt(self) -> str | None:
        """Return why the curve should not be believed, None where it may be."""
        error = max(self.max_error, self.left_out_error or 0.0)
        if error > _MAX_ERROR:
            why = f"off by up to {100 * error:.0f} %"
        elif self.r2 < _MIN_R2:
            why = f"R2 is {self.r2:.2f}"
        else:
            return None
        return f"poor fit: {self.op} on {self.world_size} ranks, {why}; measure again on a quiet machine"
