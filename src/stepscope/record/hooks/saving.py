"""Checkpoints: what writes models to storage, so that the time it takes has a region of its own.

torch.save                                          and whatever ends in it
torch.distributed.checkpoint.save, async_save       the part on the training thread
safetensors.torch.save_file                         as Transformers and Accelerate save
"""

import sys
from typing import Any

import torch

from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches
from stepscope.record.own_frame import leave_out

LATER = {"torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"), "safetensors.torch": ("save_file",)}


def install(loop: Loop, patches: Patches) -> None:
    """Put the hook into torch itself."""
    replacement = _watched(loop, torch.save)
    for module in (torch.serialization, torch):
        patches.share(module, "save", replacement)


def install_in(loop: Loop, patches: Patches, module: str) -> None:
    """Put the hook into a module that was imported later."""
    for name in LATER[module]:
        if hasattr(sys.modules[module], name):
            patches.replace(sys.modules[module], name, lambda save: _watched(loop, save))


def _watched(loop: Loop, save: Any) -> Any:
    def saving(*args: Any, **kwargs: Any) -> Any:
        counts = loop.saving_begins()
        try:
            return save(*args, **kwargs)
        except BaseException as e:
            leave_out(e)
            raise
        finally:
            if counts:
                loop.saving_ends()

    return saving
