"""How a job is spread over its ranks, guessed from the objects it trains with.

DistributedDataParallel -> ddp         FullyShardedDataParallel -> fsdp      fully_shard -> fsdp2 (hsdp with 2 axes)
DTensor over another axis -> + its name (tp)     ZeroRedundancyOptimizer -> zero1      pipeline groups -> + pp
"""

import sys
from typing import Any

from stepscope.record.rank import initialized_distributed

_PIPELINE_AXES = ("pp", "pipe", "pipeline", "stage")
_MODEL_AXES = ("tp", "cp", "sp", "tensor", "context", "sequence", "model", *_PIPELINE_AXES)


def strategy_of(model: Any, optimizer: Any) -> str | None:
    """Return the strategy, `single` for one process, None where the objects do not tell."""
    dist = initialized_distributed()
    if dist is None or dist.get_world_size() == 1:
        return "single"
    parts = [part for part in (_data_parallel(model, optimizer), *_model_parallel_axes(model)) if part]
    return "+".join(parts) or None


def ranks_per_replica(model: Any) -> int:
    """Return how many ranks share one replica's samples: the product of the mesh's model-parallel axes."""
    mesh = _mesh_of(model)
    names = getattr(mesh, "mesh_dim_names", None) or ()
    size = 1
    for i, name in enumerate(names):
        if name.lower() in _MODEL_AXES:
            size *= mesh.size(i)
    return size


def _data_parallel(model: Any, optimizer: Any) -> str | None:
    kinds = {type(m).__name__ for m in _modules(model)}
    if "FullyShardedDataParallel" in kinds:
        return "fsdp"
    fsdp2 = _fsdp2_class()
    if fsdp2 is not None and any(isinstance(m, fsdp2) for m in _modules(model)):
        return "hsdp" if _is_replicated_too(model) else "fsdp2"
    if "DeepSpeedEngine" in kinds:
        return "deepspeed"
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        return "zero1"
    return "ddp" if "DistributedDataParallel" in kinds else None


def _modules(model: Any) -> list[Any]:
    return list(model.modules()) if hasattr(model, "modules") else []


def _fsdp2_class() -> Any:
    for name in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"):
        found = getattr(sys.modules.get(name), "FSDPModule", None)
        if found is not None:
            return found
    return None


def _model_parallel_axes(model: Any) -> list[str]:
    """Return the names of the mesh axes, other than data-parallel ones, that parameters or groups lie on."""
    axes = [str(n).lower() for n in getattr(_mesh_of(model), "mesh_dim_names", None) or ()]
    axes += [desc.removeprefix("mesh_").lower() for desc in _group_descriptions() if desc.startswith("mesh_")]
    return [axis for axis in dict.fromkeys(axes) if axis in _MODEL_AXES]


def _mesh_of(model: Any) -> Any:
    """Return the device mesh of the parameters that are spread over the most axes."""
    meshes = [p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh")] if model is not None else []
    return max(meshes, key=lambda mesh: mesh.ndim, default=None)


def _is_replicated_too(model: Any) -> bool:
    """Return whether parameters are sharded along one data axis and replicated along an earlier one."""
    for parameter in model.parameters():
        placements: Any = getattr(parameter, "placements", ())
        if len(placements) > 1 and placements[0].is_replicate() and any(p.is_shard() for p in placements):
            names = list(getattr(parameter.device_mesh, "mesh_dim_names", None) or [""])
            return str(names[0]).lower() not in _MODEL_AXES
    return False


def _group_descriptions() -> list[str]:
    dist = initialized_distributed()
    if dist is None:
        return []
    return [str(getattr(group, "group_desc", "")) for group in dist.distributed_c10d._world.pg_names]
