"""The benchmark lab on a GPU: data parallelism on four NCCL ranks that share it, then sweeps on one rank.

    python benchmarks/gpu_lab.py --out results                (about eight minutes)
    python benchmarks/gpu_lab.py --out results --parts strategy-small,strategy-large
    python benchmarks/gpu_lab.py --out results --parts ddp,precision --device cpu    (a small trial of the script)
    python benchmarks/gpu_lab.py --tables results > tables.md                        (on any machine)

Every part writes `PART.json` (a results document, as `stepscope bench` writes it), a sweep after every measurement, so
that a kill loses one; the traces of `ddp` and `fsdp` are packed next to it. Measuring needs nothing but torch. All
sweeps but `strategy-small` and `strategy-large` take one rank. `--tables` prints the tables of docs/gpu.md.
"""

import argparse
import json
import shutil
import sys
import tarfile
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import number, shared_device, table

from stepscope.contract.run_folder import atomic_write
from stepscope.lab.bench.results import results
from stepscope.lab.bench.sessions import (
    Measured,
    Method,
    Sessions,
    compared_row,
    fitting_sizes,
    in_rounds,
    run_sweep,
    run_trials,
    sweep_document,
)
from stepscope.lab.bench.strategies import available, finalists
from stepscope.lab.bench.sweeps import Sweep, largest_fitting, measured_sizes, sweep_named

RANKS = 4
DATA_PARALLEL = ("ddp", "buckets", "fsdp")
LIMIT_S = {
    "ddp": 190,
    "buckets": 120,
    "fsdp": 150,
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
SWEEPS = tuple(name for name in LIMIT_S if name not in DATA_PARALLEL)
DEFAULT_PARTS = (*DATA_PARALLEL, "precision", "attention", "checkpointing", "compile")
FSDP = ("pytorch_ddp", "zero1", "fsdp2_zero2", "fsdp2_zero3")


def gpt(**sizes: Any) -> dict[str, Any]:
    return {"name": "gpt", "vocab_size": 8192, "seed": 0, "options": {}, "precision": "bf16", **sizes}


DDP_MODEL = gpt(d_model=512, num_layers=8, num_heads=8, seq_len=512, batch_size=24)
FSDP_MODEL = gpt(d_model=768, num_layers=12, num_heads=12, seq_len=512, batch_size=8)
SWEPT_MODEL = gpt(d_model=1024, num_layers=12, num_heads=16, seq_len=1024, batch_size=16)
TINY = gpt(d_model=64, num_layers=2, num_heads=2, seq_len=32, vocab_size=256, batch_size=4)
STRATEGIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "strategy-small": ({"d_model": 512, "num_layers": 8, "num_heads": 8, "batch_size": 24}, {"runs": 3}),
    "strategy-large": (
        {"d_model": 1280, "num_layers": 16, "num_heads": 20, "batch_size": 2},
        {"runs": 2, "steps": 8, "warmup_steps": 3, "memory_limit_bytes": 5 * 10**9},
    ),
}
"""34 M parameters with all the memory; 336 M with 5 GB a rank, of which DDP's state alone takes 5.4"""


def main() -> int:
    args = parsed()
    if args.tables:
        print_tables(args.tables)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    cuda, failed, began = args.device == "cuda", 0, time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, shared_device(args.device) as sharing:
        print(f"ranks share the device by: {sharing}", flush=True)
        for part in args.parts.split(","):
            begin, path = time.monotonic(), args.out / f"{part}.json"
            LIMIT_S[part] = min(LIMIT_S[part], max(args.deadline_s - (begin - began), 1))
            folder = Path(scratch) / part
            try:
                if part in DATA_PARALLEL:
                    found = data_parallel(part, folder, args.out, cuda=cuda, runs=args.runs)
                else:
                    found = one_sweep(part, folder, out=path, cuda=cuda)
            except Exception as e:  # noqa: BLE001 - one part that fails must not stop the others
                found = {"error": f"{type(e).__name__}: {str(e)[-1500:]}"}
                failed = 1
            found |= {"sharing": sharing, "took_s": round(time.monotonic() - begin, 1)}
            written(found, path)
            print(part_text(part, found), flush=True)
    return failed


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_lab_results"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--parts", default=",".join(DEFAULT_PARTS), help=f"of {', '.join(LIMIT_S)}")
    parser.add_argument("--deadline-s", type=float, default=900.0, help="for all parts together")
    parser.add_argument("--runs", type=int, default=3, help="of the comparison of all implementations")
    parser.add_argument("--tables", type=Path, metavar="RESULTS", help="print the tables of an earlier run")
    return parser.parse_args()


