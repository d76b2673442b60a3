"""Memory on a GPU: predicted peaks against measured ones, and recorded categories against the allocator.

    python benchmarks/gpu_memory.py peaks --out results          (one GPU is enough: two NCCL ranks share it)
    python benchmarks/gpu_memory.py record FOLDER                the same; nothing but torch is needed
    python benchmarks/gpu_memory.py categories FOLDER            on any machine

peaks: DDP, FSDP2 as ZeRO-2 and -3, with and without checkpointing, Adam and SGD, three training steps of a GPT each;
the third one's peak is predicted by formula.

categories: `gpt_job.py` recorded with `stepscope record --memory`, DDP, FSDP2 and checkpointing with AdamW and SGD, the
answer of `stepscope memory` against the job's own notes: allocation at the peak against the allocator's, weights and
optimizer state against the bytes of the tensors, activations and gradients against the growth of the allocator's number
in forward, and from the step's beginning to backward's end.
"""

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from common import HERE, STEPSCOPE, environment, on_one_device, python, recorded, run, shared_device, table

RANKS = 2
SHAPE = {"layers": 12, "d-model": 1024, "heads": 16, "vocab": 32768, "seq-len": 1024}
TINY = {"layers": 2, "d-model": 64, "heads": 4, "vocab": 512, "seq-len": 32}
MICRO_BATCH = 8
WINDOW = (8, 11)
RECORDED = [
    (strategy, optimizer, checkpoint)
    for checkpoint in (False, True)
    for strategy in ("ddp", "fsdp2")
    for optimizer in ("adamw", "sgd")
]
LARGE_JOB = ["--width", "768", "--heads", "12", "--vocab", "16384", "--batch", "8", "--seq", "512"]
RANK_TIMEOUT_S = 240


@dataclass(frozen=True)
class Case:
    """One way to train."""

    strategy: str
    precision: str
    checkpoint: bool
    optimizer: str

    @property
    def name(self) -> str:
        """Return what the table calls it."""
        again = "checkpointed" if self.checkpoint else "plain"
        return f"{self.strategy} {self.precision}, {again}, {self.optimizer}"


CASES = [
    Case(strategy, precision, checkpoint, optimizer)
    for strategy, precision in (("ddp", "amp"), ("zero2", "mixed"), ("zero3", "mixed"), ("zero3", "fp32"))
    for checkpoint in (False, True)
    for optimizer in ("adam", "sgd")
]


# ---- one rank of the real job


def rank_main(rank: int, folder: str, device: str) -> None:
    """Run all cases and leave their peaks in a file."""
    import torch
    import torch.distributed as dist

    on_gpu = device == "cuda"
    backend = "nccl" if on_gpu else "gloo"
    if on_gpu:
        torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    peaks: dict[str, int | str] = {}
    for case in CASES:
        try:
            peaks[case.name] = peak_bytes(case, device)
        except Exception as error:  # noqa: BLE001 - one case that fails must not take the others with it
            peaks[case.name] = f"{type(error).__name__}: {str(error)[-300:]}"
        if rank == 0:
            Path(folder, "peaks.json").write_text(json.dumps(peaks))
        dist.barrier()
    dist.destroy_process_group()


def peak_bytes(case: Case, device: str) -> int:
    """Return the allocator's peak in the third step."""
    import torch
    from parallel_model import Transformer, parallelize
    from torch.nn.parallel import DistributedDataParallel

    gc.collect()
    shape, micro_batch = model_shape(device)
    model = Transformer(shape).to(device)
    model.checkpoint = case.checkpoint
    if case.strategy == "ddp":
        trained = DistributedDataParallel(model)
    else:
        parallelize(model, data_mesh(device), case.strategy, mixed=case.precision == "mixed")
        trained = model
    optimizer = (
        torch.optim.AdamW(model.parameters(), fused=True)
        if case.optimizer == "adam"
        else torch.optim.SGD(model.parameters(), lr=0.01)
    )
    tokens = torch.randint(0, shape.vocab, (micro_batch, shape.seq_len), device=device)
    for step in range(3):
        if step == 2 and device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        train(trained, optimizer, tokens, case, device)
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    del trained, model, optimizer
    gc.collect()
    torch.cuda.empty_cache()
    return peak


