"""The tables of docs/gpu-lab.md from what `gpu_lab.py` measured on a GPU; runs on any machine.

python benchmarks/gpu_lab_tables.py results > tables.md
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from stepscope.analyze.bench_times import bench_times, ratio
from stepscope.cli.bench_overlap import overlap_summary
from stepscope.cost.hardware import look_up, mfu_peak

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
        f"{times.median_ms:.1f}",
        f"{times.low_ms:.1f} - {times.high_ms:.1f}",
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
            f"| {row['name']} | {times.median_ms:.1f} | {times.low_ms:.1f} - {times.high_ms:.1f} "
            f"| {middle:.3f} [{low:.3f}, {high:.3f}] |"
        )
    return "\n".join(lines)


def sweep(found: dict[str, Any]) -> str:
    """Return the table of one sweep; MFU against the dense 16-bit peak, whatever the variant computes in."""
    peak = peak_flops(found["environment"].get("device") or "")
    lines = [
        f"{found['sweep']['name']}, {found.get('took_s', '?')} s, message: {found['message']}",
        "",
        "| variant | step (ms) | 95 % interval | time | tokens/s | MFU | peak GB |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["series"]:
        times, s = bench_times(row["samples_ms"]), row["summary"]
        assert times is not None
        middle, low, high = ratio(row["samples_ms"], found["series"][0]["samples_ms"])
        mfu = 100 * s["flops_per_step"] / (times.median_ms / 1000) / peak if peak and s.get("flops_per_step") else None
        lines.append(
            f"| {row['name']} | {times.median_ms:.2f} | {times.low_ms:.2f} - {times.high_ms:.2f} "
            f"| {middle:.3f} [{low:.3f}, {high:.3f}] | {figure(s['tokens_per_sec'], ',.0f')} "
            f"| {figure(mfu, '.1f')} % | {figure(s['peak_memory_allocated_gb'], '.2f')} |"
        )
    lines += [f"- {name}: {r['what']}, {r['reason']}" for name, r in found["sweep"]["refusals"].items()]
    return "\n".join(lines)


def peak_flops(device: str) -> float | None:
    """Return the dense 16-bit peak of the chip, in FLOP/s."""
    chip = look_up(device).chip
    peak = mfu_peak(chip) if chip else None
    return peak.flops_per_s if peak else None


def figure(value: float | None, form: str) -> str:
    return "?" if value is None else f"{value:{form}}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
