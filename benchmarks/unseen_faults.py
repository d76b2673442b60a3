"""Are faults named that no rule was written for, and how far off are their savings? On a GPU.

    python benchmarks/unseen_faults.py measure OUT      on the GPU: time every fault with and without it, record it
    python benchmarks/unseen_faults.py table OUT        anywhere: report the recordings, hold them against the truth

A fault counts as named where one of the first two findings is what a person would act on (`NAMED`). The saving is that
finding's, alone, as a share of the step, against the share that deleting the line really saved.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).with_name("unseen_job.py")
STEPS, WINDOW = 60, "20:26"
NAMED = {
    "lm:nan_check": ("host-device-sync",),
    "lm:accuracy": ("memory-bound-kernels",),
    "lm:one_hot": ("memory-bound-kernels", "host-to-device-copy"),
    "lm:cpu_mask": ("host-to-device-copy", "host-stall", "data-loading"),
    "lm:empty_cache": ("allocator",),
    "gan:critic_grads": (),
    "ddp:long_samples": ("load-imbalance", "straggler"),
    "ddp:gather_objects": ("host-device-sync", "too-many-small-collectives", "redundant-communication"),
}
"""fault -> findings that lead to the line; none: only the line itself (`where`) would"""


def main() -> int:
    what, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    if what == "measure":
        measure(out)
    else:
        table(out)
    return 0


def measure(out: Path) -> None:
    for ranks in (1, 4):
        pairs = [pair for pair in NAMED if pair.startswith("ddp") == (ranks == 4)]
        run([*start(ranks), str(JOB), "time", str(out / f"truth{ranks}.json"), ",".join(pairs)])
        for pair in pairs:
            work, fault = pair.split(":")
            folder = out / f"{work}_{fault}"
            record = [sys.executable, "-m", "stepscope", "record", "--out", str(folder), "--steps", WINDOW, "--"]
            run([*record, *start(ranks), str(JOB), "run", work, fault, str(STEPS)])
            print(f"recorded {pair}", flush=True)


def start(ranks: int) -> list[str]:
    return (
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
        if ranks > 1
        else [sys.executable]
    )


def table(out: Path) -> None:
    truth = {}
    for file in sorted(out.glob("truth*.json")):
        truth.update(json.loads(file.read_text()))
    print(f"{'fault':20} {'step ms':>8} {'saves %':>8} {'said %':>7}  first two findings, % of the step")
    for pair, expected in NAMED.items():
        folder = out / pair.replace(":", "_")
        if pair not in truth or not folder.is_dir():
            print(f"{pair:20} not measured")
            continue
        step = statistics.median(truth[pair]["fault"])
        saved = 100 * (1 - statistics.median(truth[pair]["none"]) / step)
        done = subprocess.run(
            [sys.executable, "-m", "stepscope", "report", str(folder), "--json", "-"], capture_output=True, text=True
        )
        if done.returncode:
            print(f"{pair:20} {step:8.1f} {saved:8.1f}  report failed: {done.stderr.strip()[:80]}")
            continue
        report = json.loads(done.stdout)
        first = [f for f in report["findings"] if (f["saving_alone_ms"] or 0) > 0][:2]
        hit = next((f for f in first if f["id"] in expected), None)
        said = f"{hit['saving_pct']:7.1f}" if hit else "      -"
        names = ", ".join(f"{f['id']} {f['ranks'] or ''} {f['saving_pct']:.0f}" for f in first) or "none"
        print(f"{pair:20} {step:8.1f} {saved:8.1f} {said}  {report['verdict']}: {names}")


def run(command: list[str]) -> None:
    environment = {**os.environ, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "KINETO_LOG_LEVEL": "5"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"{' '.join(command[-6:])} failed:\n{done.stderr[-1500:]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