def data_parallel(part: str, scratch: Path, out: Path, *, cuda: bool, runs: int) -> dict[str, Any]:
    """Return the results of one comparison on all ranks."""
    settings = settings_of(part, cuda=cuda, runs=runs)
    sessions, method = (
        Sessions(),
        Method(backend="nccl" if cuda else "gloo", world_size=RANKS if cuda else 2, share_devices=True),
    )
    search: list[dict[str, Any]] = []
    variants = settings.pop("variants", ())
    if part == "buckets":
        first = sessions.start(
            "data_parallel:search_bucket", settings, method=method, out=scratch, limit_s=LIMIT_S[part]
        )
        search = [r for r in first.records[0] if r["what"] in ("round", "found")]
        variants = finalists(settings["implementation"], search[-1]["best_mb"])
    by_name = {variant["name"]: variant for variant in variants}

    def trial(items: Any, number: int, **how: Any) -> Any:
        chosen = [{"variant": by_name[name], "run": run} for name, run in items]
        given = {**settings, "items": chosen, "checked": True}
        return sessions.start("data_parallel:compare", given, method=method, out=scratch, **how)

    items = [
        *in_rounds(list(by_name), settings["runs"]),
        *((name, None) for name in by_name if settings["trace_steps"]),
    ]
    measured, _ = run_trials(items, trial, limit_s=LIMIT_S[part], progress=said)
    pack_traces(scratch / "traces", out, part)
    runs_of = measured.runs
    found = [compared_row(one, runs_of[name], measured, settings) for name, one in by_name.items() if name in runs_of]
    where = {"backend": method.backend, "world_size": method.world_size, **measured.environment}
    search += measured.every("repeated")
    return results(found, command=f"bench {part}", environment=where, message=measured.message, search=search)


def pack_traces(traces: Path, out: Path, part: str) -> None:
    """Pack the traces of the first two ranks into two archives of a size that travels."""
    for index, folders in enumerate((sorted(traces.glob("*"))[::2], sorted(traces.glob("*"))[1::2])):
        if folders:
            with tarfile.open(out / f"traces-{part}-{index}.tar.gz", "w:gz") as packed:
                for path in (
                    p for folder in folders for rank in (0, 1) for p in folder.glob(f"*_rank_{rank}_trace.json")
                ):
                    packed.add(path, arcname=f"traces-{part}/{path.parent.name}/{path.name}")


def settings_of(part: str, *, cuda: bool, runs: int) -> dict[str, Any]:
    large = part == "fsdp"
    work = (FSDP_MODEL if large else DDP_MODEL) if cuda else TINY
    method = {"warmup_steps": 2, "steps": 3, "runs": 2, "trace_steps": 2, "grad_accum": 1}
    if cuda:
        method |= {"warmup_steps": 6, "steps": 20, "runs": runs}
        method |= {"steps": 10, "warmup_steps": 4} if large else {}
    if part == "buckets":
        search = {"implementation": "pytorch_ddp", "round_turns": 2, "round_steps": 10, "round_warmup": 4}
        return {"workload": work, **method, "runs": 2, "trace_steps": 0, **search}
    names = available(FSDP) if large else available()
    return {"workload": work, **method, "variants": [{"name": name, "implementation": name} for name in names]}


