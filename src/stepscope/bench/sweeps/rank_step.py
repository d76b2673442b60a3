"""One optimizer step of a workload on several ranks, gradients exchanged by one of the data-parallel strategies."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from stepscope.bench.data_parallel.implementations.parallel import Options
from stepscope.bench.data_parallel.strategies import parallel
from stepscope.bench.sweeps.train_step import WorkloadStep
from stepscope.bench.workloads.workload import Workload


class RankStep(WorkloadStep):
    """Called once per step, by all ranks; returns the mean loss of this rank's micro-batches.

    Only the last micro-batch of a step exchanges gradients, unless the settings say each.
    """

    def __init__(self, work: Workload, settings: Mapping[str, Any], *, rank: int, world_size: int) -> None:
        super().__init__(work, settings)
        options = Options(
            lr=self._set.learning_rate,
            micro_batch_size=work.spec.batch_size,
            grad_accum=self._set.accumulation,
            precision=work.spec.precision,
        )
        self._parallel = parallel(self._set.strategy, work.model, options)
        self._batches = work.batches(rank=rank, world_size=world_size, fed=self.fed)

    def __call__(self) -> torch.Tensor:
        self._parallel.optimizer.zero_grad(set_to_none=True)
        losses = [self._micro_batch(last=i == self._set.accumulation - 1) for i in range(self._set.accumulation)]
        self._parallel.finish()
        if self._scaler.is_enabled():  # here rather than inside the optimizer, so that gradients can be compared
            self._scaler.unscale_(self._parallel.optimizer)
        self._scaler.step(self._parallel.optimizer)
        self._scaler.update()
        self.fed.end_step()
        return torch.stack(losses).sum()

    @property
    def model(self) -> nn.Module:
        """Return what is trained: the wrapped model, or its shards."""
        return self._parallel.model

    def _micro_batch(self, *, last: bool) -> torch.Tensor:
        batch = self._next_batch()
        self._parallel.exchange = last or self._set.exchange_each
        loss = self._work.loss(self._parallel.model, batch) / self._set.accumulation
        self._parallel.backward(self._scaler.scale(loss))
        return loss.detach()
