"""What the memory is used for: parameters, gradients, optimizer state and buffers by storage, the rest by subtraction.

Every storage is counted once, however many tensors look at it (tied weights, views, flat parameters), under the
first category that claims it. DDP's buckets are no tensors of Python; DDP tells their sizes. What the allocator holds
beyond these is *activations* when it was still there at a region's edge, and *temporary* when it came and went between
two edges:

    allocated at the edge = parameters + gradients + optimizer + buffers + communication + activations
    peak                  = allocated at the nearer edge + temporary
"""

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS = "parameters", "gradients", "optimizer", "buffers"
COMMUNICATION = "communication"
CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, COMMUNICATION)


@dataclass(frozen=True)
class Storage:
    """One piece of memory that tensors of the model or the optimizer live in."""

    address: int
    size_bytes: int
    device: str
    category: str


@dataclass(frozen=True)
class PeakByCategory:
    """The peak and what it was made of; `between` names the snapshots on either side of it."""

    peak_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    buffers_bytes: int
    communication_bytes: int
    activations_bytes: int
    temporary_bytes: int
    between: tuple[str, str]


def live_objects() -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    """Return the modules and optimizers alive in this process, found through the garbage collector.

    It takes about 10 ms per 100,000 objects, so it is for a few chosen moments. Types are asked, not objects:
    `isinstance` would run code of lazy proxies.
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
        if isinstance(module, torch.nn.parallel.DistributedDataParallel) and _device_of(module) == device:
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
    out = dict.fromkeys(CATEGORIES, 0)
    for storage in storages:
        if storage.device == device:
            out[storage.category] += storage.size_bytes
    return out


def at_peak(peak_bytes: int, *, edge: tuple[int, dict[str, int]], between: tuple[str, str]) -> PeakByCategory:
    """Return the peak's make-up from the edge with more memory: `(allocated bytes, totals() there)`."""
    allocated_bytes, known = edge
    return PeakByCategory(
        peak_bytes=peak_bytes,
        parameters_bytes=known[PARAMETERS],
        gradients_bytes=known[GRADIENTS],
        optimizer_bytes=known[OPTIMIZER],
        buffers_bytes=known[BUFFERS],
        communication_bytes=known[COMMUNICATION],
        activations_bytes=max(0, allocated_bytes - sum(known.values())),
        temporary_bytes=max(0, peak_bytes - allocated_bytes),
        between=between,
    )


def _device_of(module: torch.nn.Module) -> str | None:
    first = next(module.parameters(), None)
    return None if first is None else str(first.device)


def _own(module: torch.nn.Module, kind: str) -> list[Any]:
    """Return the module's own tensors; one still under construction may not have the table yet."""
    return [t for t in (module.__dict__.get(kind) or {}).values() if t is not None]


def _tensors_in(found: Any) -> list[torch.Tensor]:
    """Return the tensors in nested dicts, lists and tuples, as optimizers keep their state."""
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
