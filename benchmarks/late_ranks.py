"""Which ranks does every command and API name, and is the saving of bringing them to the others' level the real one?

    python benchmarks/late_ranks.py planted OUT [--busy 0] [--steps 40]     planted jobs, with and without the lateness
    python benchmarks/late_ranks.py healthy OUT [--runs 50] [--ranks 2,4]    equal ranks: nobody may be named
    python benchmarks/late_ranks.py noise [--runs 1000]                      the judge on synthetic equal ranks
    python benchmarks/late_ranks.py waits                                    `predict scale` on simulated own times
    python benchmarks/late_ranks.py read RUN ...                             any recorded runs

Jobs are gloo ranks with one thread each. `measured` is the mean step with the sleeps less that without them.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import STEPSCOPE, environment, python, recorded, run

SETTLING = 15
CASES: dict[str, tuple[int, dict[int, int], int]] = {
    "1 of 2": (2, {1: 60}, 1),
    "1 of 4": (4, {2: 60}, 1),
    "2 of 4": (4, {1: 80, 3: 60}, 1),
    "3 of 4": (4, {0: 80, 1: 60, 3: 70}, 1),
    "2 of 8": (8, {1: 80, 5: 120}, 1),
    "1 of 4, every third": (4, {2: 150}, 3),
    "2 of 4, every third": (4, {1: 150, 3: 120}, 3),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("planted", "healthy", "noise", "waits", "read", "train"))
    parser.add_argument("paths", type=Path, nargs="*")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--busy", type=int, default=0, help="busy loops next to the job")
    args = parser.parse_args()
    if args.what == "train":
        train(args.steps)
    elif args.what == "noise":
        noise(args.runs)
    elif args.what == "waits":
        waits()
    elif args.what == "read":
        for path in args.paths:
            show(path.name, path)
    elif args.what == "healthy":
        sizes = [int(n) for n in args.ranks.split(",")]
        named = 0
        for k in range(args.runs):
            folder = args.paths[0] / f"healthy{k}"
            job(folder, sizes[k % len(sizes)], {}, 1, steps=args.steps)
            named += show(f"healthy {k}, {sizes[k % len(sizes)]} ranks", folder)
        print(f"{named} of {args.runs} healthy runs name a rank")
    else:
        with busy(args.busy):
            for name, (ranks, late, every) in CASES.items():
                planted(name, args.paths[0] / name.replace(" ", "_").replace(",", ""), ranks, late, every, args.steps)
    return 0


def planted(name: str, folder: Path, ranks: int, late: dict[int, int], every: int, steps: int) -> None:
    with_ms, without_ms = [], []
    for _ in range(2):
        with_ms.append(job(None, ranks, late, every, steps=steps))
        without_ms.append(job(None, ranks, {}, every, steps=steps))
    job(folder, ranks, late, every, steps=steps)
    saved = statistics.fmean(with_ms) - statistics.fmean(without_ms)
    show(f"{name} {late}", folder)
    found = [f for f in answer([*STEPSCOPE, "report", str(folder), "--json", "-"])["findings"] if f["ranks"]]
    mine = next((f for f in found if f["id"] == "straggler"), None)
    if mine is None:
        print(f"    measured {saved:.1f} ms; no finding")
        return
    alone, low, high = (mine[k] for k in ("saving_alone_ms", "saving_low_ms", "saving_high_ms"))
    print(
        f"    measured {saved:.1f} ms; saves {alone:.1f} ({100 * (alone / saved - 1):+.0f} %), {low:.1f}-{high:.1f} "
        f"{'inside' if low <= saved <= high else 'OUTSIDE'}; {mine['title']}",
        flush=True,
    )


def job(folder: Path | None, ranks: int, late: dict[int, int], every: int, *, steps: int) -> float:
    """Run the job, recorded into a folder where one is given; return its mean step in ms."""
    command = python(__file__, "train", "--steps", steps, ranks=ranks)
    if folder is not None:
        command = recorded(folder, command, "--steps", f"{SETTLING}:{SETTLING + 6}")
    sleeps = ",".join(f"{rank}:{ms}" for rank, ms in late.items())
    output = run(command, LATE=sleeps, EVERY=str(every)).stdout
    return float(next(line for line in output.splitlines() if line.startswith("step_ms ")).split()[1])


def train(steps: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, every = dist.get_rank(), int(os.environ.get("EVERY", "1"))
    late = dict(pair.split(":") for pair in os.environ.get("LATE", "").split(",") if pair)
    sleep_s = float(late.get(str(rank), 0)) / 1000
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
    )
    optimizer, x, began = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(64, 256), 0.0
    for step in range(steps):
        if step == SETTLING:
            began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if sleep_s and step % every == 0:
            time.sleep(sleep_s)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"step_ms {1000 * (time.perf_counter() - began) / (steps - SETTLING)}", flush=True)
    dist.barrier()  # a rank that leaves first would end the others
    dist.destroy_process_group()


# Who is named


def show(name: str, folder: Path) -> bool:
    """Print the ranks that every command names; return whether any names one."""
    named = names_of(folder)
    same = len({tuple(ranks) for ranks in named.values()}) == 1
    listed = named if not same else {"all": next(iter(named.values()))}
    print(f"{name}: {'' if same else 'DIFFERENT '}{listed}", flush=True)
    return any(named.values())


def names_of(folder: Path) -> dict[str, list[int]]:
    import stepscope
    from stepscope.analyze.ledger import ledger_of
    from stepscope.contract.lateness import late_ranks, lateness, own_times
    from stepscope.contract.step_line import times_of_lines
    from stepscope.run.attempts import attempts_of
    from stepscope.run.light import RunningJob

    report = answer([*STEPSCOPE, "report", str(folder), "--json", "-"])
    live = answer([*STEPSCOPE, "watch", str(folder), "--once", "--json", "-"])
    lines = {rank.rank: rank.lines for rank in RunningJob(folder).look().ranks}
    known = own_times({rank: times_of_lines(kept) for rank, kept in lines.items()})
    found = {
        "report": [s["rank"] for s in report["stragglers"]],
        "findings": [r for f in report["findings"] if f["id"] in ("straggler", "load-imbalance") for r in f["ranks"]],
        "light report": [s["rank"] for s in light_report(folder)["stragglers"]],
        "health": [s["rank"] for s in answer([*STEPSCOPE, "health", str(folder), "--json", "-"])["stragglers"]],
        "watch": [r["rank"] for r in live["ranks"] if r["late"] and r["late"]["is_late"]],
        "job": list(ledger_of(attempts_of(folder)).late_ranks),
        "alarms, metrics": [one.rank for one in late_ranks(lateness(known[1]))] if known else [],
        "load": [s["rank"] for s in stepscope.load(folder).document["stragglers"]],
    }
    return {name: sorted(set(ranks)) for name, ranks in found.items()}


def answer(command: list[str]) -> Any:
    return json.loads(run(command).stdout)


def light_report(folder: Path) -> Any:
    with tempfile.TemporaryDirectory() as light:
        for path in folder.iterdir():
            if path.is_file() and ".trace." not in path.name and "owners" not in path.name:
                (Path(light) / path.name).write_bytes(path.read_bytes())
        return answer([*STEPSCOPE, "report", light, "--json", "-"])


def noise(runs: int) -> None:
    import numpy as np

    from stepscope.contract.lateness import late_ranks, lateness

    def correlated(rng: Any, ranks: int, steps: int) -> Any:
        shocks, x = rng.standard_t(3, (ranks, steps)) / 3**0.5, np.zeros((ranks, steps))
        for t in range(steps):
            x[:, t] = 0.3 * (x[:, t - 1] if t else 0) + 0.91**0.5 * shocks[:, t]
        return np.maximum(1 + 0.05 * x + (rng.random((ranks, steps)) < 0.03) * rng.pareto(2.5, (ranks, steps)), 0.6)

    shapes = {
        "normal, 6 %": lambda rng, n, t: 1 + 0.06 * rng.standard_normal((n, t)),
        "normal, 30 %": lambda rng, n, t: np.maximum(1 + 0.3 * rng.standard_normal((n, t)), 0.2),
        "correlated, long tail": correlated,
        "hiccups of three steps": lambda rng, n, t: (
            1 + 0.02 * rng.standard_normal((n, t)) + (rng.random((n, t)) < 0.05) * rng.exponential(3, (n, t))
        ),
        "drift": lambda rng, n, t: (
            1 + np.linspace(0, 0.5, t) + 0.03 * rng.standard_normal((n, t))
            + np.cumsum(rng.standard_normal((n, t)), axis=1) * 0.05 / max(t, 20) ** 0.5
        ),
    }  # fmt: skip
    for name, shape in shapes.items():
        for ranks in (2, 4, 8, 64):
            for steps in (5, 100):
                rng, alarms = np.random.default_rng(ranks + steps), 0
                for _ in range(runs):
                    own = 1e7 * shape(rng, ranks, steps)
                    alarms += bool(late_ranks(lateness({r: row.tolist() for r, row in enumerate(own)})))
                print(f"{name}, {ranks} ranks, {steps} steps: {100 * alarms / runs:.1f} % of {runs} runs", flush=True)


def waits() -> None:
    """Print the true wait for the last rank of 8 to 64 over the one predicted from five steps of 2 to 8."""
    import numpy as np

    from stepscope.lab.predict.scale import last_rank_ns

    rng, steps, jobs = np.random.default_rng(0), 5, 200
    spreads = {
        "normal": lambda n, t: rng.normal(100, 5, (n, t)),
        "skewed (lognormal)": lambda n, t: 100 * rng.lognormal(0, 0.05, (n, t)),
        "bounded (uniform)": lambda n, t: 95 + 10 * rng.random((n, t)),
        "exponential": lambda n, t: 95 + rng.exponential(5, (n, t)),
        "constant offsets of ranks": lambda n, t: 100 + rng.normal(0, 5, (n, 1)) + rng.normal(0, 1, (n, t)),
        "hiccups, 30 % in a step of 20": lambda n, t: rng.normal(100, 2, (n, t)) + 30 * (rng.random((n, t)) < 0.05),
    }
    for name, own in spreads.items():
        last = {n: np.mean([own(n, steps).max(0).mean() for _ in range(600)]) for n in (2, 4, 8, 16, 32, 64)}
        ratios = [
            (last[wanted] - last[recorded])
            / last_rank_ns(own(recorded, steps).var(0, ddof=1).mean() ** 0.5, recorded, wanted)
            for recorded in (2, 4, 8) for wanted in (8, 16, 32, 64) if wanted > recorded for _ in range(jobs)
        ]  # fmt: skip
        low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
        inside = 100 * np.mean([0.4 <= ratio <= 4 for ratio in ratios])
        print(f"{name}: true / predicted {middle:.2f}, 90 % {low:.2f}-{high:.2f}; {inside:.0f} % in 0.4-4")


@contextlib.contextmanager
def busy(count: int) -> Any:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"], env=environment()) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main())
