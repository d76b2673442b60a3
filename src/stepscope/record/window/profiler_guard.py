"""At most one profiler in the process, and the user's goes first.

A second profiler cancels the first, and stopping or exporting the cancelled one crashes the process. So the three
doors through which every torch profiler goes (`_prepare_profiler`, `_enable_profiler`, `_disable_profiler` in
`torch.autograd.profiler`) are watched: ours stays shut while another one is at work, and when another one comes
while ours runs, ours is stopped first and its results are dropped.
"""

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.autograd.profiler as doors

_DOORS = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")


class ProfilerGuard:
    """Knows whether a profiler that is not ours is prepared or running, and calls `give_way` before one starts."""

    def __init__(self) -> None:
        self.foreign = False
        self.left_behind = False  # one of ours runs on a thread that alone can stop it
        self.give_way: Callable[[], None] | None = None
        self._ours = threading.local()
        self._originals: dict[str, Any] = {}

    def install(self) -> None:
        """Watch the doors from now on."""
        for name in _DOORS:
            self._originals[name] = getattr(doors, name)
            setattr(doors, name, self._watched(name, self._originals[name]))

    def remove(self) -> None:
        """Leave the doors as they were, unless somebody wrapped them after us."""
        for name, original in self._originals.items():
            if getattr(getattr(doors, name), "stepscope_guard", None) is self:
                setattr(doors, name, original)
        self._originals = {}

    def is_free(self) -> bool:
        """Return whether no profiler of somebody else is prepared or running, nor one of ours on another thread."""
        return not self.foreign and not self.left_behind and not torch.autograd._profiler_enabled()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Mark calls made inside as our own."""
        _let_children_exit()
        self._ours.inside = True
        try:
            yield
        finally:
            self._ours.inside = False

    def _watched(self, name: str, original: Any) -> Any:
        def door(*args: Any, **kwargs: Any) -> Any:
            if not getattr(self._ours, "inside", False):
                self._somebody_else(starts=name != "_disable_profiler")
            return original(*args, **kwargs)

        door.stepscope_guard = self  # type: ignore[attr-defined]
        return door

    def _somebody_else(self, *, starts: bool) -> None:
        self.foreign = starts
        if starts and self.give_way is not None:
            give_way, self.give_way = self.give_way, None
            give_way()


@functools.cache
def _let_children_exit() -> None:
    """Let forked children leave without C++ destructors: Kineto's waits for ever for a thread of the parent."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):  # no glibc
        return
    on_exit, leave, at_exit, flush = libc.on_exit, libc._exit, libc["__cxa_atexit"], libc.fflush

    def in_child() -> None:
        on_exit(leave, None)  # called with the exit code, after Python's own end
        at_exit(flush, None, None)  # the last one registered is the first one called

    os.register_at_fork(after_in_child=in_child)
