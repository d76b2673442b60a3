"""Which attention kernel? Written out, SDPA's own choice, and each of its implementations."""

from collections.abc import Mapping
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Variant, rounding

_KERNELS = ("unfused", "math", "efficient", "flash", "cudnn", "sdpa")
_ONLY_CUDA = {
    "efficient": "the memory-efficient kernel is written for CUDA",
    "cudnn": "cuDNN is a library for CUDA",
}


def sweep(spec: Mapping[str, Any]) -> Sweep:
    """Return the sweep; the first computes scores, softmax and values one after another."""
    return Sweep(
        name="attention",
        question="which attention kernel is fastest?",
        variants=tuple(
            Variant(
                kernel,
                options={"attention": kernel},
                only_on="cuda" if kernel in _ONLY_CUDA else None,
                why_only=_ONLY_CUDA.get(kernel, ""),
            )
            for kernel in _KERNELS
        ),
        tolerance=rounding(spec["precision"]),
    )
