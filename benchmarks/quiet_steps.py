"""Are steps outside the window as fast as unrecorded ones? Plain, light and recorded runs of the same jobs in turn.

    PYTHONPATH=src python benchmarks/quiet_steps.py --wild WILD.py [--jobs lstm:cell_loop,small:none]

Every round starts each job three times, plain, under `record --light` and under `record`, on the same cores. The three
run by turns, a block of steps each while the others wait (`wild_steps.py`): what drifts on the machine meets all of
them alike. Three comparisons of mean steps, with a 95 % interval over rounds and, inside each, pairs of blocks:

    before / plain    blocks before the window of the recorded run against the same blocks of the plain one
    after / plain     blocks after it
    light / plain     all blocks but the first

by wall time and by CPU time of the training thread; the narrower of the two is the answer where the other cannot tell.
The first steps of each block, in which the device's queue fills again, are left out. Rounds go on until `--rounds` are
done or `--minutes` are over. Nothing but torch is needed.
"""

import argparse
import json
import os
import random
import socket
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
STEPS_IN_BLOCK, SETTLING = 12, 3
CORES = 6
DRAWS = 1000
LIMITS = {"before": 0.01, "after": 0.02, "light": 0.01}
PATIENCE_S = 90


def main() -> int:
    args = parsed()
    results = measured(args)
    print(markdown(results))
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
    parser.add_argument("--minutes", type=float, default=5.5, help="no three runs are started after that")
    parser.add_argument(
        "--blocks", type=int, default=13, help=f"of {STEPS_IN_BLOCK} steps; the middle one has the window"
    )


def measured(args: argparse.Namespace) -> dict:
    """Return the runs of each job, round by round, and what the recorder said; a round that fails leaves its error."""
    deadline = time.monotonic() + 60 * args.minutes
    jobs = args.jobs.split(",")
    results: dict = {"blocks": args.blocks, "runs": {job: [] for job in jobs}, "notes": {job: [] for job in jobs}}
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-CORES:])  # the same for all three ways
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(args.rounds):
            for job in jobs:
                if time.monotonic() < deadline:
                    folder = Path(scratch) / f"{job.replace(':', '-')}-{number}"
                    folder.mkdir()
                    try:
                        results["runs"][job].append(one_round(job, number, folder, args, results["notes"][job]))
                    except (OSError, ValueError, RuntimeError) as e:
                        results["notes"][job].append(f"round {number}: {type(e).__name__}: {e}"[:600])
    return results


def one_round(job: str, number: int, folder: Path, args: argparse.Namespace, notes: list[str]) -> dict:
    """Return `{way: {"wall", "cpu"}}`, of each block the times of its steps."""
    started = {way: start(job, way, folder, args) for way in turned(WAYS, number)}
    try:
        gates = {way: ready(way, process, listener) for way, (process, listener) in started.items()}
        for block in range(args.blocks):
            for way in turned(WAYS, number + block):
                gates[way].sendall(b"g")
                await_block(way, gates[way])
        for way, (process, _) in started.items():
            code = process.wait(PATIENCE_S)
            if code:
                notes.append(f"{way}: exit code {code}: {(folder / f'{way}.log').read_text()[-300:]}")
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as e:
        said = {way: (folder / f"{way}.log").read_text()[-300:] for way in started}
        raise RuntimeError(f"{e}; {said}") from e
    finally:
        for process, listener in started.values():
            listener.close()
            if process.poll() is None:
                process.kill()
                process.wait()
    about = json.loads((folder / "run-record" / "run.json").read_text())
    notes += [f"round {number}: {warning}" for warning in about.get("warnings") or []]
    return {way: json.loads((folder / f"{way}.json").read_text()) for way in WAYS}


