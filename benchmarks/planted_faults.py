"""Is a fault planted in a real CPU job found, and does repairing it save what was predicted?

    python benchmarks/planted_faults.py [--only late_host,stall] [--runs 2] [--out results]

Each fault is trained with and without it in turn, several times, without recording: the difference is the truth. Then
the faulty job is recorded and reported, and the first finding is compared with it. Needs two free cores: otherwise the
truth itself is uncertain, and its standard error is shown.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from common import python, recorded, report_of, run
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from stepscope.demo_train import BATCH, GPT, Text

MICRO_BATCHES = 4
STEPS, WARMUP = 60, 10
EXPECTED = {
    "none": [],
    "late_host": ["straggler"],
    "late_now_and_then": ["straggler"],
    "late_compute": ["straggler", "load-imbalance"],
    "uneven_batches": ["load-imbalance", "straggler"],
    "slow_loader": ["data-loading"],
    "slow_loader_one": ["straggler"],
    "stall": ["host-stall"],
    "no_overlap": ["no-overlap"],
    "one_by_one": ["too-many-small-collectives", "no-overlap"],
    "tiny_buckets": ["too-many-small-collectives"],
    "sync_every_micro_batch": ["redundant-communication"],
    # repaired by the remedy that the finding has, whether or not it is advised here
    "no_workers": ["data-loading"],
    "full_bytes": ["communication-bound"],
    "few_micro_batches": ["pipeline-bubble"],
    "small_micro_batches": ["pipeline-bubble"],
}
"""fault -> findings that name it"""
#: of the pipelines: samples of a step
_ROWS = {"few_micro_batches": 2048, "small_micro_batches": 256}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(EXPECTED))
    parser.add_argument("--runs", type=int, default=2, help="of each job, faulty and repaired in turn")
    parser.add_argument("--out", help="folder for the recordings and reports")
    parser.add_argument("--fault", help=argparse.SUPPRESS)
    parser.add_argument("--repaired", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each job")
    parser.add_argument("--times", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fault:
        train(args)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(args.out or scratch)
        out.mkdir(parents=True, exist_ok=True)
        print(f"{'fault':24} {'step ms':>8} {'truth ms':>14} {'predicted ms':>22}  findings (ms)")
        for fault in args.only.split(","):
            print(line(fault, *truth(fault, args), report(fault, out, args.steps)), flush=True)
    return 0


def line(fault: str, step_ms: float, saved_ms: float, error_ms: float, found: list[dict]) -> str:
    named = [f for f in found if f["id"] in EXPECTED[fault]]
    predicted = "-"
    if named:
        f = max(named, key=lambda f: f["saving_ms_per_step"])
        predicted = f"{f['saving_ms_per_step']:.1f} [{f['saving_low_ms']:.1f}, {f['saving_high_ms']:.1f}]"
    said = ", ".join(f"{f['id']} {f['ranks'] or ''} {f['saving_ms_per_step']:.1f}" for f in found)
    return f"{fault:24} {step_ms:8.1f} {saved_ms:7.1f} +- {error_ms:3.1f} {predicted:>22}  {said}"


def truth(fault: str, args: argparse.Namespace) -> tuple[float, float, float]:
    """Return the faulty step, what repairing it saves, and that saving's standard error, in ms."""
    pairs = [[plain(fault, args.steps, *words) for words in ((), ("--repaired",))] for _ in range(args.runs)]
    differences = [a - b for a, b in pairs]
    error = statistics.stdev(differences) / args.runs**0.5 if args.runs > 1 else float("nan")
    return statistics.fmean(a for a, _ in pairs), statistics.fmean(differences), error


