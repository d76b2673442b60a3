"""Keep torch.compile from tracing our replacements, from its first use on.

`torch._dynamo` is loaded by every optimizer, but few jobs compile. What hides a function from it (`disable`) costs a
microsecond or two at every call, so nothing is hidden before somebody compiles: `torch.compile`, `Module.compile` and
decorators all begin with `torch._dynamo.optimize`.
"""

import sys
from collections.abc import Callable
from typing import Any

MODULE = "torch._dynamo"
_WAYS_IN = ("optimize", "optimize_assert")


class CompilerWatch:
    """Calls `hide(disable)` once, before the first compilation."""

    def __init__(self, hide: Callable[[Callable[[Any], Any]], None]) -> None:
        self._hide = hide
        self._originals: dict[str, Any] = {}

    def install(self) -> None:
        """Wait at the ways in; `torch._dynamo` has been imported."""
        dynamo = sys.modules[MODULE]
        for name in _WAYS_IN:
            original = getattr(dynamo, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(dynamo, name, self._announcing(original))

    def remove(self) -> None:
        """Put the ways in back."""
        for name, original in self._originals.items():
            setattr(sys.modules[MODULE], name, original)
        self._originals = {}

    def _announcing(self, original: Any) -> Any:
        def announced(*args: Any, **kwargs: Any) -> Any:
            if self._originals:
                self.remove()
                self._hide(sys.modules[MODULE].disable)
            return original(*args, **kwargs)

        return announced
