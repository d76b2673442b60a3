"""Module objects -> their paths in the model, as the user would write them: `layers.3.attn`.

What wraps a model or a layer (DDP, FSDP, torch.compile, activation checkpointing) is left out of the path. The model
with the most parameters is the root, with an empty path; modules outside it (a loss, a second model) begin with the
name of their class.
"""

import gc
from collections.abc import Iterable

import torch

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_WRAPS = (
    "DistributedDataParallel",
    "DataParallel",
    "OptimizedModule",
    "FullyShardedDataParallel",
    "CheckpointWrapper",
    "DeepSpeedEngine",
)


def paths_of_modules(called: Iterable[int], *, model: "torch.nn.Module | None") -> dict[int, str]:
    """Return the path of every module that was called, by its `id`; those that are gone have none."""
    wanted = set(called)
    alive = {id(module): module for module in modules_alive()}
    if model is not None:
        alive.update((id(module), module) for module in model.modules())
    tops = [module for module in _tops(alive.values()) if any(id(inner) in wanted for inner in module.modules())]
    tops.sort(key=lambda module: -sum(p.numel() for p in module.parameters()))
    out: dict[int, str] = {}
    for i, top in enumerate(tops):
        prefix = "" if i == 0 and any(True for _ in top.parameters()) else type(_unwrapped(top)).__name__
        for name, module in top.named_modules():
            if id(module) in wanted and id(module) not in out:
                out[id(module)] = ".".join(part for part in (prefix, plain_path(top, name)) if part)
    return out


def modules_alive() -> list[torch.nn.Module]:
    """Return the modules that the garbage collector knows; asked by type, so that no proxy is woken."""
    return [found for found in gc.get_objects() if issubclass(type(found), torch.nn.Module)]


def plain_path(top: torch.nn.Module, name: str) -> str:
    """Return a path without wrappers: `module.layers.3` of a DDP module is `layers.3`."""
    kept: list[str] = []
    at: object = top
    for part in name.split(".") if name else []:
        if not (part in _WRAPPERS and is_wrapper(at)):
            kept.append(part)
        at = getattr(at, "_modules", {}).get(part)
    return ".".join(kept)


def is_wrapper(module: object) -> bool:
    """Return whether a module only wraps another one."""
    return any(kind.__name__ in _WRAPS for kind in type(module).__mro__)


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    while is_wrapper(module):
        inner = next((module._modules.get(name) for name in _WRAPPERS if module._modules.get(name) is not None), None)
        if inner is None:
            break
        module = inner
    return module


def _tops(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return those that lie in no other one."""
    alive = list(modules)
    inner = {id(child) for module in alive for child in module._modules.values() if child is not None}
    return [module for module in alive if id(module) not in inner]
