"""Predicted collectives and steps against measured ones.

    python benchmarks/collectives.py points FOUR.csv [--left-out FOUR_OTHER_SIZES.csv] [--other-world TWO.csv]
    python benchmarks/collectives.py gloo --out folder

points: collective times at sizes and world sizes that were not measured. Ours next to plain interpolation of the
points, a least-squares line and a line in relative error. Without --left-out each measured size is predicted from the
others, with the neighbours twice as far as in use.

gloo: collectives at 4 ranks predicted from 2 and 3, and a DDP step at 4 from 2, on this machine's cores. 4 ranks may
have to share them: the slowdown of compute is measured without communication, 4 processes against 2, and given to the
prediction (`predict scale --compute-factor`).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from common import environment

from stepscope.analyze.account import account_of
from stepscope.cost.alpha_beta import fit
from stepscope.lab.predict.calibrate import Point, calibrate, points_from_bench, points_from_csv
from stepscope.lab.predict.scale import scaled
from stepscope.run.load import load

MAIN = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
STEPS = 15
Predictor = Callable[[Point], tuple[float, float, float]]


def ours(points: Sequence[Point]) -> Predictor:
    found = calibrate(points)

    def predict(p: Point) -> tuple[float, float, float]:
        e = found.predict(p.op, size_bytes=p.size_bytes, world_size=p.world_size)
        return e.time_ns, e.low_ns, e.high_ns

    return predict


def by_curve(points: Sequence[Point], make: Callable[[np.ndarray, np.ndarray], Callable[[float], float]]) -> Predictor:
    curves = {}
    for op in {p.op for p in points}:
        listed = sorted((p.size_bytes, p.time_ns) for p in points if p.op == op)
        curves[op] = make(*(np.array(column, float) for column in zip(*listed, strict=True)))

    def predict(p: Point) -> tuple[float, float, float]:
        return curves[p.op](p.size_bytes), float("nan"), float("nan")

    return predict


def interpolation(x: np.ndarray, y: np.ndarray) -> Callable[[float], float]:
    last = (y[-1] - y[-2]) / (x[-1] - x[-2])
    return lambda n: float(np.interp(n, x, y)) if n <= x[-1] else float(y[-1] + last * (n - x[-1]))


def least_squares(x: np.ndarray, y: np.ndarray) -> Callable[[float], float]:
    slope, alpha = np.polyfit(x, y, 1)
    return lambda n: float(alpha + slope * n)


def relative_line(x: np.ndarray, y: np.ndarray) -> Callable[[float], float]:
    line = fit(x, y)
    return lambda n: float(line.time_ns(n))


MODELS: dict[str, Callable[[Sequence[Point]], Predictor]] = {
    "ours": ours,
    "interpolation": lambda points: by_curve(points, interpolation),
    "least-squares line": lambda points: by_curve(points, least_squares),
    "line in relative error": lambda points: by_curve(points, relative_line),
}


def left_one_out(points: Sequence[Point]) -> list[tuple[list[Point], list[Point]]]:
    sizes = sorted({p.size_bytes for p in points})
    return [([p for p in points if p.size_bytes != s], [p for p in points if p.size_bytes == s]) for s in sizes[1:]]


def report(title: str, splits: Sequence[tuple[Sequence[Point], Sequence[Point]]], models: Sequence[str]) -> None:
    print(title)
    for name in models:
        rows = [(p, *model(p)) for known, unknown in splits for model in [MODELS[name](known)] for p in unknown]
        error = np.array([abs(time / p.time_ns - 1) for p, time, _, _ in rows])
        main = np.array([p.op in MAIN for p, *_ in rows])
        line = f"  {name:24s} {100 * error[main].mean():5.1f} % over the four, {100 * error.mean():5.1f} % over all"
        if name == "ours":
            inside = np.mean([low <= p.time_ns <= high for p, _, low, high in rows])
            width = np.mean([(high - low) / time for _, time, low, high in rows])
            line += f"; interval holds {100 * inside:.0f} %, mean width {100 * width:.0f} % of the time"
        print(line)


def rank_main(rank: int, world: int, folder: str, store: str, alone: bool) -> None:
    """Train a small model with DDP, or each rank its own: steps without the profiler, then four with it."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from parallel_model import Shape, Transformer
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    shape = Shape(layers=4, d_model=256, heads=4, vocab=2000, seq_len=64, mlp_width=1024)
    model = Transformer(shape) if alone else DistributedDataParallel(Transformer(shape), bucket_cap_mb=4)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, shape.vocab, (8, shape.seq_len))

    def step() -> float:
        begin = time.perf_counter()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

    for _ in range(3):
        step()
    dist.barrier()
    times = [step() for _ in range(STEPS)]
    (Path(folder) / f"times{rank}.txt").write_text(json.dumps(times))
    dist.barrier()  # so that all compute as long as any does
    if alone:
        dist.destroy_process_group()
        return
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=4, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, record_shapes=True
    ) as profiler:
        for _ in range(5):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(Path(folder) / f"rank{rank}.json"))
    dist.destroy_process_group()


