"""Do `stepscope compare` and `stepscope gate` validate fixes, on a CPU whose load changes, and on a GPU?

    python benchmarks/fixes.py OUT [--only sleep,item] [--runs 1] [--rounds 3] [--gate]

Each fault is planted in one training script and repaired by an edit of its lines. Both versions are recorded, `--runs`
times in turn, and compared; on a CPU, busy loops share the cores, a different number before and after. The truth is
measured without stepscope: plain runs of both versions in turn, without busy loops; the step less the kernel's count of
its waits for a core. `--gate` also lets both versions take turns. Two pairs have no edit, only another load (not on a
GPU). OUT keeps recordings, plain runs and gates: what is there is not made again.
"""

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from common import STEPSCOPE, environment, recorded, run, table

WARMUP = 20
JOB = """
import json, os, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("STEPS", 80))
GPU = torch.cuda.is_available()
DEVICE, WIDTH, TURN = ("cuda", 2048, 10) if GPU else ("cpu", 512, 1)

class Samples(Dataset):
    def __len__(self):
        return 100_000_000

    def __getitem__(self, i):
        return torch.full((64,), i % 7 / 7.0), i % 10

class Stored(Samples):
    def __getitem__(self, i):
        time.sleep(0.001)
        return super().__getitem__(i)

def waited_ns():
    return int(open(f"/proc/self/task/{threading.get_native_id()}/schedstat").read().split()[1])

def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(nn.Linear(64, WIDTH), *layers, nn.Linear(WIDTH, 10)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    log, times, seen = [], [], (time.perf_counter_ns(), waited_ns())
    # loader
    for step, (inputs, labels) in zip(range(STEPS), loader):
        inputs, labels = inputs.to(DEVICE), labels.to(DEVICE)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        # work
        optimizer.step()
        if (step + 1) % TURN == 0:
            if GPU and "TIMES" in os.environ:
                torch.cuda.synchronize()
            now = time.perf_counter_ns(), waited_ns()
            times += TURN * [((now[0] - seen[0]) / TURN, (now[1] - seen[1]) / TURN)]
            seen = now
    if "TIMES" in os.environ:
        json.dump(times, open(os.environ["TIMES"], "w"))

if __name__ == "__main__":
    main()
"""
LOADER = "loader = DataLoader(Samples(), batch_size=64)"
GPU = torch.cuda.is_available()
#: fault: the mark at which it is, its lines and the repaired ones, the line that is named
FAULTS = {
    "sleep": ("work", "time.sleep(0.03)", "pass", "time.sleep(0.03)"),
    "elements": (
        "work",
        "weight = sum(abs(x) ** 1.5 for x in 40 * inputs.reshape(-1).tolist())\nlog.append(weight)",
        "log.append(40 * float((inputs.abs() ** 1.5).sum()))",
        "weight = sum(abs(x) ** 1.5 for x in 40 * inputs.reshape(-1).tolist())",
    ),
    "item": (
        "work",
        "for _ in range(40):\n    log.append(sum(p.grad.norm().item() for p in model.parameters()))",
        "log.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))",
        "log.append(sum(p.grad.norm().item() for p in model.parameters()))",
    ),
    "loader": (
        "loader",
        "loader = DataLoader(Stored(), batch_size=64)",
        "loader = DataLoader(Stored(), batch_size=64, num_workers=4)",
        "",
    ),
    "forward": (
        "work",
        "again = model(inputs.repeat(8, 1))\nlog.append(float(again.mean()))",
        "log.append(float(loss))",
        "again = model(inputs.repeat(8, 1))",
    ),
}
#: busy loops next to the recordings before and after
LOADS = {"sleep": (2, 1), "elements": (1, 2), "item": (2, 1), "loader": (1, 2), "forward": (2, 0)}
#: pairs without an edit: busy loops, threads of an operator
SAME = {"same-0-to-2": ((0, 2), 1), "two-0-to-2": ((0, 2), 2)}
HEAD = ("fault", "busy loops", "wall time, ms", "without core waits, ms", "really saved, ms", "by `compare`, ms",
        "inside", "predicted, ms", "finding", "really saved", "by `gate`")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join([*FAULTS, *SAME]), help="with commas")
    parser.add_argument("--runs", type=int, default=1, help="recordings of each version")
    parser.add_argument("--rounds", type=int, default=3, help="of plain runs of both versions")
    parser.add_argument("--gate", action="store_true")
    args = parser.parse_args()
    names = args.only.split(",")
    rows = []
    for name in FAULTS:
        if name in names:
            rows.append(fixed(args.out / name, name, args))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    print(table(HEAD, rows))
    for name, (loads, threads) in SAME.items():
        if name in names and not GPU:
            found = compared(args.out / name, "sleep", ("after", "after"), loads, threads)
            print(f"\n{name}, {' to '.join(map(str, loads))} busy loops, {threads} threads: {found['headline']}")
    return 0


