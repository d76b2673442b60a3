"""What a rank knows about itself and its job, for run.json: asked for at quiet moments, never in a step."""

import os
import platform
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from stepscope.record.collectives.groups import backend, process_groups
from stepscope.record.config import RecordConfig
from stepscope.record.helper.clock_probe import boot_id
from stepscope.record.rank import Place, initialized_distributed
from stepscope.record.source_commit import source_commit
from stepscope.record.strategy import ranks_per_replica, strategy_of
from stepscope.version import __version__

# Variables that change how a job performs; nothing else of the environment is recorded.
_PREFIXES = (
    "NCCL_",
    "TORCH_",
    "TORCHELASTIC_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "CUDA_",
    "PYTORCH_",
    "SLURM_",
    "KINETO_",
    "TEARDOWN_",
)
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD")
_MAX_VALUE_LENGTH = 500


def facts_at_start(config: RecordConfig, place: Place, *, created_ns: int) -> dict[str, Any]:
    """Return what does not change while training runs."""
    return {
        "created_ns": created_ns,
        "command": list(config.command) or list(sys.orig_argv),
        "config": asdict(config),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "local_rank": place.local_rank,
        "rank_source": place.source,
        "device": device(),
        "versions": versions(),
        "environment": environment(os.environ),
        "commit": source_commit(),
    }


def facts_of_training(noted: Mapping[str, Any], *, world_size: int) -> dict[str, Any]:
    """Return what the objects that were noted tell: model, optimizer, DDP, groups, tokens; only what is known.

    What was known earlier stays: at the end of a job its process groups are often gone already.
    """
    model, optimizer = noted.get("model"), noted.get("optimizer")
    ddp = noted.get("ddp") or _ddp_in(model)
    found = {
        **{name: value for name, value in noted.items() if _is_plain(value)},
        "model": model_facts(model) if model is not None else None,
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
        "ddp": ddp_facts(ddp) if ddp is not None else None,
    }
    if world_size == 1 or initialized_distributed() is not None:
        found["backend"] = backend()
        found["process_groups"] = process_groups()
        found["strategy"] = noted.get("strategy") or strategy_of(model, optimizer)
        found["ranks_per_replica"] = ranks_per_replica(model)
    return {name: value for name, value in found.items() if value is not None}


def device() -> dict[str, Any]:
    """Return this rank's device: kind, name, memory, and how many this process sees."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "kind": "cuda" if torch.version.cuda else "rocm",
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "visible": torch.cuda.device_count(),
        }
    return {"kind": "cpu", "name": platform.processor() or platform.machine(), "cores": os.cpu_count()}


def versions() -> dict[str, Any]:
    """Return the versions that a result depends on."""
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() and hasattr(torch.cuda, "nccl") else None
    return {
        "stepscope": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
        "system": platform.platform(),
    }


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter for performance."""
    return {
        name: value[:_MAX_VALUE_LENGTH]
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIXES) or name in _NAMES
    }


def model_facts(model: torch.nn.Module) -> dict[str, Any]:
    """Return the model's name and its parameters: number (whole, not the local shard), bytes, types."""
    parameters = list(model.parameters())
    sizes = [(p.numel(), p.element_size(), p.requires_grad) for p in parameters]
    local = [getattr(p, "_local_tensor", p).numel() for p in parameters]
    inner = getattr(model, "module", model)
    return {
        "name": type(getattr(inner, "_orig_mod", inner)).__name__,
        "parameters": sum(n for n, _, _ in sizes),
        "trainable_parameters": sum(n for n, _, trainable in sizes if trainable),
        "bytes": sum(n * width for n, width, _ in sizes),
        "local_parameters": sum(local),
        "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
    }


def ddp_facts(ddp: Any) -> dict[str, Any]:
    """Return DDP's settings, bucket sizes and the times that DDP itself sampled (in ns)."""
    data = dict(ddp._get_ddp_logging_data())
    sizes = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    wanted = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "bucket_cap_bytes", "comm_hook")
    times = ("forward_compute", "backward_compute", "backward_comm", "backward_compute_comm_overlap")
    return {
        "bucket_bytes": [int(s) for s in str(sizes).split(",") if s.strip()],
        **{name: data[name] for name in wanted if name in data},
        **{f"avg_{name}_ns": data[f"avg_{name}_time"] for name in times if f"avg_{name}_time" in data},
        "iterations": data.get("iteration"),
    }


def _ddp_in(model: Any) -> Any:
    kind = torch.nn.parallel.DistributedDataParallel
    candidates = (model, getattr(model, "_orig_mod", None))
    return next((m for m in candidates if isinstance(m, kind)), None)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | list | tuple | dict)
