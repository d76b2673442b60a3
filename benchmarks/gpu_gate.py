"""Does `stepscope gate` find planted regressions of a job on a GPU, and raise no alarm without one?

    python benchmarks/gpu_gate.py OUT --ranks 1            (about a minute)
    python benchmarks/gpu_gate.py OUT --ranks 4            four NCCL ranks that share the device
    python benchmarks/gpu_gate.py OUT --busy               next to another process on the same device
    python benchmarks/gpu_gate.py --table OUT

The truth of each planted change is timed first, in alternating blocks of one process. OUT/NAME.json holds the truth,
the gate's result, how both versions ran (turns, or why not), and how long the gate took.
"""

import argparse
import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from common import HERE, STEPSCOPE, environment, python, run_json, shared_device, table

JOB = HERE / "gate_job.py"
GATE = ("--threshold", "3", "--rounds", "24", "--max-rounds", "48", "--no-lines")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--extra", type=int, nargs="*", default=[0, 4], help="products planted in head")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(results(args.out))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    shared = shared_device(args.device) if args.ranks > 1 or args.busy else contextlib.nullcontext(args.device)
    with shared as how, busy(args.width) if args.busy else contextlib.nullcontext():
        for extra in args.extra:
            name = f"{args.ranks}-ranks{'-busy' if args.busy else ''}-{extra}-extra"
            found = {"ranks": args.ranks, "busy": args.busy, "extra": extra, "shared": how, **measure(args, name)}
            (args.out / f"{name}.json").write_text(json.dumps(found, indent=1))
            print(name, found["gate"].get("verdict"), found["gate"].get("changes"), flush=True)


def measure(args: argparse.Namespace, name: str) -> dict[str, object]:
    job = [JOB, "--width", args.width]
    extra = int(name.rsplit("-", 2)[1])
    truth = run_json(python(*job, "--extra", extra, "--truth", ranks=args.ranks)) if extra else {"change_pct": 0.0}
    base, head = (" ".join(python(*job, "--extra", n, ranks=args.ranks)) for n in (0, extra))
    began_s = time.monotonic()
    command = [*STEPSCOPE, "gate", *GATE, "--base", base, "--head", head, "--out", str(args.out / name), "--force"]
    done = subprocess.run([*command, "--json", "-"], env=environment(), capture_output=True, text=True, timeout=300)
    gate = json.loads(done.stdout) if done.stdout else {"error": done.stderr[-2000:]}
    gate.pop("trials", None)
    return {"truth": truth, "wall_s": time.monotonic() - began_s, "gate": gate}


@contextlib.contextmanager
def busy(width: int) -> Iterator[None]:
    """Let another job use the device in the meantime."""
    other = subprocess.Popen(python(JOB, "--width", width // 2), env=environment())
    try:
        time.sleep(8)  # until it is training
        yield
    finally:
        other.kill()
        other.wait()


def results(out: Path) -> str:
    rows = []
    for path in sorted(out.glob("*.json")):
        found = json.loads(path.read_text())
        gate = found["gate"]
        change = gate.get("changes", {}).get("typical")
        rows.append(
            (
                f"{found['ranks']}{', busy' if found['busy'] else ''}",
                f"{found['truth']['change_pct']:.1f} %",
                gate.get("verdict", "error"),
                f"{change['pct']:+.1f} % ({change['low_pct']:+.1f} to {change['high_pct']:+.1f})" if change else "",
                gate.get("no_turns_reason") or "turns",
                f"{found['wall_s']:.0f}",
            )
        )
    return table(["ranks", "planted, timed", "verdict", "typical step", "how", "s"], rows)


if __name__ == "__main__":
    main()
