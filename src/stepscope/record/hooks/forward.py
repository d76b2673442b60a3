"""Forward passes: the modules that the loop calls are found in the first steps and get a hook each.

A model called through DDP, FSDP, `torch.compile(model)` or a framework is found as what is called outermost. One
compiled in place (`model.compile()`) is timed around its compiled call. A module without parameters counts if its
output needs a gradient (a loss), else not (a metric, a transform).
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.compiler import is_compiling

from stepscope.record.failsafe import explain, leave_out, say
from stepscope.record.hooks.patches import Patches
from stepscope.record.loop.call_search import CallSearch
from stepscope.record.loop.loop import Loop
from stepscope.record.loop.routine import FORWARD_ENDS, OPTIMIZER

# The call of a module that the training loop makes, with our begin and end around it. The module keeps no trace of it.
#
# `nn.Module.__call__` calls `_compiled_call_impl` where a module has one, and pickling and copying leave that
# attribute out. So nothing of ours is in a checkpoint or a copy, no hook's number is used up, and a module that needs
# no timing is at full speed once the attribute is removed. `leave_out_of_state` handles classes with a custom
# `__getstate__`; where an object of this kind is copied all the same, it becomes None.
#
# Traced by torch.compile, `is_compiling()` is true and nothing is left of it in the graph: no break.

ATTRIBUTE = "_compiled_call_impl"


class TimedCall:
    """Calls the module; `ends(output)` is called after it if `begins()` returns True."""

    def __init__(
        self, module: Any, compiled_call: Any, begins: Callable[[], bool], ends: Callable[[Any], None]
    ) -> None:
        self._module = weakref.ref(module)  # weak: a script that drops its model gets its memory back at once
        self.compiled_call = compiled_call  # of a module that was compiled in place, else None
        self._begins = begins
        self._ends = ends

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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
    """Keep our attribute out of the state of a class with a custom `__getstate__`; return whether that is new."""
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


_SEARCH_STEPS = 3


class Root:
    """One module that the loop calls."""

    def __init__(self, module: torch.nn.Module, watcher: "ForwardHooks") -> None:
        self._watcher = watcher
        self._loop = watcher.loop
        self._module = weakref.ref(module)
        self._counts = any(True for _ in module.parameters())
        self._was_called_with_grad = False
        self._rests = 0  # inside rows, without a call that was timed separately or began a row
        self.hook()

    def hook(self) -> None:
        """Have the module's calls come to us; one that was compiled in place keeps its compiled call."""
        module = self._module()
        if module is None:
            return
        current = vars(module).get(ATTRIBUTE)
        if not isinstance(current, TimedCall):
            vars(module)[ATTRIBUTE] = TimedCall(module, current, self.begins, self.ends)

    def unhook(self) -> None:
        """Leave the module as it was."""
        module = self._module()
        current = vars(module).get(ATTRIBUTE) if module is not None else None
        if isinstance(current, TimedCall):
            if current.compiled_call is None:
                del vars(module)[ATTRIBUTE]
            else:
                vars(module)[ATTRIBUTE] = current.compiled_call

    def begins(self) -> bool:
        """The module is called; return whether its end matters."""
        loop = self._loop
        grad = torch.is_grad_enabled()
        if loop.row and loop.in_row(grad=grad):
            if grad:
                self._rests += 1
                self._rest()
            return False
        if self._watcher.search.wanted:
            self._watcher.search.pause()
        if not self._counts:
            return True
        counted: bool = loop.forward_begins(grad=grad, own=self._was_called_with_grad)
        if counted:
            self._rests = 0
            self._was_called_with_grad = self._was_called_with_grad or grad
        elif loop.row and grad:
            self._rests = 0
            self._rest()
        return counted

    def ends(self, output: Any) -> None:
        """The call returns, or raised (then without output)."""
        if self._counts:
            routine = self._loop.routine
            if not (routine.expected == FORWARD_ENDS and routine.takes(FORWARD_ENDS)):
                self._loop.ends(FORWARD_ENDS)
        else:
            self._counts = isinstance(output, torch.Tensor) and output.requires_grad
            self._watcher.search.resume()

    def _rest(self) -> None:
        """Be off until the row of calls is over; for good where the module was only called inside rows, three times.

        The one that begins a row is not one of those: without it the row would not be seen.
        """
        self.unhook()
        if self._rests < 3:
            self._loop.after_row.append(self.hook)


