"""Whether a window leaves the profiler attached: what the host takes for a CUDA launch before, in and after it.

    PYTHONPATH=src python benchmarks/left_behind.py --rounds 4

Whole steps of a host-bound job differ by several per cent for reasons of their own. The median of thousands of launches
of one tiny kernel repeats better within a process, and is what a profiler that stays attached makes slower. Each round
is a plain process and a recorded one; the times of each are given against its own steps before the window.
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

HERE = Path(__file__).resolve().parent
LAUNCHES_IN_CHUNK, CHUNKS = 20, 150
STEPS = 160
WINDOW = (10, 15)  # the recorder's own
PARTS = {"window": WINDOW, "16 to 19": (16, 20), "20 to 39": (20, 40), "40 to 79": (40, 80), "80 to 159": (80, STEPS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--job", metavar="OUT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        Path(args.job).write_text(json.dumps(job()))
        return
    print(f"| process | launch before, us | {' | '.join(PARTS)} |\n|{'---|' * (2 + len(PARTS))}")
    for _ in range(args.rounds):
        for recorded in (False, True):
            launch_us = measured(recorded=recorded)
            before = statistics.median(launch_us[3 : WINDOW[0] - 1])
            shares = [statistics.median(launch_us[first:last]) / before for first, last in PARTS.values()]
            cells = " | ".join(f"{share:.3f}" for share in shares)
            print(f"| {'recorded' if recorded else 'plain'} | {before:.2f} | {cells} |", flush=True)


def measured(*, recorded: bool) -> list[float]:
    """Return what the job of one process wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "launches.json")
        command = [sys.executable, __file__, "--job", str(out)]
        if recorded:
            command = [sys.executable, "-m", "stepscope", "record", "--out", str(Path(folder, "run")), "--", *command]
        path = os.pathsep.join([str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": path})
        found: list[float] = json.loads(out.read_text())
        return found


def job() -> list[float]:
    """Train a layer; return the median launch in each step, in us."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(64, 64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, one = torch.randn(32, 64, device=device), torch.zeros(1, device=device)
    launch_us = []
    for _ in range(STEPS):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        launch_us.append(median_launch_us(one))
    return launch_us


def median_launch_us(one: "torch.Tensor") -> float:
    """Return the median time of a launch; the device is never so far behind that a launch has to wait for it."""
    import torch

    chunks = []
    for number in range(CHUNKS):
        if number % 10 == 0 and one.is_cuda:
            torch.cuda.synchronize()
        since_ns = time.perf_counter_ns()
        for _ in range(LAUNCHES_IN_CHUNK):
            one.add_(1)
        chunks.append((time.perf_counter_ns() - since_ns) / LAUNCHES_IN_CHUNK / 1000)
    return statistics.median(chunks)


if __name__ == "__main__":
    main()
