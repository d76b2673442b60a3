"""What a rank sends to its helper between steps: its identity, its trace, its collectives, samplers' files, its facts.

Files are written to local disk, and the helper moves them to the run folder. Where one cannot be written there, the
reason is returned and training goes on.
"""

import json
import math
import os
import re
import socket
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from stepscope.contract.run_folder import SCHEMA, of_window, rank_file, trace_file
from stepscope.record.config import Place, RecordConfig, initialized_distributed
from stepscope.record.groups import FLIGHT_RECORDER, backend, flight_dump, process_groups
from stepscope.record.helper.open_run import OpenRun
from stepscope.record.helper.side_channel import boot_id
from stepscope.record.lifetime import LIFETIME
from stepscope.side_file import read_side_text
from stepscope.version import __version__

# Which commit does the training script run at? Read from the repository's own files: no process is started in the job.
#
# The CI system's variables come first; else `.git` of the script's folder, or of one around it. Uncommitted changes are
# not detected: that would take a walk through all files.

_COMMIT = re.compile(r"^[0-9a-f]{40}(?:[0-9a-f]{24})?$")


def source_commit(environment: Mapping[str, str] = os.environ, script: str | None = None) -> str | None:
    """Return the commit of the script's repository, None where there is none."""
    said = [
        environment[name].strip().lower()
        for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILDKITE_COMMIT", "CIRCLE_SHA1")
        if name in environment
    ]
    known = next((one for one in said if _COMMIT.match(one)), None)
    if known is not None:
        return known
    try:
        start = Path(script if script is not None else sys.argv[0]).resolve().parent
        for folder in [start, *start.parents][:40]:
            git = folder / ".git"
            if git.is_file():  # a worktree's
                git = (folder / _text(git).partition("gitdir: ")[2].strip()).resolve()
            if git.exists():
                return _head(git)
    except (OSError, ValueError, IndexError):
        return None
    return None


def _head(git: Path) -> str | None:
    head = _text(git / "HEAD").strip()
    ref = re.match(r"^ref: (refs/[\w./-]{1,200})$", head)
    if ref is None:
        return head if _COMMIT.match(head) else None
    common = git / "commondir"  # a worktree has its own HEAD and shares its branches
    roots = [git, *([(git / _text(common).strip()).resolve()] if common.is_file() else [])]
    return next((found for root in roots if (found := _branch(root, ref[1])) is not None), None)


def _branch(root: Path, name: str) -> str | None:
    if ".." in name:
        return None
    if (root / name).is_file():
        found = _text(root / name).strip()
        return found if _COMMIT.match(found) else None
    packed = _text(root / "packed-refs").splitlines() if (root / "packed-refs").is_file() else []
    commits = (line.split(" ", 1)[0] for line in packed if line.endswith(f" {name}"))
    return next((one for one in commits if _COMMIT.match(one)), None)


def _text(path: Path) -> str:
    return read_side_text(path, max_bytes=1 << 20)


# How a job is spread over its ranks, guessed from the objects it trains with.
#
# DistributedDataParallel -> ddp         FullyShardedDataParallel -> fsdp      fully_shard -> fsdp2 (hsdp with 2 axes)
# DTensor over another axis -> + its name (tp)     ZeroRedundancyOptimizer -> zero1      pipeline groups -> + pp

_MODEL_AXES = ("tp", "cp", "sp", "tensor", "context", "sequence", "model", "pp", "pipe", "pipeline", "stage")


def strategy_of(model: Any, optimizer: Any) -> str | None:
    """Return the strategy, `single` for one process, None where unknown."""
    dist = initialized_distributed()
    if dist is None or dist.get_world_size() == 1:
        return "single"
    parts = [part for part in (_data_parallel(model, optimizer), *_model_parallel_axes(model)) if part]
    return "+".join(parts) or None


def ranks_per_replica(model: Any) -> int:
    """Return how many ranks share one replica's samples: the product of the mesh's model-parallel axes."""
    mesh = _mesh_of(model)
    names = getattr(mesh, "mesh_dim_names", None) or ()
    return math.prod(mesh.size(i) for i, name in enumerate(names) if name.lower() in _MODEL_AXES)


