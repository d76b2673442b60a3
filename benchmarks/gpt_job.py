"""A small GPT, trained by one of three strategies: the script that a user would have, without a word about recording.

    torchrun --nproc-per-node=4 gpt_job.py ddp|fsdp2|pipeline [--device cpu] [--steps 60] [--hand-timed FOLDER]

With `--hand-timed` every rank times itself, as people do by hand: host time of forward, backward and optimizer step,
and blocks of ten steps between two synchronisations. Only deterministic kernels run, so that two runs of the same job
have the same losses bit by bit.
"""

import argparse
import json
import os
import time
from pathlib import Path

# Ranks that share one device have to look like ranks on different hosts to NCCL.
os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
os.environ.setdefault("NCCL_IB_DISABLE", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what determinism takes

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

BLOCK = 10
MICROBATCHES = 8


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        b, s, w = x.shape
        q, k, v = (
            t.view(b, s, self.heads, w // self.heads).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """All of the model, or one pipeline stage of it: the embedding and the head are where they are needed."""

    def __init__(self, args: argparse.Namespace, layers: range) -> None:
        super().__init__()
        first, last = layers.start == 0, layers.stop == args.layers
        self.embed = nn.Embedding(args.vocab, args.width) if first else None
        self.position = nn.Embedding(args.seq, args.width) if first else None
        self.blocks = nn.ModuleList([Block(args.width, args.heads) for _ in layers])
        self.norm = nn.LayerNorm(args.width) if last else None
        self.head = nn.Linear(args.width, args.vocab, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, or the next stage's input."""
        if self.embed is not None and self.position is not None:
            x = self.embed(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.head is not None and self.norm is not None else x


def main() -> None:
    args = parsed()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # kernels that no training has
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    train = {"ddp": train_data_parallel, "fsdp2": train_data_parallel, "pipeline": train_pipeline}[args.strategy]
    found = train(args)
    if args.hand_timed:
        Path(args.hand_timed, f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategy", choices=("ddp", "fsdp2", "pipeline"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--hand-timed", metavar="FOLDER")
    for name, value in (("width", 512), ("layers", 8), ("heads", 8), ("seq", 256), ("vocab", 8192), ("batch", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batches(args: argparse.Namespace, *, seed: int) -> torch.utils.data.DataLoader:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(args.vocab, (args.steps * args.batch, args.seq + 1), generator=generator)
    return torch.utils.data.DataLoader(tokens, batch_size=args.batch, pin_memory=args.device == "cuda")


class Hand:
    """Timers placed by hand: of the host per phase, and of blocks of steps between synchronisations."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.phases: list[dict[str, float]] = []
        self.edges: list[float] = []
        self._times: dict[str, float] = {}
        self._since = 0.0

    def step_begins(self, step: int) -> None:
        """Close a block every ten steps."""
        if step % BLOCK == 0:
            self.edge()

    def edge(self) -> None:
        """Wait for the device and note the time."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.edges.append(time.perf_counter())

    def begin(self) -> None:
        """Begin a phase."""
        self._since = time.perf_counter()

    def end(self, phase: str) -> None:
        """End it."""
        self._times[phase] = self._times.get(phase, 0.0) + (time.perf_counter() - self._since) * 1000

    def step_ends(self) -> None:
        """Close the step's account."""
        self.phases.append(self._times)
        self._times = {}

    def found(self, losses: list[torch.Tensor]) -> dict:
        """Return what was measured."""
        self.edge()
        pairs = zip(self.edges, self.edges[1:], strict=False)
        return {
            "phases_ms": self.phases,
            "block_ms_per_step": [(b - a) / BLOCK * 1000 for a, b in pairs],
            "losses": [value.item().hex() for value in losses],
        }


def train_data_parallel(args: argparse.Namespace) -> dict:
    model: nn.Module = GPT(args, range(args.layers)).to(args.device)
    if args.strategy == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    hand, losses = Hand(args.device), []
    for step, tokens in enumerate(batches(args, seed=dist.get_rank())):
        hand.step_begins(step)
        tokens = tokens.to(args.device, non_blocking=True)
        hand.begin()
        with torch.autocast(args.device, torch.bfloat16):
            logits = model(tokens[:, :-1])
        hand.end("forward_pass")
        loss = loss_of(logits, tokens[:, 1:])
        hand.begin()
        loss.backward()
        hand.end("backward_pass")
        hand.begin()
        optimizer.step()
        hand.end("optimizer_step")
        optimizer.zero_grad()
        losses.append(loss.detach())
        hand.step_ends()
    return hand.found(losses)


def train_pipeline(args: argparse.Namespace) -> dict:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, stages = dist.get_rank(), dist.get_world_size()
    per_stage = args.layers // stages
    stop = args.layers if rank == stages - 1 else (rank + 1) * per_stage
    model = GPT(args, range(rank * per_stage, stop)).to(args.device)
    stage = PipelineStage(model, rank, stages, torch.device(args.device))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    hand, losses = Hand(args.device), []
    for step, tokens in enumerate(batches(args, seed=0)):
        hand.step_begins(step)
        tokens = tokens.to(args.device, non_blocking=True)
        hand.begin()
        of_step: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        elif rank == stages - 1:
            schedule.step(target=tokens[:, 1:].contiguous(), losses=of_step)
        else:
            schedule.step()
        hand.end("schedule")
        hand.begin()
        optimizer.step()
        hand.end("optimizer_step")
        optimizer.zero_grad()
        losses += [torch.stack(of_step).mean().detach()] if of_step else []
        hand.step_ends()
    return hand.found(losses)


if __name__ == "__main__":
    main()
