"""A GPT that notes what the allocator says: the job of `memory_categories.py`, without a word about recording.

    torchrun --nproc-per-node=2 memory_job.py ddp|fsdp2 adamw|sgd [--checkpoint] [--device cpu] --notes FOLDER

After every step each rank notes the bytes of its weights, gradients and optimizer state, and what the allocator held
before forward, after forward, after backward, at the end and at its peak.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from gpt_job import Block  # which has ranks on one device pass for ranks on different hosts
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

STEPS = 16


class GPT(nn.Module):
    """A language model whose blocks may be computed again in backward."""

    def __init__(self, width: int, layers: int, vocab: int, *, checkpoint: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        self.blocks = nn.ModuleList([Block(width, width // 64) for _ in range(layers)])
        self.checkpoint = checkpoint

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        return self.head(x)


def main() -> None:
    args = parsed()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    on_gpu = args.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if on_gpu else "gloo")
    width, layers, vocab, batch, length = (768, 8, 16384, 8, 512) if on_gpu else (128, 4, 512, 4, 64)
    model: Any = GPT(width, layers, vocab, checkpoint=args.checkpoint).to(args.device)
    if args.strategy == "ddp":
        trained: Any = nn.parallel.DistributedDataParallel(model)
    else:
        for block in model.blocks:
            fully_shard(block)
        trained = fully_shard(model)
    optimizer: Any = (
        torch.optim.AdamW(model.parameters())
        if args.optimizer == "adamw"
        else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    )
    tokens = torch.randint(vocab, (batch, length), device=args.device)
    notes = []
    for _ in range(STEPS):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        noted = {"begin": allocated(on_gpu)}
        loss = F.cross_entropy(trained(tokens).flatten(0, 1), tokens.flatten())
        noted["after_forward"] = allocated(on_gpu)
        loss.backward()
        noted["after_backward"] = allocated(on_gpu)
        noted["gradients"] = sum(held(p.grad) for p in model.parameters() if p.grad is not None)
        optimizer.step()
        noted["weights"] = sum(held(p) for p in model.parameters())
        noted["optimizer_state"] = sum(held(t) for state in optimizer.state.values() for t in state.values())
        optimizer.zero_grad()
        noted["end"] = allocated(on_gpu)
        noted["peak"] = torch.cuda.max_memory_allocated() if on_gpu else 0
        notes.append(noted)
    Path(args.notes, f"rank{dist.get_rank()}.json").write_text(json.dumps(notes))
    dist.barrier()
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("strategy", choices=("ddp", "fsdp2"))
    parser.add_argument("optimizer", choices=("adamw", "sgd"))
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--notes", required=True, metavar="FOLDER")
    return parser.parse_args()


def allocated(on_gpu: bool) -> int:
    return torch.cuda.memory_allocated() if on_gpu else 0


def held(tensor: Any) -> int:
    """Return the bytes of a tensor on the device, of a shard where it is spread over ranks."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.numel() * local.element_size() if isinstance(local, torch.Tensor) and local.dim() else 0


if __name__ == "__main__":
    main()
