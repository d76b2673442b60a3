"""Models spread over four gloo ranks in every usual way; rank 0 prints what the recorder makes of each."""

import json
from typing import Any

import torch
import torch._dynamo  # for all ranks at once
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from stepscope.record.groups import process_groups
from stepscope.record.helper.handover import model_facts, ranks_per_replica, strategy_of


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


def tensor_parallel(net: torch.nn.Module, mesh: object) -> torch.nn.Module:
    return parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    found: dict[str, Any] = {"plain": strategy_of(model(), None)}
    ddp = DistributedDataParallel(model())
    found["ddp"] = strategy_of(ddp, torch.optim.SGD(ddp.parameters()))
    found["compiled"] = strategy_of(torch.compile(ddp), None)
    found["zero1"] = strategy_of(ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD))
    sharded = fully_shard(model())
    found["fsdp2"], found["facts"] = strategy_of(sharded, None), model_facts(sharded)
    found["replicas"] = [ranks_per_replica(ddp), ranks_per_replica(sharded)]
    hsdp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found["hsdp"] = strategy_of(fully_shard(model(), mesh=hsdp), None)
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net = tensor_parallel(model(), both["tp"])
    found["tp"] = strategy_of(net, None)
    found["fsdp2+tp"] = strategy_of(fully_shard(net, mesh=both["dp"]), None)
    found["replicas"].append(ranks_per_replica(net))
    found["groups"] = sorted({g["desc"] for g in process_groups() or []})
    if rank == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(main, (f"{folder}/store",), nprocs=4, start_method="fork")
