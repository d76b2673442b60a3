"""NVTX's stack of ranges as torch has it, without the Python functions that torch puts around it.

Eight ranges are pushed and popped in a step that is only timed: each such function is a call of Python in a step where
nothing of it is in the processor's caches. Where no tool listens they would be for nobody: NVTX says so in what it
returns, and asks for a tool only once in the life of a process.
"""

from types import SimpleNamespace
from typing import Any

import torch.cuda.nvtx


def nvtx_functions() -> Any:
    """Return an object with `range_push(name)` and `range_pop()`, None where no tool listens to ranges."""
    inner = getattr(torch.cuda.nvtx, "_nvtx", None)
    push, pop = getattr(inner, "rangePushA", None), getattr(inner, "rangePop", None)
    found: Any = SimpleNamespace(range_push=push, range_pop=pop)
    if push is None or pop is None:  # a torch that keeps them elsewhere
        found = torch.cuda.nvtx
    depth = found.range_push("stepscope")
    found.range_pop()
    return None if isinstance(depth, int) and depth < 0 else found
