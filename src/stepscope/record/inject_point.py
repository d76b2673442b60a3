"""What happens in a recorded job's process once torch is there: the hooks go in, or one line says why not."""

import os
import os
import re

import torch

from stepscope.record.config import RecordConfig
from stepscope.record.seen import leave_word
from stepscope.record.undisturbed import say

OLDEST_TORCH = (2, 4)


def begin() -> None:
    """Put the hooks in, as the environment asks."""
    config = RecordConfig.from_env()
    if config is None:
        return
    leave_word("torch")
    found = tuple(int(n) for n in re.findall(r"\d+", str(torch.__version__))[:2])
    if found < OLDEST_TORCH:
        wanted = ".".join(map(str, OLDEST_TORCH))
        say(f"recording needs torch {wanted} or newer, found {torch.__version__}; this process runs unrecorded")
        return
    if config.nccl_log:
        from stepscope.record.nccl_log import turn_on_nccl_log

        turn_on_nccl_log(os.environ)  # NCCL reads it when the first communicator is made, maybe before any step
    from stepscope.record.hooks.install import install
    from stepscope.record.nccl_log import turn_on_nccl_log
    from stepscope.record.session import Recorder

    if config.nccl_log:
        turn_on_nccl_log(os.environ)  # now, because NCCL looks once, when its first communicator is made
    install(lambda: Recorder.start(config))
