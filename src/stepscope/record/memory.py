"""Memory through a step (`--memory`): a labelled snapshot at both edges of every region, and the peak by category.

Two steps outside the profiled window are measured in detail, which takes milliseconds; their lines in the step log have
`profiled` set, as they are disturbed. Before them only the allocator's counters are read at region edges, to know
*where* the peak last rose. The result is `rank00000.memory.jsonl`:

    {"kind": "snapshot", "step": 10, "label": "end forward_pass", "allocated_bytes": ..., "parameters_bytes": ...}
    {"kind": "peak", "peak_bytes": ..., "activations_bytes": ..., "between": ["begin backward_pass", ...]}
    {"kind": "storage", "address": ..., "size_bytes": ..., "device": "cuda:0", "category": "parameters"}
    {"kind": "bucket", "size_bytes": ..., "device": "cuda:0"}

The storages map the addresses in a memory snapshot of the same rank (`rank00000.memory.pickle`) to their use.
"""

import functools
import gc
import json
import os
import pickle
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.record.failsafe import explain, say

# What the memory is used for: parameters, gradients, optimizer state and buffers by storage, the rest by subtraction.
#
# Every storage is counted once, however many tensors share it (tied weights, views, flat parameters), under the first
# category that claims it. DDP's buckets are no tensors of Python; DDP reports their sizes. What the allocator holds
# beyond these is *activations* if it exists at a region's edge, and *temporary* if it is allocated and freed between
# two edges:
#
#     allocated at the edge = parameters + gradients + optimizer + buffers + communication + activations
#     peak                  = allocated at the nearer edge + temporary

PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS = "parameters", "gradients", "optimizer", "buffers"
_COMMUNICATION = "communication"
_CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, _COMMUNICATION)


@dataclass(frozen=True)
class Storage:
    """One piece of memory that tensors of the model or the optimizer live in."""

    address: int
    size_bytes: int
    device: str
    category: str


