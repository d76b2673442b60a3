"""Recording checked on real jobs with NCCL: four ranks of DDP, FSDP2 and a pipeline, recorded with no code change.

    PYTHONPATH=src python benchmarks/gpu_record.py --out results          (one GPU is enough: the ranks share it)

Every job runs twice, plain and under `stepscope record`, and times itself by hand both times. The table says what was
found (regions, collectives, trace) and how far it agrees with the hand: region times, unprofiled step times, losses
bit by bit. Light mode's overhead is measured by `overhead.py` in alternating blocks. `results/` then holds
`gpu_record.json`, `gpu_record.md` and the run folders, packed. Nothing but torch is needed.

    PYTHONPATH=src python benchmarks/gpu_record.py --out results --wild WILD.py [--jobs lstm:cell_loop,...]

instead asks whether steps outside the window are as fast as unrecorded ones, on the jobs of that file: plain,
`record --light` and `record` by turns, three of each within six minutes (`quiet_steps.py`).
"""

import argparse
import contextlib
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import quiet_steps  # noqa: E402

SRC = HERE.parent / "src"
STRATEGIES = ("ddp", "fsdp2", "pipeline")
WINDOW = (30, 35)
UNPROFILED_FROM = 50
QUIET_BLOCKS = (2, 5, 6, 7)  # blocks of ten steps away from the start and the window
DEADLINE_S = 330
SMALL = ["--width", "64", "--layers", "4", "--heads", "4", "--seq", "32", "--vocab", "256", "--batch", "8"]


def main() -> int:
    args = parsed()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if args.wild:
        return quiet(args, out)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, shared_device(args.device) as sharing:
        results: dict = {"sharing": sharing, "ranks": args.ranks, "jobs": {}}
        for strategy in args.strategies.split(","):
            results["jobs"][strategy] = guarded(partial(one_job, strategy, Path(scratch), out, args))
            save(results, out)
        left_s = DEADLINE_S - (time.monotonic() - began)
        results["light"] = guarded(lambda: light_overhead(args, left_s)) if left_s > 40 else {"error": "no time left"}
        results["took_s"] = round(time.monotonic() - began)
        save(results, out)
    print(markdown(results))
    return 0 if all("error" not in job for job in results["jobs"].values()) else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="gpu_record_results")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--steps", type=int, default=80)
    quiet_steps.add_arguments(parser)
    return parser.parse_args()


def quiet(args: argparse.Namespace, out: Path) -> int:
    """Compare steps outside the window with unrecorded ones; `results/` then holds quiet.json and quiet.md."""
    found = quiet_steps.measured(args)
    text = quiet_steps.markdown(found)
    (out / "quiet.json").write_text(json.dumps(found))
    (out / "quiet.md").write_text(text)
    print(text)
    return 0


def guarded(act: Callable[[], dict]) -> dict:
    """Return what `act` finds, or its error: one job that fails must not take the others with it."""
    try:
        return act()
    except Exception as e:  # noqa: BLE001 - it goes into the table
        return {"error": f"{type(e).__name__}: {str(e)[-1500:]}"}


@contextlib.contextmanager
def shared_device(device: str) -> Iterator[str]:
    """Let the ranks run on one device at the same time where its multi-process service can be had."""
    control = shutil.which("nvidia-cuda-mps-control")
    if device == "cpu" or control is None:
        yield "cpu" if device == "cpu" else "time-sliced"
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
        subprocess.run([control, "-d"], timeout=30, check=False)
        works = [sys.executable, "-c", "import torch; torch.ones(2, device='cuda').sum().item()"]
        try:
            ok = subprocess.run(works, timeout=90, capture_output=True).returncode == 0
        except subprocess.TimeoutExpired:
            ok = False
        try:
            if not ok:
                del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
            yield "multi-process service" if ok else "time-sliced"
        finally:
            quit_env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": folder}
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([control], input="quit\n", text=True, timeout=30, check=False, env=quit_env)


