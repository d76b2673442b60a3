"""One large batch, or several small ones whose gradients add up?

The same samples per step, in 1, 2, 4 ... micro-batches. On several ranks also what is saved in communication: gradients
exchanged in every micro-batch instead of the last one only, and steps of more samples, in which they travel once.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Variant, rounding
from stepscope.errors import UsageError

# micro-batches of the whole batch size: as many times the samples in a step
_MORE = (2, 4)


def sweep(spec: Mapping[str, Any], *, most: int = 8, world_size: int = 1) -> Sweep:
    """Return the sweep over 1, 2, 4 ... micro-batches of the given batch size."""
    batch = int(spec["batch_size"])
    parts = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= most and batch % k == 0]
    if len(parts) < 2:
        raise UsageError(f"--batch-size {batch} cannot be halved; give an even one")
    return Sweep(
        name="accumulation",
        question="what does accumulating gradients over micro-batches save, and what does it cost?",
        variants=(
            *(_variant(k, batch // k) for k in parts),
            *(_on_ranks(parts[-1], batch) if world_size > 1 else ()),
        ),
        tolerance=rounding(spec["precision"]),
        goal="memory",
    )


def _variant(parts: int, batch: int) -> Variant:
    return Variant(f"{parts} x {batch}", spec={"batch_size": batch}, step={"accumulation": parts})


def _on_ranks(most: int, batch: int) -> list[Variant]:
    once = _variant(most, batch // most)
    each = replace(once, name=f"{once.name} each", step={**once.step, "exchange_each": True}, once=once.name)
    more = [Variant(f"{k} x {batch}", step={"accumulation": k}, other_samples=True) for k in _MORE]
    return [each, *more]
