"""Mixed precision: a scaler's step is the optimizer's step, also when it finds infinities and skips it.

The unscaling and the check for infinities are part of it: they are what loss scaling costs.
"""

from typing import Any

from torch.amp.grad_scaler import GradScaler

from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches
from stepscope.record.own_frame import leave_out


def install(loop: Loop, patches: Patches) -> None:
    """Put the hook in."""

    def watched(scaler_step: Any) -> Any:
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            loop.optimizer_begins(optimizer, by=self)
            try:
                return scaler_step(self, optimizer, *args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise
            finally:
                loop.optimizer_ends(by=self)

        return step

    patches.replace(GradScaler, "step", watched)
