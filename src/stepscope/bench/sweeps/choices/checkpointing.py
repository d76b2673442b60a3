"""Which activations to recompute? None, all but products and attention, every other block, all blocks."""

from collections.abc import Mapping
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Variant, rounding

_POLICIES = ("none", "selective", "half", "full")


def sweep(spec: Mapping[str, Any]) -> Sweep:
    """Return the sweep; recomputing repeats the same arithmetic."""
    return Sweep(
        name="checkpointing",
        question="what does recomputing activations save, and what does it cost?",
        variants=tuple(Variant(policy, options={"checkpointing": policy}) for policy in _POLICIES),
        tolerance=rounding(spec["precision"]),
        goal="memory",
    )
