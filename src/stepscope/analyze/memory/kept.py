"""Of what was there before the window and stayed: how much is weights, how much optimizer state?

The trace does not tell; the job's own account of its model and optimizer does (`run.json`, `rank00000.memory.jsonl`).
Where neither was recorded both are unknown, and all of it is `kept`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

WEIGHTS, OPTIMIZER_STATE, KEPT = "weights", "optimizer_state", "kept"
_WHY = "created before the window, so it is part of `kept`; record with --memory to have it apart"


@dataclass(frozen=True)
class FromBefore:
    """What is known of the memory from before the window; None is unknown."""

    weights_bytes: int | None = None
    optimizer_bytes: int | None = None

    def split(self, sums: Mapping[str, int]) -> dict[str, int | None]:
        """Return sums by category with `kept` taken apart; what is not None sums to the same."""
        if KEPT not in sums:
            return dict(sums)
        left = sums[KEPT]
        weights = None if self.weights_bytes is None else min(self.weights_bytes, left)
        left -= weights or 0
        state: int | None = sums[OPTIMIZER_STATE]
        if not state and sums[KEPT]:
            state = None if self.optimizer_bytes is None else min(self.optimizer_bytes, left)
            left -= state or 0
        return {WEIGHTS: weights, **sums, OPTIMIZER_STATE: state, KEPT: left}


def why_unknown(by_category: Mapping[str, int | None] | None) -> dict[str, str]:
    """Return the reason for each category that is unknown."""
    return {name: _WHY for name, size in (by_category or {}).items() if size is None}
