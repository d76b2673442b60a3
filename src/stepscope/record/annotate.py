"""Every module of a model as a range in the trace and in NVTX, without changing what the model computes.

    with stepscope.annotate_modules(model):
        train(model)

Forward hooks open and close the ranges. They return nothing, so outputs are untouched; they are no part of the state
dict; and torch.compile sees only a function that returns at once. The backward pass of a module needs no range of its
own: the profiler links every backward operator to its forward one. Full backward hooks would give one, but they put
nodes into the autograd graph and forbid in-place operations.
"""

import threading
from functools import partial
from typing import Any

import torch

_open = threading.local()


class Annotations:
    """The hooks that were added; `remove()` takes them away, as does leaving a `with` block."""

    def __init__(self, handles: list[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take the hooks away. Safe to call twice."""
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> "Annotations":
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def annotate_modules(model: torch.nn.Module, *, name: str = "") -> Annotations:
    """Return a handle on the ranges now around the forward of `model` and of every module in it.

    A range is called `module: layers.0.attention`, the model itself by `name` or by its class. It costs a few
    microseconds per module call when no profiler runs. TorchScript cannot compile hooks: call `remove()` before
    `torch.jit.script`.
    """
    handles: list[Any] = []
    for inner, module in model.named_modules(prefix=name):
        label = f"module: {inner or type(model).__name__}"
        handles.append(module.register_forward_pre_hook(partial(_enter, label)))
        handles.append(module.register_forward_hook(partial(_leave, label), always_call=True))
    return Annotations(handles)


def _enter(label: str, module: torch.nn.Module, args: Any) -> None:
    if torch.compiler.is_compiling():
        return
    mark = None
    if torch.autograd._profiler_enabled():
        mark = torch.profiler.record_function(label)
        mark.__enter__()
    pushed = torch.cuda.is_initialized()
    if pushed:
        torch.cuda.nvtx.range_push(label)
    _stack().append((label, mark, pushed))


def _leave(label: str, module: torch.nn.Module, args: Any, output: Any) -> None:
    if torch.compiler.is_compiling():
        return
    stack = _stack()
    if not any(opened == label for opened, _, _ in stack):
        return
    while stack:
        opened, mark, pushed = stack.pop()
        if pushed:
            torch.cuda.nvtx.range_pop()
        if mark is not None:
            mark.__exit__(None, None, None)
        if opened == label:
            return


def _stack() -> list[tuple[str, Any, bool]]:
    found: list[tuple[str, Any, bool]] | None = getattr(_open, "stack", None)
    if found is None:
        found = _open.stack = []
    return found
