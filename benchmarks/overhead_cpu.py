"""CPU time of the training thread that light mode adds to a step, for loops that call very much.

    python benchmarks/overhead_cpu.py [--quick] [--shapes one,cells,...] [--seconds 15]

Light mode is taken in and out of one process, block by block, in the order off on on off; the time is that of the
training thread alone (`time.thread_time_ns`), so what other processes take away does not count, though they still empty
the caches. The interval is a bootstrap over pairs of neighbouring blocks. Calls of ours are counted beside it: they are
the same on every machine.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

SETTLING = 11  # steps: three of search, some that are found alike, two with stretches
BLOCK_NS = 50_000_000
MIN_PAIRS = 4
CHOSEN = ("one", "cells", "modules", "parameters", "micro")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=",".join(CHOSEN), help="of overhead_shapes")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each shape")
    parser.add_argument("--quick", action="store_true", help="5 s for each shape")
    parser.add_argument("--out", help="file for the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = cost_of_shapes(folder, arguments.shapes.split(","), 5.0 if arguments.quick else arguments.seconds)
    print(table(found))
    load = os.getloadavg()[0]
    print(f"load average {load:.1f} on {os.cpu_count()} cores" + (": busy" if load > (os.cpu_count() or 1) else ""))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(found, indent=1))
    return 0


def cost_of_shapes(folder: str, names: list[str], seconds: float) -> dict[str, dict]:
    """Measure each shape for about so many seconds."""
    import torch
    from overhead_rank import Light, calls_of_ours
    from overhead_shapes import SHAPES

    torch.set_num_threads(1)
    light, found = Light(folder), {}
    for name in names:
        job: Any = SimpleNamespace(step=SHAPES[name](), model=None)
        until = time.monotonic() + seconds
        pairs: list[tuple[float, float]] = []
        while len(pairs) < MIN_PAIRS or time.monotonic() < until:
            order = (False, True) if len(pairs) % 2 == 0 else (True, False)
            times = {on: block_us(light, job, on=on) for on in order}
            pairs.append((times[False], times[True]))
        light.turn(True, None)
        for _ in range(SETTLING):
            job.step()
        calls = calls_of_ours(job, 6)
        light.turn(False, None)
        found[name] = {**added(pairs), "calls_of_timed_step": min(calls), "calls_at_most": max(calls)}
        print(f"{name}: {len(pairs)} pairs", file=sys.stderr, flush=True)
    light.recorder.on = True
    light.recorder.close()
    return found


def block_us(light: Any, job: Any, *, on: bool) -> float:
    """Return the CPU time of a step in one block of them."""
    light.turn(on, None)
    for _ in range(SETTLING if on else 1):
        job.step()
    since, steps = time.thread_time_ns(), 0
    while steps < 4 or time.thread_time_ns() - since < BLOCK_NS:
        job.step()
        steps += 1
    return (time.thread_time_ns() - since) / steps / 1000


def added(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the median difference of the pairs, its 95 % interval, and the step without us."""
    differences, draw = [on - off for off, on in pairs], random.Random(0)
    drawn = sorted(statistics.median(draw.choices(differences, k=len(pairs))) for _ in range(2000))
    off_us = statistics.median(off for off, _ in pairs)
    return {
        "off_us": off_us,
        "added_us": statistics.median(differences),
        "low_us": drawn[50],
        "high_us": drawn[1949],
        "pairs": len(pairs),
    }


def table(found: dict[str, dict]) -> str:
    rows = [
        f"{'loop':<12} {'step us':>9} {'added us':>9} {'95 % interval':>18} {'pairs':>6} {'calls':>6} {'at most':>8}"
    ]
    for name, s in found.items():
        interval = f"{s['low_us']:.0f} to {s['high_us']:.0f}"
        rows.append(
            f"{name:<12} {s['off_us']:>9.0f} {s['added_us']:>9.0f} {interval:>18} {s['pairs']:>6} "
            f"{s['calls_of_timed_step']:>6} {s['calls_at_most']:>8}"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
