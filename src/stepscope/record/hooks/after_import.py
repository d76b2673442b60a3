"""Act once a module has been imported, without importing it: `after_import("torch", act)`.

Looking for a module (`importlib.util.find_spec`, as `transformers` and `datasets` do) is not importing it: the act
waits for the module that is really loaded. Standard library only: it runs at the start of every Python process of a
recorded job.
"""

import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

_waiting: dict[str, list[Callable[[], None]]] = {}
_asking = threading.local()  # the name for which we ask the other finders ourselves


def after_import(name: str, act: Callable[[], None]) -> None:
    """Call `act` when module `name` has been imported; now, where it is already there."""
    if name in sys.modules:
        act()
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(act)


class _Finder:
    """Lets the other finders find the module, and adds our act to the end of its loading."""

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
