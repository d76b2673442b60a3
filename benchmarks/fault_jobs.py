"""Training jobs for a GPU, each with one ordinary mistake, chosen by `--fault`. Plain PyTorch.

    python benchmarks/fault_jobs.py --fault fp32_head
    torchrun --nproc-per-node=4 benchmarks/fault_jobs.py --fault mask_buffers

Jobs: `lm`, a transformer on one GPU; `ddp` and `fsdp`, the same on several ranks; `gan`, two networks in turn;
`vision`, images and captions from a DataLoader. A fault is the lines under `fault == "its name"`; a comment
`felt: its name` marks a line that pays for a fault planted elsewhere.
"""

import argparse
import gc
import math
import os
import random
import statistics
import time
from collections import namedtuple
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

FAULTS = {
    "class_metric": "lm",
    "ngram_metric": "lm",
    "gelu_by_hand": "lm",
    "fp32_head": "lm",
    "recompute": "lm",
    "nan_check": "lm",
    "top5_accuracy": "lm",
    "one_hot": "lm",
    "cpu_mask": "lm",
    "empty_cache": "lm",
    "critic_grads": "gan",
    "nchw_copies": "vision",
    "retokenise": "vision",
    "float_images": "vision",
    "metrics_object": "ddp",
    "gradients_by_hand": "ddp",
    "mask_buffers": "ddp",
    "gradient_dump": "ddp",
    "evaluation": "ddp",
    "long_samples": "ddp",
    "gather_objects": "ddp",
    "shard_each_linear": "fsdp",
}
RANKS = {"gradient_dump": [0], "evaluation": [2], "long_samples": [2]}  # the others act on every rank
BLOCK_STEPS = 10
TOKEN_KINDS = 48
EVALUATION_BATCHES = 3
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


