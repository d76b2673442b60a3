"""A real job on gloo ranks: PyTorch's DDP, FSDP2, FSDP2 with tensor parallelism; a trace of one step of each."""

import sys
from pathlib import Path

import torch
import torch._dynamo  # for all ranks at once
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))

from parallel_model import Shape, Transformer, parallel_mesh, parallelize

SHAPE = Shape(layers=2, d_model=64, heads=4, vocab=12000, seq_len=16, mlp_width=256, gated_mlp=True, kv_heads=2)
MICRO_BATCH = 2
#: ranks of data and of tensor parallelism
CASES = {"ddp": (4, 1), "zero2": (4, 1), "zero3": (2, 2)}


def step(model, mesh):
    tokens = torch.zeros((MICRO_BATCH, SHAPE.seq_len), dtype=torch.int64)
    with mesh.loss_context():
        F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten()).backward()
    model.zero_grad()


def rank_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    for name, (data, tensor) in CASES.items():
        mesh = parallel_mesh(data, tensor)
        model = Transformer(SHAPE)
        if name == "ddp":
            model = DistributedDataParallel(model)
        else:
            parallelize(model, mesh, name)
        for _ in range(1 + (name == "ddp")):  # DDP fills its final buckets from the second step on
            step(model, mesh)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
            step(model, mesh)
        if rank == 0:
            profiler.export_chrome_trace(str(Path(folder) / f"{name}.json"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(rank_main, args=(sys.argv[1],), nprocs=4, start_method="fork")
