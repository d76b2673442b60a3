"""The in-process toolkit: classes and functions for a training script or a notebook, on a CPU or on CUDA.

    import stepscope

    mfu = stepscope.calculate_mfu(6 * 7e9 * 4096, 512, 3.0, num_gpus=64, peak_flops_per_gpu="H100")
    memory = stepscope.MemoryProfiler()
    memory.snapshot("after forward")
    memory.report()

Reports are printed on rank 0 and returned on every rank. Times are measured after a warm-up, with device events or
after a device synchronisation. Classes that profile a step record a few steps on every rank and analyse them like
`stepscope report`; every rank has to call them. Only measurements import torch; formulas work without it.
`docs/lab/toolkit.md` has an example of each name and the conventions of the formulas.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from stepscope.contract.lateness import late_ranks, lateness
from stepscope.contract.operations import bus_factor, ring_steps
from stepscope.errors import StepscopeError, UsageError
from stepscope.lab.predict.closed_form import Fabric, Link, fastest, ring_ns
from stepscope.lab.predict.model_shape import utilisation
from stepscope.record.config import initialized_distributed, place_by_variables
from stepscope.units import readable_bytes

_WARMUP_STEPS = 3
# compute and communication count as equal within this factor
_BALANCED = 1.2
# full recomputation repeats the forward pass, a third of the model's FLOPs
_FULL_RECOMPUTATION = 4 / 3


# Formulas


def calculate_mfu(
    model_flops_per_sample: float,
    batch_size: float,
    step_time_seconds: float,
    num_gpus: int = 1,
    peak_flops_per_gpu: float | str | None = None,
) -> float | None:
    """Return model FLOPs utilisation as a fraction.

    FLOPs per sample are those of forward and backward, two per multiply-add (6 x parameters x tokens has both in it);
    `batch_size` is that of all devices together. The peak is a number, a chip's name ("H100"), or that of this
    process's device. None, with a warning that gives the reason, where the peak is not known.
    """
    _above_zero(batch_size=batch_size, step_time_seconds=step_time_seconds, num_gpus=num_gpus)
    mfu = utilisation(
        flops_per_step=model_flops_per_sample * batch_size,
        step_s=step_time_seconds,
        peak_flops_per_s=_peak_flops(peak_flops_per_gpu),
        devices=num_gpus,
    )
    if mfu is not None and mfu > 1:
        warnings.warn(
            f"{100 * mfu:.0f} % of the peak is impossible: FLOPs per sample have 2 per multiply-add once, and "
            "num_gpus is the number of devices that share the batch",
            stacklevel=2,
        )
    return mfu


def calculate_hfu(
    model_flops_per_sample: float,
    batch_size: float,
    step_time_seconds: float,
    num_gpus: int = 1,
    peak_flops_per_gpu: float | str | None = None,
    recomputation_ratio: float = 1.0,
) -> float | None:
    """Return hardware FLOPs utilisation: MFU times executed FLOPs / model FLOPs.

    The ratio is 1 without recomputation and 4/3 with full activation checkpointing, which repeats the forward pass.
    """
    if not 1 <= recomputation_ratio <= _FULL_RECOMPUTATION * 1.001:
        raise UsageError(
            f"recomputation_ratio has to be from 1 (none) to 4/3 (the whole forward pass again), not "
            f"{recomputation_ratio:g}; forward is a third of the model's FLOPs"
        )
    mfu = calculate_mfu(model_flops_per_sample, batch_size, step_time_seconds, num_gpus, peak_flops_per_gpu)
    return None if mfu is None else mfu * recomputation_ratio


def calculate_comm_efficiency(
    bytes_communicated: float,
    comm_time_seconds: float,
    network_bandwidth_bytes_per_sec: float,
    *,
    op: str = "all_reduce",
    world_size: int | None = None,
) -> float:
    """Return bus bandwidth / link bandwidth: the share of the link's speed that a collective reached.

    `bytes_communicated` is the full buffer of the operation, of which an all-reduce moves 2(P-1)/P over each link and
    the others (P-1)/P. P is `world_size`, or that of the process group; without either the bytes are taken as those
    that one rank sent.
    """
    _above_zero(comm_time_seconds=comm_time_seconds, network_bandwidth_bytes_per_sec=network_bandwidth_bytes_per_sec)
    ranks = _group_size() if world_size is None else world_size
    factor = 1.0 if ranks is None else bus_factor(op, ranks)
    return factor * bytes_communicated / comm_time_seconds / network_bandwidth_bytes_per_sec


class CollectiveTimePredictor:
    """Predicts collectives from the latency of one hop and the bandwidth of one link, as `measure_alpha_beta` returns.

    Times are in seconds. `size_bytes` is the full buffer: what each rank has after an all-gather, and had before a
    reduce-scatter or an all-to-all.
    """

    def __init__(self, alpha_seconds: float, beta_bytes_per_sec: float, world_size: int) -> None:
        _above_zero(beta_bytes_per_sec=beta_bytes_per_sec, world_size=world_size)
        self.alpha, self.beta, self.world_size = alpha_seconds, beta_bytes_per_sec, world_size
        self._fabric = Fabric(Link(1e9 * alpha_seconds, 1e9 / beta_bytes_per_sec))

    def allreduce_ring(self, size_bytes: float) -> float:
        """Return 2(P-1) alpha + 2(P-1)/P n / beta."""
        return self._ring("all_reduce", size_bytes)

    def allgather(self, size_bytes: float) -> float:
        """Return (P-1) alpha + (P-1)/P n / beta."""
        return self._ring("all_gather", size_bytes)

    def reduce_scatter(self, size_bytes: float) -> float:
        """Return (P-1) alpha + (P-1)/P n / beta."""
        return self._ring("reduce_scatter", size_bytes)

    def alltoall(self, size_bytes: float) -> float:
        """Return (P-1) alpha + (P-1)/P n / beta."""
        return self._ring("all_to_all", size_bytes)

    def compare_algorithms(self, size_bytes: float) -> dict[str, Any]:
        """Return the seconds of a ring and of a tree all-reduce, and which is faster."""
        found = fastest("all_reduce", size_bytes=size_bytes, ranks=self.world_size, fabric=self._fabric)
        times = {name: time_ns / 1e9 for name, time_ns in found.all_ns.items()}
        title = f"all-reduce of {readable_bytes(round(size_bytes))}: {found.algorithm} is faster"
        _show(title, [(name, f"{1e3 * s:.3g} ms") for name, s in times.items()])
        return {**times, "recommended": found.algorithm}

    def _ring(self, op: str, size_bytes: float) -> float:
        return ring_ns(op, size_bytes=size_bytes, ranks=self.world_size, link=self._fabric.inner) / 1e9


class OverlapEfficiencyTracker:
    """Overlap of compute and communication over steps: time of both together / the shorter of the two.

    `other_ms` is the part of the step with neither (data loading, idle time). Without it the step is taken to have
    none, and the efficiency is a lower bound. A step shorter than its compute or its communication is impossible: it
    is left out, with a warning. A recorded run has the efficiency from the trace: `stepscope report`.
    """

    def __init__(self) -> None:
        self.compute_ms = self.comm_ms = self.step_ms = self.overlap_ms = self.unexplained_ms = 0.0
        self.impossible_steps = 0
        self._most_ms = 0.0

    def record_step(self, compute_ms: float, comm_ms: float, step_ms: float, other_ms: float = 0.0) -> None:
        """Add one step."""
        both = compute_ms + comm_ms - (step_ms - other_ms)
        most = min(compute_ms, comm_ms)
        if both > most * 1.001 or most < 0 or other_ms < 0:
            self.impossible_steps += 1
            warnings.warn(
                f"impossible step, left out: {compute_ms:g} ms of compute and {comm_ms:g} of communication do not fit "
                f"into {step_ms - other_ms:g} ms, even fully overlapped; were they measured in the same step?",
                stacklevel=2,
            )
            return
        self.compute_ms += compute_ms
        self.comm_ms += comm_ms
        self.step_ms += step_ms
        self.overlap_ms += max(both, 0.0)
        self.unexplained_ms += max(-both, 0.0)
        self._most_ms += most

    def overlap_efficiency(self) -> float | None:
        """Return 1 for full overlap, 0 for none; None without compute or without communication."""
        return self.overlap_ms / self._most_ms if self._most_ms else None

    def report(self) -> dict[str, float | None]:
        """Return the totals in ms, their bounds and the efficiency."""
        found: dict[str, float | None] = {
            "compute_ms": self.compute_ms,
            "comm_ms": self.comm_ms,
            "step_ms": self.step_ms,
            "theoretical_min_ms": self.compute_ms + self.comm_ms - self._most_ms,
            "theoretical_max_ms": self.compute_ms + self.comm_ms,
            "unexplained_ms": self.unexplained_ms,
            "impossible_steps": self.impossible_steps,
            "overlap_efficiency": self.overlap_efficiency(),
        }
        _show("overlap of compute and communication", [(name, _number(value)) for name, value in found.items()])
        if self.unexplained_ms:
            _print(f"{self.unexplained_ms:.3g} ms are neither compute nor communication: give them as other_ms")
        return found


class BottleneckAnalyzer:
    """Times of a step's phases, by name, and which of them bounds it."""

    def __init__(self) -> None:
        self.timings: dict[str, list[float]] = {}

    def record(self, phase: str, duration_ms: float) -> None:
        """Add the time of one phase of one step: forward, backward, optimizer, allreduce, data_loading or another."""
        self.timings.setdefault(phase, []).append(duration_ms)

    def analyze(self) -> dict[str, Any]:
        """Return mean, range, spread and share of each phase, and the verdict.

        Data-bound where loading takes 30 % and is the largest part; else compute (forward, backward, optimizer) and
        communication decide, balanced within a factor of 1.2. Communication inside backward counts as backward.
        """
        if not self.timings:
            raise UsageError("nothing was recorded; call record(phase, ms) in each step")
        total = sum(fmean(times) for times in self.timings.values())
        phases = {
            phase: {
                "mean_ms": fmean(times),
                "min_ms": min(times),
                "max_ms": max(times),
                "std_ms": pstdev(times),
                "share_pct": 100 * fmean(times) / total if total else 0.0,
            }
            for phase, times in sorted(self.timings.items(), key=lambda item: -fmean(item[1]))
        }

        times_ms = dict.fromkeys(("compute", "comm", "data", "other"), 0.0)
        for phase, row in phases.items():
            times_ms[_phase_kind(phase)] += row["mean_ms"]
        compute, comm, data, _ = times_ms.values()
        if data >= 0.3 * total and data > max(compute, comm):
            verdict = "data-bound"
        elif comm > _BALANCED * compute:
            verdict = "communication-bound"
        else:
            verdict = "compute-bound" if compute > _BALANCED * comm else "balanced"
        rows = [
            (phase, *(f"{row[name]:.3g}" for name in ("mean_ms", "max_ms", "std_ms")), f"{row['share_pct']:.1f} %")
            for phase, row in phases.items()
        ]
        _show(f"phases of the step: {verdict}", [("phase", "mean ms", "max ms", "std ms", "share"), *rows])
        parts = {f"{kind}_ms": time_ms for kind, time_ms in times_ms.items()}
        return {"phases": phases, "verdict": verdict, "total_ms": total, **parts}


