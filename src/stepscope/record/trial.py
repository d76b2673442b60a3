"""Apply a trial to this process: settings, seeds, and the results that its recorder will write."""

import inspect
import json
import math
import random
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.autograd.graph
from torch.utils.data import DataLoader, IterableDataset

from stepscope.contract.live import BENCHMARK, COMPILE, FUSED, FUSED_OPTIMIZERS, TF32, TRIAL
from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.hooks.install import Hooks
from stepscope.record.hooks.patches import Patches, after_import

# `DataLoader`, `DistributedDataParallel` and optimizers, made with other arguments than the script gives them.
#
# An optimizer's argument is set only where the script uses the default; a loader over an iterable dataset retains its
# number of workers, since each would yield the whole of it. Every loader's arguments are noted: they limit the trials.


def _change_arguments(patches: Patches, kind: type, change: Callable[[dict[str, Any]], None]) -> None:
    signature = inspect.signature(kind.__init__)  # type: ignore[misc]

    def make(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(self, *args, **kwargs)
            change(bound.arguments)
            original(*bound.args, **bound.kwargs)

        return __init__

    patches.replace(kind, "__init__", make)


def _has_fused_form(given: dict[str, Any]) -> bool:
    groups = given["params"] = list(given["params"])
    tensors = [p for group in groups for p in _parameters(group)]
    return bool(tensors) and all(
        isinstance(p, torch.Tensor) and p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in tensors
    )


def _parameters(group: Any) -> list[Any]:
    if isinstance(group, dict):
        found = group["params"]
        if isinstance(found, torch.Tensor):
            return [found]
        group["params"] = list(found)
        return [p[1] if isinstance(p, tuple) else p for p in group["params"]]
    return [group[1] if isinstance(group, tuple) else group]


# Every setting that a trial can apply from inside a job's process, by name, and which of them took effect.
#
#     loader.num_workers, .pin_memory, .prefetch_factor, .persistent_workers     arguments of every DataLoader
#     ddp.bucket_cap_mb, .gradient_as_bucket_view                                arguments of DDP
#     optimizer.fused                                                            of torch's own optimizers
#     precision.tf32, cudnn.benchmark                                            switches of torch
#     compile.model                                                              the largest module that the loop calls
#
# Switches are set at the start and once more after the first step, because scripts set them too. What is chosen by the
# environment (allocator, NCCL, threads) is set where the job is started and is not here.


class Settings:
    """What is set in this process; `took` holds the names of those that changed anything."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self.took: list[str] = []
        self.wanted = dict(wanted)
        self.loaders: list[dict[str, Any]] = []  # arguments of every `DataLoader` of the script

    def apply(self, patches: Patches) -> None:
        """Apply all settings; one that this torch does not support is reported and missing in `took`."""
        _change_arguments(patches, DataLoader, self._change_loader)
        if self._of("ddp"):
            _change_arguments(patches, torch.nn.parallel.DistributedDataParallel, partial(self._set, "ddp"))
        if self.wanted.get(FUSED):
            for name in FUSED_OPTIMIZERS:
                _change_arguments(patches, getattr(torch.optim, name), self._change_optimizer)
        self.set_switches()

    def set_switches(self) -> None:
        """Set the switches of torch, over what the script set in the meantime."""
        for name, act in ((TF32, _tf32), (BENCHMARK, _benchmark)):
            if self.wanted.get(name):
                self._try(name, act)

    def compile(self, model: Any) -> None:
        """Compile the model in place, if requested."""
        if self.wanted.get(COMPILE) and isinstance(model, torch.nn.Module):
            self._try(COMPILE, model.compile)

    def _change_loader(self, given: dict[str, Any]) -> None:
        map_style = not isinstance(given.get("dataset"), IterableDataset)
        if len(self.loaders) < 16:
            self.loaders.append(
                {
                    "num_workers": int(given.get("num_workers") or 0),
                    "pin_memory": bool(given.get("pin_memory")),
                    "prefetch_factor": given.get("prefetch_factor"),
                    "persistent_workers": bool(given.get("persistent_workers")),
                    "map_style": map_style,
                }
            )
        workers = {**given, **(self._of("loader") if map_style else {})}.get("num_workers")
        unfit = () if map_style else ("num_workers",)
        self._set("loader", given, unfit=unfit if workers else (*unfit, "prefetch_factor", "persistent_workers"))

    def _change_optimizer(self, given: dict[str, Any]) -> None:
        chosen = any(given.get(name) for name in ("fused", "foreach", "capturable", "differentiable"))
        if not chosen and given.get("fused") is not False and _has_fused_form(given):
            given["fused"] = True
            self._take(FUSED)

    def _set(self, group: str, given: dict[str, Any], unfit: Collection[str] = ()) -> None:
        for name, value in self._of(group).items():
            if name not in unfit and given.get(name) != value:
                given[name] = value
                self._take(f"{group}.{name}")

    def _of(self, group: str) -> dict[str, Any]:
        return {name.partition(".")[2]: v for name, v in self.wanted.items() if name.startswith(f"{group}.")}

    def _try(self, name: str, act: Any) -> None:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - a trial that cannot be made is reported, not raised into training
            say(f"{name} could not be set: {explain(e)}")
        else:
            self._take(name)

    def _take(self, name: str) -> None:
        if name not in self.took:
            self.took.append(name)


def _tf32() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def _benchmark() -> None:
    torch.backends.cudnn.benchmark = True


# Results of a trial: the loss of every backward, and sums over the parameters at its end.
#
# A loss is copied on its device and read when the trial is over: reading it at once would wait for the device, and so
# change what is measured. Only roots of one element count; a pipeline's inner stages have none.


class TrialResults:
    """A sampler: it sees every backward, and writes `rankNNNNN.trial.jsonl` when the recorder closes."""

    def __init__(self, settings: Settings, optimizer: Callable[[], Any], model: Callable[[], Any]) -> None:
        self._settings, self._optimizer, self._model = settings, optimizer, model
        self._losses: list[torch.Tensor] = []

    def install(self, patches: Patches) -> None:
        """See every backward, in both modules that hold the function."""

        def watched(run_backward: Any) -> Any:
            def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
                self.keep(t_outputs)
                return run_backward(t_outputs, *args, **kwargs)

            return _engine_run_backward

        replacement = watched(torch.autograd.graph._engine_run_backward)
        for module in (torch.autograd.graph, torch.autograd):
            patches.share(module, "_engine_run_backward", replacement)

    def keep(self, roots: Any) -> None:
        """Keep the loss that a backward begins at, if it is one number."""
        if len(self._losses) < 1000 and len(roots) == 1 and isinstance(roots[0], torch.Tensor):
            root = _local(roots[0])
            if root.numel() == 1:
                self._losses.append(root.detach().clone())

    def on_close(self, folder: str | Path, rank: int) -> None:
        """Write what the trial computed, and what is known of the job."""
        optimizer, model = self._optimizer(), self._model()
        group: dict[str, Any] = next(iter(optimizer.param_groups), {}) if optimizer is not None else {}
        found = {
            "losses": [_finite(loss.item()) for loss in self._losses],
            "parameters": _sums(optimizer) if optimizer is not None else None,
            "took": self._settings.took,
            "loaders": self._settings.loaders,
            "optimizer": None
            if optimizer is None
            else {"name": type(optimizer).__name__, "fused": group.get("fused"), "foreach": group.get("foreach")},
            "threads": torch.get_num_threads(),
            "convolutions": model is not None and any("Conv" in type(m).__name__ for m in model.modules()),
        }
        with atomic_write(Path(folder) / rank_file(rank, TRIAL)) as f:
            f.write(json.dumps(found).encode() + b"\n")


def _sums(optimizer: Any) -> dict[str, float | None]:
    total = size = 0.0
    for group in optimizer.param_groups:
        for p in group["params"]:
            values = _local(p).detach()
            if values.is_floating_point():
                total += float(values.sum(dtype=torch.float64))
                size += float(torch.linalg.vector_norm(values, ord=1, dtype=torch.float64))
    return {"sum": _finite(total), "size": _finite(size)}


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def only_set(config: RecordConfig) -> None:
    """Apply the settings to a job that is not recorded."""
    settings = Settings(config.settings)
    settings.apply(Patches())
    settings.set_switches()


def begin_trial(config: RecordConfig, hooks: Hooks) -> TrialResults:
    """Return the sampler of a trial whose settings are in place."""
    # the same random numbers in every trial; a job that sets a seed has its own
    random.seed(0)
    torch.manual_seed(0)
    after_import("numpy", lambda: sys.modules["numpy"].random.seed(0))
    settings = Settings(config.settings)
    settings.apply(hooks.patches)
    results = TrialResults(settings, optimizer=hooks.loop.optimizers.main, model=hooks.learned.model)
    results.install(hooks.patches)

    def after_first_step(loop: Any) -> None:
        if loop.steps == 1:
            settings.set_switches()
            settings.compile(hooks.learned.model())

    hooks.loop.on_first_steps.append(after_first_step)
    return results