def one_job(strategy: str, scratch: Path, out: Path, args: argparse.Namespace) -> dict:
    """Run one strategy plain and recorded; return what was found and how far it agrees."""
    run = scratch / f"run-{strategy}"
    plain, recorded = scratch / f"{strategy}-plain", scratch / f"{strategy}-recorded"
    for folder in (plain, recorded):
        folder.mkdir()
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.ranks}"]
    job += [str(HERE / "gpt_job.py"), strategy, "--device", args.device, "--steps", str(args.steps)]
    job += SMALL if args.device == "cpu" else []
    record = [sys.executable, "-m", "stepscope.cli.main", "record", "--out", str(run)]
    record += ["--steps", f"{WINDOW[0]}:{WINDOW[1]}", "--"]
    said = started([*job, "--hand-timed", str(plain)])
    said += started([*record, *job, "--hand-timed", str(recorded)])
    pack(run, out / f"run-{strategy}.tar.gz")
    losses_are = "equal" if same_losses(plain, recorded, args.ranks) else "DIFFER"
    if losses_are == "DIFFER":  # the job's own doing?
        again = scratch / f"{strategy}-again"
        again.mkdir()
        started([*job, "--hand-timed", str(again)])
        losses_are += ", and so do two plain runs" if not same_losses(plain, again, args.ranks) else ""
    return {
        "regions": regions_against_hand(run, recorded, args.ranks),
        "step": steps_against_hand(run, plain, recorded, args.ranks),
        "collectives": collectives_per_step(run),
        "trace": trace_contents(run, args.ranks),
        "files": sorted({path.name.partition(".")[2] for path in run.iterdir() if path.name.startswith("rank")}),
        "losses": losses_are,
        "said": [line for line in said.splitlines() if line.startswith("stepscope")],
    }


def started(command: list[str]) -> str:
    """Return what a command wrote to stderr; raise with its end where it failed."""
    env = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-1200:]}")
    return done.stderr


def pack(run: Path, target: Path) -> None:
    with tarfile.open(target, "w:gz") as packed:
        packed.add(run, arcname=run.name)


# ---- what was found, against the hand


def step_lines(run: Path, rank: int) -> list[dict]:
    return [json.loads(line) for line in (run / f"rank{rank:05d}.steps.jsonl").read_text().splitlines()[1:]]


def hand(folder: Path, rank: int) -> dict:
    return json.loads((folder / f"rank{rank}.json").read_text())


def same_losses(a: Path, b: Path, ranks: int) -> bool:
    return all(hand(a, rank)["losses"] == hand(b, rank)["losses"] for rank in range(ranks))


def regions_against_hand(run: Path, recorded: Path, ranks: int) -> dict:
    """Per region: the median time over unprofiled steps and ranks, and by hand in the same steps."""
    ours: dict[str, list[float]] = {}
    by_hand: dict[str, list[float]] = {}
    for rank in range(ranks):
        phases = hand(recorded, rank)["phases_ms"]
        for line in step_lines(run, rank):
            if line["step"] < UNPROFILED_FROM or line["profiled"] or line["step"] >= len(phases):
                continue
            found = {name: region["ns"] / 1e6 for name, region in line["regions"].items()}
            found["backward_pass"] = found.get("backward_pass", 0) + found.pop("gradient_sync", 0)
            for name, ms in found.items():
                ours.setdefault(name, []).append(ms)
            for name, ms in phases[line["step"]].items():
                by_hand.setdefault(name, []).append(ms)
    return {
        name: {
            "ms": statistics.median(times),
            "by_hand_ms": statistics.median(by_hand[name]) if name in by_hand else None,
        }
        for name, times in sorted(ours.items())
    }


def steps_against_hand(run: Path, plain: Path, recorded: Path, ranks: int) -> dict:
    """The step's time: as recorded without the profiler, by hand in the same run, by hand in the plain run."""
    about = json.loads((run / "run.json").read_text())
    device = [
        line["device_ns"] / 1e6
        for rank in range(ranks)
        for line in step_lines(run, rank)
        if line["step"] >= UNPROFILED_FROM and line["device_ns"] is not None
    ]
    return {
        "unprofiled_ms": about["unprofiled_step_ms"],
        "profiled_ms": about["profiled_step_ms"],
        "device_mean_ms": statistics.fmean(device) if device else None,
        "by_hand_same_run_ms": quiet_blocks(recorded, ranks),
        "by_hand_plain_run_ms": quiet_blocks(plain, ranks),
        "before_ms": about["unprofiled_before"]["median_ms"],
        "after_ms": about["unprofiled_after"]["median_ms"],
        "steps": len(step_lines(run, 0)),
        "strategy": about.get("strategy"),
    }


def quiet_blocks(folder: Path, ranks: int) -> float:
    blocks = [hand(folder, rank)["block_ms_per_step"] for rank in range(ranks)]
    return statistics.median(block[i] for block in blocks for i in QUIET_BLOCKS if i < len(block))


