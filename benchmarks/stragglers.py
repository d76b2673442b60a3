"""Late ranks on a busy machine: false alarms, the cost of a sleep, and real noise for tests.

    python benchmarks/stragglers.py record OUT [--runs 50] [--parallel 7] [--busy 2] [--sleep-ms 0]
    python benchmarks/stragglers.py read OUT                  on any machine
    python benchmarks/stragglers.py noise OUT.json.gz [--parallel 8] [--runs 4] [--load none|steady|bursts]

record: two gloo ranks train a small model, `--parallel` such jobs at a time, each on two cores of its own with `--busy`
loops on the same two. Needs torch alone. Without a sleep, no finding may name a rank.

With a sleep, on rank 1 in every step, each recording is compared with the real saving on the same cores under the same
load (`saves ms`): runs without the recorder just before and just after it, in which every second stretch of steps is
without the sleep; the mean of the differences between neighbouring stretches, with its 95 % interval. A busy machine
wakes a sleeping process late (`slept ms`, median of all steps of the recorded job and of the profiled ones), and gives
one that just slept its cores sooner: neither is what is saved. `off by` is the finding's distance from `saves ms`.

noise: clean jobs in light mode, several at a time, next to no load, one busy loop per job, or loops that come and go
for one to five seconds. Writes the duration of each step and region on each rank in microseconds, for
`tests/analyze/ranks/test_log_stragglers.py`.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import environment, number, python, recorded, run

STEPS, STRETCHES, STRETCH, JOB_WARMUP = 60, 20, 6, 8
PROFILED = (20, 25)
NAMES_A_RANK = ("straggler", "load-imbalance", "host-stall")
RANKS, CORES, CLOSE = 2, 2, 0.10
REGIONS = ("gradient_sync", "forward_pass", "backward_pass", "optimizer_step")
STEADY = "while True: pass"
BURSTS = """
import random, time
while True:
    until = time.monotonic() + random.uniform(1, 5)
    while time.monotonic() < until: pass
    time.sleep(random.uniform(1, 5))