def turned(ways: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the ways in another order for every block: none always runs after the same other."""
    return ways[number % len(ways) :] + ways[: number % len(ways)]


def start(job: str, way: str, folder: Path, args: argparse.Namespace) -> tuple[subprocess.Popen, socket.socket]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / f"{way}.socket"))
    listener.listen()
    listener.settimeout(PATIENCE_S)
    window = (args.blocks // 2) * STEPS_IN_BLOCK
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--out", str(folder / f"run-{way}")]
    before = {
        "plain": [],
        "light": [*record, "--light", "--"],
        "record": [*record, "--steps", f"{window}:{window + 6}", "--"],
    }
    command = [
        *before[way],
        sys.executable,
        str(HERE / "wild_steps.py"),
        str(Path(args.wild).resolve()),
        *job.split(":"),
    ]
    command += [str(args.blocks), str(STEPS_IN_BLOCK), str(folder / f"{way}.socket"), str(folder / f"{way}.json")]
    env = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "2",
        "KINETO_LOG_LEVEL": "5",
    }
    with (folder / f"{way}.log").open("w") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log), listener


def ready(way: str, process: subprocess.Popen, listener: socket.socket) -> socket.socket:
    """Return the job's end of the gate once it has built its model."""
    gate, _ = listener.accept()
    gate.settimeout(PATIENCE_S)
    await_block(way, gate)
    return gate


def await_block(way: str, gate: socket.socket) -> None:
    if gate.recv(1) != b"r":
        raise RuntimeError(f"the {way} run ended early")


# ---- compared


def comparisons(rounds: list[dict], blocks: int) -> dict:
    """Return per comparison and clock `{"ratio", "low", "high", "plain_ms"}`, None where there is no round."""
    middle = blocks // 2
    spans = {
        "before": ("record", range(1, middle)),
        "after": ("record", range(middle + 1, blocks)),
        "light": ("light", range(1, blocks)),
    }
    return {
        name: {clock: compared(rounds, way, clock, span) for clock in ("wall", "cpu")}
        for name, (way, span) in spans.items()
    }


def compared(rounds: list[dict], way: str, clock: str, span: range) -> dict | None:
    """Return the ratio of mean steps, with an interval over rounds and, inside each, over pairs of blocks."""
    if not rounds:
        return None
    pairs = [[(mean_ms(r["plain"][clock][b]), mean_ms(r[way][clock][b])) for b in span] for r in rounds]
    draw = random.Random(0)
    ratios = sorted(ratio([draw.choices(r, k=len(r)) for r in draw.choices(pairs, k=len(pairs))]) for _ in range(DRAWS))
    return {
        "ratio": ratio(pairs),
        "low": ratios[int(0.025 * DRAWS)],
        "high": ratios[int(0.975 * DRAWS)],
        "plain_ms": statistics.fmean(plain for r in pairs for plain, _ in r),
    }


def mean_ms(block: list[float]) -> float:
    return statistics.fmean(block[SETTLING:])


def ratio(pairs: list[list[tuple[float, float]]]) -> float:
    """Return the mean over rounds of the median over blocks: one that met another process is not the job."""
    return statistics.fmean(statistics.median(other / plain for plain, other in r) for r in pairs)


# ---- shown


def markdown(results: dict) -> str:
    rows = [
        f"Plain, light and recorded runs by turns, blocks of {STEPS_IN_BLOCK} steps, by the job's own clock; "
        "difference from plain in %, with its 95 % interval.",
        "",
        "| job | rounds | plain ms: wall | CPU | before / plain: wall | CPU | after / plain: wall | CPU "
        "| light / plain: wall | CPU |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for job, rounds in results["runs"].items():
        found = comparisons(rounds, results["blocks"])
        plain = [f"{found['light'][clock]['plain_ms']:.2f}" if rounds else "unknown" for clock in ("wall", "cpu")]
        cells = [cell(found[name][clock], LIMITS[name]) for name in found for clock in ("wall", "cpu")]
        rows.append(f"| {' | '.join([job, str(len(rounds)), *plain, *cells])} |")
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
