"""What the report of light logs alone costs as ranks grow, and whether it names a late rank among them.

    python benchmarks/light_logs.py [--ranks 1024 4096 16384] [--steps 100] [--folder DIR] [--out light.json]

Every rank's log has the regions of a data-parallel step of 100 ms with 2 % of noise; one rank takes 20 ms longer, for
which all others wait. Each size is measured in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
STEP_NS, LATE_NS, NOISE = 100_000_000, 20_000_000, 0.02
SHARES = {"data_loading": 0.02, "forward_pass": 0.3, "backward_pass": 0.6, "optimizer_step": 0.08}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[1024, 4096, 16384])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "stepscope-benchmarks")
    parser.add_argument("--out")
    parser.add_argument("--run-one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run_one:
        print(json.dumps(measured(arguments.run_one)))
        return 0
    rows = []
    for ranks in arguments.ranks:
        folder, late = made(arguments.folder, ranks, arguments.steps)
        command = [sys.executable, __file__, "--run-one", str(folder)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append({"ranks": ranks, "steps": arguments.steps, "planted": late, **found})
        print(rows[-1], flush=True)
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(rows, indent=1))
    return 0


def made(parent: Path, ranks: int, steps: int) -> tuple[Path, int]:
    """Return the folder with the logs of so many ranks, made unless it is there already, and the late rank."""
    import numpy as np

    folder, late = parent / f"light-{ranks}x{steps}", ranks * 2 // 3
    if folder.exists():
        return folder, late
    unfinished = folder.with_suffix(".tmp")
    unfinished.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    own = STEP_NS * (1 + NOISE * rng.standard_normal((ranks, steps)))
    own[late] += LATE_NS
    wait = own.max(axis=0) - own
    for rank in range(ranks):
        text = "\n".join(map(json.dumps, lines(rank, ranks, own[rank], wait[rank])))
        (unfinished / f"rank{rank:05}.steps.jsonl").write_text(text + "\n")
    unfinished.rename(folder)
    return folder, late


def lines(rank: int, ranks: int, own_ns: Any, wait_ns: Any) -> list[dict[str, Any]]:
    """Return the log of one rank."""
    out: list[dict[str, Any]] = [{"schema": 1, "rank": rank, "world_size": ranks}]
    at = 1_700_000_000_000_000_000
    for step, (own, wait) in enumerate(zip(own_ns.tolist(), wait_ns.tolist(), strict=True)):
        regions = {name: {"ns": int(share * own), "n": 1} for name, share in SHARES.items()}
        regions["gradient_sync"] = {"ns": int(wait), "n": 1}
        dur = int(own + wait)
        times = {"start_ns": at, "end_ns": at + dur, "dur_ns": dur, "device_ns": None}
        out.append({"step": step, **times, "profiled": False, "phase": "after", "regions": regions})
        at += dur
    return out


def measured(folder: str) -> dict[str, Any]:
    """Return what the report costs in this process, and which ranks it names."""
    from peak_memory import own_peak_mb

    from stepscope.document.light import light_json
    from stepscope.run.light import load_light

    clock = [time.process_time()]
    run = load_light(folder)
    clock.append(time.process_time())
    document = light_json(run)
    clock.append(time.process_time())
    return {
        "size_mb": sum(path.stat().st_size for path in Path(folder).glob("*.jsonl")) / 1e6,
        "read_s": clock[1] - clock[0],
        "report_s": clock[2] - clock[1],
        "peak_mb": own_peak_mb(),
        "named": [late["rank"] for late in document["stragglers"]],
    }


if __name__ == "__main__":
    sys.exit(main())
