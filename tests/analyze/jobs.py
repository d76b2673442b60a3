"""Training steps of jobs with a known strategy, on the builder of `build.py`.

One step is laid out on the host as

    0..1000 forward    1000..3000 backward    3000..3500 after it    3500..4000 optimizer

and lasts 4000 microseconds; the device runs everything 200 microseconds after the host asked for it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.analyze.build import AUTOGRAD, MAIN, RankTrace, built_run

from stepscope.run.load import Run

STEP = 4000.0
LAG = 200.0

Job = Callable[[RankTrace, float], None]


def job_run(tmp_path: Path, job: Job, *, ranks: int = 4, steps: int = 2, **given: object) -> Run:
    """Return a run of `ranks` ranks that do `job(rank, start of the step)` in every step."""
    tmp_path.mkdir(exist_ok=True)
    built = []
    for rank in range(ranks):
        r = RankTrace(rank, world_size=ranks, clock_offset_us=rank * 333, **given)  # type: ignore[arg-type]
        for n in range(steps):
            training_step(r, n)
            job(r, n * STEP)
        built.append(r)
    return built_run(tmp_path, built)


def training_step(r: RankTrace, n: int) -> None:
    """Add a step without communication: four kernels of 200 forward, of 400 backward, one of the optimizer."""
    at = n * STEP
    r.step(n, at, at + STEP)
    for k in range(4):
        with r.op("aten::mm", at + 10 + 250 * k, at + 200 + 250 * k):
            r.kernel("gemm", at=at + 20 + 250 * k, start=at + LAG + 20 + 250 * k, end=at + LAG + 220 + 250 * k)
    for k in range(4):
        start = at + 1000 + 500 * k
        r.backward("MmBackward0", start, start + 490)
        r.kernel("gemm", at=start + 10, start=start + LAG + 10, end=start + LAG + 410, thread=AUTOGRAD)
    r.annotation("Optimizer.step#AdamW.step", at + 3500, at + 3990)
    with r.op("aten::_foreach_add_", at + 3510, at + 3900):
        r.kernel("adam", at=at + 3520, start=at + 3520 + LAG, end=at + 3700 + LAG)


def collective(
    r: RankTrace, op: str, at: float, *, took: float = 100, elements: int = 1_000_000, out_elements: int | None = None,
    group: str = "0", thread: int = MAIN, **args: Any,
) -> None:  # fmt: skip
    """Add a collective that the device runs `LAG` after the host asked for it."""
    r.collective(
        op, at=at, start=at + LAG, end=at + LAG + took, elements=elements, out_elements=out_elements, group=group,
        thread=thread, **args,
    )  # fmt: skip


def ddp(r: RankTrace, at: float) -> None:
    """Three buckets in backward and a loss average in forward."""
    for k, elements in enumerate((250_000, 1_000_000, 1_000_000)):
        collective(r, "allreduce", at + 1700 + 400 * k, elements=elements, thread=AUTOGRAD)
    collective(r, "allreduce", at + 990, elements=1)


def fsdp(r: RankTrace, at: float, *, again: bool = True, group: str = "0") -> None:
    """Two units: gathered in forward (and again in backward), scattered in backward and just after it."""
    ranks = len(list(r.groups[group]))
    for k in range(2):
        whole = 1_000_000 * ranks
        gather = {"elements": 1_000_000, "out_elements": whole, "group": group}
        collective(r, "_allgather_base", at + 15 + 500 * k, **gather)  # type: ignore[arg-type]
        if again:
            collective(r, "_allgather_base", at + 1100 + 500 * k, thread=AUTOGRAD, **gather)  # type: ignore[arg-type]
        scatter = {"elements": whole, "out_elements": 1_000_000, "group": group}
        collective(r, "_reduce_scatter_base", at + 1900 + 1200 * k, thread=AUTOGRAD, **scatter)  # type: ignore[arg-type]


def tp(r: RankTrace, at: float, *, group: str = "0") -> None:
    """Activations all-reduced after each of four layers, their gradients in backward."""
    for k in range(4):
        collective(r, "allreduce", at + 205 + 250 * k, group=group)
        collective(r, "allreduce", at + 1400 + 500 * k, group=group, thread=AUTOGRAD)
