"""The benchmark lab on a GPU: data parallelism on four NCCL ranks that share it, then sweeps on one rank.

    PYTHONPATH=src python benchmarks/gpu_lab.py --out results                (about eight minutes)
    PYTHONPATH=src python benchmarks/gpu_lab.py --out results --parts ddp --device cpu    (small, to try the script)

Every part writes `PART.json` (a results document, as `stepscope bench` writes it) as soon as it is done; the traces of
`ddp` and `fsdp` are packed beside it. Nothing but torch is needed. `benchmarks/gpu_lab_tables.py results` makes the
tables of docs/gpu-lab.md from that folder, on any machine.
"""

import argparse
import json
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_lab_sweeps import LIMIT_S as SWEEP_LIMIT_S
from gpu_lab_sweeps import SWEEPS, one_sweep
from gpu_record import guarded, shared_device

from stepscope.bench.data_parallel.bucket_finalists import DEFAULT_MB, finalists
from stepscope.bench.data_parallel.strategies import available
from stepscope.bench.gathered import environment, rows
from stepscope.bench.launch import launch
from stepscope.bench.results import results

RANKS = 4
PARTS = ("ddp", "buckets", "fsdp", *SWEEPS)
LIMIT_S = {
    "ddp": 190,
    "buckets": 120,
    "fsdp": 80,
    "precision": 50,
    "attention": 50,
    "checkpointing": 45,
    "compile": 110,
}
FSDP = ("pytorch_ddp", "zero1", "fsdp2_zero2", "fsdp2_zero3")

GPT = {"name": "gpt", "d_model": 512, "num_layers": 8, "num_heads": 8, "seq_len": 512, "vocab_size": 8192}
LARGE = {"name": "gpt", "d_model": 1024, "num_layers": 16, "num_heads": 16, "seq_len": 512, "vocab_size": 8192}
TINY = {
    "name": "gpt",
    "d_model": 64,
    "num_layers": 2,
    "num_heads": 2,
    "seq_len": 32,
    "vocab_size": 256,
    "batch_size": 2,
}


def main() -> int:
    args = parsed()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory() as scratch, shared_device(args.device) as sharing:
        print(f"ranks share the device by: {sharing}", flush=True)
        for part in args.parts.split(","):
            begin = time.monotonic()
            found = guarded(lambda p=part: one_part(p, Path(scratch) / p, out, args))
            failed += "error" in found
            found |= {"sharing": sharing, "took_s": round(time.monotonic() - begin, 1)}
            (out / f"{part}.json").write_text(json.dumps(found))
            print(said(part, found), flush=True)
    return 1 if failed else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="gpu_lab_results")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--parts", default=",".join(PARTS))
    return parser.parse_args()


def one_part(part: str, scratch: Path, out: Path, args: argparse.Namespace) -> dict[str, Any]:
    if part in SWEEP_LIMIT_S:
        return one_sweep(part, scratch, cuda=args.device == "cuda")
    return data_parallel(part, scratch, out, cuda=args.device == "cuda")


def data_parallel(part: str, scratch: Path, out: Path, *, cuda: bool) -> dict[str, Any]:
    """Return the results of one comparison on all ranks."""
    settings = settings_of(part, cuda=cuda)
    job = "bucket_sweep:bucket_sweep" if part == "buckets" else "compare:compare"
    ranks = RANKS if cuda else 2
    result = launch(
        {"job": f"stepscope.bench.data_parallel.{job}", "settings": settings, "share_devices": True},
        world_size=ranks,
        backend="nccl" if cuda else "gloo",
        out=scratch,
        limit_s=LIMIT_S[part],
        on_record=lambda r: print(part, r["what"], r.get("series"), r.get("run"), flush=True),
    )
    if (scratch / "traces").is_dir():
        with tarfile.open(out / f"traces-{part}.tar.gz", "w:gz") as packed:
            packed.add(scratch / "traces", arcname=f"traces-{part}")
    entries = settings.get("series") or finalists(settings["implementation"], best_mb(result.records[0]))
    found = rows(
        result.records, entries=entries, config={**settings["workload"], "warmup_steps": settings["warmup_steps"]}
    )
    where = environment(result.records, backend="nccl" if cuda else "gloo")
    search = [r for r in result.records[0] if r["what"] in ("round", "found", "repeated")]
    return results(found, command=f"bench {part}", environment=where, message=result.message, search=search)


def settings_of(part: str, *, cuda: bool) -> dict[str, Any]:
    large = part == "fsdp"
    work = {**(LARGE if large else GPT), "batch_size": 8 if large else 24, "precision": "bf16"} if cuda else TINY
    method = {"warmup_steps": 6, "steps": 20, "runs": 3, "trace_steps": 3} if cuda else {
        "warmup_steps": 2, "steps": 3, "runs": 2, "trace_steps": 2}  # fmt: skip
    if part == "buckets":
        return {"workload": work, **method, "runs": 2, "trace_steps": 0, "implementation": "pytorch_ddp",
                "round_turns": 2, "round_steps": 10, "round_warmup": 4}  # fmt: skip
    if large:
        method |= {"runs": 2, "steps": 12, "warmup_steps": 5} if cuda else {}
    names = available(FSDP) if large else available()
    return {"workload": work, **method, "series": [{"name": name, "implementation": name} for name in names]}


def best_mb(records: list[dict[str, Any]]) -> float:
    return next((r["best_mb"] for r in records if r["what"] == "found"), DEFAULT_MB)


def said(part: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"== {part} FAILED after {found['took_s']} s: {found['error'][-600:]}"
    lines = [f"== {part}: {found['took_s']} s, {found.get('message')}"]
    for row in found.get("series", []):
        s, a = row["summary"], row.get("agreement") or {}
        lines.append(
            f"{row['name']:<30} {s['median_step_time']:9.2f} ms  peak {s['peak_memory_allocated_gb']}  "
            f"agrees {a.get('agrees')} grad {a.get('gradient_error')} weights {a.get('weight_error')}"
        )
    for name, refusal in found.get("sweep", {}).get("refusals", {}).items():
        lines.append(f"{name:<30} {refusal['what']}: {refusal['reason']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
