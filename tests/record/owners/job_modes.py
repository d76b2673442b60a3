"""One training job in several shapes, named by its first argument; it prints the loss of every step."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

MODE = sys.argv[1] if len(sys.argv) > 1 else "plain"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 22
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def inner(self, x):
        hidden = F.gelu(self.up(self.norm(x)))
        return self.down(hidden)

    def forward(self, x):
        if MODE == "checkpoint":
            return torch.add(x, checkpoint(self.inner, x, use_reentrant=False))
        return torch.add(x, self.inner(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def show(loss):
    sys.stdout.write(loss.item().hex() + "\n")
    sys.stdout.flush()


def samples():
    return [(torch.randn(16), torch.randn(4)) for _ in range(8 * STEPS)]


def statistics(model):
    return sum(p.grad.float().square().sum().item() for p in model.parameters())


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in DataLoader(samples(), batch_size=8):
        loss = F.mse_loss(model(x.to(DEVICE)), y.to(DEVICE))
        loss.backward()
        statistics(model)
        optimizer.step()
        optimizer.zero_grad()
        show(loss)


def wrapped(net):
    if MODE == "ddp":
        return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.002)
    if MODE == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(DEVICE, (torch.distributed.get_world_size(),))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(net, mesh=mesh)
    if MODE == "compile":
        return torch.compile(net, backend="aot_eager")
    return net


def main():
    torch.manual_seed(0)
    if MODE in ("ddp", "fsdp"):
        torch.distributed.init_process_group("gloo" if DEVICE == "cpu" else "nccl")
    train(wrapped(Net().to(DEVICE)))
    if MODE in ("ddp", "fsdp"):
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
