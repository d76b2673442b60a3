"""In the processes of a sweep: build each variant, compare its results, measure it, and report it line by line.

    settings    {"spec", "reference", "items": [{"variant": {...}, "run": 0}], "accumulation", "warmup_steps",
                 "steps", "item_limit_s", "memory_limit_bytes"}
    records     begin, then one of: samples, out_of_memory, failed; all with `variant` and `run`

    settings    {"spec", "start", "most", "known": {"32": true}, "memory_limit_bytes", "item_limit_s"}
    records     begin and probe, with `batch_size`, `fits`, `reason`

A gradient is compared by its sketch: every element gets a random sign and is added to one of 256 sums. The squared
distance of two sketches is that of the gradients on average, off by about 9 % (count sketch, Charikar et al. 2002).

An item that takes longer than its limit ends the process: `sessions` continues without that variant. Of several
ranks one that cannot continue ends as well, for the others wait for it.
"""

import ctypes
import dataclasses
import os
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from stepscope.errors import UsageError
from stepscope.lab.bench.config import WorkloadSpec
from stepscope.lab.bench.implementations import Options, parallel, trainable
from stepscope.lab.bench.measure import BatchCount, job_samples, measure
from stepscope.lab.bench.rank import Bench, from_first, gathered
from stepscope.lab.bench.sessions import proc_bytes
from stepscope.lab.bench.sweeps import next_probe
from stepscope.lab.bench.training import Training, free_memory
from stepscope.lab.bench.workloads import GivenBatches, Synthetic, Workload, workload

# of fp16 losses: the usual 2^16 overflows in the first step, which is then skipped and has no result to compare
_FIRST_SCALE = 2.0**12
_EAGER_STEPS = 3  # before capture, on a side stream, as capture needs; real steps, so that training continues
_SUMS = 256
_CHECKED_STEPS = 3
_LONGEST_LOAD_S = 0.5  # a slow data set, not memory, would decide, after hours
_FITTING_STEPS = 2  # the optimizer's state is there from the second on
_HUNG = 3
_STATUS = "/proc/self/status"
_REFUSALS = (RuntimeError, ValueError, TypeError, ImportError, AssertionError, MemoryError)
_NO_MEMORY = (
    "out of memory",
    "alloc_failed",
    "can't allocate memory",  # torch's CPU allocator with the C library
    "not enough memory",  # with mimalloc, as on aarch64
    "bad_alloc",
    "cannot allocate memory",
)


def measure_items(bench: Bench, settings: dict[str, Any]) -> None:
    """Measure all items; a variant that failed once is not tried again."""
    refused: set[str] = set()
    settings = from_first(settings)
    if settings["items"] and (bench.world_size == 1 or bench.device.type == "cpu"):
        _first_use(settings["spec"], bench.device)  # of the whole model, which may not fit where its shards do
    if settings.get("memory_limit_bytes") and bench.device.type == "cuda":
        whole = torch.cuda.get_device_properties(bench.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(settings["memory_limit_bytes"] / whole, 1.0), bench.device)
    with closing(CompilerCaches(bench.out / "compiled")) as caches:
        for item in settings["items"]:
            who = {"variant": item["variant"]["name"], "run": item["run"]}
            if who["variant"] in refused:
                continue
            caches.use(item["variant"])
            bench.emit(what="begin", **who)
            with _at_most(settings["item_limit_s"], bench, **who):
                outcome = _outcome(bench, settings, item)
                if bench.world_size > 1:
                    outcome = _of_all_ranks(bench, outcome, who)
            bench.emit(**who, **outcome)
            if outcome["what"] != "samples":
                refused.add(who["variant"])
            if outcome["what"] == "failed" and bench.device.type == "cuda":
                return  # a failed kernel or capture may leave the device's context unusable: a new process continues
            free_memory(bench.device)


def find_fitting(bench: Bench, settings: dict[str, Any]) -> None:
    """Try batch sizes until the largest that fits into memory is known: two whole steps each."""
    settings = from_first(settings)
    spec = _spec_of(settings["spec"], {})
    known = {int(size): fits for size, fits in settings["known"].items()}
    if limit := settings.get("memory_limit_bytes"):
        _try_size(bench, dataclasses.replace(spec, batch_size=1))  # threads and buffers that all sizes need
        # What an allocator has mapped ahead is not counted again when it is used: see `NOTHING_IN_RESERVE`.
        most = (proc_bytes(_STATUS, "VmData") or 0) + limit
        with suppress(ValueError):  # the system's own limit is lower
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    while (size := next_probe(known, start=settings["start"], limit=settings["most"])) is not None:
        bench.emit(what="begin", batch_size=size)
        with _at_most(settings["item_limit_s"], bench, batch_size=size):
            reason, step_ms = _try_size(bench, dataclasses.replace(spec, batch_size=size))
        peak_gb = torch.cuda.max_memory_allocated() / 1e9 if bench.device.type == "cuda" and not reason else None
        free_memory(bench.device)
        known[size] = reason is None
        bench.emit(what="probe", batch_size=size, fits=known[size], reason=reason, peak_gb=peak_gb, step_ms=step_ms)