def one_sweep(name: str, scratch: Path, *, out: Path, cuda: bool) -> dict[str, Any]:
    """Return the results document of one sweep, whatever happened to single variants; it is in `out` as it grows."""
    spec = dict(SWEPT_MODEL if cuda else TINY)
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

    def document(so_far: Measured) -> dict[str, Any]:
        return sweep_document(sweep, so_far, spec=spec, method=method, command=f"bench {name}", **notes)

    def keep(so_far: Measured) -> None:
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
        known, reasons, _ = fitting_sizes(
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


def part_text(part: str, found: dict[str, Any]) -> str:
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


# Tables


def print_tables(folder: Path) -> None:
    for part in LIMIT_S:
        if (folder / f"{part}.json").exists():
            found = json.loads((folder / f"{part}.json").read_text())
            if part in SWEEPS:
                print(sweep_table(found), "\n")
            else:
                print(buckets_table(found) if part == "buckets" else data_parallel_table(part, folder), "\n")


def step_cells(row: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """Return step, interval and ratio to the reference."""
    from stepscope.lab.results.times import bench_times, over
    from stepscope.units import ms

    times = bench_times(row["samples_ms"])
    assert times is not None
    found = over(row["samples_ms"], reference["samples_ms"])
    ratio = f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]"
    span = f"{ms(times.low_ns):.1f} - {ms(times.high_ns):.1f}"
    return [row["name"], f"{ms(times.median_ns):.1f}", span, "1" if row is reference else ratio]


def data_parallel_table(part: str, folder: Path) -> str:
    from stepscope.lab.cli.bench import overlap_summary

    found = json.loads((folder / f"{part}.json").read_text())
    reference = next(row for row in found["series"] if row["name"] == "pytorch_ddp")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for archive in folder.glob(f"traces-{part}-*.tar.gz"):
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
        for row in found["series"]:
            comm, s = overlap_summary(Path(scratch, f"traces-{part}", row["name"])), row["summary"]
            a = row.get("agreement") or {}
            memory = [number(s[f"peak_memory_{kind}_gb"]) for kind in ("allocated", "reserved")]
            errors = [number(a.get(f"{kind}_error"), ".1e") for kind in ("gradient", "weight")]
            times = [number(comm[f"{kind}_ms_per_step"], ".1f") for kind in ("comm", "exposed_comm")]
            rows.append([*step_cells(row, reference), *times, number(comm["overlap_efficiency"]), *memory, *errors])
    head = ("implementation", "step (ms)", "95 % interval", "over PyTorch's DDP", "comm (ms)", "exposed (ms)")
    title = f"{part}: {found['environment']['world_size']} ranks, sharing: {found['sharing']}; {found['took_s']} s\n\n"
    repeated = [
        f"\n\n{r['variant']} against itself: gradient {r['gradient_error']:.1e}, weights {r['weight_error']:.1e}, "
        f"loss {r['loss_error']:.1e} after {r['steps']} steps"
        for r in found["search"]
        if r["what"] == "repeated"
    ]
    errors_head = ("overlap", "peak GB", "reserved GB", "gradient error", "weight error")
    return title + table((*head, *errors_head), rows) + "".join(repeated)


def buckets_table(found: dict[str, Any]) -> str:
    lines = [f"buckets, {found['took_s']} s", ""]
    for r in found["search"]:
        if r["what"] == "round":
            pairs = zip(r["sizes_mb"], r["times_ms"], strict=True)
            lines.append("- round: " + ", ".join(f"{size:g} MB {time_ms:.1f} ms" for size, time_ms in pairs))
        if r["what"] == "found":
            lines.append(f"- best: {r['best_mb']:g} MB; same buckets: {r['same_as']}")
    rows = (step_cells(row, found["series"][0]) for row in found["series"])
    return "\n".join([*lines, "", table(("series", "step (ms)", "95 % interval", "over the default"), rows)])


def sweep_table(found: dict[str, Any]) -> str:
    """Return the table of one sweep as the product judges it, and its advice; time is per sample, the first's is 1."""
    from stepscope.lab.results.sweeps import sweep_verdict
    from stepscope.units import ms

    verdict, series = sweep_verdict(found), {row["name"]: row for row in found["series"]}
    rows = []
    for v in (v for v in verdict.variants if v.name in series):
        assert v.change and v.agreement and v.first_step_ns is not None
        times = [v.change.ratio, v.change.low, v.change.high]
        rows.append(
            [
                v.name,
                len(series[v.name]["samples_ms"]),
                number(None if v.step_ns is None else ms(v.step_ns), ".1f"),
                "1" if v.name == found["series"][0]["name"] else "{:.3f} [{:.3f}, {:.3f}]".format(*times),
                number(series[v.name]["summary"]["tokens_per_sec"], ",.0f"),
                "?" if v.mfu is None else f"{100 * v.mfu:.1f} %",
                number(v.peak_memory_gb),
                number(v.reserved_memory_gb),
                f"{ms(v.first_step_ns) / 1000:.2f}",
                number(v.agreement.gradient_error, ".1e"),
                {True: "yes", False: "no", None: "?"}[v.agreement.agrees],
            ]
        )
    memory, quality = ("peak GB", "reserved GB"), ("first step (s)", "gradient error", "agrees")
    head = ("variant", "runs", "step (ms)", "time", "tokens/s", "MFU", *memory, *quality)
    title = f"{found['sweep']['name']}, {found.get('took_s', '?')} s, message: {found['message']}; {verdict.mfu_reason}"
    refused = [f"- {v.name}: {v.status}, {v.reason}" for v in verdict.variants if v.status != "measured"]
    return "\n".join([title, "", table(head, rows), *refused, *(f"-> {line}" for line in verdict.advice)])


if __name__ == "__main__":
    sys.exit(main())