def live_objects() -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    """Return the modules and optimizers alive in this process, found through the garbage collector.

    It takes about 10 ms per 100,000 objects, so it is for a few chosen moments. Only types are checked: `isinstance`
    would run code of lazy proxies.
    """
    modules: list[torch.nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    for found in gc.get_objects():
        kind = type(found)
        if issubclass(kind, torch.nn.Module):
            modules.append(found)
        elif issubclass(kind, torch.optim.Optimizer):
            optimizers.append(found)
    return modules, optimizers


def storages_of(
    modules: Iterable[torch.nn.Module], *, optimizers: Iterable[torch.optim.Optimizer] = ()
) -> list[Storage]:
    """Return the storages of models and optimizers, each once, with its category."""
    modules, optimizers = list(modules), list(optimizers)
    parameters = [p for m in modules for p in _own(m, "_parameters")]
    parameters += [p for o in optimizers for group in o.param_groups for p in group["params"]]
    claimed: dict[tuple[str, int], Storage] = {}
    for category, tensors in (
        (PARAMETERS, parameters),
        (GRADIENTS, [p.grad for p in parameters if p.grad is not None]),
        (OPTIMIZER, [t for o in optimizers for t in _tensors_in(list(o.state.values()))]),
        (BUFFERS, [b for m in modules for b in _own(m, "_buffers")]),
    ):
        for tensor in tensors:
            _claim(claimed, tensor, category)
    return list(claimed.values())


def bucket_sizes(modules: Iterable[torch.nn.Module], *, device: str) -> list[int]:
    """Return the bytes of the buckets in which DDP reduces gradients on a device.

    Nothing where gradients are views of the buckets: they are counted as gradients then.
    """
    sizes: list[int] = []
    for module in modules:
        if not isinstance(module, torch.nn.parallel.DistributedDataParallel):
            continue
        if next((str(p.device) for p in module.parameters()), None) == device:
            try:
                about = module._get_ddp_logging_data()
                said = str(about.get("rebuilt_bucket_sizes") or about.get("bucket_sizes") or "")
                is_view = bool(about.get("gradient_as_bucket_view"))
            except (AttributeError, RuntimeError):  # another version, or one that is not built whole yet
                continue
            sizes += [] if is_view else [int(size) for size in said.split(",") if size.strip().isdigit()]
    return sizes


def totals(storages: Iterable[Storage], *, device: str) -> dict[str, int]:
    """Return bytes per category on one device, such as `{"parameters": 4096, "gradients": 0, ...}`."""
    out = dict.fromkeys(_CATEGORIES, 0)
    for storage in storages:
        if storage.device == device:
            out[storage.category] += storage.size_bytes
    return out


def at_peak(peak_bytes: int, *, edge: tuple[int, dict[str, int]], between: tuple[str, str]) -> dict[str, Any]:
    """Return the peak by category from the edge with more memory: `(allocated bytes, totals() there)`.

    `between` names the snapshots on either side of the peak.
    """
    allocated_bytes, known = edge
    return {
        "peak_bytes": peak_bytes,
        **{f"{category}_bytes": known[category] for category in _CATEGORIES},
        "activations_bytes": max(0, allocated_bytes - sum(known.values())),
        "temporary_bytes": max(0, peak_bytes - allocated_bytes),
        "between": between,
    }


def _own(module: torch.nn.Module, kind: str) -> list[Any]:
    return [t for t in (module.__dict__.get(kind) or {}).values() if t is not None]


def _tensors_in(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list | tuple):
        return [t for item in found for t in _tensors_in(item)]
    return []


def _claim(claimed: dict[tuple[str, int], Storage], tensor: Any, category: str) -> None:
    local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's part on this rank
    if local.layout is not torch.strided or local.device.type == "meta":
        return
    try:
        storage = local.untyped_storage()
        address, size_bytes = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # tensor subclasses without memory of their own
        return
    if size_bytes and address:
        claimed.setdefault((str(local.device), address), Storage(address, size_bytes, str(local.device), category))


# How much memory a rank uses, at a named moment and step by step, on the device and on the host.
#
# `memory_snapshot("after forward")` is detailed: it walks the allocator's blocks. `MemorySampler` follows the steps
# and has to be cheap: counters of the allocator and one line of `/proc`, at most ten times a second, nothing that waits
# for the device. The peaks are the allocator's own and are never reset, because the job may be reading them too.
#
# Reserved minus allocated is *cache*: free memory that the allocator keeps in its segments. *Fragmentation* is the
# share of that cache which no single request could use: 1 - largest free block / free memory.


@dataclass(frozen=True)
class MemorySnapshot:
    """Memory of this process at one moment. Device numbers are None where CUDA is not in use."""

    label: str
    time_ns: int  # since the epoch
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    free_in_segments_bytes: int | None  # the cache: reserved, held by no tensor
    largest_free_block_bytes: int | None
    allocator_retries: int | None  # how often the cache had to be emptied to satisfy a request
    device_total_bytes: int | None
    host_bytes: int | None
    host_peak_bytes: int

    @property
    def fragmentation(self) -> float | None:
        """The share of the free memory in segments that no single request could use; None where nothing is free."""
        if not self.free_in_segments_bytes or self.largest_free_block_bytes is None:
            return None
        return 1 - self.largest_free_block_bytes / self.free_in_segments_bytes


def memory_snapshot(label: str, *, device: int | None = None) -> MemorySnapshot:
    """Return this process's memory now, under a name of your choice. Does not wait for the device.

    It walks the allocator's blocks (about a millisecond): for chosen moments, not for every operation.
    """
    stats = device_stats(device)
    free = (
        [
            block["size"]
            for segment in _segments()
            if segment["device"] == _index(device)
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ]
        if stats
        else []
    )
    return MemorySnapshot(
        label=label,
        time_ns=time.time_ns(),
        allocated_bytes=_stat(stats, "allocated_bytes", "current"),
        reserved_bytes=_stat(stats, "reserved_bytes", "current"),
        peak_allocated_bytes=_stat(stats, "allocated_bytes", "peak"),
        peak_reserved_bytes=_stat(stats, "reserved_bytes", "peak"),
        free_in_segments_bytes=sum(free) if stats else None,
        largest_free_block_bytes=max(free, default=0) if stats else None,
        allocator_retries=stats.get("num_alloc_retries") if stats else None,
        device_total_bytes=torch.cuda.get_device_properties(_index(device)).total_memory if stats else None,
        host_bytes=host_bytes(),
        host_peak_bytes=host_peak_bytes(),
    )


def device_stats(device: int | None = None) -> dict[str, Any]:
    """Return the allocator's nested counters of a device; empty where this process has not started CUDA."""
    if not torch.cuda.is_initialized():
        return {}
    return dict(torch.cuda.memory_stats_as_nested_dict(device))


def host_bytes() -> int | None:
    """Return the resident memory of this process, None where the system does not say (no `/proc`)."""
    try:
        with open("/proc/self/statm", "rb") as f:  # noqa: PTH123 - shorter than a Path for one read
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def host_peak_bytes() -> int:
    """Return the most resident memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class MemorySampler:
    """Memory for lines of the step log: `{"memory": {...}}`, bytes throughout.

    Steps shorter than the period share a reading: those in between have none rather than an old one.
    """

    def __init__(self, *, period_ns: int = 100_000_000) -> None:
        self._period_ns = period_ns
        self._next_ns = 0

    def on_step_end(self, step: int) -> dict[str, Any]:
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return {}
        self._next_ns = now_ns + self._period_ns
        seen: dict[str, int | None] = {"host_bytes": host_bytes(), "host_peak_bytes": host_peak_bytes()}
        if torch.cuda.is_initialized():
            stats = device_stats()
            for counter in ("allocated_bytes", "reserved_bytes"):
                seen |= {counter: _stat(stats, counter, "current"), f"peak_{counter}": _stat(stats, counter, "peak")}
            seen["allocator_retries"] = stats.get("num_alloc_retries")
        return {"memory": seen}


def _segments() -> list[dict[str, Any]]:
    try:
        return list(torch.cuda.memory_snapshot(include_traces=False))
    except TypeError:  # before torch 2.10
        return list(torch.cuda.memory_snapshot())


def _index(device: int | None) -> int:
    return torch.cuda.current_device() if device is None else device


def _stat(stats: Mapping[str, Any], name: str, when: str) -> int | None:
    found = stats.get(name)
    return None if found is None else int(found["all"][when])


# The CUDA allocator's own history (`--memory`): every allocation with its Python stack, as a pickle.
#
#     rank00000.memory.pickle        at the end of the window
#     rank00000.oom.memory.pickle    at the first out-of-memory errors, before the job sees them
#
# The history is on from the first use of CUDA, because an error can come at any time; it holds the latest entries. A
# job that records its own keeps it: ours stays off, or is no longer ours once the job switches its own on. The files
# have the format of `torch.cuda.memory._dump_snapshot`, so every viewer of such snapshots reads them.

_MAX_OOM_SNAPSHOTS = 3  # a job that searches for its batch size catches many such errors


class MemoryHistory:
    """A sampler that captures the allocator's history. `memory` is `torch.cuda.memory`."""

    def __init__(self, *, memory: Any = None, max_entries: int = 100_000) -> None:
        self._memory = torch.cuda.memory if memory is None else memory
        self._max_entries = max_entries
        self._pid = os.getpid()
        self._recording = self._in_window = False
        self._switch = self._memory._record_memory_history
        self._captured: Any = None
        self._hand_over: Callable[[Callable[[Path, int], None]], object] | None = None
        #: starts the recorder, which a job without any backward pass has not done yet
        self.on_error: Callable[[], object] = lambda: None
        self._num_errors = 0
        self._at_error: Any = None
        self.why_not: str | None = None
        torch.cuda._lazy_call(lambda: self._guarded(self._begin))  # now, or at the first use of CUDA

    @property
    def has_unsaved(self) -> bool:
        """Return whether there is something to write although no step has ended."""
        return self._at_error is not None

    def on_open(self, hand_over: Callable[[Callable[[Path, int], None]], object]) -> None:
        """Remember how files are sent to the run folder."""
        self._hand_over = hand_over

    def on_window_start(self) -> None:
        """Note that the window begins; its history ends up in a file of its own."""
        if not torch.cuda.is_initialized():
            self._stay_out("CUDA is not in use in this process")
        self._in_window = self._recording

    def on_window_end(self) -> None:
        if self._in_window and self._recording:
            self._guarded(self._capture)
        self._in_window = False

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Write the captures; a second window's replaces the first one's, a later error's an earlier one's."""
        for ending in ("memory.pickle", "oom.memory.pickle"):
            is_error = ending.startswith("oom")
            snapshot = self._at_error if is_error else self._captured
            if snapshot is not None:
                with atomic_write(Path(folder) / rank_file(rank, ending)) as f:
                    pickle.dump(snapshot, f, protocol=4)
        self._captured = self._at_error = None

    def on_close(self, folder: str | Path, rank: int) -> None:
        self.on_window_end()
        if self._recording:
            self._memory._record_memory_history = self._switch
            self._guarded(lambda: self._switch(enabled=None))
        self.after_window(folder, rank)
        memory_history.cache_clear()

    def _begin(self) -> None:
        if os.getpid() != self._pid:
            return
        if (attach := getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)) is not None:
            attach(self._out_of_memory)
        if getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)():
            self._stay_out(_OWN_HISTORY)
            return
        self._switch(enabled="all", context="alloc", stacks="python", max_entries=self._max_entries)
        self._recording = True
        self._memory._record_memory_history = self._by_the_job

    def _by_the_job(self, *args: Any, **named: Any) -> Any:
        self._recording = False
        self._memory._record_memory_history = self._switch
        self._stay_out(_OWN_HISTORY)
        return self._switch(*args, **named)

    def _capture(self) -> None:
        self._captured = self._memory._snapshot()

    def _out_of_memory(self, device: int, requested_bytes: int, limit_bytes: int, free_bytes: int) -> None:
        """Write a snapshot; called by the allocator before it raises, on the thread that made the request."""
        self._num_errors += 1
        if os.getpid() != self._pid or self._num_errors > _MAX_OOM_SNAPSHOTS:
            return
        try:
            about = {"device": device, "requested_bytes": requested_bytes, "limit_bytes": limit_bytes}
            self._at_error = self._memory._snapshot()
            self._at_error["out_of_memory"] = {**about, "free_bytes": free_bytes, **_whereabouts(device)}
            size = f"{requested_bytes / 1e9:.3g} GB requested, {free_bytes / 1e9:.3g} GB free on device {device}"
            say(f"out of memory ({size}): `stepscope memory` on this run shows what held it")
            self.on_error()
            if self._hand_over is not None:
                self._hand_over(self.after_window)
        except Exception as e:  # noqa: BLE001 - the job has to see its own error, not ours
            say(f"no memory snapshot of the out-of-memory error: {explain(e)}")

    def _guarded(self, act: Any) -> None:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - the allocator's interface is private and changes
            self._recording = False
            self._stay_out(explain(e))

    def _stay_out(self, reason: str) -> None:
        if self.why_not is None:
            self.why_not = reason
            say(f"no memory history: {reason}")


@functools.cache
def memory_history() -> MemoryHistory:
    """Return the sampler of this process, which is made before its recorder: the first pass may fail already."""
    return MemoryHistory()


_OWN_HISTORY = "the job records its own memory history"


def _whereabouts(device: int) -> dict[str, Any]:
    """Return the module and the Python stack of a failed request, and the job's storages on the device.

    Threads of autograd have no Python frames: the main thread, in its call of backward, stands for them.
    """
    threads = sys._current_frames()
    frames = _frames(threads.get(threading.get_ident())) or _frames(threads.get(threading.main_thread().ident or 0))
    called = [f.f_locals.get("self") for f in frames if f.f_code.co_name == "_call_impl"]
    inside = [module for module in called if isinstance(module, torch.nn.Module)]
    names = {id(module): name for name, module in inside[-1].named_modules()} if inside else {}
    modules, optimizers = live_objects()
    storages = storages_of(modules, optimizers=optimizers)
    return {
        "frames": [{"filename": f.f_code.co_filename, "line": f.f_lineno, "name": f.f_code.co_name} for f in frames],
        "module": names.get(id(inside[0])) or type(inside[0]).__name__ if inside else None,
        "storages": {s.address: s.category for s in storages if s.device == f"cuda:{device}"},
        "bucket_bytes": bucket_sizes(modules, device=f"cuda:{device}"),
    }


def _frames(frame: Any) -> list[Any]:
    found: list[Any] = []
    while frame is not None and len(found) < 128:
        if frame.f_code.co_filename != __file__:
            found.append(frame)
        frame = frame.f_back
    return found


NO_DEVICE = "the host's allocator keeps no counters: activations and temporary memory are known on CUDA only"


class MemoryTimeline:
    """A sampler that follows regions. `stats`, `snapshot` and `objects` are its sources."""

    def __init__(
        self,
        *,
        first_step: int,
        stats: Callable[[], Mapping[str, Any]] = device_stats,
        snapshot: Callable[[str], MemorySnapshot] = memory_snapshot,
        objects: Callable[[], tuple[list[Any], list[Any]]] = live_objects,
    ) -> None:
        self._stats, self._snapshot, self._objects = stats, snapshot, objects
        self._step = 0
        self._first_step, self._last_step = first_step, first_step + 2
        self._looks_closely = False
        self._models: tuple[list[Any], list[Any]] = ([], [])
        self._storages: list[Storage] = []
        self._buckets: list[dict[str, Any]] = []
        self._lines: list[dict[str, Any]] = []
        self._last_edge = "start"
        self._peak_bytes = 0
        self._peak_between = ("start", "start")

    def on_region_begin(self, name: str) -> None:
        """Measure the memory where a region begins."""
        self._edge(f"begin {name}")

    def on_region_end(self, name: str) -> None:
        self._edge(f"end {name}")

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Return that this step was disturbed, where it was; the log's own memory is `MemorySampler`'s."""
        if self._step >= self._last_step:
            return {}
        self._edge("end of step")
        was_close = self._looks_closely
        self._step = step + 1
        if self._step == self._first_step:
            self._models = self._objects()
            self._looks_closely = True
        elif self._step == self._last_step:
            self._looks_closely = False
            self._storages = storages_of(self._models[0], optimizers=self._models[1])
            devices = sorted({storage.device for storage in self._storages})
            sizes = [(device, size) for device in devices for size in bucket_sizes(self._models[0], device=device)]
            self._buckets = [{"kind": "bucket", "size_bytes": size, "device": device} for device, size in sizes]
            self._models = ([], [])
        return {"profiled": True} if was_close else {}

    def on_close(self, folder: str | Path, rank: int) -> None:
        self.after_window(folder, rank)

    def after_window(self, folder: str | Path, rank: int) -> None:
        if not self._lines:
            return
        storages = [{"kind": "storage", **asdict(s)} for s in self._storages]
        rows = [*self._lines, self._peak(), *storages, *self._buckets]
        with atomic_write(Path(folder) / rank_file(rank, "memory.jsonl")) as f:
            f.writelines(json.dumps(row).encode() + b"\n" for row in rows)

    def _edge(self, label: str) -> None:
        if self._step >= self._last_step:
            return
        peak = (self._stats().get("allocated_bytes") or {"all": {"peak": 0}})["all"]["peak"]
        if peak > self._peak_bytes:
            self._peak_bytes, self._peak_between = peak, (self._last_edge, label)
        self._last_edge = label
        if self._looks_closely and len(self._lines) < 2_000:
            self._lines.append(self._line(label))

    def _line(self, label: str) -> dict[str, Any]:
        seen = self._snapshot(label)
        device = "cpu" if seen.allocated_bytes is None else f"cuda:{torch.cuda.current_device()}"
        known = totals(storages_of(self._models[0], optimizers=self._models[1]), device=device)
        known[_COMMUNICATION] = sum(bucket_sizes(self._models[0], device=device))
        return {
            "kind": "snapshot",
            "step": self._step,
            **asdict(seen),
            "fragmentation": seen.fragmentation,
            "device": device,
            **{f"{category}_bytes": known[category] for category in _CATEGORIES},
        }

    def _peak(self) -> dict[str, Any]:
        counted = [row for row in self._lines if row["allocated_bytes"] is not None]
        edges = [row for row in counted if row["label"] in self._peak_between]
        if not edges:
            unseen = f"the peak is between '{' and '.join(self._peak_between)}', which was not examined closely"
            return {"kind": "peak", "peak_bytes": None, "reason": unseen if counted else NO_DEVICE}
        fullest = max(edges, key=lambda row: int(row["allocated_bytes"]))
        known = {category: fullest[f"{category}_bytes"] for category in _CATEGORIES}
        edge = (fullest["allocated_bytes"], known)
        return {"kind": "peak", **at_peak(self._peak_bytes, edge=edge, between=self._peak_between)}