def fixed(folder: Path, name: str, args: argparse.Namespace) -> list[str]:
    loads = (0, 0) if GPU else LOADS[name]
    found = compared(folder, name, ("before", "after"), loads, runs=args.runs)
    truth, truth_pct = saved(folder, args.rounds)
    step, code, said = found["step_ms"], found["code_ms"], found["prediction"]
    low, high, line = -code["high"], -code["low"], FAULTS[name][3]
    named = [f for f in found["findings"] if (f["line"] and f["line"]["text"] == line) or (not line and f["a_runs"])]
    planted = [f for f in named if line or f["id"] == "data-loading"]
    return [
        name,
        " to ".join(map(str, loads)),
        f"{step['a']:.0f} to {step['b']:.0f}",
        f"{code['a']:.1f} to {code['b']:.1f}",
        f"{truth:.1f}",
        f"{-code['change']:.1f} ({low:.1f} to {high:.1f})",
        "yes" if low <= truth <= high else "no",
        f"{said['predicted_ms']:.0f} ({said['low_ms']:.1f} to {said['high_ms']:.0f})" if said else "none",
        ", ".join(f["what"] for f in planted) or "none",
        f"{truth_pct:.1f} %",
        gated(folder, name) if args.gate else "",
    ]


def gated(folder: Path, fault: str) -> str:
    """Return what `gate` says of the edit: its verdict and the change of the typical step."""
    path = folder / "gate.json"
    if not path.exists():
        jobs = [f"{sys.executable} {script(folder, fault, version)}" for version in ("before", "after")]
        command = [*STEPSCOPE, "gate", "--base", jobs[0], "--head", jobs[1], "--no-lines", "--rounds", "24"]
        command += ["--max-rounds", "48", "--force", "--out", str(folder / "gate"), "--json", str(path)]
        done = subprocess.run(command, env=environment(STEPS="1000000"), capture_output=True, text=True, timeout=600)
        if not path.exists():
            return f"no result: {done.stderr[-300:]}"
    found = json.loads(path.read_text())
    change = found["changes"]["typical"]
    how = found.get("no_turns_reason") or "turns"
    return f"{found['verdict']}, {change['pct']:.1f} % ({change['low_pct']:.1f} to {change['high_pct']:.1f}), {how}"


def compared(
    folder: Path, fault: str, versions: tuple[str, str], loads: tuple[int, int], threads: int = 1, runs: int = 1
) -> dict[str, Any]:
    """Record two versions in turn, each next to busy loops, and return their comparison."""
    sides = {side: [folder / f"{side}{run or ''}" for run in range(runs)] for side in "ab"}
    for number in range(runs):
        for side, version, busy in list(zip("ab", versions, loads, strict=True))[:: -1 if number % 2 else 1]:
            if not (sides[side][number] / "run.json").exists():
                with busy_loops(busy):
                    job = [sys.executable, str(script(folder, fault, version))]
                    run(recorded(sides[side][number], job), OMP_NUM_THREADS=str(threads))
    given = [part for side, folders in sides.items() for part in (f"--{side}", *map(str, folders))]
    found: dict[str, Any] = json.loads(run([*STEPSCOPE, "compare", *given, "--json", "-"]).stdout)
    return found


def script(folder: Path, fault: str, version: str) -> Path:
    """Write a version of the job; both have the same file name."""
    path = folder / f"job-{version}" / "train.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = JOB
    mark, *lines = FAULTS[fault][:3]
    for name, code in {"loader": LOADER, "work": "pass", mark: lines[version == "after"]}.items():
        indent = next(line for line in text.splitlines() if line.endswith(f"# {name}")).partition("#")[0]
        text = text.replace(f"{indent}# {name}", "\n".join(indent + line for line in code.splitlines()))
    path.write_text(text)
    return path


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.send_signal(signal.SIGKILL)
            loop.wait()


def saved(folder: Path, rounds: int) -> tuple[float, float]:
    """Return what the repair saves, in ms and % of the step: plain runs in turn, without waits for a core."""
    path = folder / "truth.json"
    if not path.exists():
        found = []
        for number in range(rounds):
            times = {v: plain_ms(folder, v) for v in (("before", "after"), ("after", "before"))[number % 2]}
            found.append((times["before"], times["after"]))
        path.write_text(json.dumps(found))
    before, after = (statistics.median(side) for side in zip(*json.loads(path.read_text()), strict=True))
    return before - after, 100 * (before - after) / before


def plain_ms(folder: Path, version: str) -> float:
    times = folder / "times.json"
    run([sys.executable, str(script(folder, folder.name, version))], TIMES=str(times))
    found = [(wall - waited) / 1e6 for wall, waited in json.loads(times.read_text())[WARMUP:]]
    return statistics.median(found)


if __name__ == "__main__":
    sys.exit(main())
