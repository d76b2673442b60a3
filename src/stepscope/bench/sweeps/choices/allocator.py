"""Which allocator settings? The CUDA caching allocator's, or those of the C library; each in a process of its own."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.bench.sweeps.choices.sweep import Sweep, Tolerance, Variant, rounding
from stepscope.errors import UsageError

_CUDA = {
    "max_split_size_mb:64": "max_split_size_mb:64",
    "max_split_size_mb:512": "max_split_size_mb:512",
    "garbage_collection_threshold:0.8": "garbage_collection_threshold:0.8",
    "expandable_segments": "expandable_segments:True",
}
_SETTINGS = re.compile(r"[a-z][a-z0-9_]*:[^,\s=]+(,[a-z][a-z0-9_]*:[^,\s=]+)*", re.ASCII)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=[^\0]*", re.ASCII)
_KEEP = str(1 << 30)
_HOST = {"MALLOC_MMAP_THRESHOLD_": _KEEP, "MALLOC_TRIM_THRESHOLD_": _KEEP, "MALLOC_TOP_PAD_": str(64 << 20)}


def sweep(spec: Mapping[str, Any], *, settings: Sequence[str] = ()) -> Sweep:
    """Return the sweep, with variants of one's own; where memory comes from changes no result."""
    on_device = [_on_device(name, value) for name, value in _CUDA.items()]
    # Large tensors come from mmap by default, are zeroed by the kernel page by page, and given back at once.
    on_host = Variant("malloc keeps 1 GiB", env=_HOST, only_on="cpu", why_only="a setting of the C library's malloc")
    return Sweep(
        name="allocator",
        question="do allocator settings change time or memory?",
        variants=(Variant("default"), *on_device, on_host, *(_given(text) for text in dict.fromkeys(settings))),
        tolerance=Tolerance(gradient=1e-6, loss=1e-6, why="the same kernels on other addresses"),
        fresh=True,
        reordered=rounding(spec["precision"]),
    )


def _on_device(name: str, value: str) -> Variant:
    return Variant(
        name,
        env={"PYTORCH_CUDA_ALLOC_CONF": value, "PYTORCH_ALLOC_CONF": value},
        only_on="cuda",
        why_only="a setting of the CUDA caching allocator",
    )


def _given(text: str) -> Variant:
    if _VARIABLE.fullmatch(text):
        name, _, value = text.partition("=")
        return Variant(text, env={name: value})
    if _SETTINGS.fullmatch(text) and text not in _CUDA:
        return _on_device(text, text)
    raise UsageError(
        f"--setting {text[:80]!r}: write NAME:VALUE, several with commas between, such as max_split_size_mb:128, or "
        "NAME=VALUE of the environment; one that is measured anyway is not given again"
    )
