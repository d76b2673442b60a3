"""Sweeps on a GPU, each as a results document: the second part of gpu_lab.py, or by itself.

    PYTHONPATH=src python benchmarks/gpu_lab_sweeps.py --out results [--only precision,attention] [--device cpu]

All but `strategy-small` and `strategy-large`, for which gpu_lab.py has four ranks share the device, take one rank.
Nothing but torch is needed; `sweep_verdict` judges the documents on any machine. Each is written after every
measurement, so that what ends the script from outside loses one.
"""

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.bench.sweeps.choices.batch_size import largest_fitting, measured_sizes
from stepscope.bench.sweeps.choices.sweep import Sweep, sweep_named
from stepscope.bench.sweeps.control import SweepMeasurements, fitting_sizes, run_sweep
from stepscope.bench.sweeps.rows import sweep_document
from stepscope.bench.sweeps.sessions import Method
from stepscope.contract.run_folder import atomic_write

LIMIT_S = {
    "precision": 110,
    "attention": 75,
    "checkpointing": 60,
    "compile": 280,
    "accumulation": 100,
    "offload": 130,
    "batch-size": 220,
    "dataloader": 200,
    "allocator": 210,
    "strategy-small": 200,
    "strategy-large": 340,
}
"""the most important first"""
SWEEPS = ("precision", "attention", "checkpointing", "compile")

GPT = {
    "name": "gpt", "d_model": 1024, "num_layers": 12, "num_heads": 16, "seq_len": 1024, "vocab_size": 8192,
    "batch_size": 16, "precision": "bf16", "seed": 0, "options": {},
}  # fmt: skip
TINY = {
    "name": "gpt", "d_model": 64, "num_layers": 2, "num_heads": 2, "seq_len": 32, "vocab_size": 256,
    "batch_size": 4, "precision": "bf16", "seed": 0, "options": {},
}  # fmt: skip


STRATEGIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "strategy-small": ({"d_model": 512, "num_layers": 8, "num_heads": 8, "batch_size": 24}, {"runs": 3}),
    "strategy-large": (
        {"d_model": 1280, "num_layers": 16, "num_heads": 20, "batch_size": 2},
        {"runs": 2, "steps": 8, "warmup_steps": 3, "memory_limit_bytes": 5 * 10**9},
    ),
}
"""34 M parameters with all the memory; 336 M with 5 GB a rank, of which DDP's state alone takes 5.4"""
RANKS = 4


def one_sweep(name: str, scratch: Path, *, out: Path, cuda: bool) -> dict[str, Any]:
    """Return the results document of one sweep, whatever happened to single variants; it is in `out` as it grows."""
    spec = dict(GPT if cuda else TINY)
    method = Method(
        backend="nccl" if cuda else "gloo",
        runs=2 if name in ("compile", "offload", "allocator", "dataloader") else 3,
        warmup_steps=5 if cuda else 1,
        steps=20 if cuda else 2,
        threads=8 if cuda else 1,
        item_limit_s=200 if name == "compile" else 90,
        limit_s=LIMIT_S[name],
    )
    if name == "batch-size":
        spec["options"] = {"checkpointing": "none"}
    if name in STRATEGIES:
        spec, method = strategy(name, spec, method, cuda=cuda)
    sweep, notes = prepared(name, spec, method, scratch, cuda=cuda)

    def document(so_far: SweepMeasurements) -> dict[str, Any]:
        return sweep_document(sweep, so_far, spec=spec, method=method, command=f"bench {name}", **notes)

    def keep(so_far: SweepMeasurements) -> None:
        written({**document(so_far), "complete": False, "message": "ended from outside while measuring"}, out)

    found = run_sweep(sweep, spec=spec, method=method, out=scratch, progress=said, keep=keep)
    shutil.rmtree(scratch, ignore_errors=True)
    return document(found)


def strategy(name: str, spec: dict[str, Any], method: Method, *, cuda: bool) -> tuple[dict[str, Any], Method]:
    """Return a strategy sweep's workload and method: ranks that share the device, or two tiny ones."""
    sizes, how = STRATEGIES[name]
    if not cuda:
        return {**spec, "d_model": 16, "precision": "fp32"}, replace(method, world_size=2)
    spec = {**spec, **sizes, "seq_len": 512, "precision": "fp32"}
    return spec, replace(method, world_size=RANKS, share_devices=True, threads=2, **how)


def written(document: dict[str, Any], path: Path) -> None:
    """Write a document whole: one killed meanwhile leaves the one before."""
    with atomic_write(path) as f:
        f.write(json.dumps(document).encode())


def prepared(
    name: str, spec: dict[str, Any], method: Method, scratch: Path, *, cuda: bool
) -> tuple[Sweep, dict[str, Any]]:
    if name == "batch-size":
        limit = None if cuda else 300 * 10**6
        known, reasons = fitting_sizes(
            spec, start=32, most=1 << 16, memory_limit_bytes=limit, method=method, out=scratch, progress=said
        )
        about = {"largest": largest_fitting(known), "did_not_fit": reasons, "memory_limit_bytes": limit}
        return sweep_named(name, spec, {"sizes": measured_sizes(known)}), {"fitting": about}
    if name == "dataloader":
        spec["options"] = {"preprocess_us": 2000}
        return sweep_named(name, spec, {"workers": [0, 1, 2, 4]}), {}
    if name in STRATEGIES:
        return sweep_named("strategy", spec, {"world_size": method.world_size}), {}
    return sweep_named(name, spec, {}), {}


def said(done: int, total: int, name: str) -> None:
    print(f"{done}/{total} {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="gpu_lab_results")
    parser.add_argument("--only", default=",".join(SWEEPS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for name in args.only.split(","):
        begin_s, path = time.monotonic(), Path(args.out, f"{name}.json")
        with tempfile.TemporaryDirectory() as scratch:
            document = one_sweep(name, Path(scratch) / name, out=path, cuda=args.device == "cuda")
        document["took_s"] = round(time.monotonic() - begin_s, 1)
        written(document, path)
        print(f"== {name}: {document['took_s']:.0f} s, {document['message'] or 'complete'}", flush=True)
        for row in document["series"]:
            print(f"{row['name']:<30} {row['summary']['median_step_time']:9.2f} ms", flush=True)
        for variant, refusal in document["sweep"]["refusals"].items():
            print(f"{variant:<30} {refusal['what']}: {refusal['reason']}", flush=True)


if __name__ == "__main__":
    main()
