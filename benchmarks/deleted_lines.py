"""Ten planted lines of a host-bound CPU job, each deleted and timed: predicted against real.

    PYTHONPATH=src python benchmarks/deleted_lines.py [--rounds 12] [--work DIR]

The job below is recorded once on one rank and once on two gloo ranks, with all its planted lines. `--without` predicts
the step without each of them; then the same job runs with and without each line in alternating blocks of one process.
Wall time and the CPU time of the training thread are both shown: on a busy machine the second is the steadier one, for
lines that compute; a line that waits for other ranks has only wall time. A prediction holds where its interval and the
95 % interval of the truth (over pairs of blocks) have something in common.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SRC = HERE.parent.parent / "src"
ALONE = ("tokenise", "statistics", "second_forward", "average", "clip", "log", "augment", "extra")
TOGETHER = ("small_reduces", "weights_sent")
STEPS = 6
DRAWS = 1000


def build(on: set[str]):
    """Return the job's step; which planted lines it runs is read from `on` in every step."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.Linear(2 * width, width),
            )

        def forward(self, x):
            x = x + self.down(F.gelu(self.up(self.norm(x))))
            if "extra" in on:
                x = x + 0.01 * torch.tanh(x).cumsum(-1).softmax(-1)
            return x

    net = nn.Sequential(nn.Embedding(512, 48), *(Block(48) for _ in range(10)), nn.Linear(48, 512))
    raw = net
    if dist.is_initialized():
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    average = [p.detach().clone() for p in raw.parameters()]
    ids = torch.randint(0, 512, (4, 24))
    texts = [" ".join(str(random.random()) for _ in range(120)) for _ in range(4)]

    def step(i: int) -> None:
        x = ids
        if "tokenise" in on:
            sum(hash(word) % 512 for text in texts for word in text.replace(".", " ").split() for _ in range(8))
        if "augment" in on:
            x = torch.stack([row.roll(k % 3) for k, row in enumerate(ids.repeat(40, 1))])[:4]
        if "weights_sent" in on:
            [dist.broadcast(p.data, 0) for p in raw.parameters()]
        loss = F.cross_entropy(net(x).flatten(0, 1), x.flatten())
        loss.backward()
        if "statistics" in on:
            [(p.grad.float().std(), p.grad.abs().max()) for p in raw.parameters()]
        if "clip" in on:
            [p.grad.clamp_(-1, 1).norm().item() for p in raw.parameters()]
        if "small_reduces" in on:
            [dist.all_reduce(torch.ones(4)) for _ in range(12)]
        optimizer.step()
        optimizer.zero_grad()
        if "average" in on:
            [e.mul_(0.999).add_(p.detach(), alpha=0.001) for e, p in zip(average, raw.parameters(), strict=True)]
        if "second_forward" in on:
            torch.no_grad()(lambda: F.cross_entropy(raw(x).flatten(0, 1), x.flatten()))()
        if "log" in on:
            json.dumps({f"p{k}": float(p.detach().sum()) for k, p in enumerate(raw.parameters())})

    return step


def planted() -> list[str]:
    """Return the planted lines of this process's job."""
    return [*ALONE, *(TOGETHER if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ())]


def joined() -> bool:
    """Join the other ranks, where there are any."""
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("gloo")
    return dist.is_initialized()


def train(steps: int) -> None:
    """Run the job with all its planted lines: what is recorded."""
    together = joined()
    step = build(set(planted()))
    for i in range(steps):
        step(i)
    if together:
        import torch.distributed as dist

        dist.destroy_process_group()


def measure(rounds: int, out: str) -> None:
    """Time the job with all planted lines and without each, in turn; write both times of every block."""
    import torch.distributed as dist

    together, names = joined(), planted()
    on = set(names)
    step = build(on)
    for i in range(8):
        step(i)
    times: dict[str, list[list[Any]]] = {name: [] for name in names}
    for n in range(rounds):
        for name in random.Random(n).sample(names, len(names)):
            pair = []
            for left_out in ((None, name), (name, None))[n % 2]:
                on.clear()
                on.update(other for other in names if other != left_out)
                if together:
                    dist.barrier()
                pair.append(block(step))
            times[name].append(pair if n % 2 == 0 else pair[::-1])
    if int(os.environ.get("RANK", 0)) == 0:
        Path(out).write_text(json.dumps(times))
    if together:
        dist.destroy_process_group()