def _data_parallel(model: Any, optimizer: Any) -> str | None:
    kinds = {type(m).__name__ for m in _modules(model)}
    if "FullyShardedDataParallel" in kinds:
        return "fsdp"
    modules = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
    fsdp2 = tuple(kind for name in modules if (kind := getattr(sys.modules.get(name), "FSDPModule", None)) is not None)
    if any(isinstance(m, fsdp2) for m in _modules(model)):
        return "hsdp" if _is_replicated_too(model) else "fsdp2"
    if "DeepSpeedEngine" in kinds:
        return "deepspeed"
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        return "zero1"
    return "ddp" if "DistributedDataParallel" in kinds else None


def _modules(model: Any) -> list[Any]:
    return list(model.modules()) if hasattr(model, "modules") else []


def _model_parallel_axes(model: Any) -> list[str]:
    axes = [str(n).lower() for n in getattr(_mesh_of(model), "mesh_dim_names", None) or ()]
    descriptions = [group["desc"] for group in process_groups() or ()]
    axes += [desc.removeprefix("mesh_").lower() for desc in descriptions if desc.startswith("mesh_")]
    return [axis for axis in dict.fromkeys(axes) if axis in _MODEL_AXES]


def _mesh_of(model: Any) -> Any:
    meshes = [p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh")] if model is not None else []
    return max(meshes, key=lambda mesh: mesh.ndim, default=None)


def _is_replicated_too(model: Any) -> bool:
    for parameter in model.parameters():
        placements: Any = getattr(parameter, "placements", ())
        if len(placements) > 1 and placements[0].is_replicate() and any(p.is_shard() for p in placements):
            names = list(getattr(parameter.device_mesh, "mesh_dim_names", None) or [""])
            return str(names[0]).lower() not in _MODEL_AXES
    return False


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


def facts_at_start(config: RecordConfig, place: Place, *, created_ns: int) -> dict[str, Any]:
    """Return what does not change while training runs."""
    return {
        "created_ns": created_ns,
        "command": list(config.command) or list(sys.orig_argv),
        "config": asdict(config),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "local_rank": place.local_rank,
        "rank_source": place.source,
        "device": _device(),
        "versions": _versions(),
        "environment": {
            name: value[:500]
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES)
            or name
            in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD")
        },
        "commit": source_commit(),
    }


def facts_of_training(noted: Mapping[str, Any], *, world_size: int) -> dict[str, Any]:
    """Return the known facts about the noted objects: model, optimizer, DDP, groups, tokens.

    Earlier facts stay: at the end of a job its process groups are often destroyed already.
    """
    model, optimizer = noted.get("model"), noted.get("optimizer")
    wrapped = [m for m in (model, getattr(model, "_orig_mod", None)) if isinstance(m, DistributedDataParallel)]
    ddp = noted.get("ddp") or next(iter(wrapped), None)
    found = {
        **{
            name: value
            for name, value in noted.items()
            if isinstance(value, str | int | float | bool | list | tuple | dict)
        },
        "model": model_facts(model) if model is not None else None,
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
        "ddp": _ddp_facts(ddp) if ddp is not None else None,
    }
    if world_size == 1 or initialized_distributed() is not None:
        found["backend"] = backend()
        found["process_groups"] = process_groups()
        found["strategy"] = noted.get("strategy") or strategy_of(model, optimizer)
        found["ranks_per_replica"] = ranks_per_replica(model)
    return {name: value for name, value in found.items() if value is not None}


def _device() -> dict[str, Any]:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        index = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        pci = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
        return {
            "kind": "cuda" if torch.version.cuda else "rocm",
            "name": properties.name,
            "index": index,
            "uuid": None if uuid is None else f"GPU-{uuid}",
            "pci": None if None in pci else pci,
            "memory_bytes": properties.total_memory,
            "visible": torch.cuda.device_count(),
        }
    return {"kind": "cpu", "name": os.uname().machine, "cores": os.cpu_count()}


