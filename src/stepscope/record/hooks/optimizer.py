"""Optimizer steps, through torch's own global hooks, and which optimizers exist.

Compiled optimizers too: `torch.optim` leaves its graph before every step, so a hook outside of it costs no graph.
"""

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches


class OptimizerHooks:
    """The two global hooks, which torch keeps in dictionaries rather than attributes."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._before = register_optimizer_step_pre_hook(self._begins)
        self._after = register_optimizer_step_post_hook(self._ends)

    def hide_from_compiler(self, disable: Any) -> None:
        """Make torch.compile run the hooks untraced, if they are still there."""
        if self._before.id in _global_optimizer_pre_hooks:
            _global_optimizer_pre_hooks[self._before.id] = disable(self._begins)
            _global_optimizer_post_hooks[self._after.id] = disable(self._ends)

    def remove(self) -> None:
        """Take the hooks out."""
        self._before.remove()
        self._after.remove()

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._loop.optimizer_begins(optimizer, by=optimizer)

    def _ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._loop.optimizer_ends(by=optimizer)


def install(loop: Loop, patches: Patches) -> OptimizerHooks:
    """Return the hooks, in place. `_patch_step_function` is what every optimizer calls when it is made."""

    def watched(original: Any) -> Any:
        def _patch_step_function(self: Any) -> None:
            loop.optimizers.is_made(self)
            original(self)

        return _patch_step_function

    patches.replace(Optimizer, "_patch_step_function", watched)
    return OptimizerHooks(loop)