@cache
def data_mesh(device: str) -> Any:
    """Return the mesh of all ranks, made once: each one has communicators of its own."""
    from parallel_model import parallel_mesh

    return parallel_mesh(RANKS, 1, device=device)


def train(model: Any, optimizer: Any, tokens: Any, case: Case, device: str) -> None:
    import torch
    import torch.nn.functional as F

    amp = torch.autocast(device, torch.bfloat16) if case.precision == "amp" else contextlib.nullcontext()
    with amp:
        loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def model_shape(device: str) -> tuple[Any, int]:
    from parallel_model import Shape

    given = SHAPE if device == "cuda" else TINY
    numbers: dict[str, Any] = {name.replace("-", "_"): value for name, value in given.items()}
    return Shape(**numbers, mlp_width=4 * given["d-model"]), MICRO_BATCH if device == "cuda" else 2


# ---- predictions


def by_formula(case: Case, device: str) -> float:
    from stepscope.lab.predict.model_memory import Batch, training_memory
    from stepscope.lab.predict.model_shape import Layout, Optimizer, Precision, Recompute, Sharding, Transformer

    shape, micro_batch = model_shape(device)
    model = Transformer(
        layers=shape.layers, d_model=shape.d_model, heads=shape.heads, vocab=shape.vocab, mlp_width=shape.mlp_width,
        learned_positions=shape.seq_len, norm_bias=True,
    )  # fmt: skip
    again = Recompute.BLOCKS if case.checkpoint else Recompute.NONE
    batch = Batch(micro_batch, shape.seq_len, Precision(case.precision), again)
    layout = Layout(data=RANKS, sharding=Sharding(case.strategy))
    found = training_memory(model, batch, layout=layout, optimizer=Optimizer(case.optimizer), foreach_optimizer=False)
    return found.peak_bytes


# ---- the table


def measured_peaks(device: str, folder: Path) -> dict[str, Any]:
    """Return the peaks of rank 0 by case; ranks on one GPU pass for ranks on different hosts."""
    ranks = []
    for rank in range(RANKS):
        command = python(__file__, "peaks", folder, "--rank", rank, "--device", device)
        ranks.append(subprocess.Popen(command, env=environment(**on_one_device(rank))))
    try:
        for process in ranks:
            process.wait(timeout=RANK_TIMEOUT_S)
    finally:
        for process in ranks:
            process.kill()
    peaks = folder / "peaks.json"
    return json.loads(peaks.read_text()) if peaks.exists() else {}