def _versions() -> dict[str, Any]:
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() and hasattr(torch.cuda, "nccl") else None
    system = os.uname()  # `platform` starts a process for it, and thereby resets which warnings were printed
    return {
        "stepscope": __version__,
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else nccl,
        "system": "-".join((system.sysname, system.release, system.machine)),
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


def _ddp_facts(ddp: Any) -> dict[str, Any]:
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


def introduce(run: OpenRun, *, created_ns: int) -> None:
    """Send what does not change while training runs, and the step log's header."""
    place = run.place
    run.outbox.put({"do": "facts", **facts_at_start(run.config, place, created_ns=created_ns)})
    header = {"schema": SCHEMA, "rank": place.rank, "world_size": place.world_size, "created_ns": created_ns}
    lifetime = {"launched_ns": run.config.launched_ns, **LIFETIME.leave_to(run.outbox.put)}
    run.outbox.put_step(json.dumps({**header, "lifetime": lifetime}))


def hand_over_window(run: OpenRun, outcome: dict[str, Any]) -> dict[str, Any]:
    """Return a window's outcome with the name of its trace, which is being sent; later windows have folders."""
    plain = outcome.pop("plain", None)
    if plain is None:
        return outcome
    number = outcome["window"]
    name = of_window(number, trace_file(run.place.rank))
    run.outbox.put({"do": "trace", "plain": plain, "name": name, "about": {"kind": "trace", "window": number}})
    return {**outcome, "name": name}


def hand_over_collectives(run: OpenRun, window: int) -> str | None:
    """Send the flight recorder's dump after a window, to be stored next to its trace.

    Return why that was not possible, None where it was or there is none.
    """
    dump = flight_dump()
    if dump is None:
        return None
    try:
        with tempfile.NamedTemporaryFile(prefix="flight-", dir=run.scratch, delete=False) as raw:
            raw.write(dump)
    except OSError as e:
        return f"the flight recorder's dump could not be written: {e.strerror}"
    name = of_window(window, rank_file(run.place.rank, FLIGHT_RECORDER))
    run.outbox.put({"do": "flight", "plain": raw.name, "name": name, "process_groups": process_groups()})
    return None


def hand_over_files(run: OpenRun, write: Callable[[Path, int], None]) -> str | None:
    """Let `write(folder, rank)` write files and send them; return why that was not possible, None where it was."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="files-", dir=run.scratch))
    except OSError as e:
        return f"the samplers' files could not be written: {e.strerror}"
    write(folder, run.place.rank)
    for path in sorted(folder.iterdir()):
        run.outbox.put({"do": "file", "plain": str(path), "name": path.name})
    return None


class JobFacts:
    """Facts about a rank's job other than its steps: noted facts, its windows, and why something is missing."""

    def __init__(self) -> None:
        self.windows: list[dict[str, Any]] = []
        self._noted: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}

    def note(self, facts: Mapping[str, Any]) -> None:
        """Keep facts; the last value of a name wins. Objects are held weakly."""
        for name, value in facts.items():
            is_object = isinstance(value, torch.nn.Module | torch.optim.Optimizer)
            self._noted[name] = weakref.ref(value) if is_object else value

    def noted(self, name: str) -> Any:
        """Return a noted fact, None where there is none or its object was deleted."""
        value = self._noted.get(name)
        return value() if isinstance(value, weakref.ref) else value

    def because(self, what: str, reason: str | None) -> None:
        if reason is not None:
            self._reasons[what] = reason

    def no_longer(self, what: str) -> None:
        self._reasons.pop(what, None)

    def send(self, run: OpenRun, *, window_complete: bool = False) -> None:
        """Send what is known by now; after a window the helper writes it down at once."""
        seen = {name: value() if isinstance(value, weakref.ref) else value for name, value in self._noted.items()}
        run.outbox.put(
            {
                "do": "facts",
                **facts_of_training(seen, world_size=run.place.world_size),
                "windows": self.windows,
                "reasons": {**(seen.get("reasons") or {}), **self._reasons},
                "lines_dropped": run.outbox.dropped,
                "window_complete": window_complete,
            }
        )
