"""One optimizer step of a workload, as a variant wants it: accumulated, compiled, captured, offloaded."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepscope.bench.sweeps.cuda_graph import CudaGraphStep
from stepscope.bench.sweeps.host_offload import HostOptimizer, shard_on_host
from stepscope.bench.workloads.fed import BatchCount
from stepscope.bench.workloads.workload import Workload

# of fp16 losses: the usual 2^16 overflows in the first step, which is then skipped and has no result to compare
_FIRST_SCALE = 2.0**12


@dataclass(frozen=True)
class StepSettings:
    """How the step is taken."""

    accumulation: int = 1
    #: a mode of torch.compile
    compile: str | None = None
    cuda_graph: bool = False
    #: activations, optimizer or parameters
    offload: str | None = None
    #: how several ranks train together; nothing on one
    strategy: str = "pytorch_ddp"
    #: whether ranks exchange gradients in every micro-batch, not in the last of a step only
    exchange_each: bool = False
    learning_rate: float = 1e-4


class WorkloadStep:
    """What every step of a workload has, however it is taken: its settings, its batches and fp16's scaler."""

    def __init__(self, work: Workload, settings: Mapping[str, Any]) -> None:
        self._work, self._set = work, StepSettings(**settings)
        self._scaler = torch.amp.GradScaler(
            work.device.type, init_scale=_FIRST_SCALE, enabled=work.spec.precision == "fp16"
        )
        self.fed = BatchCount()
        self._batches: Any = None  # a generator, begun once the model is as it will be

    def close(self) -> None:
        """End the data loader's workers now: left to the garbage collector, each is waited for in vain for seconds."""
        self._batches.close()

    @property
    def model(self) -> nn.Module:
        """Return what is trained."""
        return self._work.model

    @property
    def device(self) -> torch.device:
        """Return where the step runs."""
        return self._work.device

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Return the model's parameters, in order; a shard of each where they are sharded."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def _next_batch(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration as end:
            raise ValueError("the workload's batches ended; give a Dataset, a list or an endless iterable") from end


class TrainStep(WorkloadStep):
    """Called once per step: data, forward, backward, optimizer; returns the mean loss of the step."""

    def __init__(self, work: Workload, settings: Mapping[str, Any]) -> None:
        super().__init__(work, settings)
        if self._set.offload == "parameters":
            shard_on_host(work.model)
        if self._set.compile:
            work.model.compile(mode=self._set.compile)
        self._batches = work.batches(fed=self.fed)
        self.optimizer = self._optimizer()
        self._take = self._checked_graph() if self._set.cuda_graph else self._plain_step

    def __call__(self) -> torch.Tensor:
        batches = [self._next_batch() for _ in range(self._set.accumulation)]
        self.fed.end_step()
        return self._take(batches)

    def _plain_step(self, batches: list[Any]) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self._work.device)
        for batch in batches:
            with self._kept_activations():
                loss = self._work.loss(self._work.model, batch) / self._set.accumulation
            self._scaler.scale(loss).backward()
            total += loss.detach()
        if self._scaler.is_enabled():  # here rather than inside a fused optimizer, so that gradients can be compared
            self._scaler.unscale_(self.optimizer)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        return total

    def _optimizer(self) -> Any:
        rate = self._set.learning_rate
        if self._set.offload == "optimizer":
            return HostOptimizer(self.parameters, learning_rate=rate)
        if self._set.offload == "parameters":  # on the host, as plain tensors of one rank
            return torch.optim.AdamW(self.parameters, lr=rate)
        capturable = self._set.cuda_graph
        return torch.optim.AdamW(self.parameters, lr=rate, fused=True, capturable=capturable)

    def _checked_graph(self) -> Callable[[list[Any]], torch.Tensor]:
        if self._scaler.is_enabled():
            raise ValueError(
                "a CUDA graph needs fp32 or bf16: the scaler of fp16 synchronizes with the host in each step"
            )
        return CudaGraphStep(self._plain_step)

    def _kept_activations(self) -> Any:
        if self._set.offload != "activations":
            return nullcontext()
        return torch.autograd.graph.save_on_cpu(pin_memory=True)
