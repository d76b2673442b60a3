"""`DataLoader`, `DistributedDataParallel` and optimizers, made with other arguments than the script gives them.

Only what the script left as it was is set in an optimizer; a loader over an iterable dataset keeps its workers, since
each would yield the whole of it. Every loader is noted: what it was asked for says what can be tried.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from stepscope.contract.tuning import FUSED
from stepscope.record.hooks.patches import Patches

_MAX_LOADERS = 16
_WITH_WORKERS = ("prefetch_factor", "persistent_workers")

Change = Callable[[dict[str, Any]], bool]
"""changes the arguments of a call, and says whether it did"""


def change_arguments(patches: Patches, kind: type, change: Change) -> None:
    """Let every object of a kind be made with changed arguments; positional ones are known by their names."""
    signature = inspect.signature(kind.__init__)  # type: ignore[misc]

    def make(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(self, *args, **kwargs)
            change(bound.arguments)
            original(*bound.args, **bound.kwargs)

        return __init__

    patches.replace(kind, "__init__", make)


class Loaders:
    """Every `DataLoader` that the process makes, as asked for, and what is set instead."""

    def __init__(self, settings: Mapping[str, Any], took: Callable[[str], None]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._settings, self._took = settings, took

    def install(self, patches: Patches) -> None:
        """Be told of every loader from here on."""
        change_arguments(patches, DataLoader, self._change)

    def _change(self, given: dict[str, Any]) -> bool:
        map_style = not isinstance(given.get("dataset"), IterableDataset)
        if len(self.asked) < _MAX_LOADERS:
            self.asked.append(_asked(given, map_style=map_style))
        wanted = {name: value for name, value in self._settings.items() if map_style or name != "num_workers"}
        workers = wanted.get("num_workers", given.get("num_workers") or 0)
        for name, value in wanted.items():
            if (name in _WITH_WORKERS and not workers) or given.get(name) == value:
                continue
            given[name] = value
            self._took(f"loader.{name}")
        return bool(wanted)


def _asked(given: Mapping[str, Any], *, map_style: bool) -> dict[str, Any]:
    return {
        "num_workers": int(given.get("num_workers") or 0),
        "pin_memory": bool(given.get("pin_memory")),
        "prefetch_factor": given.get("prefetch_factor"),
        "persistent_workers": bool(given.get("persistent_workers")),
        "map_style": map_style,
    }


def change_ddp(settings: Mapping[str, Any], took: Callable[[str], None]) -> Change:
    """Return the change for `DistributedDataParallel`."""

    def change(given: dict[str, Any]) -> bool:
        for name, value in settings.items():
            if given.get(name) != value:
                given[name] = value
                took(f"ddp.{name}")
        return True

    return change


def change_optimizer(took: Callable[[str], None]) -> Change:
    """Return the change that makes an optimizer a fused one, where the script did not choose and its tensors allow."""

    def change(given: dict[str, Any]) -> bool:
        chosen = any(given.get(name) for name in ("fused", "foreach", "capturable", "differentiable"))
        if chosen or given.get("fused") is False or not _has_fused_form(given):
            return False
        given["fused"] = True
        took(FUSED)
        return True

    return change


def _has_fused_form(given: dict[str, Any]) -> bool:
    """Return whether all parameters are floats on a device with fused kernels; a generator is read into a list."""
    groups = given["params"] = list(given["params"])
    tensors = [p for group in groups for p in _parameters(group)]
    return bool(tensors) and all(
        isinstance(p, torch.Tensor) and p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in tensors
    )


def _parameters(group: Any) -> list[Any]:
    """Return the parameters of a group, of a `(name, parameter)` pair, or of a bare parameter."""
    if isinstance(group, dict):
        found = group["params"]
        if isinstance(found, torch.Tensor):
            return [found]
        group["params"] = list(found)
        return [p[1] if isinstance(p, tuple) else p for p in group["params"]]
    return [group[1] if isinstance(group, tuple) else group]
