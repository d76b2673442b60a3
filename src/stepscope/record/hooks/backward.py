"""Backward passes: every one of them, also `torch.autograd.grad` and pipelines, goes through one function."""

import weakref
from time import monotonic_ns
from typing import Any

import torch
import torch.autograd
import torch.autograd.graph
from torch.nn.parallel import DistributedDataParallel

from stepscope.record.failsafe import leave_out
from stepscope.record.hooks.patches import Patches
from stepscope.record.loop.loop import Loop
from stepscope.record.loop.routine import BACKWARD_BEGINS, BACKWARD_ENDS

# How long the training thread waits for DDP's reductions after the last gradient is computed.
#
# DDP waits for its all-reduces in a callback at the end of the backward pass. Callbacks run in the order in which
# they were queued, so one queued when the backward begins runs just before that wait: from there to the end of the
# backward is the wait. It agrees with DDP's own log (communication minus overlap) within 0.2 ms. Only where the
# thread really waits: on CUDA the wait is the stream's, and a host time would say nothing. Watching costs 40 us with
# cold caches, so after the first ones a backward is watched every tenth of a second: short steps in between have no
# such region, and their backward holds the wait.

_FIRST = 50
_PERIOD_NS = 100_000_000


class GradientSync:
    """Holds the DDP module, once the search for models has found one."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ddp: Any = lambda: None
        self._engine = torch.autograd.Variable._execution_engine
        self._watched = 0
        self._next_ns = 0

    def model_found(self, model: torch.nn.Module) -> None:
        """Remember the DDP module in `model` if there is one that reduces on the host."""
        for module in model.modules():
            if isinstance(module, DistributedDataParallel) and _on_host(module):
                self._ddp = weakref.ref(module)
                return

    def watch(self, outputs: Any) -> Any:
        """Return the handle of a hook on this backward, None where no reduction will be waited for."""
        ddp = self._ddp()
        if ddp is None or not ddp.require_backward_grad_sync or not self._is_due():
            return None
        node = getattr(outputs[0], "grad_fn", None) if len(outputs) else None
        return node.register_prehook(self._queue) if node is not None else None

    def _is_due(self) -> bool:
        now_ns = monotonic_ns()
        if self._watched >= _FIRST and now_ns < self._next_ns:
            return False
        self._watched += 1
        self._next_ns = now_ns + _PERIOD_NS
        return True

    def _queue(self, gradients: Any) -> None:
        self._engine.queue_callback(self._begins)

    def _begins(self) -> None:
        self._loop.gradient_sync_begins(of_every_step=False)


def _on_host(ddp: DistributedDataParallel) -> bool:
    parameter = next((p for p in ddp.parameters() if p.requires_grad), None)
    return parameter is not None and parameter.device.type == "cpu"


def install(loop: Loop, patches: Patches, gradient_sync: GradientSync) -> None:
    """Install the hook in both modules that hold the function: torch itself swaps them together."""

    routine = loop.routine

    def watched(run_backward: Any) -> Any:
        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            counts = (routine.expected == BACKWARD_BEGINS and routine.takes(BACKWARD_BEGINS)) or loop.begins(
                BACKWARD_BEGINS
            )
            handle = None
            if counts and not routine.on:
                handle = loop.safely(gradient_sync.watch, t_outputs)
            if counts and not loop.optimizer_seen:
                loop.safely(loop.parameters.backward_begins, t_outputs)
            try:
                return run_backward(t_outputs, *args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise
            finally:
                if handle:
                    handle.remove()
                if counts:
                    loop.ends(BACKWARD_ENDS)

        return _engine_run_backward

    replacement = watched(torch.autograd.graph._engine_run_backward)
    for module in (torch.autograd.graph, torch.autograd):
        patches.share(module, "_engine_run_backward", replacement)
