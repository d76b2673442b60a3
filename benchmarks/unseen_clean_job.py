"""Plain training jobs on the CPU without a fault: what is claimed of them is false. They know nothing of stepscope.

[torchrun --nproc-per-node=2] unseen_clean_job.py SHAPE STEPS
"""

import itertools
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
Step = Callable[[int], None]


class Block(nn.Module):
    """One layer of a small decoder whose mask is made in forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        b, t, d = x.shape
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        q, k, v = (z.view(b, t, 4, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def decoder() -> nn.Module:
    net = nn.Sequential(nn.Embedding(512, 64), *(Block(64) for _ in range(3)), nn.Linear(64, 512))
    return nn.parallel.DistributedDataParallel(net) if WORLD > 1 else net


def stack(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.GELU())))


def plain(batch: int = 8) -> Step:
    """One forward, one backward, one step of the optimizer; the loss is shown now and then."""
    model, data = decoder(), torch.randint(0, 512, (4000, 24))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(i: int) -> None:
        x = data[i * batch % 3900 :][:batch]
        loss = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(i, loss.item())

    return step


def accumulation() -> Step:
    """Four micro-batches, a clipped gradient and a schedule; on ranks the gradients are sent once."""
    model, data = decoder(), torch.randint(0, 512, (4000, 24))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step(i: int) -> None:
        total = 0.0
        for part in range(4):
            x = data[(4 * i + part) * 4 % 3900 :][:4]
            if WORLD > 1:
                model.require_backward_grad_sync = part == 3
            loss = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()) / 4
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


def gan() -> Step:
    """Two networks in turn, an optimizer each, with noise drawn in the loop."""
    make, judge = stack(32, 256, 256, 128), stack(128, 256, 256, 1)
    both = [torch.optim.Adam(n.parameters(), 2e-4) for n in (make, judge)]
    real = torch.randn(2000, 128)

    def step(i: int) -> None:
        noise = torch.randn(64, 32)
        fake = make(noise)
        loss = F.softplus(-judge(real[i * 64 % 1900 :][:64])).mean() + F.softplus(judge(fake.detach())).mean()
        both[1].zero_grad()
        loss.backward()
        both[1].step()
        loss = F.softplus(-judge(fake)).mean()
        both[0].zero_grad()
        loss.backward()
        both[0].step()

    return step


def evaluation() -> Step:
    """Evaluates in every twelfth step and saves the weights in every thirtieth."""
    model = decoder()
    data = torch.randint(0, 512, (4000, 24))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    folder = Path(tempfile.mkdtemp())

    def evaluate() -> float:
        model.eval()
        with torch.no_grad():
            losses = [F.cross_entropy(model(x).flatten(0, 1), x.flatten()).item() for x in data[3900:].split(25)]
        model.train()
        return sum(losses) / len(losses)

    def step(i: int) -> None:
        x = data[i * 8 % 3800 :][:8]
        loss = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 12 == 11:
            evaluate()
        if i % 30 == 29:
            torch.save(model.state_dict(), folder / "weights.pt")

    return step


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Small images that are turned over at random."""

    def __init__(self) -> None:
        self.images = torch.rand(4000, 3, 16, 16)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        return (image.flip(-1) if random.random() < 0.5 else image), index % 10


def images() -> Step:
    """A convolutional network with a loader and the accuracy of the batch."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2), nn.BatchNorm2d(64),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    loader = DataLoader(Images(), batch_size=32, shuffle=True)
    batches, right = iter(loader), [0]

    def step(i: int) -> None:
        x, y = next(batches)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        right[0] += int((logits.argmax(1) == y).sum())

    return step


def teacher() -> Step:
    """A small network learns from a frozen one, which runs without gradients."""
    frozen, model = stack(64, 256, 256, 16).requires_grad_(False), stack(64, 128, 128, 16)
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    data = torch.randn(4000, 64)

    def step(i: int) -> None:
        x = data[i * 64 % 3900 :][:64]
        with torch.no_grad():
            target = frozen(x).softmax(-1)
        loss = F.kl_div(model(x).log_softmax(-1), target, reduction="batchmean")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def autoencoder() -> Step:
    """A variational autoencoder whose inputs are made noisy, with gradients clipped by hand."""
    encode, decode = stack(128, 256, 64), stack(32, 256, 128)
    weights = [*encode.parameters(), *decode.parameters()]
    optimizer = torch.optim.Adam(weights, 1e-3)
    data = torch.randn(4000, 128)

    def step(i: int) -> None:
        x = data[i * 64 % 3900 :][:64]
        mean, spread = encode(x + 0.1 * torch.randn_like(x)).chunk(2, -1)
        code = mean + spread.exp() * torch.randn_like(mean)
        loss = F.mse_loss(decode(code), x) + 1e-3 * (mean**2 + spread.exp() - spread).mean()
        loss.backward()
        for weight in weights:
            weight.grad.clamp_(-1, 1)
        optimizer.step()
        optimizer.zero_grad()

    return step


SHAPES = {
    "plain": plain,
    "accumulation": accumulation,
    "gan": gan,
    "evaluation": evaluation,
    "images": images,
    "teacher": teacher,
    "autoencoder": autoencoder,
}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if WORLD > 1:
        dist.init_process_group("gloo")
    step = SHAPES[sys.argv[1]]()
    for i in range(int(sys.argv[2])):
        step(i)
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
