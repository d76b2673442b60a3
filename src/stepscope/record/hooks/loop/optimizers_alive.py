"""Which optimizers exist in this process and step on their own, so that a first step waits for all of them."""

import weakref
from collections.abc import Hashable
from typing import Any


class OptimizersAlive:
    """Weak references only: an optimizer that the script dropped is not waited for."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inner: weakref.WeakSet[Any] = weakref.WeakSet()

    def is_made(self, optimizer: Any) -> None:
        """Take note of a new optimizer."""
        self._alive.add(optimizer)

    def is_inner(self, optimizer: Any, *, of: Any) -> None:
        """Take note that another optimizer steps this one (ZeroRedundancyOptimizer and the like)."""
        if optimizer is not of:
            self._inner.add(optimizer)

    def main(self) -> Any:
        """Return the optimizer with the most parameters among those that step on their own, None without any."""
        own = [o for o in self._alive if o not in self._inner]
        return max(own, key=lambda o: sum(len(g["params"]) for g in o.param_groups), default=None)

    def keys(self) -> frozenset[Hashable]:
        """Return the keys under which those that step on their own will be seen."""
        return frozenset(id(o) for o in self._alive if o not in self._inner)