def trained(world: int, folder: Path, *, alone: bool = False) -> float:
    """Return the median step of a real job in ms; its traces are left in the folder."""
    import torch.multiprocessing as mp

    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as store:
        mp.spawn(rank_main, args=(world, str(folder), f"{store}/store", alone), nprocs=world)
    return 1e3 * statistics.median(json.loads((folder / "times0.txt").read_text()))


def collective_errors(folder: Path, limit_s: int) -> tuple[dict[str, float], float]:
    """Return the error at 4 ranks by operation, and the share inside the interval, predicted from 2 and 3."""
    path = folder / "collectives.json"
    command = [sys.executable, "-m", "stepscope.lab.bench.collectives", "--out", str(path), "--max-bytes", str(2**24)]
    worlds = [text for world in (2, 3, 4) for text in ("--world-size", str(world))]
    subprocess.run([*command, *worlds, "--limit-s", str(limit_s)], check=True, env=environment())
    points, _ = points_from_bench(path)
    known = calibrate([p for p in points if p.world_size < 4])
    errors: dict[str, list[float]] = {}
    inside = []
    for p in (p for p in points if p.world_size == 4):
        found = known.predict(p.op, size_bytes=p.size_bytes, world_size=4)
        errors.setdefault(p.op, []).append(abs(found.time_ns / p.time_ns - 1))
        inside.append(found.low_ns <= p.time_ns <= found.high_ns)
    return {op: float(np.mean(e)) for op, e in errors.items()}, float(np.mean(inside))


def step_errors(folder: Path, num_rounds: int) -> list[dict[str, float]]:
    """Return predicted and measured steps at 4 ranks from each 2-rank run, with medians over interleaved rounds.

    Other work on the machine comes and goes between two runs; medians are what can be compared.
    """
    points, _ = points_from_bench(folder / "collectives.json")
    known = calibrate([p for p in points if p.world_size < 4])
    rounds = []
    for k in range(num_rounds):
        two, four = trained(2, folder / f"two{k}"), trained(4, folder / f"four{k}")
        alone = [trained(n, folder / f"alone{n}-{k}", alone=True) for n in (2, 4)]
        rounds.append((two, four, max(1.0, alone[1] / alone[0])))
    two, four, factor = (statistics.median(column) for column in zip(*rounds, strict=True))
    rows = []
    for k in range(num_rounds):
        account = account_of(load(sorted((folder / f"two{k}").glob("rank*.json"))), unprofiled_ms=two)
        found = scaled(account, [4], source=known, compute_factor=factor)["curve"][0]
        band = {"predicted_ms": found["step_ms"], "low_ms": found["low_ms"], "high_ms": found["high_ms"]}
        rows.append({"two_ms": two, "four_ms": four, "compute_factor": factor, **band})
    return rows


def points(args: argparse.Namespace) -> None:
    known = points_from_csv(args.measured)
    if args.left_out:
        report("sizes that were left out", [(known, points_from_csv(args.left_out))], list(MODELS))
    report("each size from the others", left_one_out(known), list(MODELS))
    if args.other_world:
        other = points_from_csv(args.other_world)
        sizes = sorted({p.size_bytes for p in other})
        halves = [
            ([p for p in other if p.size_bytes in sizes[a::2]], [p for p in other if p.size_bytes in sizes[b::2]])
            for a, b in ((0, 1), (1, 2))
        ]
        report("every second size from the others (other world size)", halves, list(MODELS))
        report("this world size from the other", [(other, known)], ["ours"])


def gloo(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True)
    errors, inside = collective_errors(args.out, args.limit_s)
    print("collectives at 4 ranks from 2 and 3: mean relative error")
    for op, error in errors.items():
        print(f"  {op:15s} {100 * error:5.1f} %")
    print(f"  inside the 90 % interval: {100 * inside:.0f} %")
    rows = step_errors(args.out, args.rounds)
    for row in rows:
        error = row["predicted_ms"] / row["four_ms"] - 1
        print("step " + ", ".join(f"{key} {value:.1f}" for key, value in row.items()) + f", error {100 * error:+.0f} %")
    result = {"collective_errors": errors, "inside": inside, "steps": rows}
    (args.out / "result.json").write_text(json.dumps(result, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("points", "gloo"))
    parser.add_argument("measured", nargs="?")
    parser.add_argument("--left-out")
    parser.add_argument("--other-world")
    parser.add_argument("--out", type=Path, default=Path("gloo-results"))
    parser.add_argument("--rounds", type=int, default=3, help="of trained jobs")
    parser.add_argument("--limit-s", type=int, default=60, help="for the collectives")
    args = parser.parse_args()
    points(args) if args.what == "points" else gloo(args)


if __name__ == "__main__":
    main()
