"""The job behind `--profile`: one implementation in training, a window of it recorded on every rank.

The learning rate warms up linearly from 0 to 0.001 and stays; gradients are clipped to norm 1 during the warm-up only.
The window lies around the end of the warm-up, so that a trace shows both; all other epochs are timed without the
profiler. An epoch is one optimizer step on synthetic data.

    NAME_rank_R_trace.json    every rank's window, with regions, epochs by name, and memory
    NAME_summary.txt          rank 0: configuration, times, throughput, top operators
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import profile, record_function, schedule

from stepscope.bench.data_parallel.contender import Contender
from stepscope.bench.data_parallel.profile_summary import Epoch, summary_text, throughput
from stepscope.bench.data_parallel.training import Training
from stepscope.bench.session.rank import Bench
from stepscope.bench.session.trace import activities, export_trace, wait_for_device
from stepscope.contract.run_folder import atomic_write

_TOP_OPERATORS = 20


@dataclass
class RegionTimes:
    """Marks regions in the trace and adds up the host's time in each, epoch by epoch."""

    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    epoch: int = 0

    def mean_ms(self) -> dict[str, float]:
        """Return the mean of each region over the epochs that have it: clipping is the warm-up's alone."""
        return {name: 1000 * sum(found.values()) / len(found) for name, found in self.seconds.items()}

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        """Mark one region."""
        begin = perf_counter()
        with record_function(name):
            yield
        found = self.seconds.setdefault(name, {})
        found[self.epoch] = found.get(self.epoch, 0.0) + perf_counter() - begin


def profile_job(bench: Bench, settings: dict[str, Any]) -> None:
    """Train, record the window, and leave trace and summary in the settings' `folder`."""
    name, folder = settings["implementation"], Path(settings["folder"])
    warmup, total = int(settings["warmup_steps"]), int(settings["warmup_steps"]) + int(settings["steps"])
    first, last = _window(warmup, total, epochs=int(settings["profile_epochs"]))
    times = RegionTimes()
    contender = Contender.of(settings, {"name": name, "implementation": name})
    training = contender.training(bench, clip=True, mark=times.mark)
    operators: list[str] = []

    def on_trace_ready(profiler: Any) -> None:
        export_trace(profiler, folder / f"{name}_rank_{bench.rank}_trace.json")
        by = "self_cuda_time_total" if bench.device.type == "cuda" else "self_cpu_time_total"
        operators.append(profiler.key_averages().table(sort_by=by, row_limit=_TOP_OPERATORS))

    before = min(first, 1)
    steps = schedule(wait=first - before, warmup=before, active=last - first, repeat=1)
    # Shapes: FLOPs and bytes in the report; memory: its timeline there.
    what = {"activities": activities(bench.device), "record_shapes": True, "profile_memory": True}
    with profile(**what, schedule=steps, on_trace_ready=on_trace_ready) as profiler:
        epochs = []
        for times.epoch in range(total):
            epochs.append(_epoch(bench, training, profiler, total, recorded=first <= times.epoch < last))
    bench.emit(what="epochs", epochs=[vars(epoch) for epoch in epochs])
    samples, tokens = _of_the_job(bench, training, slice(warmup, None))
    rates = throughput(epochs, samples=samples, tokens=tokens)
    bench.emit(what="throughput", **rates._asdict())
    if bench.rank == 0:
        text = summary_text(
            settings, epochs, rates=rates, regions_ms=times.mean_ms(), operators=operators[0], bench=_vars_of(bench)
        )
        with atomic_write(folder / f"{name}_summary.txt") as f:
            f.write(text.encode())


def _of_the_job(bench: Bench, training: Training, steps: slice) -> list[float | None]:
    ranks: list[Any] = [None] * bench.world_size
    dist.all_gather_object(ranks, tuple(training.fed.per_step(steps)))
    return [None if None in counts else sum(counts) for counts in zip(*ranks, strict=True)]


def _window(warmup: int, total: int, *, epochs: int) -> tuple[int, int]:
    """Return the first recorded epoch and the one after the last: around the end of the warm-up.

    >>> window(10, 60, epochs=10), window(2, 5, epochs=10)
    ((5, 15), (0, 5))
    """
    first = max(0, warmup - epochs // 2)
    return first, min(total, first + epochs)


def _epoch(bench: Bench, training: Training, profiler: Any, total: int, *, recorded: bool) -> Epoch:
    kind, lr, number = "warm-up" if training.warming_up else "training", training.lr, training.number
    begin = perf_counter()
    with record_function(f"epoch_{number}_{kind.replace('-', '')}_lr_{lr:.6f}"):
        loss = training.step()
        wait_for_device(bench.device)
    taken = Epoch(number, kind, lr, float(loss), 1000 * (perf_counter() - begin), recorded)
    profiler.step()
    if bench.rank == 0:
        print(  # noqa: T201 - the launcher shows it
            f"epoch {number + 1:3d}/{total}  {kind:<8}  lr {lr:.6f}  loss {taken.loss:.4f}  {taken.step_ms:.1f} ms",
            flush=True,
        )
    return taken


def _vars_of(bench: Bench) -> dict[str, Any]:
    return {"world_size": bench.world_size, "device": str(bench.device), "torch": str(torch.__version__)}
