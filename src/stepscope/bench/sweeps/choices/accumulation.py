"""One large batch, or several small ones whose gradients add up? The same samples per step in all variants."""

from collections.abc import Mapping
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Variant, rounding
from stepscope.errors import UsageError


def sweep(spec: Mapping[str, Any], *, most: int = 8) -> Sweep:
    """Return the sweep over 1, 2, 4 ... micro-batches of the given batch size."""
    batch = int(spec["batch_size"])
    parts = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= most and batch % k == 0]
    if len(parts) < 2:
        raise UsageError(f"--batch-size {batch} cannot be halved; give an even one")
    return Sweep(
        name="accumulation",
        question="what does accumulating gradients over micro-batches save, and what does it cost?",
        variants=tuple(
            Variant(f"{k} x {batch // k}", spec={"batch_size": batch // k}, step={"accumulation": k}) for k in parts
        ),
        tolerance=rounding(spec["precision"]),
        goal="memory",
    )