"""
LOADS = {"none": "", "steady": STEADY, "bursts": BURSTS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("record", "read", "noise", "train", "compare"))
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--runs", type=int, default=50, help="recordings; of noise, rounds of parallel jobs per load")
    parser.add_argument("--parallel", type=int, default=1, help="jobs at a time")
    parser.add_argument("--busy", type=int, default=2, help="loops next to each job, on its cores")
    parser.add_argument("--sleep-ms", type=float, default=0.0, help="on rank 1, in every step")
    parser.add_argument("--minutes", type=float, default=60.0, help="no recording is started after that")
    parser.add_argument("--steps", type=int, default=160, help="of a job of noise")
    parser.add_argument("--width", type=int, default=512, help="of the layers: how long a step is")
    parser.add_argument("--load", choices=(*LOADS, "all"), default="all")
    args = parser.parse_args()
    if args.what in ("train", "compare"):
        return train(args) if "RANK" in os.environ else launch()
    if args.what == "record":
        args.out = args.out.resolve()
        args.out.mkdir(parents=True, exist_ok=True)
        record_all(args, args.out)
    elif args.what == "read":
        read_all(args.out)
    else:
        noise(args)
    return 0


# The job


def launch() -> int:
    """Start both ranks and wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        environ = environment(WORLD_SIZE=str(RANKS), STORE=f"{folder}/store", CUDA_VISIBLE_DEVICES="")
        command = python(*sys.argv)
        ranks = [subprocess.Popen(command, env={**environ, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(RANKS)]
        return max(abs(rank.wait()) for rank in ranks)


def train(args: argparse.Namespace) -> int:
    """Train as one rank; print how long each sleep took, or the mean step of each stretch with and without it."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, compares = int(os.environ["RANK"]), args.what == "compare"
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=RANKS)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(args.width, args.width), torch.nn.ReLU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(128, args.width)
    step_ms: list[float] = []
    slept_ms: list[float] = []
    since = time.perf_counter()
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if args.sleep_ms and rank == 1 and (not compares or (step - JOB_WARMUP) // STRETCH % 2 == 0):
            began = time.perf_counter()
            time.sleep(args.sleep_ms / 1000)
            slept_ms.append((time.perf_counter() - began) * 1000)
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        step_ms.append((now - since) * 1000)
        since = now
    if rank == 1:
        print(json.dumps({"slept_ms": slept_ms} if not compares else {"stretch_ms": stretches(step_ms[JOB_WARMUP:])}))
    dist.destroy_process_group()
    return 0


def stretches(step_ms: list[float]) -> list[float]:
    """Return the mean step of each stretch, without its first step, which still ends what the last began."""
    parts = [step_ms[i : i + STRETCH] for i in range(0, len(step_ms), STRETCH)]
    return [statistics.fmean(part[1:]) for part in parts]


# Recorded


def record_all(args: argparse.Namespace, out: Path) -> None:
    """Leave `run<n>/` and `run<n>.job.json`, which holds what the job itself measured, of every recording."""
    free = sorted(os.sched_getaffinity(0))
    slots = max(1, min(args.parallel, len(free) // CORES))
    deadline = time.monotonic() + 60 * args.minutes
    waiting = deque(range(args.runs))
    load = {"parallel": slots, "cores": CORES, "of": len(free), "busy": args.busy, "sleep_ms": args.sleep_ms}
    (out / "load.json").write_text(json.dumps(load))

    def work(cores: list[int]) -> None:
        os.sched_setaffinity(0, cores)  # of this thread, and of what it starts
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
        try:
            while waiting and time.monotonic() < deadline:
                one_run(args.sleep_ms, waiting.popleft(), out)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()

    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(work, [free[CORES * i : CORES * (i + 1)] for i in range(slots)]))


def one_run(sleep_ms: float, number: int, out: Path) -> None:
    began = time.monotonic()
    window = ":".join(map(str, PROFILED))
    job = python(__file__, "train", "--sleep-ms", sleep_ms, "--steps", STEPS)
    try:
        saves = saved_ms(sleep_ms) if sleep_ms else []
        slept = printed(run(recorded(out / f"run{number}", job, "--steps", window)).stdout, "slept_ms")
        saves += saved_ms(sleep_ms) if sleep_ms else []
        measured: dict[str, Any] = {"slept_ms": slept, "saves_ms": saves}
    except (RuntimeError, OSError, ValueError, KeyError, IndexError) as e:
        measured = {"error": f"{type(e).__name__}: {e}"}
    (out / f"run{number}.job.json").write_text(json.dumps(measured))
    print(f"run {number}: {time.monotonic() - began:.0f} s {measured.get('error', '')}", flush=True)


def saved_ms(sleep_ms: float) -> list[float]:
    """Return the cost of the sleep per step, of each two neighbouring stretches with and without it."""
    words = ("compare", "--sleep-ms", sleep_ms, "--steps", JOB_WARMUP + STRETCHES * STRETCH)
    means = printed(run(python(__file__, *words)).stdout, "stretch_ms")
    return [a - b for a, b in zip(means[::2], means[1::2], strict=True)]


def printed(output: str, name: str) -> list[float]:
    line = [line for line in output.splitlines() if line.startswith(f'{{"{name}"')][-1]
    numbers: list[float] = json.loads(line)[name]
    return numbers


# Noise


def noise(args: argparse.Namespace) -> None:
    logs: list[dict[str, object]] = []
    for load in LOADS if args.load == "all" else (args.load,):
        for _ in range(args.runs):
            logs += one_round(args, load)
            args.out.write_bytes(gzip.compress(json.dumps(logs).encode(), mtime=0))
            print(f"{load}: {len(logs)} jobs so far", flush=True)


def one_round(args: argparse.Namespace, load: str) -> list[dict[str, object]]:
    """Return the logs of one round of jobs that run at the same time."""
    code = LOADS[load]
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(args.parallel if code else 0)]
    try:
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.parallel) as pool:
            folders = [Path(scratch) / f"job{i}" for i in range(args.parallel)]
            job = python(__file__, "train", "--steps", args.steps, "--width", args.width)
            list(pool.map(lambda folder: run(recorded(folder, job, "--light")), folders))
            return [{"load": load, "steps": [steps_of(folder, rank) for rank in range(RANKS)]} for folder in folders]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def steps_of(folder: Path, rank: int) -> dict[str, list[int]]:
    """Return what each step of a rank took, and its regions, in microseconds."""
    lines = [json.loads(line) for line in (folder / f"rank{rank:05d}.steps.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "dur_ns" in line]
    regions = {name: [s["regions"].get(name, {}).get("ns", -1000) // 1000 for s in steps] for name in REGIONS}
    return {"dur": [s["dur_ns"] // 1000 for s in steps], **regions}


# Read


@dataclass(frozen=True)
class Recording:
    """What one recording says, and what the sleep costs by the job itself."""

    number: int
    step_ms: float | None = None
    found: list[dict] = field(default_factory=list)
    slept_ms: list[float] = field(default_factory=list)
    saves_ms: list[float] = field(default_factory=list)
    """differences of neighbouring stretches with and without the sleep"""
    error: str | None = None

    @property
    def late_ms(self) -> float | None:
        """What the finding says that the late rank costs; None where no rank is named."""
        return max((f["cost_ms_per_step"] for f in self.found if f["id"] == "straggler"), default=None)

    @property
    def off(self) -> float | None:
        """How far that is from what taking the sleep out saves, as a share of it."""
        if self.late_ms is None or not self.saves_ms:
            return None
        return self.late_ms / statistics.fmean(self.saves_ms) - 1


def read_all(out: Path) -> None:
    load = json.loads((out / "load.json").read_text())
    print(
        f"{load['parallel']} jobs at a time on {load['cores']} of {load['of']} cores each, {load['busy']} busy loops "
        f"beside each, a sleep of {load['sleep_ms']:g} ms on rank 1"
    )
    print(header(), flush=True)
    results = []
    for path in sorted(out.glob("run*.job.json"), key=lambda p: int(p.name[3:].partition(".")[0])):
        results.append(read(path))
        print(row(results[-1]), flush=True)
    print(summary(results, load["sleep_ms"]))


def read(path: Path) -> Recording:
    import stepscope

    name = path.name.partition(".")[0]
    measured = json.loads(path.read_text())
    if "error" in measured:
        return Recording(int(name[3:]), error=measured["error"])
    document = stepscope.load(path.with_name(name)).document
    named = [f for f in document["findings"] if f["id"] in NAMES_A_RANK and f["ranks"]]
    return Recording(int(name[3:]), document["step"]["unprofiled_ms"], named, **measured)


WIDTHS = (4, 8, 9, 17, 9, 9, 9, 7)


def header() -> str:
    names = ("run", "step ms", "saves ms", "95 %", "slept ms", "profiled", "found ms", "off by")
    return (
        " ".join(f"{name:>{width}}" for name, width in zip(names, WIDTHS, strict=True)) + "  findings that name a rank"
    )


def row(r: Recording) -> str:
    if r.error is not None:
        return f"{r.number:4} FAILED {' '.join(r.error.split())[-400:]}"
    saves = statistics.fmean(r.saves_ms) if r.saves_ms else None
    slept, profiled = (statistics.median(part) if part else None for part in (r.slept_ms, r.slept_ms[slice(*PROFILED)]))
    cells = [str(r.number), number(r.step_ms, ".1f", "-"), number(saves, ".1f", "-"), interval_text(r.saves_ms)]
    cells += [*(number(x, ".1f", "-") for x in (slept, profiled, r.late_ms)), "-" if r.off is None else f"{r.off:+.1%}"]
    texts = [f"{f['id']} {f['ranks']} {f['cost_ms_per_step']:.1f} ms" for f in r.found]
    columns = " ".join(f"{text:>{width}}" for text, width in zip(cells, WIDTHS, strict=True))
    return f"{columns}  {', '.join(texts) or '-'}"


def interval_text(x: list[float]) -> str:
    if len(x) < 2:
        return "-"
    reach = 2.0 * statistics.stdev(x) / len(x) ** 0.5
    return f"{statistics.fmean(x) - reach:.1f} to {statistics.fmean(x) + reach:.1f}"


def summary(results: list[Recording], sleep_ms: float) -> str:
    done = [r for r in results if r.error is None]
    text = f"{sum(bool(r.found) for r in done)} of {len(done)} recordings name a rank"
    if sleep_ms:
        close = sum(r.off is not None and abs(r.off) <= CLOSE for r in done)
        text += f"; {close} of {len(done)} are within {CLOSE:.0%} of what taking the sleep out saves"
        every = [x for r in done for x in r.saves_ms]
        text += f" ({statistics.fmean(every):.1f} ms, {interval_text(every)}, over all runs)" if every else ""
    failed = len(results) - len(done)
    return text + (f"; {failed} failed" if failed else "")


if __name__ == "__main__":
    sys.exit(main())
