"""One model in training, as the benchmarks, the sweeps over ranks and the trainer share it."""

import gc
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

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
from stepscope.lab.bench.config import WorkloadSpec, learning_rate
from stepscope.lab.bench.implementations import Options, Parallel, parallel
from stepscope.lab.bench.measure import BatchCount
from stepscope.lab.bench.rank import Bench
from stepscope.lab.bench.workloads import Workload, workload

_PEAK_LR = 1e-3
_CLIP_NORM = 1.0

Mark = Callable[[str], AbstractContextManager[Any]]


def unmarked(name: str) -> AbstractContextManager[Any]:
    """Return a context that marks nothing, for steps that are only timed."""
    return nullcontext()


class Training:
    """One model in training; `step()` is one optimizer step with all its micro-batches.

    Gradients are clipped to `clip_norm` in the first `clip_steps`. Only the last micro-batch of a step exchanges
    gradients, unless `exchange_each`.
    """

    def __init__(
        self, work: Workload, parallel: Parallel, *, rank: int, world_size: int, warmup_steps: int = 0,
        grad_accum: int = 1, lr: Callable[[int], float] | None = None, clip_norm: float | None = None,
        clip_steps: int | None = None, exchange_each: bool = False, init_scale: float = 2.0**16,
        mark: Mark = unmarked,
    ) -> None:  # fmt: skip
        fp16 = work.spec.precision == "fp16"
        if fp16 and parallel.sharded:
            raise UsageError("fp16 needs a loss scale that shards agree on, and sharded gradients have none; use bf16")
        self.work, self.parallel, self.mark = work, parallel, mark
        self.number = 0
        self._warmup_steps, self._grad_accum, self._exchange_each = warmup_steps, grad_accum, exchange_each
        self._clip_norm, self._clip_steps = clip_norm, warmup_steps if clip_steps is None else clip_steps
        self._lr = lr or (lambda step: learning_rate(step, peak=_PEAK_LR, warmup_steps=warmup_steps))
        self.fed = BatchCount()
        self._batches = work.batches(rank=rank, world_size=world_size, fed=self.fed)
        self.scaler = torch.amp.GradScaler(work.device.type, init_scale=init_scale, enabled=fp16)

    @property
    def warming_up(self) -> bool:
        """Whether the next step belongs to the warm-up."""
        return self.number < self._warmup_steps

    @property
    def lr(self) -> float:
        """Return the learning rate of the next step."""
        return self._lr(self.number)

    def step(self, on_gradients: Callable[[], None] | None = None) -> torch.Tensor:
        """Return the loss of one optimizer step, the mean over its micro-batches.

        `on_gradients` is called once the gradients are those of all ranks, before the optimizer uses them.
        """
        optimizer = self.parallel.optimizer
        with self.mark(LR_SCHEDULING):
            for group in optimizer.param_groups:
                group["lr"] = self.lr
        losses = [self._micro_batch(last=i == self._grad_accum - 1) for i in range(self._grad_accum)]
        with self.mark(GRADIENT_SYNC):
            self.parallel.finish()
        clip = self._clip_norm is not None and self.number < self._clip_steps
        if self.scaler.is_enabled() and (clip or on_gradients):
            self.scaler.unscale_(optimizer)
        if clip:
            with self.mark(CLIPPING):
                torch.nn.utils.clip_grad_norm_(self.parallel.model.parameters(), self._clip_norm)
        if on_gradients:
            on_gradients()
        with self.mark(OPTIMIZER):
            self.parallel.update(self.scaler)
        self.number += 1
        self.fed.end_step()
        return torch.stack(losses).sum()

    def skip_batches(self, steps: int) -> None:
        """Skip the batches of steps that an earlier training took."""
        for _ in range(steps * self._grad_accum):
            next(self._batches)
        self.fed.forget_batches()
        self.number = steps

    def close(self) -> None:
        """End the data loader's workers now: the garbage collector would wait seconds for each."""
        self._batches.close()

    def _micro_batch(self, *, last: bool) -> torch.Tensor:
        with self.mark(DATA_LOADING):
            batch = next(self._batches)
        self.parallel.exchange = last or self._exchange_each
        with self.mark(FORWARD):
            loss = self.work.loss(self.parallel.model, batch) / self._grad_accum
        with self.mark(BACKWARD):
            self.parallel.backward(self.scaler.scale(loss))
        return loss.detach()


def new_training(
    bench: Bench, settings: dict[str, Any], series: dict[str, Any], *, clip: bool = False, mark: Mark = unmarked
) -> Training:
    """Return a new training of one of a plan's `series`, with the weights that its seed gives."""
    spec = WorkloadSpec(**settings["workload"])
    torch.set_float32_matmul_precision("high" if spec.precision == "tf32" else "highest")
    work = workload(spec, bench.device)
    grad_accum = int(settings.get("grad_accum", 1))
    given = {**settings.get("options", {}), **series.get("options", {})}
    options = Options(micro_batch_size=spec.batch_size, grad_accum=grad_accum, precision=spec.precision, **given)
    return Training(
        work, parallel(series["implementation"], work.model, options), rank=bench.rank, world_size=bench.world_size,
        warmup_steps=int(settings["warmup_steps"]), grad_accum=grad_accum, clip_norm=_CLIP_NORM if clip else None,
        mark=mark,
    )  # fmt: skip


def clear_memory(bench: Bench) -> None:
    """Free the memory of the run before, on all ranks."""
    free_memory(bench.device)
    dist.barrier(device_ids=[bench.device.index] if bench.device.type == "cuda" else None)


def free_memory(device: torch.device) -> None:
    """Free what nothing holds any more, also compiled code."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
