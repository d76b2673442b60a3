"""Causal attention by a kernel of choice."""

import torch
import torch.nn.functional as F

from stepscope.errors import UsageError

# sdpa: PyTorch chooses; unfused: three operators written out; the others: one implementation of SDPA
_KERNELS = ("sdpa", "unfused", "math", "flash", "efficient", "cudnn")


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, kernel: str = "sdpa") -> torch.Tensor:
    """Return causal attention of (batch, heads, sequence, width) tensors; key heads may be shared by query heads."""
    shared = q.shape[1] != k.shape[1]
    if kernel == "sdpa":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
    if shared:  # not every kernel shares heads by itself
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    if kernel == "unfused":
        return _written_out(q, k, v)
    from torch.nn.attention import sdpa_kernel

    with sdpa_kernel(_backend(kernel)):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def checked_kernel(kernel: str) -> str:
    """Return the kernel's name if there is one of that name."""
    if kernel not in _KERNELS:
        raise UsageError(f"attention has to be one of {', '.join(_KERNELS)}, not {kernel!r}")
    return kernel


def _written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    length = q.shape[-2]
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ v


def _backend(kernel: str) -> object:
    from torch.nn.attention import SDPBackend

    return {
        "math": SDPBackend.MATH,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
    }[kernel]
