"""How do steps of equal ranks differ on a loaded machine? Real noise for the tests of who is late.

    python benchmarks/step_noise.py OUT.json.gz [--jobs 8] [--rounds 4] [--steps 160] [--load none|steady|bursts|all]

Records clean jobs of two gloo ranks in light mode, several at a time, with other processes beside them: none, one busy
loop per job, or loops that come and go for one to five seconds. Writes what each step took on each rank, in
microseconds: `{"load", "steps": [per rank {"dur", "gradient_sync", "forward_pass", "backward_pass",
"optimizer_step"}]}` per job.
`tests/analyze/ranks/test_real_noise.py` cuts such logs into clean runs and runs in which a rank sleeps.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RANKS = 2
LOADS = ("none", "steady", "bursts")
REGIONS = ("gradient_sync", "forward_pass", "backward_pass", "optimizer_step")
STEADY = "while True: pass"
BURSTS = """
import random, time
while True:
    until = time.monotonic() + random.uniform(1, 5)
    while time.monotonic() < until: pass
    time.sleep(random.uniform(1, 5))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 2) // RANKS, 1), help="at a time")
    parser.add_argument("--rounds", type=int, default=1, help="of so many jobs, per load")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--width", type=int, default=1024, help="of the six layers: how long a step is")
    parser.add_argument("--load", choices=(*LOADS, "all"), default="all")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        return train(args) if "RANK" in os.environ else launch()
    logs: list[dict[str, object]] = []
    for load in LOADS if args.load == "all" else (args.load,):
        for _ in range(args.rounds):
            logs += recorded(args, load)
            args.out.write_bytes(gzip.compress(json.dumps(logs).encode(), mtime=0))
            print(f"{load}: {len(logs)} jobs so far", flush=True)
    return 0


def recorded(args: argparse.Namespace, load: str) -> list[dict[str, object]]:
    """Return the logs of one round of jobs that run at the same time."""
    beside = {"none": "", "steady": STEADY, "bursts": BURSTS}[load]
    loops = [subprocess.Popen([sys.executable, "-c", beside]) for _ in range(args.jobs if beside else 0)]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folders = [Path(scratch) / f"job{i}" for i in range(args.jobs)]
            job = [sys.executable, "-W", "ignore", __file__, str(args.out), "--train", "--steps", str(args.steps)]
            record = [sys.executable, "-m", "stepscope", "record", "--light", "--out"]
            started = [
                subprocess.Popen(
                    [*record, str(folder), "--", *job, "--width", str(args.width)],
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    stdout=subprocess.DEVNULL,
                )
                for folder in folders
            ]
            done = [each.wait() for each in started]
            kept = [folder for folder, code in zip(folders, done, strict=True) if code == 0]
            return [{"load": load, "steps": [steps_of(folder, rank) for rank in range(RANKS)]} for folder in kept]
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


def launch() -> int:
    """Start both ranks of a job and wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "WORLD_SIZE": str(RANKS), "STORE": f"{folder}/store"}
        command = [sys.executable, "-W", "ignore", *sys.argv]
        ranks = [subprocess.Popen(command, env={**environ, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(RANKS)]
        return max(rank.wait() for rank in ranks)


def train(args: argparse.Namespace) -> int:
    """Train as one rank: the same work on both."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=RANKS)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(args.width, args.width), torch.nn.ReLU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(512, args.width)
    for _ in range(args.steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
