"""Running a model's blocks with their activations kept, recomputed, or some of each."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from stepscope.errors import UsageError

# none: all kept; selective: only matrix products and attention kept; half: every other block; full: every block
_POLICIES = ("none", "selective", "half", "full")


def through(blocks: Iterable[nn.Module], x: torch.Tensor, *args: Any, policy: str) -> torch.Tensor:
    """Return x after all blocks, each called with (x, *args)."""
    for index, block in enumerate(blocks):
        if policy == "full" or (policy == "half" and index % 2 == 0):
            x = checkpoint(block, x, *args, use_reentrant=False)
        elif policy == "selective":
            contexts = partial(create_selective_checkpoint_contexts, _keep_products)
            x = checkpoint(block, x, *args, use_reentrant=False, context_fn=contexts)
        else:
            x = block(x, *args)
    return x


def checked_policy(policy: str) -> str:
    """Return the policy's name if there is one of that name."""
    if policy not in _POLICIES:
        raise UsageError(f"checkpointing has to be one of {', '.join(_POLICIES)}, not {policy!r}")
    return policy


def _keep_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = getattr(operator, "__name__", str(operator))
    product = name.split(".")[0] in ("mm", "bmm", "addmm", "baddbmm") or "dot_product" in name
    return CheckpointPolicy.MUST_SAVE if product else CheckpointPolicy.PREFER_RECOMPUTE
