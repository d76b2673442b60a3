"""Which allocator settings? The CUDA caching allocator's, or those of the C library; each in a process of its own."""

from collections.abc import Mapping
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Tolerance, Variant, rounding

_CUDA = {
    "max_split_size_mb:64": "max_split_size_mb:64",
    "max_split_size_mb:512": "max_split_size_mb:512",
    "garbage_collection_threshold:0.8": "garbage_collection_threshold:0.8",
    "expandable_segments": "expandable_segments:True",
}
_KEEP = str(1 << 30)
_HOST = {"MALLOC_MMAP_THRESHOLD_": _KEEP, "MALLOC_TRIM_THRESHOLD_": _KEEP, "MALLOC_TOP_PAD_": str(64 << 20)}


def sweep(spec: Mapping[str, Any]) -> Sweep:
    """Return the sweep; where memory comes from changes no result."""
    on_device = [
        Variant(
            name,
            env={"PYTORCH_CUDA_ALLOC_CONF": value, "PYTORCH_ALLOC_CONF": value},
            only_on="cuda",
            why_only="a setting of the CUDA caching allocator",
        )
        for name, value in _CUDA.items()
    ]
    # Large tensors come from mmap by default, are zeroed by the kernel page by page, and given back at once.
    on_host = Variant("malloc keeps 1 GiB", env=_HOST, only_on="cpu", why_only="a setting of the C library's malloc")
    return Sweep(
        name="allocator",
        question="do allocator settings change time or memory?",
        variants=(Variant("default"), *on_device, on_host),
        tolerance=Tolerance(gradient=1e-6, loss=1e-6, why="the same kernels on other addresses"),
        fresh=True,
        reordered=rounding(spec["precision"]),
    )
