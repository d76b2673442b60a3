"""Plain training jobs on the CPU: with one line that training does not need, or without a fault.

[torchrun --nproc-per-node=2] loop_jobs.py run FAULT[+FAULT...] STEPS        one ordinary training loop
[torchrun --nproc-per-node=2] loop_jobs.py clean SHAPE STEPS                 a loop without a fault
[torchrun --nproc-per-node=2] loop_jobs.py time OUT.json FAULT,... [all]     with and without each, in turn

`time ... all` keeps the other faults on. The lines that `loops.py` finds end in a comment: `# fault NAME`.
"""

import copy
import gc
import hashlib
import http.server
import itertools
import json
import math
import os
import pickle
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ROUNDS, BLOCK = int(os.environ.get("ROUNDS", "9")), 6
Step = Callable[[int], None]
on: set[str] = set()
"""the faults of the running step"""


class Block(nn.Module):
    """One layer of a small decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        if "entropy" in on:
            self.entropy = x.detach().repeat(8, 1, 1).softmax(-1).log().sum(-1).sort()  # fault entropy
        q, k, v = (z.view(b, t, 4, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Watch:
    """What a user's callback does after every step."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.rows = model, [{"step": i, "loss": random.random(), "lr": 1e-3} for i in range(1500)]
        self.folder = Path(tempfile.mkdtemp())
        self.log = (self.folder / "log.txt").open("w")
        self.text = " ".join(f"step {i} loss {random.random():.4f}" for i in range(3000))

    def after_step(self, i: int, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Do what the fault says."""
        if "confusion" in on:
            self.confusion(logits, labels)  # fault confusion
        if "metrics_json" in on:
            (self.folder / "metrics.json").write_text(json.dumps(self.rows))  # fault metrics_json
        if "svg" in on:
            self.draw()  # fault svg
        if "regex" in on:
            re.findall(r"step (\d+) loss (\d\.\d+)", self.text)  # fault regex

    def confusion(self, logits: torch.Tensor, labels: torch.Tensor) -> list[list[int]]:
        """Return a confusion matrix, counted in Python."""
        table = [[0] * 16 for _ in range(16)]
        for said, real in zip(logits.argmax(-1).flatten().tolist(), labels.flatten().tolist(), strict=True):
            for group in (2, 4, 8, 16):
                table[said % group][real % group] += 1
        return table

    def draw(self) -> None:
        """Draw the loss so far."""
        points = " ".join(f"{40 + 0.5 * row['step']:.1f},{300 - 200 * row['loss']:.1f}" for row in self.rows)
        (self.folder / "loss.svg").write_text(f'<svg><polyline points="{points}"/></svg>')


def serve() -> str:
    """Start a server on this machine that takes metrics; return its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def auc(scores: np.ndarray, hits: np.ndarray) -> float:
    """Return the area under the curve by ranks."""
    order = np.argsort(np.argsort(scores)) + 1
    return float((order[hits].sum() - hits.sum() * (hits.sum() + 1) / 2) / max(hits.sum() * (~hits).sum(), 1))


def build() -> Any:
    """Return the step of the training loop."""
    torch.manual_seed(RANK)
    random.seed(RANK)
    torch.set_num_threads(1)
    width, vocab, batch, length = 64, 512, 8, 24
    net = nn.Sequential(nn.Embedding(vocab, width), *(Block(width) for _ in range(3)), nn.Linear(width, vocab))
    model = nn.parallel.DistributedDataParallel(net) if WORLD > 1 else net
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data = torch.randint(0, vocab, (4000, length))
    samples = list(range(12000))
    labels = np.random.default_rng(0).integers(0, 100, 150_000)
    texts = ["".join(random.choice("abcdefgh ") for _ in range(6000)) for _ in range(batch)]
    replay = [(random.random(), i) for i in range(25_000)]
    watch, address = Watch(net), serve()
    average = {k: v.clone() for k, v in net.state_dict().items()}
    gc.freeze()
    images, kept = np.random.default_rng(0).random((40, 64, 64)), [torch.zeros(400_000, length)]
    junk = [[i] for i in range(60_000)]
    seen: dict[str, float] = {}

    def note(name: str, out: torch.Tensor) -> None:
        seen[name] = float(out.detach().abs().flatten()[::4].sort().values[-9])  # fault hook_statistics

    for name, module in net.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(
                lambda _, __, out, name=name: note(name, out) if "hook_statistics" in on else None
            )

    def look(grad: torch.Tensor) -> None:
        if "tensor_hook" in on:
            seen["middle"] = float(grad.abs().flatten().sort().values[grad.numel() // 2])  # fault tensor_hook

    for p in net.parameters():
        p.register_hook(look)

    def train_step(i: int) -> None:
        if "row_stack" in on:
            torch.stack([row.roll(k % 3) for k, row in enumerate(data[:320])])  # fault row_stack
        if "weights_sent" in on:
            [dist.broadcast(p.data, 0) for p in net.parameters()]  # fault weights_sent
        if "augment" in on:
            [np.roll(image, k, axis=1)[:, ::-1].clip(0.1, 0.9) for k, image in enumerate(images)]  # fault augment
        if "schedule" in on:
            rates = [0.5 * (1 + math.cos(math.pi * k / 6000)) for k in range(6000)]  # fault schedule
            assert rates
        if "shuffle" in on:
            random.shuffle(samples)  # fault shuffle
        if "tokenise" in on:
            [hash(word) % vocab for text in texts for word in re.sub("[ab]", "x", text).split()]  # fault tokenise
        if "class_weights" in on:
            1.0 / np.unique(labels, return_counts=True)[1]  # fault class_weights
        at = (i * batch) % 3900
        x = data[at : at + batch]
        logits = model(x)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        if "gradient_histogram" in on:
            for p in net.parameters():
                flat = p.grad.numpy().ravel()  # fault gradient_histogram
                np.histogram(flat, bins=32)  # fault gradient_histogram
        if "statistics" in on:
            [(p.grad.float().std(), p.grad.abs().max()) for p in net.parameters()]  # fault statistics
        if "clip" in on:
            [p.grad.clamp_(-1, 1).norm().item() for p in net.parameters()]  # fault clip
        if "small_reduces" in on:
            [dist.all_reduce(torch.ones(4)) for _ in range(12)]  # fault small_reduces
        if "gradient_norms" in on:
            [p.grad.norm().item() / max(p.norm().item(), 1e-9) for p in net.parameters()]  # fault gradient_norms
        optimizer.step()
        optimizer.zero_grad()
        if "second_forward" in on:
            torch.no_grad()(lambda: F.cross_entropy(net(x).flatten(0, 1), x.flatten()))()  # fault second_forward
        if "log" in on:
            json.dumps({f"p{k}": float(p.detach().sum()) for k, p in enumerate(net.parameters())})  # fault log
        if "weights_csv" in on:
            np.savetxt(watch.folder / "weights.csv", net[1].out.weight.detach().numpy())  # fault weights_csv
        if "packed_batch" in on:
            zlib.compress(pickle.dumps((x, logits.detach().half())), 1)  # fault packed_batch
        if "spread" in on:
            statistics.pstdev(row["loss"] for row in watch.rows[:600])  # fault spread
        if "cosine" in on:
            F.normalize(net[0].weight.detach()) @ F.normalize(net[0].weight.detach()).T  # fault cosine
        if "folder" in on:
            sorted(Path("/usr/lib").glob("*/*"), key=str)  # fault folder
        if "replay_cat" in on:
            kept[0] = torch.cat((kept[0][8:], logits.detach().mean(-1)))  # fault replay_cat
        if "deepcopy" in on:
            copy.deepcopy((net.state_dict(), optimizer.state_dict()))  # fault deepcopy
        if "sha256" in on:
            hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()  # fault sha256
        if "fsync" in on:
            watch.log.write(f"{i} {loss.item()}\n")
            watch.log.flush()
            os.fsync(watch.log.fileno())  # fault fsync
        if "parameter_statistics" in on:
            for name, p in net.named_parameters():
                seen[f"{name} mean"] = p.detach().mean().item()  # fault parameter_statistics
                seen[f"{name} std"] = p.detach().std().item()  # fault parameter_statistics
                seen[f"{name} top"] = (
                    p.detach().abs().flatten().kthvalue(p.numel() // 2 + 1)[0].item()
                )  # fault parameter_statistics
        if "average" in on:
            for k, v in net.state_dict().items():
                average[k] = 0.99 * average[k].clone() + 0.01 * v.clone()  # fault average
        if "subprocess" in on:
            subprocess.run(["true"], check=True)  # fault subprocess
        if "replay_sort" in on:
            sorted(replay, key=lambda pair: pair[1] % 97)  # fault replay_sort
        if "spectrum" in on:
            [torch.linalg.svdvals(m.qkv.weight.detach()) for m in net if isinstance(m, Block)]  # fault spectrum
        if "poll" in on:
            until = time.monotonic() + 0.005
            while time.monotonic() < until:
                time.sleep(0.0005)  # fault poll
        if "garbage" in on:
            gc.collect()  # fault garbage
        if "auc" in on:
            auc(logits.detach().numpy().ravel()[:40_000], np.arange(40_000) % 7 == 0)  # fault auc
        if "http" in on:
            urllib.request.urlopen(urllib.request.Request(address, data=b'{"loss": 1.0}')).close()  # fault http
        watch.after_step(i, logits, x)
        assert junk

    return train_step


def block(step: Any) -> tuple[float, float]:
    """Return the median wall and CPU time of a few steps in milliseconds."""
    each = []
    for i in range(BLOCK):
        wall, cpu = time.perf_counter(), time.thread_time()
        step(i)
        each.append(((time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3))
    return statistics.median(w for w, _ in each), statistics.median(c for _, c in each)


def timed(names: list[str], rest: set[str]) -> dict[str, list[list[tuple[float, float]]]]:
    """Return pairs of blocks with and without each fault next to the rest: `(wall, CPU)` of each."""
    step = build()
    for i in range(8):
        step(i)
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in names}
    for n in range(ROUNDS):
        for name in random.Random(n).sample(names, len(names)):
            pair = {}
            for with_it in (True, False) if n % 2 else (False, True):
                on.clear()
                on.update(rest - {name} | ({name} if with_it else set()))
                if WORLD > 1:
                    dist.barrier()
                step(0)
                pair[with_it] = block(step)
            found[name].append([pair[True], pair[False]])
    return found


# Without a fault


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
    if WORLD > 1:
        dist.init_process_group("gloo")
    what, name, *rest = sys.argv[1:]
    if what == "time":
        names = rest[0].split(",")
        found = timed(names, set(names) if rest[1:] else set())
        if RANK == 0:
            Path(name).write_text(json.dumps(found))
    else:
        on.update(fault for fault in name.split("+") if what == "run")
        torch.manual_seed(RANK)
        torch.set_num_threads(1)
        step = build() if what == "run" else SHAPES[name]()
        for i in range(int(rest[0])):
            step(i)
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
