"""Loops spread over ranks in other ways than plain DDP."""

import torch
import torch.distributed as dist
from parts import STEPS, WIDTH, Losses, ddp_model, exact, small_model, train
from torch import nn


def zero_redundancy() -> Losses:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = ddp_model()
    return train(net, ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=0.01))


def fsdp2(*, every: int = 1) -> Losses:
    from torch.distributed.fsdp import fully_shard

    net = small_model()
    fully_shard(net.first)
    fully_shard(net)
    return train(net, torch.optim.AdamW(net.parameters(), lr=0.01), batches=every * STEPS, every=every)


def fsdp2_accumulation() -> Losses:
    """Four micro-batches per step: between them parameters are freed and gathered, and nothing is updated."""
    return fsdp2(every=4)


def pipeline() -> Losses:
    """Two stages, four micro-batches; the second stage loads only targets, the first only inputs."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    torch.manual_seed(rank)
    part = nn.Linear(WIDTH, WIDTH)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    data = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(5))
    losses: Losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(data)
        else:
            found: list[torch.Tensor] = []
            schedule.step(target=data, losses=found)
            losses.append(exact(torch.stack(found).mean()))
        optimizer.step()
    return losses
