"""Loops spread over ranks in other ways than plain DDP."""

import torch
import torch.distributed as dist
from parts import STEPS, WIDTH, Losses, ddp_model, exact, loader, loss_of, small_model
from torch import nn


def zero_redundancy() -> Losses:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net, losses = ddp_model(), []
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    for batch in loader():
        loss = loss_of(net, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(exact(loss))
    return losses


def fsdp2() -> Losses:
    from torch.distributed.fsdp import fully_shard

    net, losses = small_model(), []
    fully_shard(net.first)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for batch in loader():
        loss = loss_of(net, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(exact(loss))
    return losses


def fsdp2_accumulation() -> Losses:
    """Four micro-batches per step: between them parameters are freed and gathered, and nothing is updated."""
    from torch.distributed.fsdp import fully_shard

    net, losses = small_model(), []
    fully_shard(net.first)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for number, batch in enumerate(loader(batches=4 * STEPS)):
        loss = loss_of(net, batch)
        loss.backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(exact(loss))
    return losses


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
