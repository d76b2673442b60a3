"""How should data be loaded? Worker processes, pinned memory, batches fetched ahead."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Tolerance, Variant, rounding

_PINNING = "pinned memory speeds up copies to a CUDA device"


def sweep(spec: Mapping[str, Any], *, workers: Sequence[int] = (0, 1, 2, 4)) -> Sweep:
    """Return the sweep; the first loads in the training process itself."""
    most = max(workers)
    variants = [_variant(f"workers={count}", num_workers=count) for count in sorted({0, *workers})]
    variants.append(_variant("workers=0 pinned", num_workers=0, pin_memory=True))
    if most:
        variants.append(_variant(f"workers={most} pinned", num_workers=most, pin_memory=True))
        variants.append(_variant(f"workers={most} prefetch=8", num_workers=most, prefetch_factor=8))
    return Sweep(
        name="dataloader",
        question="does the step wait for data, and which loader ends that?",
        variants=tuple(variants),
        tolerance=Tolerance(gradient=0.0, loss=0.0, why="the same samples in the same order"),
        reordered=rounding(spec["precision"]),
    )


def _variant(name: str, **loader: Any) -> Variant:
    pinned = loader.get("pin_memory", False)
    if loader["num_workers"]:
        loader["persistent_workers"] = True
    return Variant(name, options={"loader": loader}, only_on="cuda" if pinned else None, why_only=_PINNING)
