"""The training step that all implementations share, each part of it under its standard region name."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from stepscope.bench.data_parallel.implementations.parallel import Parallel
from stepscope.bench.learning_rate import learning_rate
from stepscope.bench.workloads.fed import BatchCount
from stepscope.bench.workloads.workload import Workload
from stepscope.contract.step_line import (
    BACKWARD,
    CLIPPING,
    DATA_LOADING,
    FORWARD,
    GRADIENT_SYNC,
    LR_SCHEDULING,
    OPTIMIZER,
)
from stepscope.errors import UsageError

PEAK_LR = 1e-3
_CLIP_NORM = 1.0

Mark = Callable[[str], AbstractContextManager[Any]]


def unmarked(name: str) -> AbstractContextManager[Any]:
    """Return a context that marks nothing, for steps that are only timed."""
    return nullcontext()


class Training:
    """One model in training; `step()` is one optimizer step with all its micro-batches.

    Gradients are clipped to norm 1 in warm-up steps where `clip` asks for it.
    """

    def __init__(
        self,
        work: Workload,
        parallel: Parallel,
        *,
        rank: int,
        world_size: int,
        warmup_steps: int,
        grad_accum: int = 1,
        clip: bool = False,
        mark: Mark = unmarked,
    ) -> None:
        fp16 = work.spec.precision == "fp16"
        if fp16 and parallel.sharded:
            raise UsageError("fp16 needs a loss scale that shards agree on, and sharded gradients have none; use bf16")
        self.work, self.parallel, self.mark = work, parallel, mark
        self.number = 0
        self._warmup_steps, self._grad_accum, self._clip = warmup_steps, grad_accum, clip
        self.fed = BatchCount()
        self._batches = work.batches(rank=rank, world_size=world_size, fed=self.fed)
        self._scaler = torch.amp.GradScaler(work.device.type, enabled=fp16)
        self._on_gradients: Callable[[], None] | None = None

    @property
    def warming_up(self) -> bool:
        """Whether the next step belongs to the warm-up."""
        return self.number < self._warmup_steps

    @property
    def lr(self) -> float:
        """Return the learning rate of the next step."""
        return learning_rate(self.number, peak=PEAK_LR, warmup_steps=self._warmup_steps)

    def step(self) -> torch.Tensor:
        """Return the loss of one optimizer step, the mean over its micro-batches."""
        with self.mark(LR_SCHEDULING):
            self.parallel.set_lr(self.lr)
        losses = [self._micro_batch(last=i == self._grad_accum - 1) for i in range(self._grad_accum)]
        with self.mark(GRADIENT_SYNC):
            self.parallel.finish()
        if self._clip and self.warming_up:
            self._clip_gradients()
        if self._on_gradients:
            self._on_gradients()
        with self.mark(OPTIMIZER):
            self.parallel.update(self._scaler)
        self.number += 1
        self.fed.end_step()
        return torch.stack(losses).sum()

    def first_gradients(self) -> dict[str, torch.Tensor] | None:
        """Return the whole gradients of one step, after taking it."""
        kept: list[dict[str, torch.Tensor] | None] = []

        def keep() -> None:
            found = self.parallel.gradients()
            kept.append(
                None if found is None else {name: g.detach().float().cpu().clone() for name, g in found.items()}
            )

        self._on_gradients = keep
        self.step()
        self._on_gradients = None
        return kept[0]

    def _micro_batch(self, *, last: bool) -> torch.Tensor:
        with self.mark(DATA_LOADING):
            batch = next(self._batches)
        self.parallel.exchange = last
        with self.mark(FORWARD):
            loss = self.work.loss(self.parallel.model, batch) / self._grad_accum
        with self.mark(BACKWARD):
            self.parallel.backward(self._scaler.scale(loss))
        return loss.detach()

    def _clip_gradients(self) -> None:
        with self.mark(CLIPPING):
            self._scaler.unscale_(self.parallel.optimizer)
            torch.nn.utils.clip_grad_norm_(self.parallel.model.parameters(), _CLIP_NORM)
