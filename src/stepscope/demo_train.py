"""A small GPT trained with DDP on the CPU, with one rank slowed down on purpose. It knows nothing of stepscope.

    torchrun --nproc-per-node=2 demo_train.py --slow-rank 1 --slow-ms 60

`stepscope demo` records it and has to find out which rank is late, by how much, and why.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

VOCABULARY, SEQUENCE, WIDTH, HEADS, LAYERS, BATCH = 256, 64, 128, 4, 4, 8


class Text(Dataset[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[misc]
    """Windows of bytes and the bytes that follow each; plain enough for the loss to fall in a few steps."""

    def __init__(self, windows: int) -> None:
        words = " ".join(f"{n} and {n + 1} make {2 * n + 1}." for n in range(windows * SEQUENCE // 8))
        self._bytes = torch.frombuffer(bytearray(words, "ascii"), dtype=torch.uint8).long()
        self._windows = windows

    def __len__(self) -> int:
        return self._windows

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self._bytes[i * SEQUENCE : (i + 1) * SEQUENCE + 1]
        return window[:-1], window[1:]


class Block(nn.Module):  # type: ignore[misc]
    """Causal attention, then a two-layer perceptron, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, in the shape of its input."""
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):  # type: ignore[misc]
    """Bytes in, scores of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the scores of the byte after each byte."""
        where = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.blocks(self.tokens(ids) + self.positions(where)))


def main() -> None:
    """Train for a number of steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--slow-rank", type=int, default=1, help="rank with a busy host")
    parser.add_argument("--slow-ms", type=float, default=60.0, help="for how long, in every step")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step, (ids, following) in enumerate(DataLoader(Text(args.steps * BATCH), batch_size=BATCH)):
        if rank == args.slow_rank:
            time.sleep(args.slow_ms / 1000)
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1:3d} of {args.steps}   loss {loss.item():.3f}", flush=True)  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