def plain(fault: str, steps: int, *words: str) -> float:
    """Return the mean step of a run without recording, its outermost tenths left out by blocks of three steps."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times.json")
        run(job(fault, steps, *words, "--times", str(times)))
        found = json.loads(times.read_text())[WARMUP:]
    blocks = sorted(statistics.fmean(found[i : i + 3]) for i in range(0, len(found) - 2, 3))  # whole periods of faults
    cut = len(blocks) // 10
    return statistics.fmean(blocks[cut : len(blocks) - cut])


def report(fault: str, out: Path, steps: int) -> list[dict]:
    """Return the findings of a recording of the faulty job that save anything."""
    run(recorded(out / fault, job(fault, steps), "--steps", "12:24"))
    found = report_of(out / fault) or {"findings": []}
    return [f for f in found["findings"] if f["saving_ms_per_step"] > 0]


def job(fault: str, steps: int, *words: str) -> list[str]:
    return python(__file__, "--fault", fault, "--steps", steps, *words, ranks=2)


# The job


class SlowText(Text):
    """The same samples, each after a pause."""

    def __init__(self, windows: int, pause_s: float) -> None:
        super().__init__(windows)
        self._pause_s = pause_s

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self._pause_s)
        return super().__getitem__(i)


class Planted:
    """What a fault changes in the loop; nothing where it is repaired, or not this one."""

    def __init__(self, fault: str, *, repaired: bool, rank: int) -> None:
        self.name = "none" if repaired else fault
        self.kind, self.rank = fault, rank

    def loader(self, steps: int) -> DataLoader:
        """Batches for so many steps; slow ones take 5 ms per sample."""
        slow = (
            self.kind == "no_workers"
            or self.name == "slow_loader"
            or (self.name == "slow_loader_one" and self.rank == 0)
        )
        batch = self.batch_size() * (MICRO_BATCHES if self.kind == "sync_every_micro_batch" else 1)
        workers = 4 if self.kind == "no_workers" and self.name == "none" else 0
        return DataLoader(SlowText(steps * batch, 0.005 if slow else 0.0), batch_size=batch, num_workers=workers)

    def batch_size(self) -> int:
        """Uneven work: 4 and 12 samples; repaired 8 and 8."""
        return BATCH if self.name != "uneven_batches" else BATCH // 2 if self.rank else BATCH + BATCH // 2

    def model(self) -> nn.Module:
        """The model, wrapped where DDP exchanges its gradients."""
        if self.name in ("no_overlap", "one_by_one"):
            return GPT()
        model = DistributedDataParallel(GPT(), bucket_cap_mb=0.01 if self.name == "tiny_buckets" else 1)
        if self.kind == "full_bytes" and self.name == "none":
            model.register_comm_hook(None, bf16_compress_hook)
        return model

    def before_forward(self, step: int, model: nn.Module, ids: torch.Tensor) -> None:
        """Hold up all ranks or the late one."""
        late = self.rank == 1
        if (self.name == "late_host" and late) or self.name == "stall":
            time.sleep(0.05)
        if self.name == "late_now_and_then" and late and step % 3 == 0:
            time.sleep(0.15)
        if self.name == "late_compute" and late:
            with torch.no_grad():
                for _ in range(3):
                    getattr(model, "module", model)(ids)

    def after_backward(self, model: nn.Module) -> None:
        """Average gradients by hand where DDP does not."""
        if self.name not in ("no_overlap", "one_by_one"):
            return
        gradients = [p.grad for p in model.parameters()]
        if self.name == "one_by_one":
            for gradient in gradients:
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
            return
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def micro_batches(self, model: nn.Module, ids: torch.Tensor, following: torch.Tensor):
        """Each micro-batch with the context of its backward pass."""
        if self.kind != "sync_every_micro_batch":
            yield contextlib.nullcontext(), ids, following
            return
        pairs = list(zip(ids.chunk(MICRO_BATCHES), following.chunk(MICRO_BATCHES), strict=True))
        for i, pair in enumerate(pairs):
            quiet = self.name == "none" and i < len(pairs) - 1
            yield (model.no_sync() if quiet else contextlib.nullcontext()), *pair


def train_pipeline(args: argparse.Namespace, width: int = 512) -> None:
    rank, rows = dist.get_rank(), _ROWS[args.fault]
    stage = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    schedule = ScheduleGPipe(
        PipelineStage(stage, rank, dist.get_world_size(), torch.device("cpu")),
        8 if args.repaired else 2,
        loss_fn=nn.functional.mse_loss,
    )
    optimizer = torch.optim.AdamW(stage.parameters(), lr=3e-4)
    given = [torch.randn(rows, width)] if rank == 0 else []
    target = {} if rank == 0 else {"target": torch.randn(rows, width)}
    marks = [time.perf_counter()]
    for _ in range(args.steps):
        schedule.step(*given, **target)
        optimizer.step()
        optimizer.zero_grad()
        marks.append(time.perf_counter())
    finish(args, marks)


def finish(args: argparse.Namespace, marks: list[float]) -> None:
    if args.times and dist.get_rank() == 0:
        Path(args.times).write_text(json.dumps([1000 * (b - a) for a, b in pairwise(marks)]))
    dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    if args.fault in _ROWS:
        train_pipeline(args)
        return
    planted = Planted(args.fault, repaired=args.repaired, rank=dist.get_rank())
    model = planted.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    marks = [time.perf_counter()]
    for step, (ids, following) in enumerate(planted.loader(args.steps)):
        planted.before_forward(step, model, ids)
        optimizer.zero_grad()
        for context, some_ids, some_following in planted.micro_batches(model, ids, following):
            with context:
                nn.functional.cross_entropy(model(some_ids).flatten(0, 1), some_following.flatten()).backward()
        planted.after_backward(model)
        optimizer.step()
        marks.append(time.perf_counter())
    finish(args, marks)


if __name__ == "__main__":
    sys.exit(main())
