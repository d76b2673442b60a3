"""Is a rank of a clean job called late on a busy machine, and is one that sleeps called late by what it costs?

    PYTHONPATH=src python benchmarks/false_stragglers.py [--runs 50] [--parallel 7] [--busy 2] [--sleep-ms 0]
    PYTHONPATH=src python benchmarks/false_stragglers.py --read RUNS

The first with `--record-only` needs torch alone; the second then reads what was recorded, on any machine.
Two gloo ranks train a small model (`sleeping_job.py`), `--parallel` such jobs at a time, each on two cores of its own
with `--busy` loops on the same two. Without a sleep, no finding may name a rank.

With a sleep, on rank 1 in every step, each recording is held against what taking the sleep out really saves on the same
cores under the same load (`saves ms`): runs without the recorder just before and just after it, in which every second
stretch of steps is without the sleep; the mean of the differences between neighbouring stretches, with its 95 %
interval. A busy machine wakes a sleeping process late (`slept ms`, median of all steps of the recorded job and of the
profiled ones), and gives one that just slept its cores sooner: neither the sleep asked for nor the one that it became
is what is saved. `off by` is the finding's distance from `saves ms`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SRC = HERE.parent / "src"
STEPS, STRETCHES = 60, 20
PROFILED = (20, 25)
NAMES_A_RANK = ("straggler", "load-imbalance", "host-stall")
CORES = 2
CLOSE = 0.10


@dataclass(frozen=True)
class Recording:
    """What one recording says, and what the sleep costs by the job itself."""

    number: int
    step_ms: float | None = None
    found: list[dict] = field(default_factory=list)
    slept_ms: list[float] = field(default_factory=list)
    saves_ms: list[float] = field(default_factory=list)
    """differences of neighbouring stretches with and without the sleep"""
    error: str | None = None

    @property
    def late_ms(self) -> float | None:
        """What the finding says that the late rank costs; None where no rank is named."""
        return max((f["cost_ms_per_step"] for f in self.found if f["id"] == "straggler"), default=None)

    @property
    def off(self) -> float | None:
        """How far that is from what taking the sleep out saves, as a share of it."""
        if self.late_ms is None or not self.saves_ms:
            return None
        return self.late_ms / statistics.fmean(self.saves_ms) - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--parallel", type=int, default=1, help="jobs at a time, each on two cores of its own")
    parser.add_argument("--busy", type=int, default=2, help="loops beside each job, on its cores")
    parser.add_argument("--sleep-ms", type=float, default=0.0, help="on rank 1, in every step")
    parser.add_argument("--minutes", type=float, default=60.0, help="no recording is started after that")
    parser.add_argument("--out", help="folder to keep the recordings in")
    parser.add_argument("--record-only", action="store_true", help="leave the reading to --read; needs --out")
    parser.add_argument("--read", metavar="RUNS", help="a folder that an earlier run kept")
    args = parser.parse_args()
    if args.read:
        return read_all(Path(args.read))
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(args.out or scratch).resolve()
        out.mkdir(parents=True, exist_ok=True)
        record_all(args, out)
        return 0 if args.record_only else read_all(out)


# ---- recorded


def record_all(args: argparse.Namespace, out: Path) -> None:
    """Leave `run<n>/` and `run<n>.job.json`, which holds what the job itself measured, of every recording."""
    free = sorted(os.sched_getaffinity(0))
    slots = max(1, min(args.parallel, len(free) // CORES))
    deadline = time.monotonic() + 60 * args.minutes
    waiting = deque(range(args.runs))
    load = {"parallel": slots, "cores": CORES, "of": len(free), "busy": args.busy, "sleep_ms": args.sleep_ms}
    (out / "load.json").write_text(json.dumps(load))

    def work(cores: list[int]) -> None:
        os.sched_setaffinity(0, cores)  # of this thread, and of what it starts
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
        try:
            while waiting and time.monotonic() < deadline:
                one_run(args.sleep_ms, waiting.popleft(), out)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()

    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(work, [free[CORES * i : CORES * (i + 1)] for i in range(slots)]))


def one_run(sleep_ms: float, number: int, out: Path) -> None:
    began = time.monotonic()
    steps = ":".join(map(str, PROFILED))
    record = [
        sys.executable,
        "-m",
        "stepscope.cli.main",
        "record",
        "--out",
        str(out / f"run{number}"),
        "--steps",
        steps,
    ]
    try:
        saves = saved_ms(sleep_ms) if sleep_ms else []
        slept = said(run([*record, "--", *job("train", sleep_ms, STEPS)]), "slept_ms")
        saves += saved_ms(sleep_ms) if sleep_ms else []
        measured: dict[str, Any] = {"slept_ms": slept, "saves_ms": saves}
    except (RuntimeError, OSError, ValueError, KeyError, IndexError) as e:
        measured = {"error": f"{type(e).__name__}: {e}"}
    (out / f"run{number}.job.json").write_text(json.dumps(measured))
    print(f"run {number}: {time.monotonic() - began:.0f} s {measured.get('error', '')}", flush=True)


def saved_ms(sleep_ms: float) -> list[float]:
    """Return what the sleep costs per step, of each two neighbouring stretches with and without it."""
    means = said(run(job("compare", sleep_ms, STRETCHES)), "stretch_ms")
    return [a - b for a, b in zip(means[::2], means[1::2], strict=True)]


def said(output: str, name: str) -> list[float]:
    """Return the numbers that the job printed under a name."""
    line = [line for line in output.splitlines() if line.startswith(f'{{"{name}"')][-1]
    numbers: list[float] = json.loads(line)[name]
    return numbers


def job(way: str, sleep_ms: float, count: int) -> list[str]:
    return [sys.executable, "-W", "ignore", str(HERE / "sleeping_job.py"), way, str(sleep_ms), str(count)]


def run(command: list[str]) -> str:
    path = os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[-8:])} ended with {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


# ---- read


def read_all(out: Path) -> int:
    load = json.loads((out / "load.json").read_text())
    print(
        f"{load['parallel']} jobs at a time on {load['cores']} of {load['of']} cores each, {load['busy']} busy loops "
        f"beside each, a sleep of {load['sleep_ms']:g} ms on rank 1"
    )
    print(header(), flush=True)
    results = []
    for path in sorted(out.glob("run*.job.json"), key=lambda p: int(p.name[3:].partition(".")[0])):
        results.append(read(path))
        print(row(results[-1]), flush=True)
    print(summary(results, load["sleep_ms"]))
    return 0


def read(path: Path) -> Recording:
    import stepscope

    name = path.name.partition(".")[0]
    measured = json.loads(path.read_text())
    if "error" in measured:
        return Recording(int(name[3:]), error=measured["error"])
    document = stepscope.load(path.with_name(name)).document
    named = [f for f in document["findings"] if f["id"] in NAMES_A_RANK and f["ranks"]]
    return Recording(int(name[3:]), document["step"]["unprofiled_ms"], named, **measured)


# ---- shown

WIDTHS = (4, 8, 9, 17, 9, 9, 9, 7)


def header() -> str:
    names = ("run", "step ms", "saves ms", "95 %", "slept ms", "profiled", "found ms", "off by")
    return (
        " ".join(f"{name:>{width}}" for name, width in zip(names, WIDTHS, strict=True)) + "  findings that name a rank"
    )


def row(r: Recording) -> str:
    if r.error is not None:
        return f"{r.number:4} FAILED {' '.join(r.error.split())[-400:]}"
    saves = statistics.fmean(r.saves_ms) if r.saves_ms else None
    slept, profiled = (statistics.median(part) if part else None for part in (r.slept_ms, r.slept_ms[slice(*PROFILED)]))
    cells = [str(r.number), number(r.step_ms), number(saves), interval_text(r.saves_ms)]
    cells += [number(slept), number(profiled), number(r.late_ms), "-" if r.off is None else f"{r.off:+.1%}"]
    texts = [f"{f['id']} {f['ranks']} {f['cost_ms_per_step']:.1f} ms" for f in r.found]
    columns = " ".join(f"{text:>{width}}" for text, width in zip(cells, WIDTHS, strict=True))
    return f"{columns}  {', '.join(texts) or '-'}"


def interval_text(x: list[float]) -> str:
    if len(x) < 2:
        return "-"
    reach = 2.0 * statistics.stdev(x) / len(x) ** 0.5
    return f"{statistics.fmean(x) - reach:.1f} to {statistics.fmean(x) + reach:.1f}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def summary(results: list[Recording], sleep_ms: float) -> str:
    done = [r for r in results if r.error is None]
    text = f"{sum(bool(r.found) for r in done)} of {len(done)} recordings name a rank"
    if sleep_ms:
        close = sum(r.off is not None and abs(r.off) <= CLOSE for r in done)
        text += f"; {close} of {len(done)} are within {CLOSE:.0%} of what taking the sleep out saves"
        every = [x for r in done for x in r.saves_ms]
        text += f" ({statistics.fmean(every):.1f} ms, {interval_text(every)}, over all runs)" if every else ""
    failed = len(results) - len(done)
    return text + (f"; {failed} failed" if failed else "")


if __name__ == "__main__":
    sys.exit(main())
