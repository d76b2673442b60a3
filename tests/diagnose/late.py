"""A data-parallel job in which one rank's host is late by a known time in every step, on the builder of `build.py`.

    late rank   |--- late ---|forward|backward|all-reduce|optimizer|      microseconds: late + 1450 per step,
    others      |forward|backward|~~~~ wait ~~~|all-reduce|optimizer|      of which 300 transfer, 1100 compute

Every host waits for its device at the end of the step.
"""

from pathlib import Path
from typing import Any

from tests.analyze.build import AUTOGRAD, RankTrace, built_run

from stepscope.run.load import Run

TRANSFER_US = 300.0
OWN_US = 1450.0
"""the step without a late rank"""


def late_run(
    folder: Path, *, late_us: float = 2000.0, ranks: int = 4, late_rank: int = 1, steps: int = 6, loading: bool = False,
    description: dict[str, Any] | None = None,
) -> Run:  # fmt: skip
    """Return the run, written into `folder`; with `loading` the late rank spends its time in a data loader."""
    folder.mkdir(exist_ok=True)
    built = []
    for rank in range(ranks):
        r = RankTrace(rank, world_size=ranks, clock_offset_us=rank * 137)
        for n in range(steps):
            late_step(r, n, late_us, late=rank == late_rank, loading=loading)
        built.append(r)
    return built_run(folder, built, description=description)


def late_step(r: RankTrace, n: int, late_us: float, *, late: bool, loading: bool = False) -> None:
    """Add step n of a rank."""
    at = n * (late_us + OWN_US)
    s = at + (late_us if late else 0.0)
    done = at + late_us + 1030 + TRANSFER_US
    r.step(n, at, at + late_us + OWN_US)
    if late and late_us:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__" if loading else "aten::slow"
        r.ran(name, at + 5, s)
    with r.op("aten::mm", s + 10, s + 100):
        r.kernel("gemm", at=s + 20, start=s + 30, end=s + 530)
    r.backward("MmBackward0", s + 110, s + 200)
    r.kernel("gemm", at=s + 120, start=s + 530, end=s + 1030, thread=AUTOGRAD)
    r.call("cudaStreamWaitEvent", s + 204, s + 206, thread=AUTOGRAD)
    r.collective("allreduce", at=s + 210, start=s + 1030, end=done, elements=1_000_000)
    r.call("cudaStreamWaitEvent", s + 222, s + 224)
    r.annotation("Optimizer.step#AdamW.step", s + 230, s + 300)
    with r.op("aten::_fused_adamw_", s + 235, s + 290):
        r.kernel("fused_adam", at=s + 240, start=done, end=done + 100)
    r.call("cudaStreamSynchronize", s + 300, done + 105)
