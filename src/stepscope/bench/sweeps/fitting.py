"""In the process of its own: which batch sizes fit into memory? Two whole steps each, out of memory caught and freed.

    settings    {"spec", "start", "most", "known": {"32": true}, "memory_limit_bytes", "item_limit_s"}
    records     begin and probe, with `batch_size`, `fits`, `reason`

A size that ends the process did not fit: who started it says so in `known` and starts again. On several ranks each has
a batch of that size, and a rank that runs out of memory ends: the others wait for it.
"""

import dataclasses
from contextlib import closing
from typing import Any

import torch

from stepscope.bench.session.rank import Bench
from stepscope.bench.sweeps.child import as_on_rank_0, at_most, free, refusal, spec_of, step_on
from stepscope.bench.sweeps.choices.batch_size import next_probe
from stepscope.bench.sweeps.host_memory import limit_growth
from stepscope.bench.workloads.build import workload
from stepscope.bench.workloads.workload import WorkloadSpec

# the optimizer's state is there from the second on
_STEPS = 2


def job(bench: Bench, settings: dict[str, Any]) -> None:
    """Try sizes until the largest that fits is known."""
    settings = as_on_rank_0(bench, settings)
    spec = spec_of(settings["spec"], {})
    known = {int(size): fits for size, fits in settings["known"].items()}
    if settings.get("memory_limit_bytes"):
        _two_steps(bench, dataclasses.replace(spec, batch_size=1))  # threads and buffers that all sizes need
        limit_growth(settings["memory_limit_bytes"])
    while (size := next_probe(known, start=settings["start"], limit=settings["most"])) is not None:
        bench.emit(what="begin", batch_size=size)
        with at_most(settings["item_limit_s"], bench, batch_size=size):
            outcome = _try(bench, dataclasses.replace(spec, batch_size=size))
        free(bench.device)
        known[size] = outcome["fits"]
        bench.emit(what="probe", batch_size=size, **outcome)


def _try(bench: Bench, spec: WorkloadSpec) -> dict[str, Any]:
    try:
        _two_steps(bench, spec)
    except (RuntimeError, MemoryError) as error:
        found = refusal(error)
        if found["what"] != "out_of_memory":
            raise
        if bench.world_size > 1:
            bench.give_up(**found, batch_size=spec.batch_size)
        return {"fits": False, "reason": found["reason"]}
    return {"fits": True, "reason": None, "peak_gb": _peak_gb(bench.device)}


def _two_steps(bench: Bench, spec: WorkloadSpec) -> None:
    with closing(step_on(bench, workload(spec, bench.device), {})) as step:
        for _ in range(_STEPS):
            float(step())


def _peak_gb(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None
