"""What stops the training thread now and then wherever it is: full garbage collections, and torch.compile compiling.

Young generations are collected many times a second in microseconds; only a full collection has a region. Compilations
of a backward may run on one of autograd's threads while the training thread waits for it.
"""

import gc
import sys
from threading import get_ident
from typing import Any

from stepscope.contract import step_line as regions
from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.loop.parts import BACKWARD

COMPILER = "torch._dynamo.callback"
_FULL = 2


class Recurring:
    """The callbacks that note interruptions, and do nothing else: they come inside our own code too."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._handler: Any = None

    def watch_garbage(self) -> None:
        """Note full collections from now on."""
        gc.callbacks.append(self._collects)

    def watch_compiler(self) -> None:
        """Note compilations from now on; the compiler's callbacks have been imported."""
        self._handler = sys.modules[COMPILER].callback_handler
        self._handler.register_start_callback(self._compilation_begins)
        self._handler.register_end_callback(self._compilation_ends)

    def remove(self) -> None:
        """Note nothing more."""
        if self._collects in gc.callbacks:
            gc.callbacks.remove(self._collects)
        if self._handler is not None and self._compilation_begins in self._handler.start_callbacks:
            self._handler.remove_start_callback(self._compilation_begins)
            self._handler.remove_end_callback(self._compilation_ends)
        self._handler = None

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == _FULL and self._loop.is_training_thread(get_ident()):
            if phase == "start":
                self._loop.interruptions.begins(regions.GARBAGE_COLLECTION)
            else:
                self._loop.interruptions.ends(regions.GARBAGE_COLLECTION)

    def _compilation_begins(self, *_: Any) -> None:
        if self._loop.is_training_thread(get_ident()) or self._loop.is_inside(BACKWARD):
            self._loop.interruptions.begins(regions.COMPILATION)

    def _compilation_ends(self, *_: Any) -> None:
        self._loop.interruptions.ends(regions.COMPILATION)