def peak_rows(device: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch, shared_device(device) as sharing:
        folder = Path(scratch)
        print(f"ranks share the device: {sharing}", file=sys.stderr)
        peaks = measured_peaks(device, folder)
        return [
            {"case": case.name, "measured": peaks.get(case.name, "not run"), "formula": by_formula(case, device)}
            for case in CASES
        ]


def peaks_table(found: list[dict[str, Any]]) -> str:
    rows = []
    for one in found:
        peak = one["measured"]
        known = isinstance(peak, int) and peak > 0
        cells = [one["case"], f"{peak / 1e6:.0f}" if known else str(peak), f"{one['formula'] / 1e6:.0f}"]
        rows.append([*cells, f"{100 * (one['formula'] / peak - 1):+.1f} %" if known else "?"])
    return table(("case", "measured MB", "formula MB", "error"), rows)


# Categories


def name_of(strategy: str, optimizer: str, checkpoint: bool) -> str:
    return f"{strategy}-{optimizer}" + ("-checkpointed" if checkpoint else "")


def record(case: tuple[str, str, bool], out: Path, device: str) -> None:
    """Record one job; its run folder and notes are left in a folder of its name."""
    folder = out / name_of(*case)
    folder.mkdir(parents=True)
    words = [case[0], "--optimizer", case[1], *(["--checkpoint"] if case[2] else []), "--steps", 16, "--device", device]
    words += LARGE_JOB if device == "cuda" else []
    job = python(HERE / "gpt_job.py", *words, "--notes", folder, ranks=RANKS)
    run(recorded(folder / "run", job, "--memory", "--steps", f"{WINDOW[0]}:{WINDOW[1]}"))


def categories(folder: Path) -> str:
    rows = []
    for place in (folder / name_of(*case) for case in RECORDED):
        if (place / "run").exists():
            done = run([*STEPSCOPE, "memory", str(place / "run"), "--json", "-"])
            rows.append(category_cells(place, json.loads(done.stdout)))
    head = (
        "job",
        "peak: allocator MB",
        "trace",
        "snapshot",
        "weights MB",
        "gradients",
        "optimizer state",
        "activations",
    )
    return table(head, rows)


def category_cells(place: Path, said: dict[str, Any]) -> list[str]:
    """Return the allocator's numbers, each with the rank that is the farthest off."""
    cells: dict[str, list[tuple[int, int | None]]] = {}
    for rank in range(RANKS):
        notes = json.loads((place / f"rank{rank}.json").read_text())[slice(*WINDOW)]
        for column, pair in compared(rank, said, notes).items():
            cells.setdefault(column, []).append(pair)
    return [place.name, *(cell(pairs) for pairs in cells.values())]


def compared(rank: int, said: dict[str, Any], notes: list[dict[str, int]]) -> dict[str, tuple[int, int | None]]:
    """Return by column what the job noted and what we say, in bytes."""
    (of_rank,) = (r for r in said["memory"]["ranks"] if r["rank"] == rank)
    snapshots = [s for s in said["snapshots"] if s["rank"] == rank]
    peak = max(n["peak"] for n in notes)
    pairs: dict[str, tuple[int, int | None]] = {
        "allocator": (peak, peak),
        "trace": (peak, sum(v for k, v in of_rank["peak"]["by_category"].items() if k != "reserved_unused")),
        "snapshot": (peak, sum(v for k, v in snapshots[0]["peak"]["by_purpose"].items() if k != "reserved_unused"))
        if snapshots
        else (peak, None),
    }
    curves = of_rank["timeline"]["by_category"]
    true = {
        "weights": max(n["weights"] for n in notes),
        "gradients": max(n["after_backward"] - n["begin"] for n in notes),
        "optimizer_state": max(n["optimizer_state"] for n in notes),
        "activations": max(n["after_forward"] - n["begin"] for n in notes),
    }
    return pairs | {category: (size, max(curves[category])) for category, size in true.items()}


def cell(pairs: list[tuple[int, int | None]]) -> str:
    if any(ours is None for _, ours in pairs):
        return "unknown"
    true, ours = max(pairs, key=lambda pair: abs((pair[1] or 0) - pair[0]))
    if not true:  # without a device the allocator reports nothing
        return "?"
    return f"{true / 1e6:.1f}" if ours == true else f"{true / 1e6:.1f}: {100 * ((ours or 0) / true - 1):+.2f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("peaks", "record", "categories"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("gpu_memory_results"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a trial of the script")
    parser.add_argument("--at-once", type=int, default=4, help="recorded jobs at the same time: nothing is timed")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank_main(args.rank, args.folder, args.device)
    elif args.what == "record":
        with shared_device(args.device), ThreadPoolExecutor(args.at_once) as pool:
            list(pool.map(lambda case: record(case, args.folder, args.device), RECORDED))
    elif args.what == "categories":
        print(categories(args.folder))
    else:
        found = peak_rows(args.device)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "gpu_memory.json").write_text(json.dumps(found, indent=1))
        print(peaks_table(found))
        return 0 if all(isinstance(one["measured"], int) for one in found) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
