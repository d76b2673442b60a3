"""FSDP2: parameters, gradients and optimizer state sharded over the ranks, recorded, with what its gathers cost.

One process: python examples/fsdp_example.py
One node:    torchrun --nproc-per-node=2 examples/fsdp_example.py --out run
Two nodes:   torchrun --nnodes=2 --nproc-per-node=8 --node-rank=0 --master-addr=HOST0 examples/fsdp_example.py
             and the same with --node-rank=1 on the other node
Read it:     stepscope report run          (on two nodes --out is a folder that both see, or give `stepscope report`
                                            copies of both)
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import stepscope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--out", default="stepscope-run")
    args = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()) if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if cuda else "gloo", **alone)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(args.width, args.width) for _ in range(args.layers))).to(device)
    for layer in model:
        fully_shard(layer)  # one unit per layer
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(32 * args.steps * dist.get_world_size(), args.width)
    data = TensorDataset(x, x.roll(1, dims=1))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))

    profiler = stepscope.ZeROProfiler(stage=3, world_size=dist.get_world_size())
    profiler.analyze_memory_comm_tradeoff(num_parameters=args.layers * (args.width**2 + args.width))
    forward = profiler.profile_forward(model, x[:32])
    folder = stepscope.profile_distributed_training(
        model, loader, args.steps, optimizer=optimizer, loss_fn=nn.functional.mse_loss, out=args.out
    )
    if dist.get_rank() == 0:
        size_mb = forward["gathered_bytes"] / 1e6
        print(f"{forward['gathers']:g} gathers of {size_mb:.3g} MB in a forward pass, run folder {folder}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
