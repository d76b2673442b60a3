"""One configuration in a comparison: built anew for each run, so that every run begins with the same weights."""

import gc
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from stepscope.bench.data_parallel.implementations.parallel import Options
from stepscope.bench.data_parallel.strategies import parallel
from stepscope.bench.data_parallel.training import Mark, Training, unmarked
from stepscope.bench.session.rank import Bench
from stepscope.bench.workloads.build import workload
from stepscope.bench.workloads.workload import WorkloadSpec


@dataclass(frozen=True)
class Contender:
    """An implementation with its options, under the name it has in the results."""

    name: str
    implementation: str
    workload: WorkloadSpec
    options: Options
    warmup_steps: int

    @classmethod
    def of(cls, settings: dict[str, Any], series: dict[str, Any]) -> "Contender":
        """Return the contender of one entry of a plan's `series`."""
        spec = WorkloadSpec(**settings["workload"])
        grad_accum = int(settings.get("grad_accum", 1))
        options = {**settings.get("options", {}), **series.get("options", {})}
        return cls(
            name=series["name"],
            implementation=series["implementation"],
            workload=spec,
            options=Options(
                micro_batch_size=spec.batch_size, grad_accum=grad_accum, precision=spec.precision, **options
            ),
            warmup_steps=int(settings["warmup_steps"]),
        )

    def training(self, bench: Bench, *, clip: bool = False, mark: Mark = unmarked) -> Training:
        """Return a new training of this contender, with the weights that its seed gives."""
        torch.set_float32_matmul_precision("high" if self.workload.precision == "tf32" else "highest")
        work = workload(self.workload, bench.device)
        return Training(
            work,
            parallel(self.implementation, work.model, self.options),
            rank=bench.rank,
            world_size=bench.world_size,
            warmup_steps=self.warmup_steps,
            grad_accum=self.options.grad_accum,
            clip=clip,
            mark=mark,
        )


def clear_memory(bench: Bench) -> None:
    """Return once all ranks are here and have given back the memory of what ran before."""
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    dist.barrier(device_ids=[bench.device.index] if bench.device.type == "cuda" else None)
