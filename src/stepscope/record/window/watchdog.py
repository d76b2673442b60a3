"""Looks at the budget of a profiled step where no hook is called: operators between two steps, a long evaluation.

Only the thread that started the profiler may stop it. So a thread of ours asks the interpreter, a few times a second,
to call us on the main thread between two bytecodes (`Py_AddPendingCall`): no signal is used, and whoever trains on
another thread has the hooks alone. The call does nothing where it would interrupt the recorder itself, a backward or
a compilation; it comes again.

At most one call is asked for at a time: CPython 3.11 hangs where another one comes while the first calls a function
and a trace or profile function is set. Where a debugger traces the script, nothing is asked: it may ask too.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

_PERIOD_S = 0.1
_OURS = str(Path(__file__).parents[1])
# what lies directly in here calls the script's own code; the rest of the recorder does not
_AROUND_TRAINING = str(Path(__file__).parents[1] / "hooks")
_BACKWARD = str(Path(__file__).parents[1] / "hooks" / "backward.py")


class Watchdog:
    """Calls `look()` on the main thread from `start()` to `stop()`."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._is_asked = False
        self._stopped: threading.Event | None = None
        self._called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)  # kept: C holds no reference

    def start(self) -> None:
        """Begin, where this is the main thread and nobody traces it."""
        if threading.get_ident() != threading.main_thread().ident or sys.gettrace() is not None:
            return
        if self._stopped is None:
            self._stopped = threading.Event()
            threading.Thread(target=self._ask, args=(self._stopped,), name="stepscope watchdog", daemon=True).start()

    def stop(self) -> None:
        """End; a call that was asked for still comes and does nothing."""
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped.set()

    def _ask(self, stopped: threading.Event) -> None:
        while not stopped.wait(_PERIOD_S):
            if not self._is_asked:
                self._is_asked = True
                if ctypes.pythonapi.Py_AddPendingCall(self._called, None) != 0:  # others ask for too many
                    self._is_asked = False

    def _call(self, _: object) -> int:
        if self._stopped is not None and may_interrupt(sys._getframe().f_back):
            self._look()
        self._is_asked = False  # last: no function is called after it
        return 0


def may_interrupt(frame: FrameType | None) -> bool:
    """Return whether a thread that is at `frame` runs the script's own code, and none that must not be interrupted."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False  # a compilation, or a mode of the script's that would see what we call
    innermost = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _BACKWARD:
            return False
        if innermost is None and file.startswith(_OURS):
            innermost = file
        frame = frame.f_back
    return innermost is None or innermost.rsplit("/", 1)[0] == _AROUND_TRAINING
