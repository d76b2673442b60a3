"""Backward passes: every one of them, also `torch.autograd.grad` and pipelines, goes through one function."""

from threading import get_ident
from typing import Any

import torch.autograd
import torch.autograd.graph

from stepscope.record.hooks.gradient_sync import GradientSync
from stepscope.record.hooks.loop.event_tokens import BACKWARD_BEGINS
from stepscope.record.hooks.loop.loop import Loop
from stepscope.record.hooks.patches import Patches
from stepscope.record.own_frame import leave_out


def install(loop: Loop, patches: Patches, gradient_sync: GradientSync) -> None:
    """Put the hook in, in both modules that hold the function: torch itself swaps them together."""

    routine = loop.routine

    def watched(run_backward: Any) -> Any:
        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            left, handle = loop.backwards_left, None
            if left > 0 and get_ident() == loop.thread:
                loop.backwards_left = -left  # one of a stretch: those inside it are part of it
            else:
                left = 0
            counts = not loop.backwards_left and (
                (routine.expected == BACKWARD_BEGINS and routine.takes(BACKWARD_BEGINS)) or loop.backward_begins()
            )
            if counts and not routine.on:
                handle = loop.safely(gradient_sync.watch, t_outputs)
            if counts and not loop.optimizer_seen:
                loop.safely(loop.parameters.watch_trained_by, t_outputs)
            try:
                return run_backward(t_outputs, *args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise
            finally:
                if handle:
                    handle.remove()
                if counts:
                    loop.backward_ends()
                elif left and loop.backwards_left == -left:
                    loop.backwards_left = left - 1
                    if left == 1:
                        loop.stretch_ends()

        return _engine_run_backward

    replacement = watched(torch.autograd.graph._engine_run_backward)
    for module in (torch.autograd.graph, torch.autograd):
        patches.share(module, "_engine_run_backward", replacement)
