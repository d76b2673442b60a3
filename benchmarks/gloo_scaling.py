"""How well is a job on more gloo ranks predicted from fewer? Collectives at 4 ranks from 2 and 3; a DDP step from 2.

    python benchmarks/gloo_scaling.py --out folder

Runs on this machine's cores, which 4 ranks may have to share. What that does to compute is measured without any
communication, 4 processes beside 2, and given to the prediction: `predict scale --compute-factor`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from stepscope.analyze.account import account_of
from stepscope.cost.collectives.calibration import calibrate
from stepscope.cost.collectives.points import points_from_bench
from stepscope.predict.scale import scaled
from stepscope.run.load import load

STEPS, ROUNDS = 15, 3


def rank_main(rank: int, world: int, folder: str, store: str, alone: bool) -> None:
    """Train a small model with DDP, or each rank its own: steps without the profiler, then four with it."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    from stepscope.bench.simulate.model import Shape, Transformer

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


def collective_errors(folder: Path) -> tuple[dict[str, float], float]:
    """Return the error at 4 ranks by operation, and the share inside the interval, predicted from 2 and 3."""
    path = folder / "collectives.json"
    command = [sys.executable, "-m", "stepscope.bench.collectives", "--out", str(path), "--max-bytes", str(2**24)]
    worlds = [text for world in (2, 3, 4) for text in ("--world-size", str(world))]
    subprocess.run([*command, *worlds, "--limit-s", "60"], check=True)
    points, _ = points_from_bench(path)
    known = calibrate([p for p in points if p.world_size < 4])
    errors: dict[str, list[float]] = {}
    inside = []
    for p in (p for p in points if p.world_size == 4):
        found = known.predict(p.op, size_bytes=p.size_bytes, world_size=4)
        errors.setdefault(p.op, []).append(abs(found.time_ns / p.time_ns - 1))
        inside.append(found.low_ns <= p.time_ns <= found.high_ns)
    return {op: float(np.mean(e)) for op, e in errors.items()}, float(np.mean(inside))


def step_errors(folder: Path) -> list[dict[str, float]]:
    """Return predicted and measured steps at 4 ranks from each 2-rank run, with medians over interleaved rounds.

    Other work on the machine comes and goes between two runs; medians are what can be compared.
    """
    points, _ = points_from_bench(folder / "collectives.json")
    known = calibrate([p for p in points if p.world_size < 4])
    rounds = []
    for k in range(ROUNDS):
        two, four = trained(2, folder / f"two{k}"), trained(4, folder / f"four{k}")
        alone = [trained(n, folder / f"alone{n}-{k}", alone=True) for n in (2, 4)]
        rounds.append((two, four, max(1.0, alone[1] / alone[0])))
    two, four, factor = (statistics.median(column) for column in zip(*rounds, strict=True))
    rows = []
    for k in range(ROUNDS):
        account = account_of(load(sorted((folder / f"two{k}").glob("rank*.json"))), unprofiled_ms=two)
        found = scaled(account, [4], source=known, compute_factor=factor).curve[0]
        band = {"predicted_ms": found.step_ns / 1e6, "low_ms": found.low_ns / 1e6, "high_ms": found.high_ns / 1e6}
        rows.append({"two_ms": two, "four_ms": four, "compute_factor": factor, **band})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    errors, inside = collective_errors(args.out)
    print("collectives at 4 ranks from 2 and 3: mean relative error")
    for op, error in errors.items():
        print(f"  {op:15s} {100 * error:5.1f} %")
    print(f"  inside the 90 % interval: {100 * inside:.0f} %")
    rows = step_errors(args.out)
    for row in rows:
        error = row["predicted_ms"] / row["four_ms"] - 1
        print(
            "step " + ", ".join(f"{name} {value:.1f}" for name, value in row.items()) + f", error {100 * error:+.0f} %"
        )
    result = {"collective_errors": errors, "inside": inside, "steps": rows}
    (args.out / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
