"""The two hooks on a module that the training loop calls. They vanish in compiled code and in copies of the module.

- Traced by torch.compile, `is_compiling()` is true and nothing is left of them in the graph: no break, no guard on us.
- Pickled or copied with their module, they become a call that does nothing, so that a saved model loads anywhere.

Nothing else may be in this file: torch.compile reads it.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling


class RootHook:
    """Calls `act()`, or `act(output)` after a forward."""

    def __init__(self, act: Callable[..., None]) -> None:
        self._act = act

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes anything, returns None

    def __deepcopy__(self, memo: Any) -> Any:
        return contextlib.nullcontext().__exit__


class BeforeForward(RootHook):
    """A forward pre-hook."""

    def __call__(self, module: Any, args: Any) -> None:
        """Act, unless this is being compiled."""
        if not is_compiling():
            self._act()


class AfterForward(RootHook):
    """A forward hook."""

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        """Act, unless this is being compiled."""
        if not is_compiling():
            self._act(output)
