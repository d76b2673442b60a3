"""Forward passes: the modules that the loop calls are found in the first steps and get a hook each.

A model called through DDP, FSDP, `torch.compile(model)` or a framework is found as what is called outermost. One
compiled in place (`model.compile()`) is timed around its compiled call. A module without parameters counts if its
output needs a gradient (a loss), else not (a metric, a transform).
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from stepscope.record.failsafe import explain, say
from stepscope.record.hooks.loop.call_search import CallSearch
from stepscope.record.hooks.loop.loop import OPTIMIZER, Loop
from stepscope.record.hooks.patches import Patches
from stepscope.record.hooks.root_hooks import AfterForward, BeforeForward

SEARCH_STEPS = 3
_MOST_LATER_SEARCHES = 40


class Root:
    """One module that the loop calls."""

    def __init__(self, module: torch.nn.Module, watcher: "ForwardHooks") -> None:
        self._watcher = watcher
        self._counts = any(True for _ in module.parameters())
        self._was_called_with_grad = False
        self._open = 0
        self._counted = False
        self._handles: list[Any] = []
        if module._compiled_call_impl is None:
            self._handles = [
                module.register_forward_pre_hook(BeforeForward(self.begins), prepend=True),
                module.register_forward_hook(AfterForward(self.ends), always_call=True),
            ]

    def begins(self) -> None:
        """The module is called."""
        self._open += 1
        if self._open > 1:
            return
        grad = torch.is_grad_enabled()
        if self._watcher.search.wanted:
            self._watcher.search.pause()
        self._counted = self._counts and self._watcher.loop.forward_begins(grad=grad, own=self._was_called_with_grad)
        self._was_called_with_grad = self._was_called_with_grad or grad

    def ends(self, output: Any) -> None:
        """The call returns, or raised (then without output)."""
        self._open -= 1
        if self._open > 0:
            return
        self._open = 0
        if self._counted:
            self._watcher.loop.forward_ends()
        elif not self._counts:
            self._counts = isinstance(output, torch.Tensor) and output.requires_grad
            self._watcher.search.resume()

    def timed(self, compiled_call: Any) -> Any:
        """Return the compiled call of a module that was compiled in place, with our begin and end around it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.begins()
            output = None
            try:
                output = compiled_call(*args, **kwargs)
                return output
            finally:
                self.ends(output)

        call.stepscope_root = self  # type: ignore[attr-defined]
        return call

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class ForwardHooks:
    """The roots found so far, and the search for more."""

    def __init__(self, loop: Loop, model_found: Iterable[Callable[[torch.nn.Module], None]]) -> None:
        self.loop = loop
        self.search = CallSearch(self._met)
        self._tell = list(model_found)
        self._roots: weakref.WeakKeyDictionary[torch.nn.Module, Root] = weakref.WeakKeyDictionary()
        self._unseen: set[str] = set()
        self._later_searches = 0
        self._search(wanted=True)

    def part_begins(self, part: int) -> None:
        """Stand still inside the parts that are already seen; a closure in `optimizer.step` runs the model."""
        if part != OPTIMIZER:
            self.search.pause()

    def part_ends(self, part: int) -> None:
        """Look on between the parts."""
        self.search.resume()

    def step_ended(self, loop: Loop) -> None:
        """End the search after the first steps; take it up again when a step showed a backward but no forward."""
        if loop.steps >= SEARCH_STEPS:
            if self.search.wanted:
                self._search(wanted=False)
            if loop.backwards > 0 and loop.forwards == 0:
                self.search_again()

    def search_again(self) -> None:
        """Search until the step ends: somebody calls a module that we do not know (evaluation does)."""
        if not self.search.wanted and self._later_searches < _MOST_LATER_SEARCHES:
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
        for root in self._roots.values():
            root.remove()

    def release(self, module: torch.nn.Module) -> None:
        """Take our hooks off a module that is about to be scripted: TorchScript would compile them."""
        for root in [self._roots.pop(m, None) for m in module.modules()]:
            if root is not None:
                root.remove()

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
            root = self._roots[module] = Root(module, self)
            for tell in self._tell:
                tell(module)
        compiled_call = module._compiled_call_impl
        if compiled_call is not None and not hasattr(compiled_call, "stepscope_root"):
            root.remove()
            module._compiled_call_impl = root.timed(compiled_call)


def install(loop: Loop, patches: Patches, model_found: Iterable[Callable[[torch.nn.Module], None]]) -> ForwardHooks:
    """Return the hooks, with the search ready to begin at the loop's first load or backward."""
    hooks = ForwardHooks(loop, model_found)
    loop.on_step.append(hooks.step_ended)
    loop.on_unused_batch = hooks.search_again

    def releasing(script: Any) -> Any:
        def wrapped(obj: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(obj, torch.nn.Module):
                hooks.release(obj)
            return script(obj, *args, **kwargs)

        return wrapped

    patches.replace(torch.jit, "script", releasing)
    return hooks
