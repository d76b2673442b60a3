"""The call of a module that the training loop makes, with our begin and end around it. The module keeps no trace of it.

`nn.Module.__call__` goes by way of `_compiled_call_impl` where a module has one, and pickling and copying leave that
attribute out. So nothing of ours is in a checkpoint or a copy, no hook's number is used up, and a module that needs no
timing is as fast as ever once the attribute is gone. Classes with a `__getstate__` of their own are taken care of by
`leave_out_of_state`; where an object of this kind is copied all the same, it becomes None.

Traced by torch.compile, `is_compiling()` is true and nothing is left of it in the graph: no break.

Nothing else may be in this file: torch.compile reads it.
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch.compiler import is_compiling

from stepscope.record.own_frame import leave_out

ATTRIBUTE = "_compiled_call_impl"


class TimedCall:
    """Calls the module; `begins()` says whether `ends(output)` is to be called after it."""

    def __init__(
        self, module: Any, compiled_call: Any, begins: Callable[[], bool], ends: Callable[[Any], None]
    ) -> None:
        self._module = weakref.ref(module)  # weak: a script that drops its model gets its memory back at once
        self.compiled_call = compiled_call  # of a module that was compiled in place, else None
        self._begins = begins
        self._ends = ends

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        call = self.compiled_call
        if call is None:
            call = self._module()._call_impl  # type: ignore[union-attr]
        if is_compiling():
            return call(*args, **kwargs)
        matters, output = self._begins(), None
        try:
            output = call(*args, **kwargs)
        except BaseException as e:
            leave_out(e)
            raise
        finally:
            if matters:
                self._ends(output)
        return output

    def __reduce__(self) -> Any:
        return type(None), ()

    def __deepcopy__(self, memo: Any) -> Any:
        return None


def leave_out_of_state(kind: Any) -> bool:
    """Make pickles and copies free of us whose class has a `__getstate__` of its own; return whether that is new."""
    original = kind.__getstate__
    if hasattr(original, "stepscope_original"):
        return False

    def __getstate__(self: Any) -> Any:
        state = original(self)
        if isinstance(state, dict) and isinstance(state.get(ATTRIBUTE), TimedCall):
            state = {name: value for name, value in state.items() if name != ATTRIBUTE}
        return state

    __getstate__.stepscope_original = original  # type: ignore[attr-defined]
    kind.__getstate__ = __getstate__
    return True


def restore_state(kind: Any) -> None:
    """Undo `leave_out_of_state`."""
    kind.__getstate__ = kind.__getstate__.stepscope_original
