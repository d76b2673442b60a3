"""Recording checked on real jobs with NCCL: four ranks of DDP, FSDP2 and a pipeline, recorded with no code change.

    python benchmarks/gpu_record.py --out results          (one GPU is enough: the ranks share it)

Every job (`gpt_job.py`) runs twice, plain and under `stepscope record`, and times itself by hand both times. The table
shows what was found (regions, collectives, trace) and its agreement with the hand: region times, unprofiled step times,
losses bit by bit. `overhead.py parts` measures light mode in alternating blocks. `results/` then holds
`gpu_record.json`, `gpu_record.md` and the run folders, packed. Nothing but torch is needed.
"""

import argparse
import gzip
import json
import statistics
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import HERE, number, python, recorded, run, shared_device, table

STRATEGIES = ("ddp", "fsdp2", "pipeline")
WINDOW = (30, 35)
UNPROFILED_FROM = 50
QUIET_BLOCKS = (2, 5, 6, 7)  # blocks of ten steps away from the start and the window
DEADLINE_S = 600


def main() -> int:
    args = parsed()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
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
    return parser.parse_args()


def guarded(act: Callable[[], dict]) -> dict:
    """Return what `act` finds, or its error: one job that fails must not take the others with it."""
    try:
        return act()
    except Exception as e:  # noqa: BLE001 - it goes into the table
        return {"error": f"{type(e).__name__}: {str(e)[-1500:]}"}


def one_job(strategy: str, scratch: Path, out: Path, args: argparse.Namespace) -> dict:
    """Run one strategy plain and recorded; return what was found and how far it agrees."""
    folder = scratch / f"run-{strategy}"
    plain, traced, again = (scratch / f"{strategy}-{way}" for way in ("plain", "recorded", "again"))
    for each in (plain, traced, again):
        each.mkdir()
    sizes = ["--device", args.device, "--steps", str(args.steps)]

    def job(times: Path) -> list[str]:
        return python(HERE / "gpt_job.py", strategy, *sizes, "--hand-timed", times, ranks=args.ranks)

    said = run(job(plain)).stderr
    said += run(recorded(folder, job(traced), "--steps", f"{WINDOW[0]}:{WINDOW[1]}")).stderr
    with tarfile.open(out / f"run-{strategy}.tar.gz", "w:gz") as packed:
        packed.add(folder, arcname=folder.name)
    losses_are = "equal" if same_losses(plain, traced, args.ranks) else "DIFFER"
    if losses_are == "DIFFER":  # because of the job itself?
        run(job(again))
        losses_are += ", and so do two plain runs" if not same_losses(plain, again, args.ranks) else ""
    return {
        "regions": regions_against_hand(folder, traced, args.ranks),
        "step": steps_against_hand(folder, plain, traced, args.ranks),
        "collectives": collectives_per_step(folder),
        "trace": trace_contents(folder, args.ranks),
        "files": sorted({path.name.partition(".")[2] for path in folder.iterdir() if path.name.startswith("rank")}),
        "losses": losses_are,
        "said": [line for line in said.splitlines() if line.startswith("stepscope")],
    }


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
    """Return what `overhead.py parts` prints on this machine."""
    backend = "nccl" if args.device == "cuda" else "gloo"
    words = ("parts", "--ranks", args.ranks, "--backend", backend, "--blocks", "12")
    return {"text": run(python(HERE / "overhead.py", *words), limit_s=left_s).stdout}


# ---- shown


def save(results: dict, out: Path) -> None:
    (out / "gpu_record.json").write_text(json.dumps(results, indent=1))
    (out / "gpu_record.md").write_text(markdown(results))


def markdown(results: dict) -> str:
    head = (
        "job",
        "regions: recorded / by hand (ms)",
        "collectives per step",
        "step unprofiled / by hand (ms)",
        "device step (ms)",
        "plain run (ms)",
        "profiled (ms)",
        "after / before window",
        "trace, rank 0",
        "losses",
    )
    light = results.get("light", {})
    return "\n".join(
        [
            f"Ranks: {results['ranks']}, sharing the device: {results['sharing']}.",
            "",
            table(head, (cells(name, job) for name, job in results["jobs"].items())),
            "",
            "```",
            light.get("text", light.get("error", "not run")).rstrip(),
            "```\n",
        ]
    )


def cells(name: str, job: dict) -> list[str]:
    if "error" in job:
        return [name, f"failed: {' '.join(job['error'].split())[:300]}", *[""] * 8]
    regions = ", ".join(
        f"{r} {v['ms']:.2f}" + (f" / {v['by_hand_ms']:.2f}" if v["by_hand_ms"] is not None else "")
        for r, v in job["regions"].items()
    )
    step, trace, last = job["step"], job["trace"][0], job["collectives"]["last_step"] or {}
    collectives = f"{last.get('count')} ({last.get('bytes')} B)"
    if "p2p_count" in last:
        collectives += f", {last['p2p_count']} sends and receives"
    return [
        name,
        regions,
        collectives,
        f"{number(step['unprofiled_ms'])} / {number(step['by_hand_same_run_ms'])}",
        *(number(step[key]) for key in ("device_mean_ms", "by_hand_plain_run_ms", "profiled_ms")),
        f"{step['after_ms'] / step['before_ms']:.3f}",
        f"{trace['steps']} steps, {trace['kernels']} kernels, {trace['nccl_kernels']} of NCCL, "
        f"{trace['comm_records']} records, {len(trace['regions'])} regions",
        job["losses"],
    ]


if __name__ == "__main__":
    sys.exit(main())