def line_numbers() -> dict[str, str]:
    """Return the owner of each planted line, as `--without` takes it."""
    found = {}
    for number, text in enumerate(HERE.read_text().splitlines(), 1):
        for name in (*ALONE, *TOGETHER):
            if text.strip() == f'if "{name}" in on:':
                found[name] = f"{HERE.name}:{number + 1}"
    return found


def block(step) -> tuple[float, float]:
    """Return the median wall and CPU time of a few steps in milliseconds."""
    each = []
    for i in range(STEPS):
        wall, cpu = time.perf_counter(), time.thread_time()
        step(i)
        each.append(((time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3))
    return statistics.median(w for w, _ in each), statistics.median(c for _, c in each)


def share(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return what leaving a line out saves of the step in percent, with its 95 % interval over pairs of blocks."""
    rng = random.Random(1)
    saved = [100 * (1 - without / whole) for whole, without in pairs]
    drawn = sorted(statistics.median(rng.choices(saved, k=len(saved))) for _ in range(DRAWS))
    return statistics.median(saved), drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]


def run_ranks(world: int, words: list[str], *, prefix: list[str]) -> None:
    launch = [sys.executable]
    if world > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    env = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    subprocess.run([*prefix, *launch, str(HERE), *words], check=True, env=env, stdout=subprocess.DEVNULL)


def report(world: int, work: Path, rounds: int) -> list[tuple[float, float, bool]]:
    """Record, predict, measure and print one table; return predictions, truths, and whether the interval holds."""
    folder, out = work / f"run{world}", work / f"times{world}.json"
    record = [sys.executable, "-m", "stepscope", "record", "--out", str(folder), "--steps", "12:20", "--"]
    run_ranks(world, ["train", "60"], prefix=record)
    run_ranks(world, ["measure", str(rounds), str(out)], prefix=[])
    sys.path.insert(0, str(SRC))
    import stepscope

    analysis, times, lines = stepscope.load(folder), json.loads(out.read_text()), line_numbers()
    step = statistics.median(whole[0] for pairs in times.values() for whole, _ in pairs)
    print(f"\n{world} rank{'s' if world > 1 else ''}, step {step:.1f} ms with all lines\n")
    print("| line | predicted % | its interval | real %, wall | real %, CPU | holds |\n|---|---|---|---|---|---|")
    found = []
    for name in ALONE if world == 1 else TOGETHER:
        said = analysis.without(lines[name]).prediction
        predicted = 100 * (1 - said.step_ns / said.baseline_ns)
        low, high = (100 * (1 - ns / said.baseline_ns) for ns in (said.high_ns, said.low_ns))
        wall, cpu = (share([(a[kind], b[kind]) for a, b in times[name]]) for kind in (0, 1))
        texts = [f"{mid:.1f} ({low:.1f} to {high:.1f})" for mid, low, high in (wall, cpu)]
        real = wall if world > 1 else cpu
        holds = low <= real[2] and real[1] <= high
        interval = f"{low:.1f} to {high:.1f}"
        print(
            f"| {name} | {predicted:.1f} | {interval} | {texts[0]} | {texts[1]} | {'yes' if holds else 'NO'} |",
            flush=True,
        )
        found.append((predicted, real[0], holds))
    return found


def main() -> int:
    if sys.argv[1:2] == ["train"]:
        train(int(sys.argv[2]))
        return 0
    if sys.argv[1:2] == ["measure"]:
        measure(int(sys.argv[2]), sys.argv[3])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    work = args.work or Path(tempfile.mkdtemp())
    found = [row for world in (1, 2) for row in report(world, work, args.rounds)]
    print(f"\nmean error {statistics.mean(abs(a - b) for a, b, _ in found):.1f} % of the step")
    print(f"the interval of {sum(holds for _, _, holds in found)} of {len(found)} meets that of the truth")
    return 0


if __name__ == "__main__":
    sys.exit(main())
