"""Of what was there before the window and stayed: how much is weights, optimizer state, buckets of DDP?

The trace does not tell; the job's own account of its model and optimizer does (`run.json`, `rank00000.memory.jsonl`).
Where neither was recorded both are unknown, and all of it is `kept`. State that the optimizer creates within the window
is known by itself; a few bytes that it creates there while the state is older are no state, and never a state of 0.
"""

from collections.abc import Mapping

import numpy as np

from stepscope.dataclass import dataclass
from stepscope.trace.table import Int64s

WEIGHTS, GRADIENTS, OPTIMIZER_STATE, OTHER, KEPT = "weights", "gradients", "optimizer_state", "other", "kept"
COMMUNICATION_BUFFERS = "communication_buffers"
_MIN_STATE = 0.1
"""of the weights (of the gradients where those are unknown), below which what was created is not all of the state"""
_WHY = "created before the window, so it is part of `kept`; record with --memory to have it apart"
_WHY_ON_HOST = "there before the profiler, which counts the host's memory from its own start; record with --memory"


@dataclass(frozen=True)
class FromBefore:
    """What is known of the memory from before the window; None is unknown."""

    weights_bytes: int | None = None
    optimizer_bytes: int | None = None
    communication_bytes: int | None = None
    """DDP's buckets; where nobody counted them they are part of `kept`"""
    seen_whole: bool = True
    """whether what was kept is all that was there; the host's totals leave out what is older than the profiler"""

    @property
    def is_known(self) -> bool:
        """Return whether the totals together with what was counted hold all of weights and state."""
        return self.seen_whole or (self.weights_bytes is not None and self.optimizer_bytes is not None)

    def split(self, curves: Mapping[str, Int64s], kept_bytes: int) -> dict[str, Int64s | None]:
        """Return curves by category with what was kept taken apart; what is not None sums to the same."""
        created = curves[OPTIMIZER_STATE]
        weights = None if self.weights_bytes is None else min(self.weights_bytes, kept_bytes)
        left = kept_bytes - (weights or 0)
        older = self._older_state(curves, kept_bytes, left)
        parts: dict[str, Int64s | None] = {WEIGHTS: _constant(weights, created), **curves}
        if older is None:
            parts |= {OPTIMIZER_STATE: None, OTHER: curves[OTHER] + created}
        else:
            parts[OPTIMIZER_STATE] = created + older
        left -= older or 0
        if self.communication_bytes is not None:
            buckets = min(self.communication_bytes, left)
            parts[COMMUNICATION_BUFFERS] = _constant(buckets, created)
            left -= buckets
        return {**parts, KEPT: _constant(left, created)}

    def _older_state(self, curves: Mapping[str, Int64s], kept_bytes: int, left: int) -> int | None:
        """Return the optimizer state from before the window, None where that is unknown."""
        created, gradients = (int(curves[name].max(initial=0)) for name in (OPTIMIZER_STATE, GRADIENTS))
        if self.optimizer_bytes is not None:
            return min(max(self.optimizer_bytes - created, 0), left)
        is_whole = created > 0 and created >= _MIN_STATE * (self.weights_bytes or gradients)
        return 0 if is_whole or (self.seen_whole and not kept_bytes) else None


def why_unknown(by_category: Mapping[str, int | None] | None, *, seen_whole: bool) -> dict[str, str]:
    """Return the reason for each category that is unknown."""
    why = _WHY if seen_whole else _WHY_ON_HOST
    return {name: why for name, size in (by_category or {}).items() if size is None}


def _constant(size_bytes: int | None, like: Int64s) -> Int64s | None:
    return None if size_bytes is None else np.full(len(like), size_bytes, np.int64)
