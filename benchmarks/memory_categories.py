"""Are the categories of memory those of the allocator? DDP, FSDP2 and checkpointing, with AdamW and SGD, two ranks.

    PYTHONPATH=src python benchmarks/memory_categories.py --record FOLDER     (one GPU is enough: the ranks share it)
    python benchmarks/memory_categories.py --read FOLDER                      (on any machine)

The first records `memory_job.py` six times with `stepscope record --memory` and keeps the run folders and the job's own
notes; nothing but torch is needed. The second asks `stepscope memory` and holds its answer against the notes: what is
allocated at the peak against the allocator's, weights and optimizer state against the bytes of the tensors, activations
and gradients against what the allocator's number grew by in forward, and from the step's beginning to backward's end.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SRC = HERE.parent / "src"
sys.path[:0] = [str(HERE)]

RANKS = 2
WINDOW = (8, 11)
CASES = [
    (strategy, optimizer, checkpoint)
    for strategy, checkpoint in (("ddp", False), ("fsdp2", False), ("ddp", True), ("fsdp2", True))
    for optimizer in ("adamw", "sgd")
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    parser.add_argument("--read", type=Path, metavar="FOLDER")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--at-once", type=int, default=4, help="jobs beside each other: nothing is timed")
    args = parser.parse_args()
    if args.record:
        from gpu_record import shared_device

        with shared_device(args.device) as sharing, ThreadPoolExecutor(args.at_once) as pool:
            print(f"ranks share the device by: {sharing}", flush=True)
            for case, said in zip(CASES, pool.map(lambda case: record(case, args), CASES), strict=True):
                print(name_of(*case), said, flush=True)
    if args.read:
        print(markdown(args.read))
    return 0


def name_of(strategy: str, optimizer: str, checkpoint: bool) -> str:
    return f"{strategy}-{optimizer}" + ("-checkpointed" if checkpoint else "")


def record(case: tuple[str, str, bool], args: argparse.Namespace) -> str:
    """Record one job; its run folder and notes are left in a folder of its name."""
    folder = args.record / name_of(*case)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "stepscope.cli.main", "record", "--out", str(folder / "run"), "--memory"]
    command += ["--steps", f"{WINDOW[0]}:{WINDOW[1]}", "--", sys.executable, "-m", "torch.distributed.run"]
    command += ["--standalone", f"--nproc-per-node={RANKS}", str(HERE / "memory_job.py"), *case[:2]]
    command += ["--device", args.device, "--notes", str(folder), *(["--checkpoint"] if case[2] else [])]
    env = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    (folder / "said.txt").write_text(done.stderr)
    return "ok" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr[-600:]}"


def answer(run: Path) -> dict[str, Any]:
    """Return what `stepscope memory` says of a run."""
    done = subprocess.run(["stepscope", "memory", str(run), "--json", "-"], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr[-600:])
    return json.loads(done.stdout)


def markdown(folder: Path) -> str:
    lines = [
        "| job | peak: allocator MB | trace | snapshot | weights MB | gradients | optimizer state | activations |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        place = folder / name_of(*case)
        if (place / "run").exists():
            lines.append(row(name_of(*case), answer(place / "run"), place))
    return "\n".join(lines)


def row(name: str, said: dict[str, Any], place: Path) -> str:
    """Return what was said of all ranks: the allocator's number, and the rank that is the farthest off."""
    cells: dict[str, list[tuple[int, int | None]]] = {}
    for rank in range(RANKS):
        notes = json.loads((place / f"rank{rank}.json").read_text())[slice(*WINDOW)]
        for column, pair in compared(rank, said, notes).items():
            cells.setdefault(column, []).append(pair)
    return f"| {' | '.join([name, *(cell(pairs) for pairs in cells.values())])} |"


def compared(rank: int, said: dict[str, Any], notes: list[dict[str, int]]) -> dict[str, tuple[int, int | None]]:
    """Return by column what the job noted and what we say, in bytes."""
    (of_rank,) = (r for r in said["memory"]["ranks"] if r["rank"] == rank)
    snapshots = [s for s in said["snapshots"] if s["rank"] == rank]
    peak = max(n["peak"] for n in notes)
    pairs: dict[str, tuple[int, int | None]] = {
        "allocator": (peak, peak),
        "trace": (peak, sum(v for k, v in of_rank["peak"]["by_category"].items() if k != "reserved_unused")),
        "snapshot": (peak, sum(v for k, v in snapshots[0]["peak"]["by_purpose"].items() if k != "reserved_unused"))
        if snapshots
        else (peak, None),
    }
    curves = of_rank["timeline"]["by_category"]
    true = {
        "weights": max(n["weights"] for n in notes),
        "gradients": max(n["after_backward"] - n["begin"] for n in notes),
        "optimizer_state": max(n["optimizer_state"] for n in notes),
        "activations": max(n["after_forward"] - n["begin"] for n in notes),
    }
    return pairs | {category: (size, max(curves[category])) for category, size in true.items()}


def cell(pairs: list[tuple[int, int | None]]) -> str:
    if any(ours is None for _, ours in pairs):
        return "unknown"
    true, ours = max(pairs, key=lambda pair: abs((pair[1] or 0) - pair[0]))
    return f"{true / 1e6:.1f}" if ours == true else f"{true / 1e6:.1f}: {100 * ((ours or 0) / true - 1):+.2f} %"


if __name__ == "__main__":
    sys.exit(main())
