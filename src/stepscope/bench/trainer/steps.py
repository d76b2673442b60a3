"""The steps of a configured training: the shared step of the benchmarks, with its own rate, clipping and optimizer."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from stepscope.bench.config.optimizer import give_optimizer
from stepscope.bench.config.sections import SINGLE, BenchConfig
from stepscope.bench.config.settings import workload_spec
from stepscope.bench.data_parallel.implementations.parallel import Options, Parallel
from stepscope.bench.data_parallel.strategies import parallel
from stepscope.bench.data_parallel.training import Mark, Training
from stepscope.bench.trainer.process import Process
from stepscope.bench.workloads.build import workload
from stepscope.bench.workloads.workload import Workload
from stepscope.contract.step_line import CLIPPING
from stepscope.errors import UsageError

Loss = Callable[[nn.Module, Any], torch.Tensor]


class Steps(Training):
    """One optimizer step after the other, as a configuration says."""

    def __init__(
        self, config: BenchConfig, work: Workload, parallel: Parallel, *, process: Process, mark: Mark
    ) -> None:
        self.config = config
        always = config.train.clip == "always"
        super().__init__(
            work,
            parallel,
            rank=process.rank,
            world_size=process.world_size,
            warmup_steps=config.train.steps if always else config.scheduler.warmup_steps,
            grad_accum=config.train.grad_accum,
            clip=config.train.clip_norm is not None,
            mark=mark,
        )

    @property
    def lr(self) -> float:
        """Return the learning rate of the next step."""
        config = self.config
        return config.scheduler.rate(self.number, peak=config.train.lr, total_steps=config.total_steps)

    def skip_batches(self, steps: int) -> None:
        """Go past the batches of steps that an earlier training took."""
        for _ in range(steps * self.config.train.grad_accum):
            next(self._batches)
        self.fed.forget_batches()

    @property
    def scaler(self) -> Any:
        """The loss scaler; it does nothing except with fp16."""
        return self._scaler

    def _clip_gradients(self) -> None:
        with self.mark(CLIPPING):
            self._scaler.unscale_(self.parallel.optimizer)
            torch.nn.utils.clip_grad_norm_(self.parallel.model.parameters(), self.config.train.clip_norm)


class SingleProcess(Parallel):
    """One process: nothing to exchange, and no group to do it with."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        self.model = model
        self.exchange = True
        self.optimizer = self._optimizer(model, options)


@dataclass(frozen=True)
class OwnBatches(Workload):
    """A workload whose batches each rank loads for itself, such as a DataLoader; it starts over at its end."""

    given: Iterable[Any] = ()

    def _host_batches(self, *, rank: int, world_size: int) -> Iterator[Any]:
        epoch = 0
        while True:
            tell = getattr(getattr(self.given, "sampler", None), "set_epoch", None)
            if tell is not None:
                tell(epoch)
            empty = True
            for batch in self.given:
                empty = False
                yield batch
            if empty:
                raise UsageError("data: no batches are left; an iterator cannot start over, give a list")
            epoch += 1


def make_steps(config: BenchConfig, work: Workload, *, process: Process, mark: Mark) -> Steps:
    """Return the steps of a workload, its model made data-parallel."""
    train = config.train
    torch.set_float32_matmul_precision("high" if train.precision == "tf32" else "highest")
    if train.strategy == SINGLE and process.world_size > 1:
        raise UsageError(f"train.strategy: 'single' cannot train on {process.world_size} ranks; use pytorch_ddp")
    options = Options(
        bucket_size_mb=train.bucket_size_mb,
        gradient_as_bucket_view=train.gradient_as_bucket_view,
        static_graph=train.static_graph,
        find_unused_parameters=train.find_unused_parameters,
        lr=train.lr,
        micro_batch_size=config.workload.batch_size,
        grad_accum=train.grad_accum,
        precision=train.precision,
    )
    alone = process.world_size == 1
    model = SingleProcess(work.model, options) if alone else parallel(train.strategy, work.model, options)
    give_optimizer(model, config.optimizer, strategy=SINGLE if alone else train.strategy, lr=train.lr)
    return Steps(config, work, model, process=process, mark=mark)


def make_workload(config: BenchConfig, *, model: Any, data: Any, loss: Loss | None, device: torch.device) -> Workload:
    """Return the configured workload, or one of the user's own model, data and loss."""
    if model is None and data is None and loss is None:
        return workload(workload_spec(config), device)
    lacking = [name for name, given in (("model", model), ("data", data), ("loss", loss)) if given is None]
    if lacking:
        raise UsageError(f"Trainer: {lacking[0]} is missing; give model, data and loss together")
    spec = workload_spec(config)
    same = {"spec": spec, "model": model.to(device), "device": device, "objective": loss}
    if isinstance(data, Dataset):
        return Workload(**same, samples=data)
    return OwnBatches(**same, samples=Dataset(), given=data)
