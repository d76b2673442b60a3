"""Small GPTs trained in eight ways, as users write them, without any code for recording.

    python gpt_job.py nanogpt|checkpointing|compiled|lightning|transformers [--steps 30]
    torchrun --nproc-per-node=4 gpt_job.py ddp|fsdp2|pipeline [--hand-timed FOLDER] [--notes FOLDER]

`--hand-timed`: every rank times itself as people do by hand, host time of forward, backward and optimizer step, and
blocks of ten steps between two synchronisations. Only deterministic kernels run then, so that losses of two runs are
equal bit by bit. `--notes`: every rank notes the bytes of weights, gradients and optimizer state after each step, and
the allocator's numbers around its parts. On a GPU all ranks share the first one.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if "RANK" in os.environ:  # ranks that share one device have to look like ranks on different hosts to NCCL
    os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_IB_DISABLE", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # determinism needs it

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

BLOCK, MICROBATCHES, ACCUMULATE = 10, 8, 2
SMALL = {"width": 64, "layers": 4, "heads": 4, "vocab": 512, "seq": 32, "batch": 8}
LARGE = {"width": 512, "layers": 8, "heads": 8, "vocab": 8192, "seq": 256, "batch": 16}


class Attention(nn.Module):
    """Causal attention over all heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (z.view(b, t, self.heads, w // self.heads).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """All of the model, or one pipeline stage: the embedding is in the first one, the head in the last."""

    def __init__(self, args: argparse.Namespace, layers: range | None = None) -> None:
        super().__init__()
        layers = layers or range(args.layers)
        self.checkpointed, first, last = args.checkpoint, layers.start == 0, layers.stop == args.layers
        self.embed = nn.Embedding(args.vocab, args.width) if first else None
        self.position = nn.Embedding(args.seq, args.width) if first else None
        self.blocks = nn.ModuleList([Block(args.width, args.heads) for _ in layers])
        self.norm = nn.LayerNorm(args.width) if last else None
        self.head = nn.Linear(args.width, args.vocab, bias=False) if last else None

    def forward(self, x):
        if self.embed is not None and self.position is not None:
            x = self.embed(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x)) if self.head is not None and self.norm is not None else x


def main() -> None:
    args = parsed()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if args.hand_timed:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # kernels that no training has
    if "RANK" in os.environ:
        if args.device == "cuda":
            torch.cuda.set_device(0)
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    found = KINDS[args.kind](args)
    for folder in filter(None, (args.hand_timed, args.notes)):
        Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "sgd"))
    parser.add_argument("--checkpoint", action="store_true", help="compute blocks again in backward")
    parser.add_argument("--hand-timed", metavar="FOLDER")
    parser.add_argument("--notes", metavar="FOLDER")
    for name in SMALL:
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    for name, value in (LARGE if args.device == "cuda" else SMALL).items():
        setattr(args, name, getattr(args, name) or value)
    return args


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def half(args: argparse.Namespace):
    return torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda" and not args.notes)