def _phase_kind(phase: str) -> str:
    kinds = {
        "compute": ("forward", "backward", "optimizer"),
        "comm": ("reduce", "gather", "comm", "sync", "all_to_all", "alltoall"),
        "data": ("data", "load"),
    }
    return next((kind for kind, words in kinds.items() if any(w in phase.lower() for w in words)), "other")


# Measurements of this process


def annotate_model(model: Any) -> Any:
    """Mark every module in the profiler and in NVTX; return a removable handle, as `stepscope.annotate_modules`."""
    from stepscope.record.annotate import annotate_modules

    return annotate_modules(model)


class ProfiledAllReduce:
    """An all-reduce that counts and times itself. The host does not wait: device events are read by `summary`."""

    def __init__(self, process_group: Any = None) -> None:
        self.process_group = process_group
        self._calls: list[tuple[int, Any, Any]] = []  # bytes, and seconds or events

    def __call__(self, tensor: Any) -> Any:
        """Reduce a tensor in place and return it."""
        from stepscope.lab.bench.in_process import timed_all_reduce

        label = f"all_reduce {len(self._calls)} {tensor.nbytes / 1e6:.1f} MB"
        self._calls.append((tensor.nbytes, *timed_all_reduce(tensor, self.process_group, label)))
        return tensor

    def summary(self) -> dict[str, Any]:
        """Return calls, bytes, time and bandwidths in GB/s (10^9), None before the first call.

        Times include the wait for later ranks, so the averages are lower bounds of the link's speed; `best` is the
        fastest single call. Bus bandwidth is 2(P-1)/P of the average (algorithm) bandwidth.
        """
        from stepscope.lab.bench.in_process import elapsed_ms

        times_ms = [elapsed_ms(begin, end) for _, begin, end in self._calls]
        size, total_ms = sum(nbytes for nbytes, _, _ in self._calls), sum(times_ms)
        factor = bus_factor("all_reduce", _group_size(self.process_group) or 1)
        rates = [nbytes / ms / 1e6 for (nbytes, _, _), ms in zip(self._calls, times_ms, strict=True) if ms > 0]
        average = size / total_ms / 1e6 if total_ms > 0 else None
        return {
            "calls": len(self._calls),
            "total_bytes_GB": size / 1e9,
            "total_time_ms": total_ms,
            "avg_bandwidth_GBps": average,
            "bus_bandwidth_GBps": None if average is None else factor * average,
            "best_bus_bandwidth_GBps": factor * max(rates) if rates else None,
        }


