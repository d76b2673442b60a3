"""In the process of its own: build each variant, compare its results, measure it, and say so line by line.

    settings    {"spec", "reference", "items": [{"variant": {...}, "run": 0}], "accumulation", "warmup_steps",
                 "steps", "item_limit_s"}
    records     begin, then one of: samples, out_of_memory, failed; all with `variant` and `run`

An item that takes longer than its limit ends the process: who started it goes on without that variant.
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

from stepscope.bench.session.measure import measure
from stepscope.bench.session.rank import Bench
from stepscope.bench.sweeps import host_memory
from stepscope.bench.sweeps.compiler_caches import CompilerCaches
from stepscope.bench.sweeps.sketch import gradient_sketch
from stepscope.bench.sweeps.train_step import TrainStep
from stepscope.bench.workloads.build import workload
from stepscope.bench.workloads.workload import WorkloadSpec

CHECKED_STEPS = 3
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
    _first_use(settings["spec"], bench.device)
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
    """Return what came of an item, after saying so."""
    who = {"variant": item["variant"]["name"], "run": item["run"]}
    bench.emit(what="begin", **who)
    with at_most(settings["item_limit_s"], bench, **who):
        outcome = _outcome(bench.device, settings, item)
    bench.emit(**who, **outcome)
    return str(outcome["what"])


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
    """Take a step, so that no variant's first one is charged for libraries loaded on first use; variants say errors."""
    with (
        suppress(*_REFUSALS, MemoryError),
        closing(TrainStep(workload(spec_of({**spec, "batch_size": 1}, {}), device), {})) as step,
    ):
        step()
    free(device)


def _outcome(device: torch.device, settings: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    try:
        return _measure_item(device, settings, item)
    except (*_REFUSALS, MemoryError) as error:
        return refusal(error)  # the frames that hold tensors are left before anything is freed


def _measure_item(device: torch.device, settings: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    spec = spec_of(settings["spec"], item["variant"])
    step_settings = {"accumulation": settings["accumulation"], **item["variant"].get("step", {})}
    micro = step_settings["accumulation"]
    halves = _halves(spec, device, 2 * micro) if settings["reference"] == "halves" and item["run"] == 0 else None
    base_bytes = host_memory.reset_peak() if device.type == "cpu" else None
    work = workload(spec, device)
    flops = work.flops_per_step()
    with closing(TrainStep(work, step_settings)) as step:
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
        "flops_per_step": flops * micro,
        "precision": spec.precision,
        "peak_host_bytes": None if None in (base_bytes, peak_bytes) else peak_bytes - base_bytes,  # type: ignore[operator]
    }


def check_first_steps(step: TrainStep) -> dict[str, Any]:
    """Return losses of the first steps, a sketch of the first one's gradient, and how long that first step took."""
    begin_s = perf_counter()
    losses = [float(step())]
    first_step_ms = 1000 * (perf_counter() - begin_s)
    sketch = gradient_sketch(step.parameters, device=step.device)
    losses += [float(step()) for _ in range(CHECKED_STEPS - 1)]
    return {"losses": losses, "sketch": sketch, "first_step_ms": first_step_ms}


def _halves(spec: WorkloadSpec, device: torch.device, parts: int) -> dict[str, Any] | None:
    """Return the same steps with each batch taken in two halves, None where it cannot be halved."""
    if spec.batch_size % 2:
        return None
    half = dataclasses.replace(spec, batch_size=spec.batch_size // 2)
    with closing(TrainStep(workload(half, device), {"accumulation": parts})) as step:
        found = check_first_steps(step)
    del step  # the whole batch may need all of the memory
    free(device)
    return found
