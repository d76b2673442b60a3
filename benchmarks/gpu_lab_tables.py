"""The tables of docs/gpu-lab.md from what `gpu_lab.py` measured on a GPU; runs on any machine.

python benchmarks/gpu_lab_tables.py results > tables.md
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from stepscope.cli.bench.overlap import overlap_summary
from stepscope.results.sweeps.judgement import VariantResult
from stepscope.results.sweeps.verdict import sweep_verdict
from stepscope.results.times import bench_times, ratio
from stepscope.units import ms

SWEEPS = (
    "precision",
    "attention",
    "checkpointing",
    "compile",
    "batch-size",
    "offload",
    "allocator",
    "accumulation",
    "dataloader",
    "strategy-small",
    "strategy-large",
)


def main(folder: Path) -> None:
    for part in ("ddp", "fsdp"):
        if (folder / f"{part}.json").exists():
            print(data_parallel(part, folder), "\n")
    if (folder / "buckets.json").exists():
        print(buckets(json.loads((folder / "buckets.json").read_text())), "\n")
    for part in SWEEPS:
        if (folder / f"{part}.json").exists():
            print(sweep(json.loads((folder / f"{part}.json").read_text())), "\n")


def data_parallel(part: str, folder: Path) -> str:
    found = json.loads((folder / f"{part}.json").read_text())
    reference = next(row for row in found["series"] if row["name"] == "pytorch_ddp")
    lines = [
        f"{part}: {found['environment']['world_size']} ranks, sharing: {found['sharing']}; {found['took_s']} s",
        "",
        "| implementation | step (ms) | 95 % interval | over PyTorch's DDP | comm (ms) | exposed (ms) | overlap "
        "| peak GB | reserved GB | gradient error | weight error |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for archive in folder.glob(f"traces-{part}-*.tar.gz"):
            unpacked(archive, scratch)
        for row in found["series"]:
            traces = Path(scratch, f"traces-{part}", row["name"])
            lines.append(data_parallel_row(row, reference, overlap_summary(traces)))
    repeated = [r for r in found["search"] if r["what"] == "repeated"]
    lines += [f"\n{r['series']} against itself: gradient {r['gradient_error']:.1e}, weights {r['weight_error']:.1e}, "
              f"loss {r['loss_error']:.1e} after {r['steps']} steps" for r in repeated]  # fmt: skip
    return "\n".join(lines)


def unpacked(archive: Path, folder: str) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


def data_parallel_row(row: dict[str, Any], reference: dict[str, Any], comm: dict[str, Any]) -> str:
    times, s, a = bench_times(row["samples_ms"]), row["summary"], row.get("agreement") or {}
    middle, low, high = ratio(row["samples_ms"], reference["samples_ms"])
    assert times is not None
    cells = [
        row["name"],
        f"{ms(times.median_ns):.1f}",
        f"{ms(times.low_ns):.1f} - {ms(times.high_ns):.1f}",
        "1" if row is reference else f"{middle:.3f} [{low:.3f}, {high:.3f}]",
        figure(comm["comm_ms_per_step"], ".1f"),
        figure(comm["exposed_comm_ms_per_step"], ".1f"),
        figure(comm["overlap_efficiency"], ".2f"),
        figure(s["peak_memory_allocated_gb"], ".2f"),
        figure(s["peak_memory_reserved_gb"], ".2f"),
        figure(a.get("gradient_error"), ".1e"),
        figure(a.get("weight_error"), ".1e"),
    ]
    return "| " + " | ".join(cells) + " |"


def buckets(found: dict[str, Any]) -> str:
    lines = [f"buckets, {found['took_s']} s", ""]
    for r in found["search"]:
        if r["what"] == "round":
            pairs = zip(r["sizes_mb"], r["times_ms"], strict=True)
            lines.append("- round: " + ", ".join(f"{size:g} MB {time:.1f} ms" for size, time in pairs))
        if r["what"] == "found":
            lines.append(f"- best: {r['best_mb']:g} MB; same buckets: {r['same_as']}")
    lines += ["", "| series | step (ms) | 95 % interval | over the default |", "|---|---|---|---|"]
    for row in found["series"]:
        times = bench_times(row["samples_ms"])
        assert times is not None
        middle, low, high = ratio(row["samples_ms"], found["series"][0]["samples_ms"])
        lines.append(
            f"| {row['name']} | {ms(times.median_ns):.1f} | {ms(times.low_ns):.1f} - {ms(times.high_ns):.1f} "
            f"| {middle:.3f} [{low:.3f}, {high:.3f}] |"
        )
    return "\n".join(lines)


def sweep(found: dict[str, Any]) -> str:
    """Return the table of one sweep as the product judges it, and its advice; time is per sample, the first's is 1."""
    verdict = sweep_verdict(found)
    rows = {row["name"]: row for row in found["series"]}
    lines = [
        f"{found['sweep']['name']}, {found.get('took_s', '?')} s, message: {found['message']}; {verdict.mfu_reason}",
        "",
        "| variant | runs | step (ms) | time | tokens/s | MFU | peak GB | reserved GB | first step (s) "
        "| gradient error | agrees |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(sweep_row(v, rows[v.name], v.name == found["series"][0]["name"]) for v in verdict.variants if v.name in rows),
        *(f"- {v.name}: {v.status}, {v.reason}" for v in verdict.variants if v.status != "measured"),
        *(f"-> {line}" for line in verdict.advice),
    ]
    return "\n".join(lines)


def sweep_row(judged: VariantResult, row: dict[str, Any], first: bool) -> str:
    assert judged.gain and judged.agreement and judged.first_step_ns is not None
    times = [1 / speed for speed in (judged.gain.speedup, judged.gain.high, judged.gain.low)]
    cells = [
        judged.name,
        str(len(row["samples_ms"])),
        figure(None if judged.step_ns is None else ms(judged.step_ns), ".1f"),
        "1" if first else "{:.3f} [{:.3f}, {:.3f}]".format(*times),
        figure(row["summary"]["tokens_per_sec"], ",.0f"),
        "?" if judged.mfu is None else f"{100 * judged.mfu:.1f} %",
        figure(judged.peak_memory_gb, ".2f"),
        figure(judged.reserved_memory_gb, ".2f"),
        f"{ms(judged.first_step_ns) / 1000:.2f}",
        figure(judged.agreement.gradient_error, ".1e"),
        {True: "yes", False: "no", None: "?"}[judged.agreement.agrees],
    ]
    return "| " + " | ".join(cells) + " |"


def figure(value: float | None, form: str) -> str:
    return "?" if value is None else f"{value:{form}}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
