"""Our replacements of torch's functions: put in once, kept out of torch.compile's sight, taken out again.

A replacement must never be traced into a user's graph. Once torch.compile is used (see `compiler`) every replacement
is wrapped by `torch._dynamo.disable`, which runs it as plain Python.
"""

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """The attributes that we replaced, newest last."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._hidden: Callable[[Any], Any] | None = None

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(original)`."""
        self.share(owner, name, make(getattr(owner, name)))

    def share(self, owner: Any, name: str, replacement: Any) -> None:
        """Set `owner.name` to a replacement that other modules, which hold the same function, get as well."""
        original = getattr(owner, name)
        functools.update_wrapper(replacement, original)
        self._replaced.append((owner, name, original, replacement))
        setattr(owner, name, self._hidden(replacement) if self._hidden else replacement)

    def hide_from_compiler(self, disable: Callable[[Any], Any]) -> None:
        """Wrap what was replaced, and what will be, so that torch.compile runs it untraced."""
        self._hidden = disable
        for owner, name, _, replacement in self._replaced:
            if getattr(owner, name) is replacement:
                setattr(owner, name, disable(replacement))

    def undo(self) -> None:
        """Put every original back."""
        while self._replaced:
            owner, name, original, _ = self._replaced.pop()
            setattr(owner, name, original)
