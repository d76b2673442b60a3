"""Process groups: after they are made the rank is known and recording starts; before they go the last step ends."""

import sys
from collections.abc import Callable
from time import sleep
from typing import Any

import torch.distributed

from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches
from stepscope.record.own_frame import leave_out

# All modules that hold these functions under their own name once `import torch` is done.
_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed", "torch.distributed.device_mesh")

GLOO_FINISHES_S = 0.05
"""for a thread of gloo to take Python's lock once and let go of the last reduction; it needs some microseconds of it"""


def install(loop: Loop, patches: Patches, before_destroy: Callable[[], None]) -> None:
    """Put the hooks in."""
    if not torch.distributed.is_available():
        return

    def starting(original: Any) -> Any:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise
            loop.start()
            return result

        return init_process_group

    def ending(original: Any) -> Any:
        def destroy_process_group(group: Any = None, *args: Any, **kwargs: Any) -> Any:
            if group is None:
                before_destroy()
                let_gloo_finish()
            try:
                return original(group, *args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise

        return destroy_process_group

    for name, make in (("init_process_group", starting), ("destroy_process_group", ending)):
        replacement = make(getattr(torch.distributed, name))
        for module in _MODULES:
            if hasattr(sys.modules.get(module), name):
                patches.share(sys.modules[module], name, replacement)


def let_gloo_finish() -> None:
    """Give gloo's threads Python's lock for a moment, or a job that ends right after its last backward may hang.

    A reduction that backward began holds backward's context (in torch 2.13), and a thread of gloo drops it some time
    later, for which it needs Python's lock. Where the DDP model outlives `destroy_process_group`, as in a script
    that is one function, that thread is joined by the model's end, with the lock held: neither ever goes on. It happens
    to unrecorded jobs too, one in ten of those that end within milliseconds of their last step.
    """
    if hasattr(torch._C, "_stash_obj_in_tls") and _uses_gloo():
        sleep(GLOO_FINISHES_S)


def _uses_gloo() -> bool:
    try:
        return "gloo" in str(torch.distributed.distributed_c10d.get_backend_config())
    except (ValueError, RuntimeError):  # no default group
        return False
