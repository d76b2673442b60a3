"""In processes of their own: build each variant, compare its results, measure it, and say so line by line.

    settings    {"spec", "reference", "items": [{"variant": {...}, "run": 0}], "accumulation", "warmup_steps",
                 "steps", "item_limit_s", "memory_limit_bytes"}
    records     begin, then one of: samples, out_of_memory, failed; all with `variant` and `run`

An item that takes longer than its limit ends the process: who started it goes on without that variant. Of several ranks
one that cannot go on ends as well, for the others wait for it.
"""

import dataclasses
import gc
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from stepscope.bench.session.measure import measure
from stepscope.bench.session.rank import Bench
from stepscope.bench.sweeps import host_memory
from stepscope.bench.sweeps.compiler_caches import CompilerCaches
from stepscope.bench.sweeps.rank_samples import job_samples
from stepscope.bench.sweeps.rank_step import RankStep
from stepscope.bench.sweeps.sketch import gradient_sketch
from stepscope.bench.sweeps.train_step import TrainStep
from stepscope.bench.workloads.build import workload
from stepscope.bench.workloads.workload import Workload, WorkloadSpec

_CHECKED_STEPS = 3
_HUNG = 3
_REFUSALS = (RuntimeError, ValueError, TypeError, ImportError, AssertionError)
_NO_MEMORY = (
    "out of memory",
    "alloc_failed",
    "can't allocate memory",  # torch's CPU allocator, where it asks the C library
    "not enough memory",  # the same, where it asks mimalloc, as on aarch64
    "bad_alloc",
    "cannot allocate memory",
)


def job(bench: Bench, settings: dict[str, Any]) -> None:
    """Measure all items; a variant that failed once is not tried again."""
    refused: set[str] = set()
    settings = as_on_rank_0(bench, settings)
    if settings["items"] and (bench.world_size == 1 or bench.device.type == "cpu"):
        _first_use(settings["spec"], bench.device)  # of the whole model, which may not fit where its shards do
    _limit_memory(bench.device, settings.get("memory_limit_bytes"))
    with closing(CompilerCaches(bench.out / "compiled")) as caches:
        for item in settings["items"]:
            name = item["variant"]["name"]
            if name in refused:
                continue
            caches.use(item["variant"])
            what = _run_item(bench, settings, item)
            if what != "samples":
                refused.add(name)
            if what == "failed" and bench.device.type == "cuda":
                return  # a failed kernel or capture may leave the device's context unusable: a new process goes on
            free(bench.device)


def _run_item(bench: Bench, settings: dict[str, Any], item: dict[str, Any]) -> str:
    who = {"variant": item["variant"]["name"], "run": item["run"]}
    bench.emit(what="begin", **who)
    with at_most(settings["item_limit_s"], bench, **who):
        outcome = _outcome(bench, settings, item)
        if bench.world_size > 1:
            outcome = _of_all_ranks(bench, outcome, who)
    bench.emit(**who, **outcome)
    return str(outcome["what"])


def as_on_rank_0(bench: Bench, value: Any) -> Any:
    """Return what rank 0 was given: ranks on other machines have only their own command line."""
    given = [value]
    if bench.world_size > 1:
        dist.broadcast_object_list(given, src=0)
    return given[0]


def _of_all_ranks(bench: Bench, outcome: dict[str, Any], who: dict[str, Any]) -> dict[str, Any]:
    if outcome["what"] != "samples":
        bench.give_up(**who, **outcome)
    ranks: list[Any] = [None] * bench.world_size
    dist.all_gather_object(ranks, outcome)
    return job_samples(ranks)


def _limit_memory(device: torch.device, limit_bytes: int | None) -> None:
    if limit_bytes and device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(limit_bytes / whole, 1.0), device)


def step_on(bench: Bench, work: Workload, settings: Mapping[str, Any]) -> TrainStep | RankStep:
    """Return the step of a workload that this rank takes, alone or with the others."""
    if bench.world_size == 1:
        return TrainStep(work, settings)
    return RankStep(work, settings, rank=bench.rank, world_size=bench.world_size)


