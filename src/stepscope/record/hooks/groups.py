"""Process groups: after they are made the rank is known and recording starts; before they go the last step ends."""

import sys
from collections.abc import Callable
from typing import Any

import torch.distributed

from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches
from stepscope.record.own_frame import leave_out

# All modules that hold these functions under their own name once `import torch` is done.
_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed", "torch.distributed.device_mesh")


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
