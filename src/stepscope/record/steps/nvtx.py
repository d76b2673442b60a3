"""NVTX's stack of ranges as torch has it, without the Python functions that torch puts around it.

Eight ranges are pushed and popped in a step that is only timed: each such function is a call of Python in a step where
nothing of it is in the processor's caches.
"""

from types import SimpleNamespace
from typing import Any

import torch.cuda.nvtx


def nvtx_functions() -> Any:
    """Return an object with `range_push(name)` and `range_pop()`."""
    inner = getattr(torch.cuda.nvtx, "_nvtx", None)
    push, pop = getattr(inner, "rangePushA", None), getattr(inner, "rangePop", None)
    if push is None or pop is None:  # a torch that keeps them elsewhere
        return torch.cuda.nvtx
    return SimpleNamespace(range_push=push, range_pop=pop)
