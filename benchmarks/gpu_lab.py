"""The benchmark lab on a GPU: data parallelism on four NCCL ranks that share it, then sweeps on one rank.

    PYTHONPATH=src python benchmarks/gpu_lab.py --out results                (about eight minutes)
    PYTHONPATH=src python benchmarks/gpu_lab.py --out results --parts strategy-small,strategy-large
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
from functools import partial
from pathlib import Path
from typing import Any

from gpu_lab_sweeps import LIMIT_S as SWEEP_LIMIT_S
from gpu_lab_sweeps import RANKS, SWEEPS, one_sweep
from gpu_record import guarded, shared_device

from stepscope.bench.data_parallel.bucket_finalists import DEFAULT_MB, finalists
from stepscope.bench.data_parallel.strategies import available
from stepscope.bench.session.launch import launch
from stepscope.bench.session.rank_records import environment, rows
from stepscope.bench.session.results import results

DATA_PARALLEL = ("ddp", "buckets", "fsdp")
PARTS = (*DATA_PARALLEL, *SWEEPS)
LIMIT_S = {"ddp": 190, "buckets": 120, "fsdp": 150}
FSDP = ("pytorch_ddp", "zero1", "fsdp2_zero2", "fsdp2_zero3")

GPT = {"name": "gpt", "d_model": 512, "num_layers": 8, "num_heads": 8, "seq_len": 512, "vocab_size": 8192}
LARGE = {"name": "gpt", "d_model": 768, "num_layers": 12, "num_heads": 12, "seq_len": 512, "vocab_size": 8192}
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
    failed, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, shared_device(args.device) as sharing:
        print(f"ranks share the device by: {sharing}", flush=True)
        for part in args.parts.split(","):
            begin = time.monotonic()
            for limits in (LIMIT_S, SWEEP_LIMIT_S):
                limits[part] = min(limits.get(part, 0), max(args.deadline_s - (begin - began), 1))
            found = guarded(partial(one_part, part, Path(scratch) / part, out, args))
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
    parser.add_argument("--deadline-s", type=float, default=900.0, help="parts get what is left of it")
    parser.add_argument("--runs", type=int, default=3, help="of the comparison of all implementations")
    return parser.parse_args()


def one_part(part: str, scratch: Path, out: Path, args: argparse.Namespace) -> dict[str, Any]:
    if part not in DATA_PARALLEL:
        return one_sweep(part, scratch, out=out / f"{part}.json", cuda=args.device == "cuda")
    return data_parallel(part, scratch, out, cuda=args.device == "cuda", runs=args.runs)


def data_parallel(part: str, scratch: Path, out: Path, *, cuda: bool, runs: int) -> dict[str, Any]:
    """Return the results of one comparison on all ranks."""
    settings = settings_of(part, cuda=cuda, runs=runs)
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
    pack_traces(scratch / "traces", out, part)
    entries = settings.get("series") or finalists(settings["implementation"], best_mb(result.records[0]))
    found = rows(
        result.records, entries=entries, config={**settings["workload"], "warmup_steps": settings["warmup_steps"]}
    )
    where = environment(result.records, backend="nccl" if cuda else "gloo")
    search = [r for r in result.records[0] if r["what"] in ("round", "found", "repeated")]
    return results(found, command=f"bench {part}", environment=where, message=result.message, search=search)


def pack_traces(traces: Path, out: Path, part: str) -> None:
    """Pack the traces of the first two ranks into two archives of a size that travels."""
    for number, folders in enumerate((sorted(traces.glob("*"))[::2], sorted(traces.glob("*"))[1::2])):
        if folders:
            with tarfile.open(out / f"traces-{part}-{number}.tar.gz", "w:gz") as packed:
                for path in (
                    p for folder in folders for rank in (0, 1) for p in folder.glob(f"*_rank_{rank}_trace.json")
                ):
                    packed.add(path, arcname=f"traces-{part}/{path.parent.name}/{path.name}")


def settings_of(part: str, *, cuda: bool, runs: int) -> dict[str, Any]:
    large = part == "fsdp"
    work = {**(LARGE if large else GPT), "batch_size": 8 if large else 24, "precision": "bf16"} if cuda else TINY
    method = {"warmup_steps": 6, "steps": 20, "runs": runs, "trace_steps": 2} if cuda else {
        "warmup_steps": 2, "steps": 3, "runs": 2, "trace_steps": 2}  # fmt: skip
    if part == "buckets":
        return {"workload": work, **method, "runs": 2, "trace_steps": 0, "implementation": "pytorch_ddp",
                "round_turns": 2, "round_steps": 10, "round_warmup": 4}  # fmt: skip
    if large:
        method |= {"steps": 10, "warmup_steps": 4} if cuda else {}
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