def _try_size(bench: Bench, spec: WorkloadSpec) -> tuple[str | None, float]:
    """Return why a size does not fit, and how long its last step took in ms."""
    begin_s = perf_counter()
    try:
        work = workload(spec, bench.device)
        own = isinstance(work.samples, Sized) and not isinstance(work.samples, Synthetic)
        if own and spec.batch_size * bench.world_size > len(work.samples):  # the same samples again and again
            return f"the data set holds {len(work.samples)} samples", 0.0
        if own and (load_s := from_first(_loading_s(work))) > _LONGEST_LOAD_S:
            return f"loading a batch takes {load_s:.1f} s: this and larger ones are not measured", 0.0
        with closing(_step_on(bench, work, {})) as training:
            for _ in range(_FITTING_STEPS):
                begin_s = perf_counter()
                float(training.step())
                _refuse_other_sizes(training.fed, work, 1)
    except (RuntimeError, MemoryError) as error:
        found = refusal(error)
        if found["what"] != "out_of_memory":
            raise
        if bench.world_size > 1:
            bench.give_up(**found, batch_size=spec.batch_size)
        return str(found["reason"]), 0.0
    return None, 1000 * (perf_counter() - begin_s)


def _loading_s(work: Workload) -> float:
    begin_s = perf_counter()
    with closing(work.batches()) as batches:
        next(batches)
    return perf_counter() - begin_s


def _refuse_other_sizes(fed: BatchCount, work: Workload, micro_batches: int) -> None:
    """Refuse ready-made batches that ignore the batch size which the sweep varies."""
    samples = fed.steps[0][0]
    if isinstance(work, GivenBatches) and samples not in (None, work.spec.batch_size * micro_batches):
        raise UsageError(
            f"the batches of {work.spec.name!r} hold {samples / micro_batches:g} samples where this sweep needs "
            f"{work.spec.batch_size}; return a Dataset or a function of the batch size, spec.batch_size"
        )


def _of_all_ranks(bench: Bench, outcome: dict[str, Any], who: dict[str, Any]) -> dict[str, Any]:
    if outcome["what"] != "samples":
        bench.give_up(**who, **outcome)
    return job_samples(gathered(outcome))


def _step_on(bench: Bench, work: Workload, settings: Mapping[str, Any]) -> "TrainStep | Training":
    if bench.world_size == 1:
        return TrainStep(work, settings)
    chosen = StepSettings(**settings)
    options = Options(
        lr=chosen.learning_rate, micro_batch_size=work.spec.batch_size, grad_accum=chosen.accumulation,
        precision=work.spec.precision,
    )  # fmt: skip
    return Training(
        work, parallel(chosen.strategy, work.model, options), rank=bench.rank, world_size=bench.world_size,
        grad_accum=chosen.accumulation, lr=lambda _: chosen.learning_rate, exchange_each=chosen.exchange_each,
        init_scale=_FIRST_SCALE,
    )  # fmt: skip


