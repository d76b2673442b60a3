"""Are steps outside the window as fast as unrecorded ones? Plain, light and recorded runs of the same jobs in turn.

    PYTHONPATH=src python benchmarks/quiet_steps.py --wild WILD.py [--jobs lstm:cell_loop,small:none]

Every round starts each job plain, under `record --light` and under `record`, one after the other, and the job times
itself (`wild_steps.py`). Three comparisons, each with a 95 % interval that knows of runs and of steps:

    before / plain    steps before the window of the recorded run against the same steps of the plain one
    after / plain     steps after it
    light / plain     all steps but the first

by wall time and by CPU time of the training thread; the narrower of the two is the answer where the other cannot tell.
Rounds go on until `--rounds` are done or `--minutes` are over. Nothing but torch is needed.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SRC = HERE.parent / "src"
JOBS = "lstm:cell_loop,small:none,lm:tokenise,lstm:none"
WAYS = ("plain", "light", "record")
SETTLED = 6  # the first steps, in which everything is set up
DRAWS = 1000
LIMITS = {"before": 0.01, "after": 0.02, "light": 0.01}


def main() -> int:
    args = parsed()
    results = measured(args)
    print(markdown(results, args))
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1))
    return 0


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--out", help="results as JSON, every step of every run")
    return parser.parse_args(words)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wild", help="the file with the jobs: build(workload, fault) returns step(i)")
    parser.add_argument("--jobs", default=JOBS, metavar="WORKLOAD:FAULT,...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8.0, help="no run is started after that")
    parser.add_argument("--wild-steps", type=int, default=110)
    parser.add_argument("--window", default="40:46", help="the profiled steps of the recorded runs")


def measured(args: argparse.Namespace) -> dict:
    """Return `{job: {way: [{"wall", "cpu"}, ...]}}` and what the recorder said; a run that fails leaves its error."""
    deadline = time.monotonic() + 60 * args.minutes
    jobs = args.jobs.split(",")
    runs: dict = {job: {way: [] for way in WAYS} for job in jobs}
    notes: dict = {job: [] for job in jobs}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(args.rounds):
            for job in jobs:
                for way in turned(WAYS, number):
                    if time.monotonic() < deadline:
                        one_run(job, way, Path(scratch) / f"{job.replace(':', '-')}-{way}-{number}", args, runs, notes)
    return {"runs": runs, "notes": notes, "window": args.window}


def turned(ways: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the ways in another order for every round: what drifts meets all of them alike."""
    return ways[number % len(ways) :] + ways[: number % len(ways)]


def one_run(job: str, way: str, folder: Path, args: argparse.Namespace, runs: dict, notes: dict) -> None:
    folder.mkdir()
    workload, fault = job.split(":")
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--out", str(folder / "run")]
    before = {"plain": [], "light": [*record, "--light", "--"], "record": [*record, "--steps", args.window, "--"]}[way]
    times = folder / "times.json"
    command = [*before, sys.executable, str(HERE / "wild_steps.py"), args.wild, workload, fault]
    env = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "2"}
    try:
        done = subprocess.run(
            [*command, str(args.wild_steps), str(times)], env=env, capture_output=True, text=True, timeout=240
        )
        runs[job][way].append(json.loads(times.read_text()))
    except (OSError, ValueError, subprocess.TimeoutExpired) as e:
        notes[job].append(f"{way}: {type(e).__name__}: {e}"[:300])
        return
    if done.returncode:
        notes[job].append(f"{way}: exit code {done.returncode}: {done.stderr[-300:]}")
    if way == "record" and (folder / "run" / "run.json").exists():
        about = json.loads((folder / "run" / "run.json").read_text())
        said = [f"unprofiled {about['unprofiled_step_ms']} ms", *(about.get("warnings") or [])]
        notes[job].append(f"record: {'; '.join(said)}")


# ---- compared


def comparisons(runs: dict, window: str) -> dict:
    """Return per comparison and clock `{"ratio", "low", "high", "plain_ms"}`, None where a side has no run."""
    first, last = map(int, window.split(":"))
    spans = {
        "before": ("record", slice(SETTLED, first - 2)),
        "after": ("record", slice(last + 3, None)),
        "light": ("light", slice(SETTLED, None)),
    }
    return {
        name: {
            clock: compared([run[clock][span] for run in runs["plain"]], [run[clock][span] for run in runs[way]])
            for clock in ("wall", "cpu")
        }
        for name, (way, span) in spans.items()
    }


def compared(plain: list[list[float]], other: list[list[float]]) -> dict | None:
    """Return the ratio of typical steps, with an interval over runs and, inside each, over blocks of steps."""
    plain, other = [run for run in plain if run], [run for run in other if run]
    if not plain or not other:
        return None
    draw = random.Random(0)
    ratios = sorted(typical(redrawn(other, draw)) / typical(redrawn(plain, draw)) for _ in range(DRAWS))
    return {
        "ratio": typical(other) / typical(plain),
        "low": ratios[int(0.025 * DRAWS)],
        "high": ratios[int(0.975 * DRAWS)],
        "plain_ms": typical(plain),
    }


def typical(runs: list[list[float]]) -> float:
    return statistics.fmean(statistics.median(run) for run in runs)


def redrawn(runs: list[list[float]], draw: random.Random, block: int = 5) -> list[list[float]]:
    """Return runs drawn anew, and inside each blocks of neighbouring steps: neighbours resemble each other."""
    out = []
    for run in draw.choices(runs, k=len(runs)):
        begins = draw.choices(range(max(1, len(run) - block + 1)), k=-(-len(run) // block))
        out.append([value for begin in begins for value in run[begin : begin + block]])
    return out


# ---- shown


def markdown(results: dict, args: argparse.Namespace) -> str:
    rows = [
        f"Steps of unrecorded and recorded runs in turn, window {args.window}, by the job's own clock; difference from "
        "plain in %, with its 95 % interval.",
        "",
        "| job | runs | plain ms | before/plain: wall | CPU | after / plain: wall | CPU | light / plain: wall | CPU |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for job, runs in results["runs"].items():
        found = comparisons(runs, results["window"])
        plain = next((c["plain_ms"] for part in found.values() for c in part.values() if c), None)
        cells = [cell(found[name][clock], LIMITS[name]) for name in found for clock in ("wall", "cpu")]
        counts = "/".join(str(len(runs[way])) for way in WAYS)
        rows.append(f"| {job} | {counts} | {'unknown' if plain is None else f'{plain:.2f}'} | {' | '.join(cells)} |")
    notes = [f"- {job}: {note}" for job, said in results["notes"].items() for note in said]
    return "\n".join([*rows, "", *notes]) + "\n"


def cell(found: dict | None, limit: float) -> str:
    """Return the difference, and whether its interval tells on which side of the limit it is."""
    if found is None:
        return "not run"
    low, high = 100 * (found["low"] - 1), 100 * (found["high"] - 1)
    verdict = "ok" if high <= 100 * limit else "ABOVE" if low > 100 * limit else "cannot tell"
    return f"{100 * (found['ratio'] - 1):+.2f} [{low:+.2f}, {high:+.2f}] {verdict}"


if __name__ == "__main__":
    sys.exit(main())
