"""Is a fault planted in a real CPU job found, and does mending it save what was predicted?

    python benchmarks/planted_faults.py [--only late_host,stall] [--runs 2] [--out results]

Each fault is trained with and without it in turn, several times, without any recording: the difference is the truth.
Then the faulty job is recorded and reported, and the first finding is held against that truth. A machine with two free
cores is needed: with anything else running the truth itself is uncertain, and its standard error is shown.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

JOB = Path(__file__).with_name("planted_job.py")
STEPS, WARMUP = 60, 10
EXPECTED = {
    "none": [],
    "late_host": ["straggler"],
    "late_now_and_then": ["straggler"],
    "late_compute": ["straggler", "load-imbalance"],
    "uneven_batches": ["load-imbalance", "straggler"],
    "slow_loader": ["data-loading"],
    "slow_loader_one": ["straggler"],
    "stall": ["host-stall"],
    "no_overlap": ["no-overlap"],
    "one_by_one": ["too-many-small-collectives", "no-overlap"],
    "tiny_buckets": ["too-many-small-collectives"],
    "sync_every_micro_batch": ["redundant-communication"],
}
"""fault -> findings that name it"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(EXPECTED))
    parser.add_argument("--runs", type=int, default=2, help="of each job, faulty and mended in turn")
    parser.add_argument("--out", help="folder for the recordings and reports")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(args.out or scratch)
        out.mkdir(parents=True, exist_ok=True)
        print(f"{'fault':24} {'step ms':>8} {'truth ms':>14} {'predicted ms':>22}  findings (ms)")
        for fault in args.only.split(","):
            print(line(fault, *truth(fault, args.runs), report(fault, out)), flush=True)
    return 0


def line(fault: str, step_ms: float, saved_ms: float, error_ms: float, found: list[dict]) -> str:
    named = [f for f in found if f["id"] in EXPECTED[fault]]
    predicted = "-"
    if named:
        f = max(named, key=lambda f: f["saving_ms_per_step"])
        predicted = f"{f['saving_ms_per_step']:.1f} [{f['saving_low_ms']:.1f}, {f['saving_high_ms']:.1f}]"
    said = ", ".join(f"{f['id']} {f['ranks'] or ''} {f['saving_ms_per_step']:.1f}" for f in found)
    return f"{fault:24} {step_ms:8.1f} {saved_ms:7.1f} +- {error_ms:3.1f} {predicted:>22}  {said}"


def truth(fault: str, runs: int) -> tuple[float, float, float]:
    """Return the faulty step, what mending it saves, and that saving's standard error, in ms."""
    faulty, repaired = [], []
    for _ in range(runs):
        faulty.append(plain(fault, repaired=False))
        repaired.append(plain(fault, repaired=True))
    differences = [a - b for a, b in zip(faulty, repaired, strict=True)]
    error = statistics.stdev(differences) / runs**0.5 if runs > 1 else float("nan")
    return statistics.fmean(faulty), statistics.fmean(differences), error


def plain(fault: str, *, repaired: bool) -> float:
    """Return the mean step of a run without recording, its outermost tenths left out by blocks of three steps."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times.json")
        run(job(fault, *(["--mended"] if repaired else []), "--times", str(times)))
        steps = json.loads(times.read_text())[WARMUP:]
    blocks = sorted(statistics.fmean(steps[i : i + 3]) for i in range(0, len(steps) - 2, 3))  # whole periods of faults
    cut = len(blocks) // 10
    return statistics.fmean(blocks[cut : len(blocks) - cut])


def report(fault: str, out: Path) -> list[dict]:
    """Return the findings of a recording of the faulty job that save anything to speak of."""
    folder, found = out / fault, out / f"{fault}.json"
    stepscope = [sys.executable, "-m", "stepscope"]
    run([*stepscope, "record", "--out", str(folder), "--steps", "12:24", "--", *job(fault)])
    run([*stepscope, "report", str(folder), "--json", str(found), "--force"])
    report = json.loads(found.read_text())
    return [f for f in report["findings"] if f["saving_ms_per_step"] > 0]


def job(fault: str, *words: str) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [*start, str(JOB), "--fault", fault, "--steps", str(STEPS), *words]


def run(command: list[str]) -> None:
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[-8:])} failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