class ForwardHooks:
    """The roots found so far, and the search for more."""

    def __init__(self, loop: Loop, model_found: Iterable[Callable[[torch.nn.Module], None]]) -> None:
        self.loop = loop
        self.search = CallSearch(self._met)
        self._tell = list(model_found)
        self._roots: weakref.WeakKeyDictionary[torch.nn.Module, Root] = weakref.WeakKeyDictionary()
        self._inside_compiled: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._kinds: list[Any] = []  # classes whose `__getstate__` we replaced
        self._unseen: set[str] = set()
        self._later_searches = 0
        self._search(wanted=True)

    def part_begins(self, part: int) -> None:
        """Stand still inside the parts that are already seen; a closure in `optimizer.step` runs the model."""
        if part != OPTIMIZER:
            self.search.pause()

    def part_ends(self, part: int) -> None:
        """Search between the parts."""
        self.search.resume()

    def step_ended(self, loop: Loop) -> None:
        """End the search after the first steps; take it up again when a step showed a backward but no forward."""
        if loop.steps >= _SEARCH_STEPS:
            if self.search.wanted:
                self._search(wanted=False)
            if loop.backwards > 0 and loop.forwards == 0:
                self.search_again()

    def search_again(self) -> None:
        """Search until the step ends: an unknown module was called (evaluation does that)."""
        if not self.search.wanted and self._later_searches < 40:
            self._later_searches += 1
            self._search(wanted=True)

    def _search(self, *, wanted: bool) -> None:
        self.search.wanted = wanted
        self.loop.watcher = self if wanted else None
        if not wanted:
            self.search.pause()

    def stop(self) -> None:
        """Search no more, and take the hooks off the modules that were found."""
        self._search(wanted=False)
        for root in list(self._roots.values()):
            root.unhook()
        for kind in self._kinds:
            kind.__getstate__ = kind.__getstate__.stepscope_original
        self._kinds = []

    def compiler_is_used(self) -> None:
        """Take our calls off every module: what torch.compile is about to trace is found again under its new name."""
        for module in list(self._roots):
            if getattr(vars(module).get(ATTRIBUTE), "compiled_call", None) is None:
                self._roots.pop(module).unhook()
        if self.loop.steps >= _SEARCH_STEPS:
            self.search_again()

    def release(self, module: torch.nn.Module) -> None:
        """Take our hooks off a module that is about to be scripted: TorchScript would compile them."""
        for root in [self._roots.pop(m, None) for m in module.modules()]:
            if root is not None:
                root.unhook()

    def _met(self, module: torch.nn.Module) -> None:
        try:
            self._found(module)
        except Exception as e:  # noqa: BLE001 - training comes first
            self._search(wanted=False)
            name = type(module).__name__
            if name not in self._unseen:
                self._unseen.add(name)
                say(f"forward passes of {name} are not seen: {explain(e)}")

    def _found(self, module: torch.nn.Module) -> None:
        root = self._roots.get(module)
        if root is None:
            if module in self._inside_compiled:
                return
            kind = next(k for k in type(module).__mro__ if "__getstate__" in vars(k))
            if kind is not torch.nn.Module and leave_out_of_state(kind):
                self._kinds.append(kind)
            root = self._roots[module] = Root(module, self)
            for tell in self._tell:
                tell(module)
            if hasattr(module, "_orig_mod"):
                self._leave_alone_inside(module)
        elif module._compiled_call_impl is not None:
            root.hook()  # compiled in place since it was found

    def _leave_alone_inside(self, compiled: torch.nn.Module) -> None:
        for module in compiled.modules():
            if module is not compiled:
                self._inside_compiled.add(module)
                inner = self._roots.pop(module, None)
                if inner is not None:
                    inner.unhook()


def install(loop: Loop, patches: Patches, model_found: Iterable[Callable[[torch.nn.Module], None]]) -> ForwardHooks:
    """Return the hooks, with the search ready to begin at the loop's first load or backward."""
    hooks = ForwardHooks(loop, model_found)
    loop.on_step.append(hooks.step_ended)
    loop.on_unused_batch = hooks.search_again
    patches.replace(torch.jit, "script", lambda script: releasing(script, hooks.release))
    return hooks


def releasing(script: Any, release: Callable[[torch.nn.Module], None]) -> Any:
    """Return `torch.jit.script` that releases a module first.

    Names of classes and functions are looked up in the calling frame, which is one further up from here.
    """

    def wrapped(obj: Any, optimize: Any = None, _frames_up: int = 0, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, torch.nn.Module):
            release(obj)
        return script(obj, optimize, _frames_up + 1, *args, **kwargs)

    return wrapped
