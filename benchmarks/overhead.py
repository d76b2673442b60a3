"""What recording costs: light mode off and on in alternating blocks of one run, each hook on its own, the window.

    python benchmarks/overhead.py [--step-ms 20] [--blocks 24] [--out overhead.json]

Two ranks train the same small DDP model (gloo; NCCL with `--backend nccl`). Six answers:

    warm        CPU time that light mode adds to a step in which Python runs all the time, as it does when it launches
                kernels of a GPU: our code stays in the processor's caches
    cold        the same where forward and backward sweep the caches, as those that compute on the CPU do: our code has
                to come back from memory first
    bottom-up   the time of every call of ours inside steps of the given length, call by call, without what the meter
                takes itself; and the helper process beside them
    measured    step time with and without light mode, in alternating blocks, with a 95 % confidence interval
    shapes      calls of ours and CPU time in loops that call very much in a step (`overhead_cpu.py`)
    window      the profiled steps against those before them, the pause for the export, and the steps after it
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RANK = Path(__file__).resolve().with_name("overhead_rank.py")
TARGET_PCT = 0.5
ALONE = ("warm", "cold", "calls", "shapes")  # parts that one rank measures


def main() -> int:
    arguments = parsed()
    results = {part: run_ranks(part, arguments) for part in parts_of(arguments)}
    report = summary(results, arguments)
    print(table(report))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps({**report, "raw": results}, indent=1))
    return 0 if report["warm"]["pct_of_step"] < TARGET_PCT else 1


def parts_of(arguments: argparse.Namespace) -> list[str]:
    """Return what is measured; caches are swept on the CPU only."""
    return ["warm", *(["cold"] if arguments.backend == "gloo" else []), "calls", "shapes", "light", "window"]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--blocks", type=int, default=24, help="off and on together")
    parser.add_argument("--block-steps", type=int, default=30)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out")
    return parser.parse_args()


def run_ranks(part: str, arguments: argparse.Namespace) -> list[dict]:
    """Return what each rank measured for one part of the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", str(RANK), part, "--folder", folder, *as_options(arguments)]
        ranks = [
            subprocess.Popen(
                [*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True, env=environment(rank, arguments)
            )
            for rank in range(1 if part in ALONE else arguments.ranks)
        ]
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank failed in part {part!r}: exit codes {[rank.returncode for rank in ranks]}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def as_options(arguments: argparse.Namespace) -> list[str]:
    wanted = ("ranks", "step_ms", "blocks", "block_steps", "backend")
    return [word for name in wanted for word in (f"--{name.replace('_', '-')}", str(getattr(arguments, name)))]


def environment(rank: int, arguments: argparse.Namespace) -> dict[str, str]:
    """Return a rank's environment; NCCL refuses ranks that share a device unless they claim to be on other hosts."""
    shared = {"NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "KINETO_LOG_LEVEL": "99",
        **(shared if arguments.backend == "nccl" else {}),
    }


def summary(results: dict[str, list[dict]], arguments: argparse.Namespace) -> dict:
    warm, calls = results["warm"][0], results["calls"][0]
    added_us = calls["calls_us"].pop("all")
    window = results["window"]
    return {
        "step_ms": arguments.step_ms,
        "warm": {**added(warm, arguments), "calls_per_step": warm["calls_per_step"]},
        "shapes": results["shapes"][0],
        "cold": added(results["cold"][0], arguments) if "cold" in results else None,
        "bottom_up": {
            "us_per_step": added_us,
            "pct_of_step": added_us / arguments.step_ms / 10,
            "helper_process_us": calls["helper_us"],
            "calls_us": calls["calls_us"],
        },
        "measured": {
            "wall": difference([rank["blocks"] for rank in results["light"]], "ms"),
            "training_thread_cpu": difference([rank["blocks"] for rank in results["light"]], "cpu_ms"),
        },
        "window": {
            "profiled_over_before": ratio_of_medians(window, "window_ms", "before_ms"),
            "after_over_before": ratio_of_medians(window, "after_ms", "before_ms"),
            "pause_ms": max(max(rank["last_ms"]) - statistics.median(rank["before_ms"]) for rank in window),
        },
    }


def added(found: dict, arguments: argparse.Namespace) -> dict:
    us = found["on_us"] - found["off_us"]
    return {"us_per_step": us, "pct_of_step": us / arguments.step_ms / 10}


def difference(ranks: list[list[dict]], field: str) -> dict:
    """The relative cost of light mode in %: blocks of all ranks in pairs off/on that are neighbours in time."""
    pairs = []
    for blocks in ranks:
        for first, second in zip(blocks[::2], blocks[1::2], strict=True):
            off, on = (second, first) if first["on"] else (first, second)
            pairs.append((on[field] - off[field]) / off[field] * 100)
    low, high = interval(pairs)
    off_ms = statistics.median(b[field] for blocks in ranks for b in blocks if not b["on"])
    return {"pct": statistics.median(pairs), "low_pct": low, "high_pct": high, "off_ms": off_ms, "pairs": len(pairs)}


def ratio_of_medians(ranks: list[dict], above: str, below: str) -> dict:
    samples = [[rank[above], rank[below]] for rank in ranks]
    draw = random.Random(0)

    def ratio(resampled: bool) -> float:
        pick = (lambda xs: draw.choices(xs, k=len(xs))) if resampled else (lambda xs: xs)
        return statistics.fmean(statistics.median(pick(a)) / statistics.median(pick(b)) for a, b in samples)

    drawn = sorted(ratio(True) for _ in range(1000))
    return {"ratio": ratio(False), "low": drawn[25], "high": drawn[975]}


def interval(values: list[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1950]


def table(report: dict) -> str:
    warm, bottom, measured, window = (report[part] for part in ("warm", "bottom_up", "measured", "window"))
    rows = [
        f"light mode, warm: {against_target(warm, report)}; {warm['calls_per_step']:.0f} calls of ours",
        *([f"light mode, cold: {against_target(report['cold'], report)}"] if report["cold"] else []),
        f"light mode, bottom-up: {against_target(bottom, report)}; "
        f"the helper process beside it takes {bottom['helper_process_us']:.0f} us",
        *(f"  {name:<28}{us:8.2f} us" for name, us in bottom["calls_us"].items()),
        *(
            f"light mode, {name}: {s['added_us']:+.0f} us [{s['low_us']:+.0f}, {s['high_us']:+.0f}] of "
            f"{s['off_us']:.0f}; {s['calls_of_timed_step']} calls of ours, at most {s['calls_at_most']}"
            for name, s in report["shapes"].items()
        ),
        *(
            f"light mode, measured ({what}): {m['pct']:+.2f} % [{m['low_pct']:+.2f}, {m['high_pct']:+.2f}] "
            f"of {m['off_ms']:.2f} ms, {m['pairs']} pairs of blocks"
            for what, m in measured.items()
        ),
        *(
            f"window: {what} {window[key]['ratio']:.3f} [{window[key]['low']:.3f}, {window[key]['high']:.3f}]"
            for what, key in (("profiled / before", "profiled_over_before"), ("after / before", "after_over_before"))
        ),
        f"window: pause for stop and export {window['pause_ms']:.0f} ms",
    ]
    return "\n".join(rows)


def against_target(part: dict, report: dict) -> str:
    verdict = "below" if part["pct_of_step"] < TARGET_PCT else "ABOVE"
    return (
        f"{part['us_per_step']:.1f} us per step on the training thread = {part['pct_of_step']:.2f} % of "
        f"{report['step_ms']:g} ms ({verdict} the target of {TARGET_PCT} %)"
    )


if __name__ == "__main__":
    sys.exit(main())
