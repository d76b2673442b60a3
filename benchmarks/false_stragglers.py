"""Is a rank of a clean job called late on a busy machine, and is one that sleeps called late by what it costs?

    python benchmarks/false_stragglers.py [--runs 50] [--busy 2] [--sleep-ms 0] [--out results]

Two gloo ranks train a small model for two seconds with busy loops beside them. Without a sleep, no finding may name a
late rank or a stalled host. With one, on rank 1 in every step, each recording is held against what the job itself
measures in the same minute: every second stretch of eight steps is without the sleep, by the ranks' own clocks.

`slept ms` is how long the sleep itself took in the recorded job, by the job's clock: median of all steps, and of the
profiled ones. A busy machine wakes a sleeping process late, and that is part of what the sleep costs: `off by` is held
against it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, STRETCH, WARMUP = 60, 8, 8
PROFILED = (20, 25)
NAMES_A_RANK = ("straggler", "host-stall")
RANKS = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--busy", type=int, default=2, help="loops beside the job")
    parser.add_argument("--sleep-ms", type=float, default=0.0, help="on rank 1, in every step")
    parser.add_argument("--no-compare", action="store_true", help="without the runs in which the sleep comes and goes")
    parser.add_argument("--out", help="folder to keep the recordings in")
    parser.add_argument("--job", choices=("train", "compare"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        return launch(args) if "RANK" not in os.environ else train(args)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            runs(args, Path(args.out or scratch))
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    return 0


def runs(args: argparse.Namespace, out: Path) -> None:
    names = f"{'run':>4} {'step ms':>8} {'cost ms':>8} {'slept ms':>9} {'profiled':>9} {'found ms':>9} {'off by':>7}"
    print(f"{names}  findings that name a rank", flush=True)
    named, close = 0, 0
    for number in range(args.runs):
        cost_ms = measured_ms(args) if args.sleep_ms and not args.no_compare else None
        step_ms, found, slept_ms = recorded(args, out / f"run{number}")
        slept, profiled = (statistics.median(part) if part else None for part in (slept_ms, slept_ms[slice(*PROFILED)]))
        named += bool(found)
        late_ms = max((f["cost_ms_per_step"] for f in found), default=None)
        off = abs(late_ms / slept - 1) if slept and late_ms is not None else None
        close += off is not None and off <= 0.10
        texts = [f"{f['id']} {f['ranks']} {f['cost_ms_per_step']:.1f} ms" for f in found]
        shown = [f"{x:.1f}" if x is not None else "-" for x in (step_ms, cost_ms, slept, profiled, late_ms)]
        percent = f"{off:.1%}" if off is not None else "-"
        columns = " ".join(f"{text:>{width}}" for text, width in zip(shown, (8, 8, 9, 9, 9), strict=True))
        print(f"{number:4} {columns} {percent:>7}  {', '.join(texts) or '-'}", flush=True)
    print(f"{named} of {args.runs} recordings name a rank" + (f"; {close} within 10 %" if args.sleep_ms else ""))


def measured_ms(args: argparse.Namespace) -> float:
    """Return what the sleep costs per step, by a run without the recorder in which it comes and goes."""
    done = run(job(args, "compare"))
    return float(json.loads(done.splitlines()[-1])["cost_ms"])


def recorded(args: argparse.Namespace, folder: Path) -> tuple[float, list[dict], list[float]]:
    """Return the step of a recording, its findings that name a rank, and how long each sleep took."""
    stepscope, report = [sys.executable, "-m", "stepscope.cli.main"], folder.with_suffix(".json")
    steps = ":".join(map(str, PROFILED))
    done = run([*stepscope, "record", "--out", str(folder), "--steps", steps, "--", *job(args, "train")])
    run([*stepscope, "report", str(folder), "--json", str(report), "--force"])
    found = json.loads(report.read_text())
    return found["step"]["unprofiled_ms"], [f for f in found["findings"] if f["id"] in NAMES_A_RANK], slept_ms_of(done)


def slept_ms_of(output: str) -> list[float]:
    """Return how long the sleep took in each step, as the job printed it."""
    lines = [line for line in output.splitlines() if line.startswith('{"slept_ms"')]
    return json.loads(lines[-1])["slept_ms"] if lines else []


def job(args: argparse.Namespace, what: str) -> list[str]:
    return [sys.executable, "-W", "ignore", __file__, "--job", what, "--sleep-ms", str(args.sleep_ms)]


def run(command: list[str]) -> str:
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[-8:])} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def launch(args: argparse.Namespace) -> int:
    """Start both ranks of the job and wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "WORLD_SIZE": str(RANKS), "STORE": f"{folder}/store"}
        ranks = [
            subprocess.Popen(job(args, args.job), env={**environ, "RANK": str(r), "LOCAL_RANK": str(r)})
            for r in range(RANKS)
        ]
        return max(rank.wait() for rank in ranks)


def train(args: argparse.Namespace) -> int:
    """Train as one rank; `compare` takes the sleep out of every second stretch of steps."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=RANKS)
    width = 512
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(128, width)
    times: dict[bool, list[float]] = {True: [], False: []}
    slept_ms: list[float] = []
    since = time.perf_counter()
    for step in range(WARMUP + 8 * STRETCH if args.job == "compare" else STEPS):
        sleeps = args.job == "train" or (step - WARMUP) // STRETCH % 2 == 0
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if sleeps and args.sleep_ms and rank == 1:
            lies_down = time.perf_counter()
            time.sleep(args.sleep_ms / 1000)
            slept_ms.append((time.perf_counter() - lies_down) * 1000)
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        if step >= WARMUP:
            times[sleeps].append((now - since) * 1000)
        since = now
    if args.job == "compare" and rank == 0:
        print(json.dumps({"cost_ms": statistics.median(times[True]) - statistics.median(times[False])}))
    if slept_ms and args.job == "train":
        print(json.dumps({"slept_ms": slept_ms}), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