@contextmanager
def _at_most(limit_s: float, bench: Bench, **who: Any) -> Iterator[None]:

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
    """Return the record of a variant that could not continue."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = str(error).lower()
    memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in text for words in _NO_MEMORY)
    return {"what": "out_of_memory" if memory else "failed", "reason": f"{type(error).__name__}: {lines[0][:300]}"}


def _spec_of(given: Mapping[str, Any], variant: Mapping[str, Any]) -> WorkloadSpec:
    options = {**given.get("options", {}), **variant.get("options", {})}
    return WorkloadSpec(**{**given, **variant.get("spec", {}), "options": options})


def _first_use(spec: Mapping[str, Any], device: torch.device) -> None:
    with (
        suppress(*_REFUSALS),  # the variants report them
        closing(TrainStep(workload(_spec_of({**spec, "batch_size": 1}, {}), device), {})) as training,
    ):
        training.step()
    free_memory(device)


def _outcome(bench: Bench, settings: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    try:
        return _measure_item(bench, settings, item)
    except _REFUSALS as error:
        return refusal(error)  # the frames that hold tensors are left before anything is freed


def _measure_item(bench: Bench, settings: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    device, cpu = bench.device, bench.device.type == "cpu"
    spec = _spec_of(settings["spec"], item["variant"])
    step_settings = {"accumulation": settings["accumulation"], **item["variant"].get("step", {})}
    micro = step_settings["accumulation"]
    halves = None
    if settings["reference"] == "halves" and item["run"] == 0 and spec.batch_size % 2 == 0:
        halves = _halves(bench, spec, 2 * micro)
    base_bytes = _reset_peak() if cpu else None
    work = workload(spec, device)
    # To count them takes a step of the whole model, which may not fit where its shards do.
    flops = work.flops_per_step() if bench.world_size == 1 else work.model_flops
    with closing(_step_on(bench, work, step_settings)) as training:
        check = check_first_steps(training, work)
        if "batch_size" in item["variant"].get("spec", {}):
            _refuse_other_sizes(training.fed, work, micro)
        most = item["variant"].get("most_steps") or settings["steps"]
        samples = measure(
            training.step, warmup_steps=min(settings["warmup_steps"], most), steps=min(settings["steps"], most),
            device=device, fed=training.fed,
        )  # fmt: skip
    peak_bytes = proc_bytes(_STATUS, "VmHWM") if cpu else None
    return {
        "what": "samples",
        **samples,
        "check": check,
        "reference": halves,
        "flops_per_step": None if flops is None else flops * micro,
        "precision": spec.precision,
        "peak_host_bytes": None if base_bytes is None or peak_bytes is None else peak_bytes - base_bytes,
    }


def check_first_steps(training: "TrainStep | Training", work: Workload) -> dict[str, Any]:
    """Return losses of the first steps, a sketch of the first one's gradient, and how long that first step took."""
    sketch: list[float] = []
    sketch_s = [0.0]
    model = training.parallel.model if isinstance(training, Training) else work.model

    def on_gradients() -> None:
        begin_s = perf_counter()
        sketch.extend(gradient_sketch(trainable(model), device=work.device))
        sketch_s[0] = perf_counter() - begin_s

    begin_s = perf_counter()
    losses = [float(training.step(on_gradients))]
    first_step_ms = 1000 * (perf_counter() - begin_s - sketch_s[0])
    losses += [float(training.step()) for _ in range(_CHECKED_STEPS - 1)]
    return {"losses": losses, "sketch": sketch, "first_step_ms": first_step_ms}