@contextmanager
def at_most(limit_s: float, bench: Bench, **who: Any) -> Iterator[None]:
    """End the process, with a record of why, if the block takes longer."""

    def end() -> None:
        bench.emit(what="failed", reason=f"not finished after {limit_s:.0f} s", **who)
        os._exit(_HUNG)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def refusal(error: BaseException) -> dict[str, Any]:
    """Return the record of a variant that could not go on."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = str(error).lower()
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in text for words in _NO_MEMORY)
    return {"what": "out_of_memory" if memory else "failed", "reason": f"{type(error).__name__}: {lines[0][:300]}"}


def free(device: torch.device) -> None:
    """Give back what the last variant held."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def spec_of(given: Mapping[str, Any], variant: Mapping[str, Any]) -> WorkloadSpec:
    """Return the workload of a variant: the sweep's with the variant's changes."""
    options = {**given.get("options", {}), **variant.get("options", {})}
    return WorkloadSpec(**{**given, **variant.get("spec", {}), "options": options})


def _first_use(spec: Mapping[str, Any], device: torch.device) -> None:
    with (
        suppress(*_REFUSALS, MemoryError),
        closing(TrainStep(workload(spec_of({**spec, "batch_size": 1}, {}), device), {})) as step,
    ):
        step()
    free(device)


def _outcome(bench: Bench, settings: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    try:
        return _measure_item(bench, settings, item)
    except (*_REFUSALS, MemoryError) as error:
        return refusal(error)  # the frames that hold tensors are left before anything is freed


def _measure_item(bench: Bench, settings: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    device = bench.device
    spec = spec_of(settings["spec"], item["variant"])
    step_settings = {"accumulation": settings["accumulation"], **item["variant"].get("step", {})}
    micro = step_settings["accumulation"]
    halves = _halves(bench, spec, 2 * micro) if settings["reference"] == "halves" and item["run"] == 0 else None
    base_bytes = host_memory.reset_peak() if device.type == "cpu" else None
    work = workload(spec, device)
    # To count them takes a step of the whole model, which may not fit where its shards do.
    flops = work.flops_per_step() if bench.world_size == 1 else work.model_flops
    with closing(step_on(bench, work, step_settings)) as step:
        check = check_first_steps(step)
        samples = measure(
            step, warmup_steps=settings["warmup_steps"], steps=settings["steps"], device=device, fed=step.fed
        )
    peak_bytes = host_memory.peak_bytes() if device.type == "cpu" else None
    return {
        "what": "samples",
        **samples.as_dict(),
        "check": check,
        "reference": halves,
        "flops_per_step": None if flops is None else flops * micro,
        "precision": spec.precision,
        "peak_host_bytes": None if None in (base_bytes, peak_bytes) else peak_bytes - base_bytes,  # type: ignore[operator]
    }


def check_first_steps(step: TrainStep | RankStep) -> dict[str, Any]:
    """Return losses of the first steps, a sketch of the first one's gradient, and how long that first step took."""
    begin_s = perf_counter()
    losses = [float(step())]
    first_step_ms = 1000 * (perf_counter() - begin_s)
    sketch = gradient_sketch(step.parameters, device=step.device)
    losses += [float(step()) for _ in range(_CHECKED_STEPS - 1)]
    return {"losses": losses, "sketch": sketch, "first_step_ms": first_step_ms}


def _halves(bench: Bench, spec: WorkloadSpec, parts: int) -> dict[str, Any] | None:
    if spec.batch_size % 2:
        return None
    half = dataclasses.replace(spec, batch_size=spec.batch_size // 2)
    with closing(step_on(bench, workload(half, bench.device), {"accumulation": parts})) as step:
        found = check_first_steps(step)
    del step  # the whole batch may need all of the memory
    free(bench.device)
    return found
