"""What a trial computed: the loss of every backward, and sums over the parameters at its end.

A loss is kept as a copy on its device and read when the trial is over: reading it at once would wait for the device,
and so change what is measured. Only roots of one element count; a pipeline's inner stages have none.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.autograd.graph

from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.contract.tuning import TRIAL
from stepscope.record.hooks.patches import Patches
from stepscope.record.trial.settings import Settings

_MAX_LOSSES = 1000


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
        if len(self._losses) < _MAX_LOSSES and len(roots) == 1 and isinstance(roots[0], torch.Tensor):
            root = _local(roots[0])
            if root.numel() == 1:
                self._losses.append(root.detach().clone())

    def on_close(self, folder: str | Path, rank: int) -> None:
        """Write what the trial computed, and what is known of the job."""
        optimizer, model = self._optimizer(), self._model()
        found = {
            "losses": [_finite(loss.item()) for loss in self._losses],
            "parameters": _sums(optimizer) if optimizer is not None else None,
            "took": self._settings.took,
            "loaders": self._settings.loaders.asked,
            "optimizer": _optimizer_facts(optimizer) if optimizer is not None else None,
            "threads": torch.get_num_threads(),
            "convolutions": model is not None and any("Conv" in type(m).__name__ for m in model.modules()),
        }
        with atomic_write(Path(folder) / rank_file(rank, TRIAL)) as f:
            f.write(json.dumps(found).encode() + b"\n")


def _sums(optimizer: Any) -> dict[str, float | None]:
    """Return the sum over all parameters that are trained, and of their sizes, in 64 bits."""
    total = size = 0.0
    for group in optimizer.param_groups:
        for p in group["params"]:
            values = _local(p).detach()
            if values.is_floating_point():
                total += float(values.sum(dtype=torch.float64))
                size += float(torch.linalg.vector_norm(values, ord=1, dtype=torch.float64))
    return {"sum": _finite(total), "size": _finite(size)}


def _optimizer_facts(optimizer: Any) -> dict[str, Any]:
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    return {"name": type(optimizer).__name__, "fused": group.get("fused"), "foreach": group.get("foreach")}


def _local(tensor: Any) -> Any:
    """Return this rank's part of a distributed tensor: reading the whole would be a collective."""
    return getattr(tensor, "_local_tensor", tensor)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