TextSizes = namedtuple("TextSizes", "width layers heads vocab tokens longest batch")
ImageSizes = namedtuple("ImageSizes", "widths blocks pixels batch words caption workers")
TEXT = {
    "lm": TextSizes(width=1024, layers=12, heads=16, vocab=16384, tokens=1024, longest=1024, batch=8),
    "ddp": TextSizes(width=384, layers=6, heads=6, vocab=4096, tokens=512, longest=1024, batch=32),
    "fsdp": TextSizes(width=384, layers=6, heads=6, vocab=4096, tokens=512, longest=1024, batch=32),
}
TINY_TEXT = TextSizes(width=32, layers=2, heads=2, vocab=128, tokens=32, longest=64, batch=4)
IMAGES = ImageSizes(widths=(128, 256, 512), blocks=3, pixels=224, batch=96, words=260, caption=256, workers=6)
TINY_IMAGES = ImageSizes(widths=(8, 16), blocks=1, pixels=32, batch=4, words=20, caption=16, workers=2)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, sizes: TextSizes, fault: str) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)
        if fault == "mask_buffers":
            self.register_buffer("mask", torch.ones(sizes.longest, sizes.longest).tril()[None, None])

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Feedforward(nn.Module):
    """Two layers with a GELU between."""

    def __init__(self, sizes: TextSizes, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.up = nn.Linear(sizes.width, 4 * sizes.width)
        self.down = nn.Linear(4 * sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if self.fault == "gelu_by_hand":
            inner = math.sqrt(2.0 / math.pi) * (hidden + 0.044715 * torch.pow(hidden, 3.0))
            hidden = 0.5 * hidden * (1.0 + torch.tanh(inner))
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return self.down(hidden)


class Block(nn.Module):
    """Attention and feedforward, normalised before."""

    def __init__(self, sizes: TextSizes, fault: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.attention = Attention(sizes, fault)
        self.feedforward = Feedforward(sizes, fault)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.feedforward(self.norm2(x))


class LanguageModel(nn.Module):
    """A small GPT whose head shares the weights of its embedding."""

    def __init__(self, sizes: TextSizes, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.words = nn.Embedding(sizes.vocab, sizes.width)
        self.places = nn.Embedding(sizes.longest, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes, fault) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = None
        if self.fault == "cpu_mask":
            mask = torch.ones(len(tokens), 1, tokens.shape[1], tokens.shape[1]).tril().log()
            mask = mask.to(tokens.device).to(torch.bfloat16 if tokens.is_cuda else torch.float32)
        if self.fault == "one_hot":
            x = F.one_hot(tokens, len(self.words.weight)).to(self.words.weight.dtype) @ self.words.weight
        else:
            x = self.words(tokens)
        x = x + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            if self.fault == "recompute":
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        x = self.norm(x)
        if self.fault == "fp32_head":
            with torch.autocast(x.device.type, enabled=False):
                return F.linear(x.float(), self.words.weight)
        return F.linear(x, self.words.weight)


class ConvBlock(nn.Module):
    """A convolution, then a feedforward over the channels."""

    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.fault == "nchw_copies":
            y = y.contiguous()
            y = y.permute(0, 2, 3, 1).contiguous()
        else:
            y = y.permute(0, 2, 3, 1)
        y = self.down(F.gelu(self.up(self.norm(y))))
        y = y.permute(0, 3, 1, 2)
        if self.fault == "nchw_copies":
            y = y.contiguous()
        return x + y


class ImageText(nn.Module):
    """Match images with their captions: a convolutional tower, a bag of words, a contrastive loss."""

    def __init__(self, sizes: ImageSizes, fault: str) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, sizes.widths[0], 4, stride=4)]
        for i, width in enumerate(sizes.widths):
            if i:
                layers.append(nn.Conv2d(sizes.widths[i - 1], width, 2, stride=2))
            layers += [ConvBlock(width, fault) for _ in range(sizes.blocks)]
        self.tower = nn.Sequential(*layers)
        self.image_head = nn.Linear(sizes.widths[-1], 128)
        self.words = nn.EmbeddingBag(4096, 128, mode="mean", padding_idx=0)

    def forward(self, images: Tensor, captions: Tensor) -> Tensor:
        seen = F.normalize(self.image_head(self.tower(images).mean((2, 3))), dim=1)
        read = F.normalize(self.words(captions), dim=1)
        return 10.0 * seen @ read.to(seen.dtype).T


class Tokeniser:
    """Merge the letters of each word pair by pair, the most frequent pair first."""

    def __init__(self) -> None:
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        self.rank = {(a, b): i * 26 + j for i, a in enumerate(letters) for j, b in enumerate(letters) if (i + j) % 2}

    def word(self, text: str) -> list[str]:
        """Return the pieces of one word."""
        parts = list(text)
        while len(parts) > 1:
            pairs = [(self.rank.get((a, b), 1 << 30), i) for i, (a, b) in enumerate(pairwise(parts))]
            best, at = min(pairs)
            if best == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return parts

    def ids(self, text: str, length: int) -> list[int]:
        """Return the first pieces of a text as numbers, zeros after its end."""
        found = [1 + sum(map(ord, part)) % 4095 for word in text.lower().split() for part in self.word(word)]
        return (found + [0] * length)[:length]


class Captioned(Dataset):
    """Images cut at random from a few large ones, each with a text."""

    def __init__(self, sizes: ImageSizes, samples: int, fault: str) -> None:
        self.sizes, self.samples, self.fault = sizes, samples, fault
        draw = random.Random(3)
        large = sizes.pixels + 32
        self.pictures = np.random.default_rng(3).integers(0, 256, (32, large, large, 3), dtype=np.uint8)
        words = ["".join(draw.choices("etaoinshrdlucm", k=draw.randint(4, 11))) for _ in range(2000)]
        self.texts = [" ".join(draw.choices(words, k=sizes.words)) for _ in range(64)]
        self.tokeniser = Tokeniser()
        self.captions = [torch.tensor(self.tokeniser.ids(text, sizes.caption)) for text in self.texts]

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        top, left = i * 7 % 32, i * 13 % 32
        cut = self.pictures[i % 32, top : top + self.sizes.pixels, left : left + self.sizes.pixels]
        image = torch.from_numpy(np.ascontiguousarray(cut))
        if self.fault == "float_images":
            image = normalised(image.permute(2, 0, 1).float(), torch.tensor(MEAN), torch.tensor(STD))
        if self.fault == "retokenise":
            caption = torch.tensor(self.tokeniser.ids(self.texts[i % 64], self.sizes.caption))
        else:
            caption = self.captions[i % 64]
        return image, caption


def normalised(image: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (image / 255.0 - mean[:, None, None]) / std[:, None, None]


class StepClock:
    """Time blocks of steps, waiting for the device only at their ends; print the losses there too."""

    def __init__(self, device: torch.device, rank: int) -> None:
        self.device, self.rank = device, rank
        self.losses: list[Tensor] = []
        self.printed: list[float] = []
        self.blocks_ms: list[float] = []
        self.began = time.perf_counter()

    def step(self, loss: Tensor) -> None:
        """Count a step."""
        self.losses.append(loss.detach())
        if len(self.losses) < BLOCK_STEPS:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.blocks_ms.append((time.perf_counter() - self.began) * 1e3 / BLOCK_STEPS)
        for value in torch.stack(self.losses).tolist():
            if self.rank == 0:
                print(f"step {len(self.printed):4d}  loss {value:.6f}", flush=True)
            self.printed.append(value)
        self.losses.clear()
        self.began = time.perf_counter()

    def median_ms(self) -> float:
        """Return the median step after the first block, which warms up."""
        return statistics.median(self.blocks_ms[1:] or self.blocks_ms)


def class_accuracy(predicted: Tensor, targets: Tensor, kinds: Tensor, hits: Tensor, totals: Tensor, fault: str) -> None:
    """Count the right predictions for each kind of token."""
    kind = kinds[targets]
    if fault == "class_metric":
        for k in range(TOKEN_KINDS):
            chosen = kind == k
            hits[k] += (predicted[chosen] == targets[chosen]).sum().item()
            totals[k] += chosen.sum().item()
    else:
        hits.index_add_(0, kind.flatten(), (predicted == targets).flatten().float())
        totals.index_add_(0, kind.flatten(), torch.ones_like(kind.flatten(), dtype=torch.float32))


def distinct_ngrams(rows: list[list[int]]) -> float:
    """Return the share of different n-grams, a measure of repetitive text."""
    different = total = 0
    for row in rows:
        for n in (1, 2, 3, 4):
            grams = [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]
            different += len(set(grams))
            total += len(grams)
    return different / max(total, 1)


def gradient_norms(model: nn.Module) -> dict[str, float]:
    return {name: float(np.linalg.norm(p.grad.detach().float().cpu().numpy())) for name, p in model.named_parameters()}


@torch.no_grad()
def validation_loss(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], precision) -> float:
    model.eval()
    total = 0.0
    for tokens, targets in batches:
        with precision():
            total += F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item()
    model.train()
    return total


def shard(model: LanguageModel, device: torch.device, fault: str) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if device.type == "cuda" else None)
    for block in model.blocks:
        if fault == "shard_each_linear":
            for layer in block.modules():
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mp_policy=policy)
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def train_text(job: str, fault: str, steps: int, tiny: bool, device: torch.device) -> StepClock:
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    sizes = TINY_TEXT if tiny else TEXT[job]
    torch.manual_seed(1)
    with device:
        model = LanguageModel(sizes, fault)
        kinds = torch.arange(sizes.vocab) % TOKEN_KINDS
        hits, totals = torch.zeros(TOKEN_KINDS), torch.zeros(TOKEN_KINDS)
    draw = torch.Generator(device).manual_seed(100 + rank)
    length = sizes.tokens
    if fault == "long_samples" and rank == 2 % world:
        length = sizes.longest
    texts = [torch.randint(sizes.vocab, (sizes.batch, length + 1), device=device, generator=draw) for _ in range(8)]
    batches = [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]
    mixed = device.type == "cuda" and job != "fsdp"

    def precision():
        return torch.autocast("cuda", torch.bfloat16) if mixed else nullcontext()

    wrapped: nn.Module = model
    if job == "fsdp":
        shard(model, device, fault)
    elif job == "ddp" and fault != "gradients_by_hand":
        wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    clock, seen = StepClock(device, rank), []
    for step in range(steps):
        tokens, targets = batches[step % len(batches)]
        with precision():
            logits = wrapped(tokens)  # felt: mask_buffers shard_each_linear long_samples
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()  # felt: shard_each_linear long_samples
        if fault == "nan_check" and any(torch.isnan(p.grad).any() for p in model.parameters()):
            raise SystemExit("a gradient is not a number")
        if fault == "gradients_by_hand":
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
        if fault == "gradient_dump" and rank == 0:
            gradient_norms(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        predicted = logits.detach().argmax(-1)
        class_accuracy(predicted, targets, kinds, hits, totals, fault)
        if fault == "top5_accuracy":
            top = logits.detach().float().softmax(-1).topk(5, -1).indices
            seen.append((top == targets[..., None]).any(-1).float().mean())
        if fault == "empty_cache":
            torch.cuda.empty_cache() if device.type == "cuda" else gc.collect()
        if fault == "gather_objects":
            of_ranks: list = [None] * world
            dist.all_gather_object(of_ranks, {"loss": loss.item(), "rank": rank})
        if fault == "ngram_metric":
            distinct_ngrams(predicted.tolist())
        if fault == "metrics_object":
            gathered: list = [None] * world
            best = logits.detach().topk(5).indices.cpu()
            dist.all_gather_object(gathered, {"loss": loss.item(), "best": best, "targets": targets.cpu()})
        if fault == "evaluation" and rank == 2 % world:
            validation_loss(model, batches[:EVALUATION_BATCHES], precision)
        clock.step(loss)
    return clock


def train_vision(fault: str, steps: int, tiny: bool, device: torch.device) -> StepClock:
    sizes = TINY_IMAGES if tiny else IMAGES
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    model = ImageText(sizes, fault).to(device, memory_format=torch.channels_last)
    mean, std = torch.tensor(MEAN, device=device), torch.tensor(STD, device=device)
    pinned = device.type == "cuda"
    if fault == "float_images":
        pinned = False
    data = Captioned(sizes, steps * sizes.batch, fault)
    loader = DataLoader(data, batch_size=sizes.batch, num_workers=sizes.workers, pin_memory=pinned)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    clock = StepClock(device, 0)
    for images, captions in loader:  # felt: retokenise float_images
        if fault == "float_images":
            images, captions = images.to(device), captions.to(device)
            images = images.contiguous(memory_format=torch.channels_last)
        else:
            images, captions = images.to(device, non_blocking=True), captions.to(device, non_blocking=True)
            images = normalised(images.permute(0, 3, 1, 2).float(), mean, std)
        with torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext():
            scores = model(images, captions)
            pairs = torch.arange(len(scores), device=device)
            loss = (F.cross_entropy(scores, pairs) + F.cross_entropy(scores.T, pairs)) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.step(loss)
    return clock


def train_gan(fault: str, steps: int, tiny: bool, device: torch.device) -> StepClock:
    wide, batch = (32, 8) if tiny else (2048, 4096)
    torch.manual_seed(1)

    def network(out: int) -> nn.Module:
        layers = [layer for _ in range(6) for layer in (nn.Linear(wide, wide), nn.GELU())]
        return nn.Sequential(*layers, nn.Linear(wide, out)).to(device)

    make, judge = network(wide), network(1)
    both = [torch.optim.AdamW(n.parameters(), 1e-4, fused=device.type == "cuda") for n in (make, judge)]
    noise, real = (torch.randn(batch, wide, device=device) for _ in range(2))
    clock = StepClock(device, 0)
    for _ in range(steps):
        judge.requires_grad_(True)
        with torch.autocast(device.type, torch.bfloat16):
            fake = make(noise)
            loss = judge(fake.detach()).mean() - judge(real).mean()
        loss.backward()
        both[1].step()
        both[1].zero_grad()
        if fault != "critic_grads":
            judge.requires_grad_(False)
        with torch.autocast(device.type, torch.bfloat16):
            loss = -judge(fake).mean()
        loss.backward()  # felt: critic_grads
        both[0].step()
        for optimizer in both:
            optimizer.zero_grad()
        clock.step(loss)
    return clock


def train(job: str, fault: str, steps: int, tiny: bool, device: torch.device) -> StepClock:
    if job == "vision":
        return train_vision(fault, steps, tiny, device)
    if job == "gan":
        return train_gan(fault, steps, tiny, device)
    return train_text(job, fault, steps, tiny, device)


def join_ranks(device: torch.device) -> None:
    """Start the process group; ranks that share a device need host names of their own."""
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
            os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", choices=sorted(set(FAULTS.values())), help="default: the job of the fault, else lm")
    parser.add_argument("--fault", choices=("none", *FAULTS), default="none")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="a few thousand parameters, for a machine without a GPU")
    args = parser.parse_args()
    job = args.job or FAULTS.get(args.fault, "lm")
    if args.fault != "none" and job != FAULTS[args.fault]:
        parser.error(f"the fault {args.fault} belongs to the job {FAULTS[args.fault]}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if job in ("ddp", "fsdp"):
        join_ranks(device)
    clock = train(job, args.fault, args.steps, args.tiny, device)
    if clock.rank == 0:
        print(f"median_step_ms {clock.median_ms():.3f}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
