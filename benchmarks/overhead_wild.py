"""What recording adds to a step of a real job, on and off in turn within one process; and what a window leaves behind.

    PYTHONPATH=src python benchmarks/overhead_wild.py WILD.py lstm:cell_loop,small:none --out results.json
    PYTHONPATH=src python benchmarks/overhead_wild.py WILD.py lstm:cell_loop,small:none --metered
    python benchmarks/overhead_wild.py --read results.json

Two processes of the same job differ by more than what is asked (their memory lies elsewhere, their cores are others),
so every comparison is within one process: every hook is put in and taken out again, block by block, off on on off.
`WILD.py` is any file with `build(workload, fault)`, which returns `step(i)`. Of each job processes run in three ways:

    light     `record --light`
    record    `record`: pairs of blocks while the window has not come, then the window, then pairs after it
    plain     the same with nothing of ours in any block: what this method finds where there is nothing to find

Said as shares of the step, medians over pairs, with 95 % intervals of a bootstrap over processes and their pairs; by
CPU time of the training thread and by wall time:

    light, before, after    on against off, in light mode, before the window, after it
    left behind             off blocks after the window against off blocks before it, less the same of plain processes

Where the host is busy its own noise is several per cent of a step and hides all of that. `--metered` adds up the calls
of ours inside the steps instead, by the clock, which shows microseconds: `light`, and `record` before its window.
What it leaves out is what our calls do to the processor's caches after they returned.
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

WAYS = ("light", "record", "plain")
SETTLING = 11  # steps of a block in which the hooks learn the loop again
STEPS_IN_BLOCK = 16
WARMUP, ACTIVE, AFTER_WINDOW = 3, 5, 50
DRAWS = 2000
METERED_STEPS = 300
PARTS = ("data loader", "forward", "backward", "optimizer")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wild", nargs="?", help="the file with the jobs")
    parser.add_argument("jobs", nargs="?", default="lstm:cell_loop", metavar="WORKLOAD:FAULT,...")
    parser.add_argument("--pairs", type=int, default=12, help="of blocks, before the window and after it")
    parser.add_argument("--processes", type=int, default=0, help="of each way at a time; 0: one process of all")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--deadline-s", type=float, default=500.0, help="no round begins that would end after it")
    parser.add_argument("--out")
    parser.add_argument("--read", metavar="RESULTS")
    parser.add_argument("--metered", action="store_true", help="call by call, instead of on and off in turn")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(metered_process(args) if args.metered else one_process(args)))
        return 0
    if args.metered:
        print(metered_table(args))
        return 0
    results = json.loads(Path(args.read).read_text()) if args.read else all_jobs(args)
    print(markdown(results))
    return 0


def all_jobs(args: argparse.Namespace) -> dict[str, list[dict]]:
    """Return what every process measured, by job; the file is written after every round."""
    results: dict[str, list[dict]] = {job: [] for job in args.jobs.split(",")}
    began, longest_s = time.monotonic(), 0.0
    for _ in range(args.rounds):
        for job, found in results.items():
            since = time.monotonic()
            if since - began + longest_s > args.deadline_s:
                continue
            found += one_round(job, args)
            longest_s = max(longest_s, time.monotonic() - since)
            if args.out:
                Path(args.out).write_text(json.dumps(results))
    return results


def one_round(job: str, args: argparse.Namespace) -> list[dict]:
    """Return what one process of each way measured, one after the other, or several of each beside each other."""
    cores = sorted(os.sched_getaffinity(0))
    if not args.processes:
        return [found for way in WAYS for found in waited(job, [(way, start(job, way, cores, args))])]
    share = max(1, len(cores) // (len(WAYS) * args.processes))
    ways = [way for _ in range(args.processes) for way in WAYS]
    places = [cores[number * share % len(cores) :][:share] for number in range(len(ways))]
    return waited(job, [(way, start(job, way, mine, args)) for way, mine in zip(ways, places, strict=True)])


def start(job: str, way: str, cores: list[int], args: argparse.Namespace) -> subprocess.Popen:
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-W", "ignore", __file__]
    command += [args.wild, job, "--way", way, "--pairs", str(args.pairs), *(["--metered"] if args.metered else [])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "5"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def waited(job: str, started: list[tuple[str, subprocess.Popen]]) -> list[dict]:
    found = []
    for way, process in started:
        said, error = process.communicate(timeout=400)
        if process.returncode:
            print(f"{job} {way}: exit code {process.returncode}: {error.decode()[-600:]}", file=sys.stderr, flush=True)
        else:
            found.append({"way": way, **json.loads(said.splitlines()[-1])})
    return found


# ---- one process


def one_process(args: argparse.Namespace) -> dict[str, Any]:
    """Return the pairs of blocks before and after the window, each block as CPU and wall time of a step in ms."""
    import torch
    from overhead_rank import Light

    torch.set_num_threads(1)
    step = built(args.wild, *args.jobs.split(":"))
    with tempfile.TemporaryDirectory() as folder:
        on_steps = args.pairs * (SETTLING + STEPS_IN_BLOCK)
        light = Light(folder, wait=None if args.way == "light" else on_steps)
        measured: Any = {"before": pairs(args, light, step)}
        with_us = args.way != "plain"
        if with_us:
            light.turn(True, None)
        for i in range(WARMUP + ACTIVE + AFTER_WINDOW):
            step(i)
        measured["after"] = pairs(args, light, step)
        light.turn(False, None)
        light.recorder.on = True
        light.recorder.close()
        measured["traces"] = len(list(Path(folder, "run").glob("*.pt.trace.json.gz")))
    return measured


def metered_process(args: argparse.Namespace) -> dict[str, Any]:
    """Return the time of our calls in each step, the mean of each part, and the step without us."""
    import torch
    from overhead_meter import Meter, metered
    from overhead_rank import Light

    torch.set_num_threads(1)
    step, meter = built(args.wild, *args.jobs.split(":")), Meter()
    with tempfile.TemporaryDirectory() as folder:
        light = Light(folder, wait=None if args.way == "light" else 10 * METERED_STEPS)
        with metered(meter, light, SimpleNamespace(model=None)):
            for i in range(2 * SETTLING):
                step(i)
            meter.start()
            for i in range(METERED_STEPS):
                step(i)
                meter.step_over()
        off = [block(light, step, on=False) for _ in range(4)]
        light.recorder.on = True
        light.recorder.close()
    ours_us = [sum(one.values()) / 1000 for one in meter.steps]
    parts_us = meter.mean_us()
    return {
        "ours_us": ours_us,
        "parts_us": parts_us,
        "disturbed": meter.disturbed,
        **{clock: statistics.median(one[clock] for one in off) for clock in ("cpu", "wall")},
    }


def metered_table(args: argparse.Namespace) -> str:
    """Return a row for each job and way: our calls per step, with an interval over processes and their steps."""
    lines = [
        "| job | way | step, ms | its CPU, ms | ours, us | 95 % | share, % | median step, us | parts, us | processes |",
        "|" + "---|" * 10,
    ]
    cores = sorted(os.sched_getaffinity(0))
    for job in args.jobs.split(","):
        found: list[dict] = []
        for _ in range(args.rounds):
            for way in ("light", "record"):
                found += waited(job, [(way, start(job, way, cores, args))])
        for way in ("light", "record"):
            mine = [one for one in found if one["way"] == way]
            if not mine:
                continue
            value, low, high = interval([one["ours_us"] for one in mine], ours_per_step, redrawn)
            usual = statistics.median(us for one in mine for us in one["ours_us"])
            parts = {name: statistics.fmean(one["parts_us"].get(name, 0.0) for one in mine) for name in PARTS}
            step_ms, cpu_ms = (statistics.median(one[clock] for one in mine) for clock in ("wall", "cpu"))
            shares = f"{value / step_ms / 10:.2f} [{low / step_ms / 10:.2f}, {high / step_ms / 10:.2f}]"
            lines.append(
                f"| {job} | {way} | {step_ms:.2f} | {cpu_ms:.2f} | {value:.0f} | {low:.0f} to {high:.0f} | {shares} | "
                f"{usual:.0f} | {', '.join(f'{name} {us:.0f}' for name, us in parts.items())} | {len(mine)} |"
            )
    return "\n".join(lines)


def ours_per_step(processes: list[list[float]]) -> float:
    """Return the mean over processes of our time in a step."""
    return statistics.fmean(statistics.fmean(steps) for steps in processes)


def redrawn(steps: list[float], draw: random.Random) -> list[float]:
    return draw.choices(steps, k=len(steps))


def built(path: str, workload: str, fault: str) -> Any:
    spec = importlib.util.spec_from_file_location("wild", path)
    assert spec is not None and spec.loader is not None
    wild = importlib.util.module_from_spec(spec)
    sys.modules["wild"] = wild
    spec.loader.exec_module(wild)
    return wild.build(workload, fault)


def pairs(args: argparse.Namespace, light: Any, step: Any) -> list[dict]:
    found = []
    for number in range(args.pairs):
        order = (False, True) if number % 2 == 0 else (True, False)
        found.append({("on" if on else "off"): block(light, step, on=on and args.way != "plain") for on in order})
    return found


def block(light: Any, step: Any, *, on: bool) -> dict[str, float]:
    import torch

    light.turn(on, None)
    for i in range(SETTLING):
        step(i)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
    for i in range(STEPS_IN_BLOCK):
        step(i)
    cpu_ns = time.thread_time_ns() - cpu_ns
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    wall_ns = time.perf_counter_ns() - wall_ns
    return {"cpu": cpu_ns / STEPS_IN_BLOCK / 1e6, "wall": wall_ns / STEPS_IN_BLOCK / 1e6}


# ---- compared


def added(processes: list[list[dict]], clock: str) -> float:
    """Return the mean over processes of the median over pairs of on against off, as a share."""
    return statistics.fmean(
        statistics.median(p["on"][clock] / p["off"][clock] - 1 for p in found) for found in processes
    )


def left(processes: list[dict], clock: str) -> float:
    """Return by how much off blocks after the window are longer than those before it, as a share."""
    typical = [
        [statistics.median(p["off"][clock] for p in process[part]) for part in ("before", "after")]
        for process in processes
    ]
    return statistics.fmean(after / before - 1 for before, after in typical)


def drawn(pairs: list[dict], draw: random.Random) -> list[dict]:
    return draw.choices(pairs, k=len(pairs))


def comparisons(found: list[dict], clock: str) -> dict[str, tuple[float, float, float] | None]:
    """Return value, low and high of each comparison; None where it was not measured."""
    by_way = {way: [p for p in found if p["way"] == way] for way in WAYS}
    spans = {
        "light": ("light", ("before", "after")),
        "before": ("record", ("before",)),
        "after": ("record", ("after",)),
    }
    spans["nothing"] = ("plain", ("before", "after"))
    answers: dict[str, tuple[float, float, float] | None] = {}
    for name, (way, parts) in spans.items():
        whole = [[pair for part in parts for pair in p[part]] for p in by_way[way]]
        answers[name] = interval(whole, lambda chosen: added(chosen, clock), drawn) if whole else None
    if by_way["record"] and by_way["plain"]:
        draw = random.Random(1)
        values = sorted(
            left(again(by_way["record"], draw), clock) - left(again(by_way["plain"], draw), clock) for _ in range(DRAWS)
        )
        value = left(by_way["record"], clock) - left(by_way["plain"], clock)
        answers["left behind"] = (value, values[DRAWS // 40], values[-DRAWS // 40])
    return answers


def again(processes: list[dict], draw: random.Random) -> list[dict]:
    chosen = draw.choices(processes, k=len(processes))
    return [{part: drawn(p[part], draw) for part in ("before", "after")} for p in chosen]


def interval(processes: list[list[dict]], value: Any, redraw: Any) -> tuple[float, float, float]:
    draw = random.Random(0)
    values = sorted(value([redraw(p, draw) for p in draw.choices(processes, k=len(processes))]) for _ in range(DRAWS))
    return value(processes), values[DRAWS // 40], values[-DRAWS // 40]


def markdown(results: dict[str, list[dict]]) -> str:
    names = ("light", "before", "after", "left behind", "nothing")
    lines = [f"| job | clock | off, ms | {' | '.join(f'{n}, %' for n in names)} | processes |", "|" + "---|" * 9]
    for job, found in results.items():
        for clock in ("cpu", "wall"):
            if not found:
                continue
            answers = comparisons(found, clock)
            off = statistics.median(pair["off"][clock] for p in found for pair in p["before"])
            cells = [cell(answers.get(name)) for name in names]
            lines.append(f"| {job} | {clock} | {off:.2f} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(lines)


def cell(answer: tuple[float, float, float] | None) -> str:
    if answer is None:
        return "not measured"
    value, low, high = (100 * x for x in answer)
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    sys.exit(main())
