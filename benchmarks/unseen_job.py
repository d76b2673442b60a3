"""Plain training jobs on a GPU, each with one fault that no rule was written for. They know nothing of stepscope.

[torchrun --nproc-per-node=4] unseen_job.py run WORKLOAD FAULT STEPS       one ordinary training loop
[torchrun --nproc-per-node=4] unseen_job.py time OUT.json W:FAULT,...      with and without it, in turn
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
SIZES = {"width": 1024, "layers": 8, "heads": 16, "vocab": 16384, "batch": 8, "length": 1024}
SMALL = {"width": 384, "layers": 5, "heads": 6, "vocab": 2048, "batch": 48, "length": 256}
if not CUDA:  # a dry run
    SIZES = SMALL = {"width": 32, "layers": 2, "heads": 2, "vocab": 128, "batch": 2, "length": 16}

Step = Callable[[int], None]


class Layer(nn.Module):
    """One layer of a decoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:  # noqa: D102
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A language model; `one_hot` multiplies by the embedding instead of looking it up."""

    def __init__(self, sizes: dict[str, int], *, one_hot: bool = False) -> None:
        super().__init__()
        self.one_hot, self.vocab = one_hot, sizes["vocab"]
        self.embedding = nn.Embedding(sizes["vocab"], sizes["width"])
        self.layers = nn.ModuleList(Layer(sizes["width"], sizes["heads"]) for _ in range(sizes["layers"]))
        self.norm, self.head = nn.LayerNorm(sizes["width"]), nn.Linear(sizes["width"], sizes["vocab"], bias=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:  # noqa: D102
        if self.one_hot:
            x = F.one_hot(ids, self.vocab).to(self.embedding.weight.dtype) @ self.embedding.weight
        else:
            x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def amp() -> torch.autocast:
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16)


def lm(fault: str) -> Step:
    """A language model on one device."""
    sizes = SIZES
    model = Decoder(sizes, one_hot=fault == "one_hot").to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=CUDA)
    ids = torch.randint(0, sizes["vocab"], (sizes["batch"], sizes["length"]), device=DEVICE)
    seen: list[torch.Tensor] = []

    def step(i: int) -> None:
        mask = None
        if fault == "cpu_mask":  # the causal mask made on the host, one per sample, and sent in every step
            mask = torch.ones(sizes["batch"], 1, sizes["length"], sizes["length"]).tril().log().to(DEVICE)
        with amp():
            logits = model(ids, mask if mask is None else mask.to(torch.bfloat16))
            loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()
        if fault == "nan_check" and any(torch.isnan(p.grad).any() for p in model.parameters()):
            raise SystemExit("a gradient is not a number")
        if fault == "accuracy":  # top-5 accuracy over the whole vocabulary, kept for later
            top = logits.detach().float().softmax(-1).topk(5, -1).indices
            seen.append((top == ids[..., None]).any(-1).float().mean())
        optimizer.step()
        optimizer.zero_grad()
        if fault == "empty_cache":
            torch.cuda.empty_cache() if CUDA else gc.collect()

    return step


def gan(fault: str) -> Step:
    """Two networks in turn; the fault also computes the critic's gradients while the generator learns."""
    wide, batch = (2048, 4096) if CUDA else (32, 8)
    make = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(wide, wide), nn.GELU())), nn.Linear(wide, wide)).to(
        DEVICE
    )
    judge = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(wide, wide), nn.GELU())), nn.Linear(wide, 1)).to(
        DEVICE
    )
    both = [torch.optim.AdamW(n.parameters(), 1e-4, fused=CUDA) for n in (make, judge)]
    noise, real = (torch.randn(batch, wide, device=DEVICE) for _ in range(2))

    def step(i: int) -> None:
        judge.requires_grad_(True)
        with amp():
            fake = make(noise)
            loss = judge(fake.detach()).mean() - judge(real).mean()
        loss.backward()
        both[1].step()
        both[1].zero_grad()
        judge.requires_grad_(fault == "critic_grads")
        with amp():
            loss = -judge(fake).mean()
        loss.backward()
        both[0].step()
        for optimizer in both:
            optimizer.zero_grad()

    return step


def ddp(fault: str) -> Step:
    """A language model on four ranks."""
    from torch.nn.parallel import DistributedDataParallel

    sizes = dict(SMALL)
    model = DistributedDataParallel(Decoder(sizes).to(DEVICE), device_ids=[0] if CUDA else None)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=CUDA)
    length = sizes["length"] * (2 if fault == "long_samples" and RANK == 2 else 1)
    ids = torch.randint(0, sizes["vocab"], (sizes["batch"], length), device=DEVICE)

    def step(i: int) -> None:
        with amp():
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if fault == "gather_objects":  # metrics of all ranks, pickled, in every step
            found: list[dict[str, float] | None] = [None] * WORLD
            dist.all_gather_object(found, {"loss": loss.item(), "rank": RANK})

    return step


def blocks(pairs: str) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yield the steps of each job with and without its fault, in ms, five alternating blocks of twelve steps each."""
    for pair in pairs.split(","):
        work, fault = pair.split(":")
        both = {name: build(work, name) for name in ("none", fault)}
        times: dict[str, list[float]] = {name: [] for name in both}
        for step in both.values():
            for i in range(8):
                step(i)
        for block in range(5):
            for name, step in both.items():
                settle()
                began = time.perf_counter()
                for i in range(12):
                    step(8 + 12 * block + i)
                settle()
                times[name].append((time.perf_counter() - began) * 1e3 / 12)
        yield pair, {"none": times["none"], "fault": times[fault]}
        del both
        gc.collect()


def settle() -> None:
    if CUDA:
        torch.cuda.synchronize()
    if WORLD > 1:
        dist.barrier()
    if CUDA:
        torch.cuda.synchronize()


def build(work: str, fault: str) -> Step:
    torch.manual_seed(0)
    return {"lm": lm, "gan": gan, "ddp": ddp}[work](fault)


def main() -> None:
    if WORLD > 1:
        os.environ["NCCL_HOSTID"] = f"host{RANK}"
        if CUDA:
            torch.cuda.set_device(0)
        dist.init_process_group("nccl" if CUDA else "gloo")
    if sys.argv[1] == "run":
        step = build(sys.argv[2], sys.argv[3])
        for i in range(int(sys.argv[4])):
            step(i)
        settle()
    else:
        found = {}
        for pair, times in blocks(sys.argv[3]):
            found[pair] = times
            if RANK == 0:
                with open(sys.argv[2], "w", encoding="utf-8") as file:  # noqa: PTH123 - plain as a user's script
                    json.dump(found, file)
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