def _halves(bench: Bench, spec: WorkloadSpec, parts: int) -> dict[str, Any]:
    work = workload(dataclasses.replace(spec, batch_size=spec.batch_size // 2), bench.device)
    with closing(_step_on(bench, work, {"accumulation": parts})) as training:
        found = check_first_steps(training, work)
    del training, work  # the whole batch may need all of the memory
    free_memory(bench.device)
    return found


class CompilerCaches:
    """Folders for torch.compile by variant, empty at first: a first step takes as long as a job's first does.

    In the usual folder, the second sweep of a model would find everything compiled, and so would the second variant.
    Further runs of a variant find what its first has compiled.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._numbers: dict[str, int] = {}

    def use(self, variant: Mapping[str, Any]) -> None:
        """Compile into the variant's folder from now on, without what is loaded of others."""
        if not variant.get("step", {}).get("compile"):
            return
        if not self._numbers:
            self.close()  # a sweep that was killed could not
        mine = self._folder / str(self._numbers.setdefault(variant["name"], len(self._numbers)))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(mine)
        os.environ["TRITON_CACHE_DIR"] = str(mine / "triton")
        if "torch._inductor" in sys.modules:  # its tables are by the code, not by the folder
            from torch._inductor import utils

            clear = getattr(utils, "clear_caches", None) or getattr(utils, "clear_inductor_caches", None)
            if clear:
                clear()

    def close(self) -> None:
        """Delete all folders."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _reset_peak() -> int | None:
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):  # another system, another C library
        return None
    return proc_bytes(_STATUS, "VmRSS")


@dataclass(frozen=True)
class StepSettings:
    """How the step is taken: `compile` is a mode of torch.compile, `offload` activations, optimizer or parameters.

    On several ranks `strategy` is their data-parallel implementation, and with `exchange_each` they exchange gradients
    in every micro-batch instead of the last of a step.
    """

    accumulation: int = 1
    compile: str | None = None
    cuda_graph: bool = False
    offload: str | None = None
    strategy: str = "pytorch_ddp"
    exchange_each: bool = False
    learning_rate: float = 1e-4


class TrainStep:
    """Data, forward, backward, optimizer; `step()` returns the mean loss."""

    def __init__(self, work: Workload, settings: Mapping[str, Any]) -> None:
        self._work, self._set = work, StepSettings(**settings)
        fp16 = work.spec.precision == "fp16"
        self._scaler = torch.amp.GradScaler(work.device.type, init_scale=_FIRST_SCALE, enabled=fp16)
        if self._set.offload == "parameters":
            from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

            # On the host; FSDP2 brings each block to the device when needed.
            for part in (*getattr(work.model, "blocks", ()), work.model):
                fully_shard(part, offload_policy=CPUOffloadPolicy())
        if self._set.compile:
            work.model.compile(mode=self._set.compile)
        self.fed = BatchCount()
        self._batches = work.batches(fed=self.fed)
        self.optimizer = self._optimizer()
        if self._set.cuda_graph and fp16:
            raise ValueError(
                "a CUDA graph needs fp32 or bf16: the scaler of fp16 synchronizes with the host in each step"
            )
        self._take = _CudaGraphStep(self._plain_step) if self._set.cuda_graph else self._plain_step

    def step(self, on_gradients: Callable[[], None] | None = None) -> torch.Tensor:
        """Return the mean loss of one step; `on_gradients` is called while its gradients are there."""
        batches = [next(self._batches) for _ in range(self._set.accumulation)]
        self.fed.end_step()
        loss = self._take(batches)
        if on_gradients:
            on_gradients()
        return loss

    def close(self) -> None:
        """End the data loader's workers now: the garbage collector would wait seconds for each."""
        self._batches.close()

    def _plain_step(self, batches: list[Any]) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self._work.device)
        offload = self._set.offload == "activations"
        for batch in batches:
            with torch.autograd.graph.save_on_cpu(pin_memory=True) if offload else nullcontext():
                loss = self._work.loss(self._work.model, batch) / self._set.accumulation
            self._scaler.scale(loss).backward()
            total += loss.detach()
        if self._scaler.is_enabled():  # here rather than inside a fused optimizer, so that gradients can be compared
            self._scaler.unscale_(self.optimizer)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        return total

    def _optimizer(self) -> Any:
        rate, parameters = self._set.learning_rate, trainable(self._work.model)
        if self._set.offload == "optimizer":
            return HostOptimizer(parameters, learning_rate=rate)
        if self._set.offload == "parameters":  # on the host, as plain tensors of one rank
            return torch.optim.AdamW(parameters, lr=rate)
        return torch.optim.AdamW(parameters, lr=rate, fused=True, capturable=self._set.cuda_graph)


class _CudaGraphStep:
    def __init__(self, step: Callable[[Any], torch.Tensor]) -> None:
        self._step, self._done = step, 0
        self._graph: Any = None
        self._stream = torch.cuda.Stream()

    def __call__(self, batch: Any) -> torch.Tensor:
        if self._done < _EAGER_STEPS:
            self._done += 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                loss = self._step(batch)
            torch.cuda.current_stream().wait_stream(self._stream)
            return loss
        if self._graph is None:
            self._batch = batch
            self._graph = torch.cuda.CUDAGraph()
            # Only this thread is watched: others, such as the process group's, may use the device meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._loss = self._step(batch)
        for mine, given in zip(tree_leaves(self._batch), tree_leaves(batch), strict=True):
            if isinstance(mine, torch.Tensor):
                mine.copy_(given, non_blocking=True)
        self._graph.replay()
        return self._loss.clone()


class HostOptimizer:
    """AdamW on the host: gradients are copied there, master weights and moments stay, new weights are copied back."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, learning_rate: float) -> None:
        self._parameters = list(parameters)
        self._masters = [nn.Parameter(_pinned(p)) for p in self._parameters]
        for master in self._masters:
            master.grad = _pinned(master)
        self._adam = torch.optim.AdamW(self._masters, lr=learning_rate, fused=True)
        self.param_groups = [{**self._adam.param_groups[0], "params": self._parameters}]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Update all parameters."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if parameter.grad is not None:
                master.grad.copy_(parameter.grad, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the host reads what the device has just sent
        self._adam.step()
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            parameter.copy_(master, non_blocking=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free the device's gradients."""
        for parameter in self._parameters:
            parameter.grad = None


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_like(tensor, device="cpu", pin_memory=torch.cuda.is_available())
    return copy.copy_(tensor.detach())


@torch.no_grad()  # type: ignore[untyped-decorator]
def gradient_sketch(parameters: Iterable[torch.Tensor], *, device: torch.device, seed: int = 0) -> list[float]:
    """Return the sketch of all gradients together; the same kind of device, seed and order give comparable ones."""
    total = torch.zeros(_SUMS, dtype=torch.float64)
    for index, parameter in enumerate(parameters):
        gradient = parameter.grad
        if gradient is None:
            continue
        if hasattr(gradient, "to_local"):  # sharded; every rank has to gather
            gradient = gradient.full_tensor() if gradient.device_mesh.size() > 1 else gradient.to_local()
        flat = gradient.to(device).reshape(-1).double()
        generator = torch.Generator(flat.device).manual_seed(seed + index)
        signs = torch.randint(2, flat.shape, generator=generator, device=flat.device) * 2 - 1
        padded = nn.functional.pad(flat * signs, (0, -len(flat) % _SUMS))
        total += padded.view(-1, _SUMS).sum(0).cpu()
    return total.tolist()
