"""Installs the hooks in a recorded job's process once torch is imported, or prints one line with the reason."""

import os
import re
from typing import Any

import torch

from stepscope.record.config import RecordConfig, set_kineto_settings
from stepscope.record.failsafe import leave_word, say
from stepscope.record.lifetime import LIFETIME

_MIN_TORCH = (2, 4)
_has_begun = False


def begin() -> None:
    """Install the hooks by the environment's settings."""
    global _has_begun
    _has_begun = True
    LIFETIME.mark("torch_ns")
    config = RecordConfig.from_env()
    if config is None:
        return
    leave_word("torch")
    set_kineto_settings(os.environ)  # a launcher in between (sudo, srun --export) may have dropped them
    found = tuple(int(n) for n in re.findall(r"\d+", str(torch.__version__))[:2])
    if found < _MIN_TORCH:
        wanted = ".".join(map(str, _MIN_TORCH))
        say(f"recording needs torch {wanted} or newer, found {torch.__version__}; this process runs unrecorded")
        return
    if config.only_set:
        from stepscope.record.trial import only_set

        only_set(config)
        return
    from stepscope.record.hooks.install import install
    from stepscope.record.loop.steps import unit_from
    from stepscope.record.nccl_log import turn_on_nccl_log

    if config.nccl_log:
        turn_on_nccl_log(os.environ)  # now, because NCCL reads it once, when its first communicator is made
    samplers: list[Any] = []
    hooks = install(lambda: _recorder(config, samplers, hooks), unit_from(config.step_of))
    if config.memory or config.memory_history:
        from stepscope.record.memory import memory_history

        memory_history().on_error = hooks.loop.start
    if config.graphs:
        from stepscope.record.owners.graph_capture import graph_captures

        graph_captures(config)
    if config.trial_steps is not None:
        from stepscope.record.trial import begin_trial

        samplers.append(begin_trial(config, hooks))


def _recorder(config: RecordConfig, samplers: list[Any], hooks: Any) -> Any:
    from stepscope.record.session import Recorder, current

    if torch.utils.data.get_worker_info() is not None or current() is not None:
        return None
    recorder = Recorder.start(config)
    for sampler in samplers:
        recorder.add_sampler(sampler)
    return recorder


# Whether another recorder is active in this process: two would cancel each other's profiler.


def already_recorded() -> bool:
    """Return whether there is a recorder, or will be: `stepscope record` starts its own when training begins."""
    from stepscope.record.session import current

    return current() is not None or followed_from_outside()


def followed_from_outside() -> bool:
    """Return whether the hooks of `stepscope record` are in this process and mark steps and regions by themselves."""
    config = RecordConfig.from_env() if _has_begun else None
    return config is not None and not config.only_set
