"""Optimizer steps, through torch's own global hooks, and which optimizers exist.

Compiled optimizers too: `torch.optim` leaves its graph before every step, so a hook outside of it costs no graph.
"""

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches

_KEY: Any = -1
"""under which torch's dictionaries hold our hooks. torch itself counts up for every hook in the process, and such a
number is part of a model's pickle: ours must not use one up."""


class OptimizerHooks:
    """The two global hooks, which torch keeps in dictionaries rather than attributes."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._hooks: tuple[Any, Any] = (self._begins, self._ends)
        loop.rest_optimizers = self.rest
        self._set(*self._hooks)

    def hide_from_compiler(self, disable: Any) -> None:
        """Make torch.compile run the hooks untraced, if they are still there."""
        if _KEY in _global_optimizer_pre_hooks:
            self._hooks = (disable(self._begins), disable(self._ends))
            self._set(*self._hooks)

    def rest(self, rests: bool) -> None:
        """Let the hooks do nothing for a while. They stay where they are: torch is going through them right now."""
        if _KEY in _global_optimizer_pre_hooks:
            self._set(*((_nothing, _nothing) if rests else self._hooks))

    def remove(self) -> None:
        """Take the hooks out."""
        _global_optimizer_pre_hooks.pop(_KEY, None)
        _global_optimizer_post_hooks.pop(_KEY, None)

    def _set(self, before: Any, after: Any) -> None:
        _global_optimizer_pre_hooks[_KEY] = before
        _global_optimizer_post_hooks[_KEY] = after

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        token, routine = 2 * id(optimizer), self._loop.routine
        if not (routine.expected == token and routine.takes(token)):
            self._loop.optimizer_begins(optimizer, by=optimizer)

    def _ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        token, routine = -id(optimizer), self._loop.routine
        if not (routine.expected == token and routine.takes(token)):
            self._loop.optimizer_ends(by=optimizer)


def _nothing(optimizer: Any, args: Any, kwargs: Any) -> None:
    pass


def install(loop: Loop, patches: Patches) -> OptimizerHooks:
    """Return the hooks, in place. `_patch_step_function` is what every optimizer calls when it is made."""

    def watched(original: Any) -> Any:
        def _patch_step_function(self: Any) -> None:
            loop.optimizers.is_made(self)
            original(self)

        return _patch_step_function

    patches.replace(Optimizer, "_patch_step_function", watched)
    return OptimizerHooks(loop)