class MemoryProfiler:
    """Labelled snapshots of this process's memory: the device's allocator where CUDA is in use, and the host."""

    def __init__(self, device: Any = None) -> None:
        from stepscope.lab.bench.in_process import device_index

        self.device = device_index(device)
        self.snapshots: list[Any] = []

    def snapshot(self, label: str = "") -> Any:
        """Record and return a labelled `MemorySnapshot`."""
        from stepscope.record.memory import memory_snapshot

        self.snapshots.append(memory_snapshot(label, device=self.device))
        return self.snapshots[-1]

    def reset_peak(self) -> None:
        """Reset the allocator's peaks. The host's peak cannot be reset."""
        from stepscope.lab.bench.in_process import reset_peak_memory

        reset_peak_memory(self.device)

    def report(self) -> list[dict[str, Any]]:
        """Return one row per snapshot, in GB (10^9); device columns are None where CUDA is not in use.

        `cache_GB` is reserved and held by no tensor; `fragmentation` the share of it that no single request could use.
        """
        rows = [
            {
                "label": s.label,
                "allocated_GB": _gb(s.allocated_bytes),
                "reserved_GB": _gb(s.reserved_bytes),
                "max_allocated_GB": _gb(s.peak_allocated_bytes),
                "cache_GB": _gb(s.free_in_segments_bytes),
                "fragmentation": s.fragmentation,
                "host_GB": _gb(s.host_bytes),
            }
            for s in self.snapshots
        ]
        names = [name for name in (rows or [{}])[0] if any(row[name] is not None for row in rows)]
        titles = [name.removesuffix("_GB").replace("_", " ") for name in names]
        _show("memory", [titles, *([_size(name, row[name]) for name in names] for row in rows)])
        return rows

    checkpoint = snapshot  # names that guides use

    @property
    def checkpoints(self) -> list[Any]:
        """The snapshots."""
        return self.snapshots

    def reset(self) -> None:
        """Remove the snapshots and reset the allocator's peaks."""
        self.snapshots = []
        self.reset_peak()


def memory_breakdown(device: Any = None) -> dict[str, Any]:
    """Return the device's memory by what it holds and, where a history is recorded, by source line, in bytes.

    `categories` sum to `allocated_bytes`: parameters, gradients, optimizer state, buffers and DDP's buckets of live
    models, and the rest (activations, temporary tensors). Sources need
    `torch.cuda.memory._record_memory_history()` before the allocations. On a CPU only the first four are known.
    """
    from stepscope.lab.bench.in_process import device_index, memory_by_use

    found = memory_by_use(device_index(device))
    lines = [*found["categories"].items(), *list((found["sources"] or {}).items())[:10]]
    _show(f"memory of {found['device']}", [(what, readable_bytes(size)) for what, size in lines])
    return found


def diagnose_low_mfu(run: Any = None) -> list[dict[str, Any]]:
    """Return the check list for low MFU of a run (a folder or an `Analysis`), each item measured.

    Without `run` it is the folder of TORCH_TRACE_DIR or ./stepscope-run; without that nothing is measured.
    """
    return _guide("Low MFU", run)


def diagnose_slow_communication(run: Any = None) -> list[dict[str, Any]]:
    """Return the check list for slow communication of a run, each item measured; see `diagnose_low_mfu`."""
    return _guide("Slow communication", run)


