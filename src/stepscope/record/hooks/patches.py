"""Our replacements of torch's functions: installed once, hidden from torch.compile, removable.

A replacement must never be traced into a user's graph. Once torch.compile is used (see `compiler`) every replacement
is wrapped by `torch._dynamo.disable`, which runs it as plain Python.
"""

import functools
import importlib
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from stepscope.record.failsafe import leave_out


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

    def undo(self) -> bool:
        """Restore every original; return whether there were any."""
        replaced, self._replaced = self._replaced, []
        for owner, name, original, _ in reversed(replaced):
            setattr(owner, name, original)
        return bool(replaced)


def around(original: Any, before: Callable[..., Any], after: Callable[..., None] | None = None) -> Any:
    """Return `original` with `before(...)` called before it and, where that was true, `after(...)` afterwards."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        counts = before(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        except BaseException as e:
            leave_out(e)
            raise
        finally:
            if counts and after is not None:
                after(*args, **kwargs)

    return wrapped


# Act once a module has been imported, without importing it: `after_import("torch", act)`.
#
# Looking for a module (`importlib.util.find_spec`, as `transformers` and `datasets` do) is not importing it: the act
# waits for the module that is really loaded. Standard library only: it runs at the start of every Python process of a
# recorded job.

_waiting: dict[str, list[Callable[[], None]]] = {}
_asking = threading.local()  # the name for which we call the other finders ourselves


def after_import(name: str, act: Callable[[], None]) -> None:
    """Call `act` when module `name` has been imported; now, where it is already there."""
    if name in sys.modules:
        act()
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(act)


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _waiting or getattr(_asking, "name", None) == name:
            return None
        _asking.name = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            _asking.name = None
        if spec is not None and spec.loader is not None:
            _act_after_loading(spec)
        return spec


def _act_after_loading(spec: importlib.machinery.ModuleSpec) -> None:
    loader = spec.loader
    load = loader.exec_module  # type: ignore[union-attr]

    def load_and_act(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)  # leave the loader as it was
        load(module)
        for act in _waiting.pop(spec.name, []):
            act()

    loader.exec_module = load_and_act  # type: ignore[union-attr, method-assign]