class Tokens(Dataset):
    """Rows of tokens, each with its successor's."""

    def __init__(self, args: argparse.Namespace, rows: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.data = torch.randint(args.vocab, (rows, args.seq + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i, :-1], self.data[i, 1:]


# By hand


class Hand:
    """Timers placed by hand: of the host per phase, and of blocks of steps between synchronisations."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.waits = args.device == "cuda" and bool(args.hand_timed)
        self.phases: list[dict[str, float]] = []
        self.edges: list[float] = []
        self._since = 0.0

    def step_begins(self, step: int) -> None:
        """Close a block every ten steps."""
        if step % BLOCK == 0:
            self.edge()
        self.phases.append({})

    def edge(self) -> None:
        """Wait for the device and note the time."""
        if self.waits:
            torch.cuda.synchronize()
        self.edges.append(time.perf_counter())

    def begin(self) -> None:
        """Begin a phase."""
        self._since = time.perf_counter()

    def end(self, phase: str) -> None:
        """End it."""
        self.phases[-1][phase] = (time.perf_counter() - self._since) * 1000

    def found(self, losses: list[Any]) -> dict:
        """Return what was measured."""
        self.edge()
        blocks = [(b - a) / BLOCK * 1000 for a, b in zip(self.edges, self.edges[1:], strict=False)]
        hexes = [value.item().hex() for value in losses]
        return {"phases_ms": self.phases, "block_ms_per_step": blocks, "losses": hexes}


def allocated(args: argparse.Namespace) -> int:
    return torch.cuda.memory_allocated() if args.device == "cuda" else 0


def held(tensor: Any) -> int:
    """Return the bytes of a tensor on the device, of a shard if it is spread over ranks."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.numel() * local.element_size() if isinstance(local, torch.Tensor) and local.dim() else 0


# Kinds


def data_parallel(args: argparse.Namespace) -> Any:
    model: Any = GPT(args).to(args.device)
    if args.kind == "ddp":
        trained = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        trained = fully_shard(model)
    optimizer: Any = (
        torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        if args.optimizer == "adamw"
        else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    )
    hand, losses, notes = Hand(args), [], []
    rows = Tokens(args, args.steps * args.batch, seed=dist.get_rank())
    for step, (x, y) in enumerate(DataLoader(rows, batch_size=args.batch, pin_memory=args.device == "cuda")):
        hand.step_begins(step)
        x, y = x.to(args.device, non_blocking=True), y.to(args.device, non_blocking=True)
        if args.notes and args.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        noted = {"begin": allocated(args)}
        hand.begin()
        with half(args):
            logits = trained(x)
        hand.end("forward_pass")
        loss = loss_of(logits, y)
        noted["after_forward"] = allocated(args)
        hand.begin()
        loss.backward()
        hand.end("backward_pass")
        noted["after_backward"] = allocated(args)
        hand.begin()
        optimizer.step()
        hand.end("optimizer_step")
        if args.notes:
            noted["weights"] = sum(held(p) for p in model.parameters())
            noted["optimizer_state"] = sum(held(t) for state in optimizer.state.values() for t in state.values())
            noted["peak"] = torch.cuda.max_memory_allocated() if args.device == "cuda" else 0
            notes.append(noted)
        optimizer.zero_grad()
        losses.append(loss.detach())
        del logits, loss
    return notes or hand.found(losses)


def pipeline(args: argparse.Namespace) -> dict:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, stages = dist.get_rank(), dist.get_world_size()
    per_stage = args.layers // stages
    stop = args.layers if rank == stages - 1 else (rank + 1) * per_stage
    model = GPT(args, range(rank * per_stage, stop)).to(args.device)
    schedule = Schedule1F1B(
        PipelineStage(model, rank, stages, torch.device(args.device)), MICROBATCHES, loss_fn=loss_of
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    hand, losses = Hand(args), []
    for step, (x, y) in enumerate(DataLoader(Tokens(args, args.steps * args.batch), batch_size=args.batch)):
        hand.step_begins(step)
        x, y = x.to(args.device), y.to(args.device)
        hand.begin()
        of_step: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == stages - 1:
            schedule.step(target=y, losses=of_step)
        else:
            schedule.step()
        hand.end("schedule")
        hand.begin()
        optimizer.step()
        hand.end("optimizer_step")
        optimizer.zero_grad()
        losses += [torch.stack(of_step).mean().detach()] if of_step else []
    return hand.found(losses)


def nanogpt(args: argparse.Namespace) -> None:
    """Train as nanoGPT does: batches cut from one long array, accumulation, clipping, a schedule, a log line."""
    args.checkpoint |= args.kind == "checkpointing"
    model = GPT(args).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=args.device == "cuda")
    trained = torch.compile(model) if args.kind == "compiled" else model
    data = torch.randint(0, args.vocab, (100_000,))

    def get_batch():
        ix = torch.randint(len(data) - args.seq - 1, (args.batch,))
        x = torch.stack([data[i : i + args.seq] for i in ix])
        y = torch.stack([data[i + 1 : i + 1 + args.seq] for i in ix])
        return x.to(args.device, non_blocking=True), y.to(args.device, non_blocking=True)

    x, y = get_batch()
    for i in range(args.steps):
        rate = 6e-4 * (i + 1) / 10 if i < 10 else 6e-4 * (0.55 + 0.45 * math.cos(math.pi * i / args.steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        for _ in range(ACCUMULATE):
            with half(args):
                loss = loss_of(trained(x), y) / ACCUMULATE
            x, y = get_batch()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if i % 10 == 0:
            sys.stdout.write(f"iter {i}: loss {loss.item() * ACCUMULATE:.4f}\n")


def lightning(args: argparse.Namespace) -> None:
    import lightning as L

    class Lit(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = GPT(args)

        def training_step(self, batch, _index):
            x, y = batch
            loss = loss_of(self.model(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    gpu = args.device == "cuda"
    kind = {"accelerator": "gpu" if gpu else "cpu", "devices": 1, "precision": "bf16-mixed" if gpu else "32-true"}
    trainer = L.Trainer(max_steps=args.steps, gradient_clip_val=1.0, **kind, **off)
    trainer.fit(Lit(), DataLoader(Tokens(args, args.steps * args.batch), args.batch))


def transformers(args: argparse.Namespace) -> None:
    import transformers as T

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt = GPT(args)

        def forward(self, input_ids, labels):
            logits = self.gpt(input_ids)
            return {"loss": loss_of(logits, labels), "logits": logits}

    class Rows(Tokens):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return {"input_ids": x, "labels": y}

    settings = T.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=ACCUMULATE,
        report_to=[],
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        use_cpu=args.device == "cpu",
        bf16=args.device == "cuda",
    )
    rows = Rows(args, ACCUMULATE * args.steps * args.batch)
    T.Trainer(model=Model(), args=settings, train_dataset=rows).train()


KINDS: dict[str, Any] = {
    "ddp": data_parallel,
    "fsdp2": data_parallel,
    "pipeline": pipeline,
    "nanogpt": nanogpt,
    "compiled": nanogpt,
    "checkpointing": nanogpt,
    "lightning": lightning,
    "transformers": transformers,
}


if __name__ == "__main__":
    main()