def diagnose_memory_pressure(run: Any = None) -> list[dict[str, Any]]:
    """Return the check list for memory pressure: of a run, or by default of this process's device now.

    The peak is compared with the device's total memory, not with the reserved memory.
    """
    if run is not None or "torch" not in sys.modules:
        return _guide("Memory pressure", run)
    from stepscope.record.memory import NO_DEVICE, memory_snapshot

    seen = memory_snapshot("now")
    if seen.allocated_bytes is None:
        return _guide("Memory pressure", None, dict.fromkeys(_LIVE_MEMORY, (None, NO_DEVICE)))
    reserved, total = seen.peak_reserved_bytes or 0, seen.device_total_bytes or 0
    values = (
        (100 * reserved / total if total else None, f"peak of {readable_bytes(reserved)} of {readable_bytes(total)}"),
        (seen.allocator_retries, "times the cache was emptied"),
        (100 * (seen.free_in_segments_bytes or 0) / reserved if reserved else None, "of what is reserved at the peak"),
        (100 * seen.fragmentation if seen.fragmentation is not None else None, "of free memory"),
    )
    return _guide("Memory pressure", None, dict(zip(_LIVE_MEMORY, values, strict=True)))


class ABProfiler:
    """Step times of configurations, and whether their difference is more than chance.

    Calling `profile_config` again with the same name adds a run; alternating A, B, A, B cancels slow drifts.
    """

    def __init__(self) -> None:
        self.runs: dict[str, list[list[float]]] = {}

    def profile_config(
        self,
        name: str,
        setup_fn: Callable[[], Any] | None,
        train_fn: Callable[[], Any],
        num_steps: int = 10,
        *,
        warmup_steps: int = _WARMUP_STEPS,
    ) -> list[float]:
        """Apply a configuration, run `train_fn` after a warm-up, and return its step times in ms."""
        from stepscope.lab.bench.in_process import step_times_ms

        _above_zero(num_steps=num_steps)
        if setup_fn is not None:
            setup_fn()
        times_ms = step_times_ms(train_fn, steps=num_steps, warmup_steps=warmup_steps)
        self.runs.setdefault(name, []).append(times_ms)
        return times_ms

    def compare(self) -> dict[str, Any]:
        """Return both step times, the second's change with its 95 % interval, and whether it is significant.

        Runs of the same number are compared with each other if both have several.
        """
        import numpy as np

        from stepscope.stats.change import paired, unpaired
        from stepscope.stats.robust import typical

        if len(self.runs) != 2:
            raise UsageError(f"compare needs two configurations, not {len(self.runs)}; call profile_config for each")
        (a, runs_a), (b, runs_b) = self.runs.items()
        found = (paired if len(runs_a) == len(runs_b) > 1 else unpaired)(runs_a, runs_b)
        assert found is not None  # every run has a step
        known = found.p_value is not None
        a_ms, b_ms = (float(np.mean([typical(np.asarray(run)) for run in runs])) for runs in (runs_a, runs_b))
        result = {
            "a": a,
            "b": b,
            "a_ms": a_ms,
            "b_ms": b_ms,
            "change_pct": 100 * (found.ratio - 1),
            "low_pct": 100 * (found.low - 1) if known else None,
            "high_pct": 100 * (found.high - 1) if known else None,
            "p_value": found.p_value,
            "significant": found.slower or found.faster if known else None,
            "reason": None if known else "too few steps for an interval; measure more",
        }
        show_values(f"{b} against {a}", result)
        return result


# Measurements of a job: every rank calls them


