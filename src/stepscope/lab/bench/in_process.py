"""Measurements for `stepscope.lab.toolkit`: steps of user objects, exchanges among ranks, device memory.

Exchanges are collective. Without a process group this process is the only rank.
"""

import gzip
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from stepscope.lab.bench.measure import elapsed_ms as elapsed_ms, mark, measure, record_steps
from stepscope.lab.bench.rank import from_first as from_first, gathered as gathered
from stepscope.record.config import initialized_distributed
from stepscope.record.memory import NO_DEVICE, bucket_sizes, live_objects, memory_snapshot, storages_of, totals
from stepscope.record.quick_check import now_ns


def output_of(model: Any, batch: Any) -> Any:
    """Return the model's output of a dict, of `(inputs, targets)`, or of a batch that is the input."""
    if isinstance(batch, dict):
        return model(**batch)
    return model(batch[0] if isinstance(batch, list | tuple) and len(batch) == 2 else batch)


def loss_of(model: Any, batch: Any, loss_fn: Callable[..., Any] | None) -> Any:
    """Return the loss: by `loss_fn`, else the model's own, else the mean of its output."""
    output = output_of(model, batch)
    if loss_fn is not None:
        return loss_fn(output, batch[1]) if isinstance(batch, list | tuple) and len(batch) == 2 else loss_fn(output)
    loss = getattr(output, "loss", None)
    return loss if loss is not None else output.float().mean()


def passes_ms(
    model: Any, batch: Any, loss_fn: Callable[..., Any] | None, *, sync: bool = True, optimizer: Any = None
) -> tuple[float, float]:
    """Return the ms of forward and backward, with or without gradient synchronisation; gradients are cleared."""
    device = model_device(model)
    with nullcontext() if sync or not hasattr(model, "no_sync") else model.no_sync():
        begin = now_ns(device)
        loss = loss_of(model, batch, loss_fn)
        middle = now_ns(device)
        loss.backward()
        end = now_ns(device)
    if optimizer is not None:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return (middle - begin) / 1e6, (end - middle) / 1e6


def random_tokens(shape: tuple[int, int], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Return random token ids."""
    return torch.randint(0, vocab_size, shape, device=device)


def gathers_in_forward(model: Any) -> bool:
    """Return whether the forward pass has collectives: FSDP 1 and 2."""
    return hasattr(model, "set_requires_gradient_sync") or type(model).__name__ == "FullyShardedDataParallel"


def without_gradients(call: Callable[[], Any]) -> Callable[[], None]:
    """Return the call without autograd and without its result."""

    def called() -> None:
        with torch.no_grad():
            call()

    return called


def step_times_ms(step: Callable[[], Any], *, steps: int, warmup_steps: int) -> list[float]:
    """Return the times of `steps` calls after a warm-up."""

    def without_result() -> None:
        step()

    found: list[float] = measure(without_result, warmup_steps=warmup_steps, steps=steps, device=own_device())["step_ms"]
    return found


def own_times_ms(work: Callable[[], Any] | None, count: int) -> list[float]:
    """Return the times of a rank's own work, by default a matrix product; ranks begin each together."""
    device = own_device()
    matrix = torch.randn((4096, 4096) if device.type == "cuda" else (512, 512), device=device)
    call = work or (lambda: matrix @ matrix)
    call()
    times = []
    for _ in range(count):
        barrier()
        begin = now_ns(device)
        call()
        times.append((now_ns(device) - begin) / 1e6)
    return times


def timed_all_reduce(tensor: torch.Tensor, group: Any, label: str) -> tuple[Any, Any]:
    """Reduce a tensor inside a labelled range and return marks around it, for `elapsed_ms`."""
    nvtx = torch.cuda.nvtx.range(label) if torch.cuda.is_initialized() else nullcontext()
    with torch.profiler.record_function(label), nvtx:
        begin = mark(tensor.device)
        dist.all_reduce(tensor, group=group)
        return begin, mark(tensor.device)


# Exchanges among ranks


def barrier() -> None:
    """Wait for all ranks."""
    if initialized_distributed() is not None:
        dist.barrier()


def recorded_traces(step: Callable[[], Any], steps: int) -> list[bytes] | None:
    """Record `steps` calls on every rank and return the compressed traces on rank 0, None on the others."""
    with TemporaryDirectory(prefix="stepscope-") as folder:
        path = Path(folder) / "trace.json"
        record_steps(lambda mark: step, path=path, steps=steps, device=own_device(), record_shapes=True)
        own = gzip.compress(path.read_bytes(), 1)
    if initialized_distributed() is None:
        return [own]
    found: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(own, found, dst=0)
    return found


# Devices and their memory


def own_device() -> torch.device:
    """Return the CUDA device of this process, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def model_device(model: Any) -> torch.device:
    """Return the device of the model's parameters."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def group_device(group: Any) -> torch.device:
    """Return the device whose tensors the group's backend reduces."""
    return own_device() if "nccl" in str(dist.get_backend(group)) else torch.device("cpu")


def device_index(device: Any) -> int | None:
    """Return the number of a CUDA device, None for the current one."""
    return device if device is None or isinstance(device, int) else torch.device(device).index


def device_name() -> str | None:
    """Return the driver's name of this process's device, None without CUDA."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def reset_peak_memory(index: int | None) -> None:
    """Reset the allocator's peaks, if CUDA is in use."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats(index)


def memory_by_use(index: int | None) -> dict[str, Any]:
    """Return the bytes on a device by category and by source line; on a CPU those of models and optimizers."""
    seen = memory_snapshot("breakdown", device=index)
    modules, optimizers = live_objects()
    cuda = seen.allocated_bytes is not None
    number = torch.cuda.current_device() if cuda and index is None else index
    device = f"cuda:{number}" if cuda else "cpu"
    categories = totals(storages_of(modules, optimizers=optimizers), device=device)
    categories["communication"] = sum(bucket_sizes(modules, device=device))
    if seen.allocated_bytes is not None:
        categories["activations and other"] = max(0, seen.allocated_bytes - sum(categories.values()))
    sources = _by_source(number) if cuda else None
    return {
        "device": device,
        "allocated_bytes": seen.allocated_bytes,
        "cache_bytes": seen.free_in_segments_bytes,
        "categories": categories,
        "sources": sources,
        "reason": NO_DEVICE if not cuda else None if sources else "no memory history is recorded",
    }


def _by_source(index: int | None) -> dict[str, int] | None:
    own, sizes = str(Path(torch.__file__).parent), dict[str, int]()
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] != "active_allocated" or segment["device"] != index:
                continue
            # those of C++ are among them: backward's own threads have no others
            frames = [f for f in block.get("frames") or () if f["filename"].endswith((".py", ">"))]
            chosen = next((f for f in frames if not f["filename"].startswith(own)), frames[0] if frames else None)
            source = "unknown" if chosen is None else f"{chosen['filename']}:{chosen['line']}"
            sizes[source] = sizes.get(source, 0) + block["size"]
    return dict(sorted(sizes.items(), key=lambda item: -item[1])) if set(sizes) - {"unknown"} else None
