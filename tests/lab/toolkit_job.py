"""Every class and function of the toolkit that needs a job, on two gloo ranks; rank 0 prints its results as JSON.

Rank 1 sleeps 30 ms in what it does alone. Sizes are such that the test can compute bytes and counts by itself.
"""

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import stepscope

SLEEP_S = 0.03
WIDTH, ROWS, MICRO_BATCHES = 256, 32, 4


class SlowData(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if dist.get_rank() == 1 and index % 8 == 0:  # the first sample of a batch
            time.sleep(SLEEP_S)
        return torch.full((WIDTH,), float(index)), torch.zeros(WIDTH)


def net() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)))


def all_reduces() -> dict[str, Any]:
    reduce, tensor = stepscope.ProfiledAllReduce(), torch.ones(1 << 20)
    began = time.perf_counter()
    for _ in range(5):
        reduce(tensor)
    return {**reduce.summary(), "first": tensor[0].item(), "outside_ms": 1e3 * (time.perf_counter() - began)}


def alpha_beta(out: str) -> dict[str, Any]:
    found = stepscope.calibrate_alpha_beta(None, [2**12, 2**16, 2**20, 2**24], 10)
    return {**found, "plot": str(stepscope.plot_calibration(found, f"{out}/rank{dist.get_rank()}.svg"))}


def overlap() -> dict[str, Any]:
    profiler = stepscope.OverlapProfiler(DistributedDataParallel(net(), bucket_cap_mb=0.3))
    return profiler.profile_step(torch.randn(ROWS, WIDTH), 3)


def ddp() -> dict[str, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(net(), bucket_cap_mb=0.3)
    profiler = stepscope.DDPProfiler(model, loss_fn=nn.functional.mse_loss)
    step = profiler.profile_step((torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)))
    return {"step": step, **profiler.analyze_bucket_efficiency(3)}


def tensor_parallel() -> dict[str, Any]:
    ranks = dist.get_world_size()
    column, row = torch.randn(WIDTH, WIDTH // ranks), torch.randn(WIDTH // ranks, WIDTH)

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = (x @ column).relu() @ row
        dist.all_reduce(y)
        return y

    profiler = stepscope.TPProfiler(ranks)
    return {
        "layer": profiler.profile_layer(layer, torch.randn(ROWS, WIDTH)),
        **profiler.analyze_communication_fraction(),
    }


def pipeline() -> dict[str, Any]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))), rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=lambda out, target: out.sum())
    x = torch.randn(MICRO_BATCHES * ROWS, WIDTH)

    def step() -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x)

    return stepscope.PPProfiler(ranks, MICRO_BATCHES).profile_schedule(step)


def sharded() -> dict[str, Any]:
    model = net()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    found = stepscope.ZeROProfiler(3, dist.get_world_size()).profile_forward(model, torch.randn(ROWS, WIDTH))
    health = stepscope.quick_health_check(model, torch.utils.data.DataLoader(SlowData(), batch_size=8), 1)
    return {**found, "stragglers": health["stragglers"], "reason": health["reason"]}


def main(out: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    loader = torch.utils.data.DataLoader(SlowData(), batch_size=8)
    model = DistributedDataParallel(net())
    health = stepscope.quick_health_check(model, loader, 7)
    late = stepscope.detect_stragglers(5, work=lambda: time.sleep(SLEEP_S * rank + 0.01))
    matmuls = stepscope.detect_stragglers(3)
    folder = stepscope.profile_distributed_training(
        model, loader, 5, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), out=f"{out}/trained"
    )
    profiler = stepscope.DistributedProfiler(f"{out}/synchronized")
    synchronized = profiler.profile_synchronized(lambda: dist.all_reduce(torch.ones(1000)), 4)
    found = {
        "health": {name: health[name] for name in ("ranks", "stragglers", "reason")},
        "late": {name: late[name] for name in ("own_ms", "stragglers")}, "matmuls": matmuls["own_ms"],
        "gradients_left": [p.grad is not None for p in model.parameters()],
        "efficiency": stepscope.calculate_comm_efficiency(1e9, 0.1, 12.5e9), "folder": str(folder),
        "synchronized": str(synchronized), "statistics": profiler.aggregate_statistics({"loss": 1.0 + 2 * rank}),
        "all_reduces": all_reduces(), "alpha_beta": alpha_beta(out), "overlap": overlap(), "ddp": ddp(),
        "tensor_parallel": tensor_parallel(), "pipeline": pipeline(), "sharded": sharded(),
    }  # fmt: skip
    if rank == 0:
        print("RESULT " + json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