def profile_distributed_training(
    model: Any,
    dataloader: Iterable[Any],
    num_steps: int = 10,
    *,
    optimizer: Any = None,
    loss_fn: Callable[..., Any] | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Path | None:
    """Train `num_steps` steps, record the last of them on every rank, print the operators, return the run folder.

    The steps before are timed without the profiler; shapes and memory are recorded. `loss_fn(output, targets)` gives
    the loss; without it the model's own `.loss`, else the mean of its output. Without an optimizer the weights stay.
    `settings` are those of `stepscope.profile`; read the folder with `stepscope report` or `stepscope.load`.
    """
    from stepscope.lab.bench.in_process import loss_of, model_device
    from stepscope.record.profile import profile
    from stepscope.record.quick_check import timed_batches

    if num_steps < 3:
        raise UsageError(f"num_steps has to be at least 3 (one unprofiled, one warm-up, one recorded), not {num_steps}")
    active = min(3, num_steps - 2)
    batches = timed_batches(dataloader, model_device(model))
    window: dict[str, Any] = {"wait": num_steps - 1 - active, "warmup": 1, "active": active}
    window |= {"record_shapes": True, "profile_memory": True, **settings}
    with profile(out=out, **window) as recording:
        for _ in range(num_steps):
            with recording.region("data_loading"):
                batch, _, _ = next(batches)
            with recording.region("forward_pass"):
                loss = loss_of(model, batch, loss_fn)
            with recording.region("backward_pass"):
                loss.backward()
            with recording.region("optimizer_step"):
                if optimizer is not None:
                    optimizer.step()
                model.zero_grad(set_to_none=True)
            recording.step()
    folder = recording.run_folder
    if folder is not None and _rank() == 0:
        _show_operators(folder)
    _print(f"recorded {window['active']} steps; read them with: stepscope report {folder}")
    return folder


def _show_operators(folder: Path) -> None:
    from stepscope.analysis import load
    from stepscope.document.report import operators_document
    from stepscope.report.pages.code import MOST, ops_sheet
    from stepscope.report.sheet_text import sheet_text

    try:
        document = operators_document(load(folder).account)
        shown = {**document, "operators": document["operators"][:MOST]}
        _print(sheet_text(ops_sheet(shown), width=100))
    except StepscopeError as error:  # such as a full disk: the recording is complete or its reason was printed
        _print(f"no table of operators: {error}")


def quick_health_check(
    model: Any, dataloader: Iterable[Any], num_steps: int = 3, *, loss_fn: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """Return step times of all ranks and the stragglers among them, after one step that is not counted.

    After an all-reduce all ranks have the same step time, so each batch is run twice: without gradient
    synchronisation for a rank's own time (loading, forward, backward), and with it for the step time. Weights and
    gradients stay as they are.
    """
    from stepscope.lab.bench import in_process as job
    from stepscope.record.quick_check import timed_batches

    _above_zero(num_steps=num_steps)
    kept = [(p, p.grad) for p in model.parameters()]
    batches, times_ms = timed_batches(dataloader, job.model_device(model)), []
    try:
        model.zero_grad(set_to_none=True)
        for _ in range(num_steps + 1):
            job.barrier()  # a rank that comes from the run before earlier would wait in this one
            batch, loading_ns, begins_epoch = next(batches)
            step_ms = sum(job.passes_ms(model, batch, loss_fn))  # static graphs need synchronisation first
            job.barrier()
            own_ms = sum(job.passes_ms(model, batch, loss_fn, sync=False))
            times_ms.append((begins_epoch, loading_ns / 1e6 + step_ms, loading_ns / 1e6 + own_ms))
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
    # the first step has DDP's bucket rebuild in it, the first batch of an epoch the start of the loader's workers
    steady = [t[1:] for t in times_ms[1:] if not t[0]] or [t[1:] for t in times_ms[1:]]
    times = job.gathered(list(zip(*steady, strict=True)))
    ranks = [
        {"rank": rank, "own_ms": median(own), "step_ms": median(steps), "times_ms": list(steps)}
        for rank, (steps, own) in enumerate(times)
    ]
    reason = "ranks wait for each other in the forward pass of FSDP: use `stepscope health RUN`"
    found = {"ranks": ranks, **_straggler_scores({rank: own for rank, (_, own) in enumerate(times)}), "reason": None}
    if job.gathers_in_forward(model) and len(ranks) > 1:
        found |= {"stragglers": None, "scores": None, "reason": reason}
    rows = [(f"rank {r['rank']}", f"{r['own_ms']:.3g}", f"{r['step_ms']:.3g}") for r in ranks]
    _show("health check", [("", "own ms", "step ms"), *rows])
    _print(found["reason"] or f"stragglers: {found['stragglers'] or 'none'}")
    return found


def detect_stragglers(num_iterations: int = 10, work: Callable[[], Any] | None = None) -> dict[str, Any]:
    """Return each rank's own time of `work` and the stragglers.

    `work` is a rank's work without any collective; by default a matrix product. A straggler is 10 % slower than the
    ranks that are not late, beyond what chance gives in one of a hundred healthy runs.
    """
    from stepscope.lab.bench.in_process import gathered, own_times_ms

    everybody = gathered(own_times_ms(work, num_iterations))
    found = _straggler_scores(dict(enumerate(everybody)))
    _show("own time of ranks", [(f"rank {rank}", f"{ms:.3g} ms") for rank, ms in found["own_ms"].items()])
    _print(f"stragglers: {found['stragglers'] or 'none'}")
    return found


def measure_alpha_beta(
    process_group: Any = None,
    sizes_bytes: Sequence[int] = (2**10, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26),
    num_warmup: int = 5,
    num_measure: int = 20,
) -> tuple[float, float]:
    """Return the latency of one hop in seconds and the bandwidth of one link in bytes/s, from timed all-reduces.

    They are what `CollectiveTimePredictor` takes: of the fitted line `alpha + n / beta` of the whole all-reduce,
    alpha / 2(P-1) and beta x 2(P-1)/P. The times are the slowest rank's; the line has the smallest relative error.
    """
    found = calibrate_alpha_beta(process_group, sizes_bytes, num_measure, num_warmup=num_warmup)
    return found["alpha_us"] / 1e6, found["beta_gbps"] * 1e9 / 8


def calibrate_alpha_beta(
    process_group: Any = None,
    sizes: Sequence[int] | None = None,
    num_trials: int = 50,
    *,
    num_warmup: int = 5,
) -> dict[str, Any]:
    """Return latency per hop, link bandwidth in Gbit/s and the line's errors, with every size measured and fitted.

    Default sizes are 20 from 1 KB to 1 GB; see `measure_alpha_beta`. `stepscope calibrate` fits all operations, in
    pieces where the protocol changes.
    """
    from stepscope.cost.alpha_beta import fit
    from stepscope.lab.bench.collectives import block_s, operation, slowest
    from stepscope.lab.bench.in_process import group_device

    ranks = _group_size(process_group)
    if ranks is None or ranks < 2:
        raise UsageError("measuring alpha and beta needs a process group of at least 2 ranks")
    device, times_ns = group_device(process_group), []
    sizes = [round(2 ** (10 + 20 * i / 19)) for i in range(20)] if sizes is None else list(sizes)
    for size in sizes:
        call = operation("all_reduce", size, ranks, process_group, device)
        block_s(call, max(1, num_warmup), process_group, device)
        times_ns.append(1e9 * slowest(median(block_s(call, num_trials, process_group, device)), process_group, device))
    line = fit(sizes, times_ns)
    if not line.ns_per_byte:
        raise UsageError("the times do not grow with the sizes; give larger sizes")
    fitted_ns = [line.alpha_ns + size * line.ns_per_byte for size in sizes]
    errors = [abs(a - b) / b for a, b in zip(fitted_ns, times_ns, strict=True)]
    spread = sum((t - fmean(times_ns)) ** 2 for t in times_ns)
    missed = sum((a - b) ** 2 for a, b in zip(fitted_ns, times_ns, strict=True))
    found: dict[str, Any] = {
        "alpha_us": line.alpha_ns / 1e3 / ring_steps("all_reduce", ranks),
        "beta_gbps": 8 / line.ns_per_byte * bus_factor("all_reduce", ranks),
        "world_size": ranks,
        "r_squared": 1 - missed / spread if spread else None,
        "mean_relative_error": fmean(errors),
        "max_relative_error": max(errors),
        "measurements": [
            {"size": size, "time": time_ns / 1e9, "fitted": fit_ns / 1e9, "relative_error": error}
            for size, time_ns, fit_ns, error in zip(sizes, times_ns, fitted_ns, errors, strict=True)
        ],
    }
    title = f"alpha {found['alpha_us']:.3g} us per hop, beta {found['beta_gbps'] / 8:.3g} GB/s"
    rows = [
        (readable_bytes(m["size"]), *(f"{1e3 * m[k]:.3g} ms" for k in ("time", "fitted")), f"{m['relative_error']:.0%}")
        for m in found["measurements"]
    ]
    _show(f"{title}, mean error {fmean(errors):.0%}", [("size", "measured", "fitted", "error"), *rows])
    return found


class DDPProfiler:
    """Step times of a DistributedDataParallel model, and its buckets."""

    def __init__(self, model: Any, *, loss_fn: Callable[..., Any] | None = None, optimizer: Any = None) -> None:
        if not hasattr(model, "_get_ddp_logging_data"):
            raise UsageError(f"DDPProfiler needs a DistributedDataParallel model, not {type(model).__name__}")
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.steps: list[dict[str, float]] = []
        self._batch: Any = None

    def profile_step(self, batch: Any) -> dict[str, float]:
        """Train a batch and return ms of forward and backward, with and without the all-reduces.

        Their difference is exposed communication: the part of it that the backward pass does not hide.
        """
        from stepscope.lab.bench.in_process import model_device, passes_ms
        from stepscope.record.quick_check import to_device

        self._batch = to_device(batch, model_device(self.model))
        if not self.steps:  # DDP rebuilds its buckets after the first backward pass
            passes_ms(self.model, self._batch, self.loss_fn)
            passes_ms(self.model, self._batch, self.loss_fn)
        _, alone_ms = passes_ms(self.model, self._batch, self.loss_fn, sync=False)
        forward_ms, backward_ms = passes_ms(self.model, self._batch, self.loss_fn, optimizer=self.optimizer)
        self.steps.append(
            {
                "forward_ms": forward_ms,
                "backward_with_allreduce_ms": backward_ms,
                "backward_ms": alone_ms,
                "exposed_allreduce_ms": max(0.0, backward_ms - alone_ms),
            }
        )
        return self.steps[-1]

    def analyze_bucket_efficiency(self, num_steps: int = 5) -> dict[str, Any]:
        """Record steps with the last batch and return size, times and bus bandwidth of every bucket."""
        from stepscope.lab.bench.in_process import passes_ms

        if self._batch is None:
            raise UsageError("call profile_step(batch) first")
        view = analysed(lambda: passes_ms(self.model, self._batch, self.loss_fn), num_steps)["by_strategy"]["buckets"]
        if view is None:
            return {"num_buckets": None, "buckets": [], "reason": "no all-reduce of gradients: is there one rank only?"}
        factor = bus_factor("all_reduce", _group_size(self.model.process_group) or 1)
        names = ("size_bytes", "time_ms", "wait_ms", "transfer_ms", "exposed_ms")
        buckets = [{name: row[name] for name in names} for row in view["buckets"]]
        for row in buckets:
            known = row["size_bytes"] and row["transfer_ms"]
            row["bus_bandwidth_GBps"] = factor * row["size_bytes"] / row["transfer_ms"] / 1e6 if known else None
        _show("DDP buckets", [tuple(buckets[0]), *(tuple(map(_number, row.values())) for row in buckets)])
        return {
            "num_buckets": len(buckets),
            "buckets": buckets,
            "total_ms": sum(row["time_ms"] for row in buckets),
            "exposed_ms": sum(row["exposed_ms"] for row in buckets),
            "reason": None,
        }


class TPProfiler:
    """Communication of tensor-parallel layers: row-parallel ones all-reduce in forward, column-parallel in backward."""

    def __init__(self, tp_degree: int) -> None:
        _above_zero(tp_degree=tp_degree)
        self.tp_degree = tp_degree
        self.layers: list[dict[str, Any]] = []

    def profile_layer(
        self, layer_fn: Callable[[Any], Any], input_tensor: Any, *, backward: bool = False, num_steps: int = 5
    ) -> dict[str, Any]:
        """Return the layer's time, its compute and communication in ms, and its collectives, per call."""

        def call() -> None:
            output = layer_fn(input_tensor)
            if backward:
                output.float().sum().backward()

        self.layers.append(_communication(call, num_steps))
        return self.layers[-1]

    def analyze_communication_fraction(self) -> dict[str, Any]:
        """Return the share of all profiled layers' time that is exposed communication, and calls and bytes by kind."""
        if not self.layers:
            raise UsageError("call profile_layer(layer_fn, input_tensor) first")
        by_op: dict[str, dict[str, float]] = {}
        for row in (collective for layer in self.layers for collective in layer["collectives"]):
            kind = by_op.setdefault(row["op"], {"calls": 0.0, "bytes": 0.0})
            kind["calls"] += row["calls"]
            kind["bytes"] += row["bytes"]
        exposed, profiled = (sum(layer[name] for layer in self.layers) for name in ("exposed_comm_ms", "profiled_ms"))
        rows = [(op, f"{kind['calls']:g} calls", readable_bytes(round(kind["bytes"]))) for op, kind in by_op.items()]
        fraction = exposed / profiled
        _show(f"tensor parallel over {self.tp_degree} ranks: {100 * fraction:.1f} % exposed communication", rows)
        return {"communication_fraction": fraction, "exposed_comm_ms": exposed, "by_op": by_op}


class PPProfiler:
    """A pipeline schedule: its bubble by the formula and as measured. `num_chunks` stages per rank are interleaved."""

    def __init__(self, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> None:
        _above_zero(num_stages=num_stages, num_microbatches=num_microbatches, num_chunks=num_chunks)
        self.num_stages, self.num_microbatches, self.num_chunks = num_stages, num_microbatches, num_chunks

    def profile_schedule(self, schedule_fn: Callable[[], Any], num_steps: int = 3) -> dict[str, Any]:
        """Record steps of the schedule on every rank and return this rank's times in ms and the measured bubble.

        Times are None, with a reason, where no sends and receives between stages were found.
        """
        view = analysed(schedule_fn, num_steps)["by_strategy"]["pipeline"]
        if view is None:
            names = ("forward_ms", "backward_ms", "send_ms", "recv_ms", "wait_ms", "idle_ms", "bubble_fraction")
            return {**dict.fromkeys(names), "reason": "no sends and receives between stages were found"}
        row = own_row(view["ranks"])
        found = {
            **{name: row[name] for name in ("stage", "forward_ms", "backward_ms", "send_ms", "wait_ms", "idle_ms")},
            "recv_ms": row["receive_ms"],
            "bubble_fraction": row["bubble_pct"] / 100,
            "mean_bubble_fraction": view["bubble_pct"] / 100,
            "schedule": view["schedule"],
            "reason": None,
        }
        show_values("pipeline, rank 0", found)
        return found

    def calculate_bubble_fraction(self) -> float:
        """Return the idle share of the step with equal stages, GPipe or 1F1B: (p-1) / (m v + p-1)."""
        from stepscope.analyze.pipeline import textbook_bubble

        bubble = textbook_bubble(self.num_stages, self.num_microbatches, chunks=self.num_chunks)
        _print(
            f"{self.num_stages} stages, {self.num_microbatches} micro-batches: bubble {100 * bubble:.1f} % of the step"
        )
        return bubble


class ZeROProfiler:
    """ZeRO sharding of stage 1, 2 or 3 over `world_size` ranks."""

    def __init__(self, stage: int, world_size: int) -> None:
        if stage not in (1, 2, 3):
            raise UsageError(f"stage has to be 1, 2 or 3, not {stage}")
        _above_zero(world_size=world_size)
        self.stage, self.world_size = stage, world_size

    def profile_forward(self, model: Any, input_batch: Any, num_steps: int = 5) -> dict[str, Any]:
        """Return the forward pass's time, its compute and its parameter gathers, in ms per pass."""
        from stepscope.lab.bench.in_process import model_device, output_of, without_gradients
        from stepscope.record.quick_check import to_device

        batch = to_device(input_batch, model_device(model))
        found = _communication(without_gradients(lambda: output_of(model, batch)), num_steps)
        gathers = [row for row in found["collectives"] if row["op"] == "all_gather"]
        return {
            "total_ms": found["total_ms"],
            "compute_ms": found["compute_ms"],
            "gather_ms": found["comm_ms"],
            "exposed_gather_ms": found["exposed_comm_ms"],
            "gathers": sum(row["calls"] for row in gathers),
            "gathered_bytes": sum(row["bytes"] for row in gathers),
        }

    def analyze_memory_comm_tradeoff(self, num_parameters: float | None = None) -> dict[str, Any]:
        """Return bytes of model states per parameter and rank, against DDP, and the communication against DDP.

        For 16-bit weights and gradients and Adam with an fp32 copy: 4 + 12/N, 2 + 14/N and 16/N instead of 16.
        """
        from stepscope.lab.predict.model_memory import bytes_per_parameter
        from stepscope.lab.predict.model_shape import Layout, Optimizer, Precision, Sharding

        def bytes_of(sharding: Any) -> float:
            layout = Layout(data=self.world_size, sharding=sharding)
            return bytes_per_parameter(Precision.MIXED, Optimizer.ADAM, layout)

        each, ddp = bytes_of(Sharding(f"zero{self.stage}")), bytes_of(Sharding.DDP)
        found = {
            "bytes_per_parameter": each,
            "ddp_bytes_per_parameter": ddp,
            "memory_reduction": ddp / each,
            "communication_factor": 1.5 if self.stage == 3 else 1.0,
            "states_GB": None if num_parameters is None else each * num_parameters / 1e9,
        }
        show_values(f"ZeRO stage {self.stage}, {self.world_size} ranks", found)
        return found


class DistributedProfiler:
    """Profiles a training function on all ranks at once into one run folder."""

    def __init__(self, output_dir: str | Path) -> None:
        self.output_dir = Path(output_dir)

    def profile_synchronized(self, train_fn: Callable[[], Any], num_steps: int = 5, **settings: Any) -> Path | None:
        """Run one timed step, one warm-up step and `num_steps` recorded ones, and return the run folder."""
        from stepscope.lab.bench.in_process import barrier
        from stepscope.record.profile import profile

        barrier()
        window = {"wait": 1, "warmup": 1, "active": num_steps, **settings}
        with profile(out=self.output_dir, **window) as recording:
            for _ in range(num_steps + 2):
                train_fn()
                recording.step()
        barrier()
        return recording.run_folder

    def aggregate_statistics(self, local_stats: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Return mean, min, max and standard deviation over ranks of each number, on every rank."""
        from stepscope.lab.bench.in_process import gathered

        everything = gathered(dict(local_stats))
        found = {}
        for name in local_stats:
            values = [stats[name] for stats in everything if name in stats]
            found[name] = {"mean": fmean(values), "min": min(values), "max": max(values), "std": pstdev(values)}
        return found


def align_timelines(traces_dir: str | Path) -> dict[int, float | None]:
    """Return what to add to each rank's times, in us, to have them on the clock of the first rank.

    Ranks leave a collective together and enter it when they get there, so the clocks are aligned by ends.
    """
    from stepscope.analysis import load

    traces = sorted(p for p in Path(traces_dir).rglob("*") if p.name.endswith((".json", ".json.gz", ".json.zst")))
    if not (Path(traces_dir) / "run.json").exists() and traces:
        rows = load(traces).document["ranks"]
    else:
        rows = load(traces_dir).document["ranks"]
    lines = [(f"rank {r['rank']}", _number(r["clock_offset_us"]), _number(r["clock_uncertainty_us"])) for r in rows]
    _show("clock offsets in us", [("", "offset", "uncertainty"), *lines])
    return {row["rank"]: row["clock_offset_us"] for row in rows}


# A few recorded steps of all ranks, read like a run


def _communication(step: Callable[[], Any], num_steps: int) -> dict[str, Any]:
    from stepscope.lab.bench.in_process import step_times_ms

    total_ms = median(step_times_ms(step, steps=num_steps, warmup_steps=_WARMUP_STEPS))
    report = analysed(step, num_steps)
    row = own_row(report["ranks"])
    steps = row["num_steps"]
    names = ("compute_ms", "comm_ms", "exposed_comm_ms")
    return {
        "total_ms": total_ms,
        **{name: (row[name] or 0.0) / steps for name in names},
        "profiled_ms": row["window_ms"] / steps,
        "collectives": [
            {"op": c["op"], "calls": c["count"] / steps, "bytes": c["bytes"] / steps} for c in report["collectives"]
        ],
    }


def own_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return this rank's row."""
    return next((row for row in rows if row["rank"] == _rank()), rows[0])


def analysed(step: Callable[[], Any], num_steps: int) -> dict[str, Any]:
    """Return the report of `num_steps` calls on every rank: traces go to rank 0, which reads them for all."""
    from stepscope.lab.bench.in_process import from_first, recorded_traces

    _above_zero(num_steps=num_steps)
    traces = recorded_traces(step, num_steps)
    result = from_first(None if traces is None else _report_of(traces))
    if isinstance(result, str):
        raise UsageError(f"the recorded steps could not be read: {result}")
    return dict(result)


def _report_of(traces: Sequence[bytes]) -> dict[str, Any] | str:
    from tempfile import TemporaryDirectory

    from stepscope.analysis import load

    try:  # an error on rank 0 has to reach the ranks that wait for its answer
        with TemporaryDirectory(prefix="stepscope-") as folder:
            for rank, data in enumerate(traces):
                (Path(folder) / f"rank_{rank}.pt.trace.json.gz").write_bytes(data)
            document = load(folder, cache=False).document
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return {name: document[name] for name in ("ranks", "collectives", "by_strategy", "step", "warnings")}


def _guide(title: str, run: Any, values: Mapping[str, tuple[float | None, str]] | None = None) -> list[dict[str, Any]]:
    from stepscope.diagnose.checks import Measurement, guide_of
    from stepscope.record.config import default_out

    if run is None and values is None and Path(default_out()).exists():
        run = default_out()
    if isinstance(run, str | os.PathLike):
        from stepscope.analysis import load

        run = load(run)
    measured = {name: Measurement(*value) for name, value in (values or {}).items()}
    guide = guide_of(None if run is None else run.account, title, values=measured)
    items = [{**item.check, "remedy": item.remedy} for item in guide["items"]]
    known = [i for i in items if i["status"] != "not measured"]
    _show(title, [(i["id"], _number(i["value"]), i["status"], f"good: {i['good']}", i["reason"]) for i in known])
    unknown: dict[str, list[str]] = {}
    for i in items:
        if i["status"] == "not measured":
            unknown.setdefault(i["reason"], []).append(i["id"])
    for reason, ids in unknown.items():
        _print(f"  not measured ({reason}): {', '.join(ids)}")
    return items


_LIVE_MEMORY = ("memory_pct_of_limit", "allocator_retries", "cache_pct", "fragmentation_pct")


# Who and where this process is


def _distributed() -> Any:
    """Return torch.distributed if a process group is initialised, without importing torch."""
    if "torch.distributed" not in sys.modules:
        return None
    return initialized_distributed()


def _rank() -> int:
    dist = _distributed()
    if dist is not None:
        return int(dist.get_rank())
    found = place_by_variables(os.environ)
    return found.rank if found is not None else 0


def _group_size(group: Any = None) -> int | None:
    dist = _distributed()
    return None if dist is None else int(dist.get_world_size(group))


def _straggler_scores(own_ms: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    judged = lateness({rank: [1e6 * own for own in times] for rank, times in own_ms.items()})
    medians = {rank: median(times) for rank, times in own_ms.items()}
    return {"own_ms": medians, "stragglers": [one.rank for one in late_ranks(judged)], "scores": judged}


def _peak_flops(peak: float | str | None) -> float | None:
    if isinstance(peak, int | float):
        _above_zero(peak_flops_per_gpu=peak)
        return float(peak)
    from stepscope.cost.chips import look_up, mfu_peak

    if peak is None:
        from stepscope.lab.bench.in_process import device_name

        peak = device_name()
    found = look_up(peak) if peak else None
    known = mfu_peak(found.chip) if found is not None and found.chip is not None else None
    if known is None:
        reason = found.reason if found is not None else "this process has no CUDA device"
        warnings.warn(f"MFU is unknown: {reason}; give peak_flops_per_gpu in FLOP/s", stacklevel=3)
    return None if known is None else known.flops_per_s


def _above_zero(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise UsageError(f"{name} has to be above 0, not {value}")


# Printing


def _show(title: str, rows: Iterable[Sequence[str]]) -> None:
    cells = [tuple(map(str, row)) for row in rows]
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(max(map(len, cells), default=0))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)).rstrip() for row in cells]
    _print("\n".join([title, *(f"  {line}" for line in lines)]))


def show_values(title: str, values: Mapping[str, Any]) -> None:
    """Print named values on rank 0; those that are unknown are left out."""
    _show(title, [(name, _number(value)) for name, value in values.items() if value is not None])


def _print(text: str) -> None:
    if _rank() == 0:
        print(text, flush=True)  # noqa: T201 - reports of a script's or a notebook's reader


def _number(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _size(name: str, value: Any) -> str:
    return readable_bytes(round(1e9 * value)) if name.endswith("_GB") and value is not None else _number(value)


def _gb(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / 1e9