def collectives_per_step(run: Path) -> dict:
    """Live statistics of rank 0, per operation and group, and the count and bytes of a late step."""
    header, *rows = map(json.loads, (run / "rank00000.collectives.jsonl").read_text().splitlines())
    lines = [line["collectives"] for line in step_lines(run, 0) if "collectives" in line]
    wanted = ("operation", "group", "count", "bytes", "timed_count", "time_ms", "busbw_gb_per_s", "best_busbw_gb_per_s")
    return {
        "last_step": per_step(lines[-1]) if lines else None,
        "operations": [{name: row[name] for name in wanted} for row in rows],
        "notes": header["notes"],
    }


def per_step(line: dict) -> dict:
    """The numbers of one step where several shared a look."""
    steps = line.get("steps", 1)
    return {name: None if value is None else value // steps for name, value in line.items() if name != "steps"}


def trace_contents(run: Path, ranks: int) -> list[dict]:
    """Per rank: profiled steps, kernels, communication kernels, records of collectives and regions in the trace."""
    out = []
    for rank in range(ranks):
        with gzip.open(run / f"rank{rank:05d}.pt.trace.json.gz") as f:
            events = json.load(f)["traceEvents"]
        kernels = [e["name"] for e in events if e.get("cat") == "kernel"]
        marks = Counter(e["name"] for e in events if e.get("cat") == "user_annotation")
        out.append(
            {
                "steps": sum(1 for name in marks if name.startswith("ProfilerStep#")),
                "kernels": len(kernels),
                "nccl_kernels": sum("nccl" in name.lower() for name in kernels),
                "comm_records": sum(e.get("name") == "record_param_comms" for e in events),
                "regions": sorted(n for n in marks if n.endswith(("_pass", "_step", "_loading", "_sync"))),
            }
        )
    return out


def light_overhead(args: argparse.Namespace, left_s: float) -> dict:
    """What `overhead.py` finds on this machine, with as many blocks as there is time for."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "overhead.json"
        command = [sys.executable, str(HERE / "overhead.py"), "--out", str(result), "--ranks", str(args.ranks)]
        command += ["--backend", "nccl" if args.device == "cuda" else "gloo", "--blocks", "12"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=left_s)
        if not result.exists():
            raise RuntimeError(done.stderr[-1200:] or done.stdout[-1200:])
        found = json.loads(result.read_text())
    return {name: found[name] for name in ("step_ms", "warm", "cold", "bottom_up", "measured", "window")} | {
        "text": done.stdout
    }


# ---- shown


def save(results: dict, out: Path) -> None:
    (out / "gpu_record.json").write_text(json.dumps(results, indent=1))
    (out / "gpu_record.md").write_text(markdown(results))


def markdown(results: dict) -> str:
    rows = [
        f"Ranks: {results['ranks']}, sharing the device: {results['sharing']}.",
        "",
        "| job | regions: recorded / by hand (ms) | collectives per step | step unprofiled / by hand (ms) "
        "| device step (ms) | plain run (ms) | profiled (ms) | after / before window | trace, rank 0 | losses |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(row(name, job) for name, job in results["jobs"].items()),
    ]
    light = results.get("light", {})
    rows += ["", "```", light.get("text", light.get("error", "not run")).rstrip(), "```"]
    return "\n".join(rows) + "\n"


def row(name: str, job: dict) -> str:
    if "error" in job:
        return f"| {name} | failed: {' '.join(job['error'].split())[:300]} |" + " |" * 8
    regions = ", ".join(
        f"{r} {v['ms']:.2f}" + (f" / {v['by_hand_ms']:.2f}" if v["by_hand_ms"] is not None else "")
        for r, v in job["regions"].items()
    )
    step, trace, last = job["step"], job["trace"][0], job["collectives"]["last_step"] or {}
    collectives = f"{last.get('count')} ({last.get('bytes')} B)"
    if "p2p_count" in last:
        collectives += f", {last['p2p_count']} sends and receives"
    return (
        f"| {name} | {regions} | {collectives} "
        f"| {number(step['unprofiled_ms'])} / {number(step['by_hand_same_run_ms'])} "
        f"| {number(step['device_mean_ms'])} | {number(step['by_hand_plain_run_ms'])} | {number(step['profiled_ms'])} "
        f"| {step['after_ms'] / step['before_ms']:.3f} | {trace['steps']} steps, {trace['kernels']} kernels, "
        f"{trace['nccl_kernels']} of NCCL, {trace['comm_records']} records, {len(trace['regions'])} regions "
        f"| {job['losses']} |"
    )


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
