"""DDP's gradient buckets -> the parameters in them, in the order in which DDP reduces them."""

from typing import Any

import torch

from stepscope.record.owners.module_paths import plain_path

_INDICES = "rebuilt_per_bucket_param_indices"


def buckets_of(ddp: Any) -> tuple[list[list[str]] | None, str | None]:
    """Return the buckets' parameters, or None and why they are not known."""
    if ddp is None:
        return None, "no DistributedDataParallel model was seen"
    try:
        told = str(dict(ddp._get_ddp_logging_data()).get(_INDICES, ""))
        indices = [[int(i) for i in bucket.split()] for bucket in told.split(",") if bucket.strip()]
    except (AttributeError, RuntimeError, ValueError, TypeError) as e:
        return None, f"this torch does not tell its buckets ({type(e).__name__})"
    names = parameter_names(ddp)
    if not indices:
        return None, "DDP has not rebuilt its buckets, and tells only rebuilt ones (static order, or unused parameters)"
    if max(map(max, indices)) >= len(names):
        return None, "DDP's buckets and the model's parameters do not fit together"
    return [[names[i] for i in bucket] for bucket in indices], None


def parameter_names(ddp: Any) -> list[str]:
    """Return the parameters that DDP reduces, in its own order."""
    ignored: set[str] = set(getattr(ddp, "parameters_to_ignore", ()))
    names = []
    for name, parameter in ddp.module.named_parameters():
        if parameter.requires_grad and name not in ignored:
            names.append(_plain(ddp, name))
    return names


def ddp_in(model: "torch.nn.Module | None") -> Any:
    """Return the DDP module in a model, or None."""
    kind = torch.nn.parallel.DistributedDataParallel
    return next((m for m in model.modules() if isinstance(m, kind)), None) if model is not None else None


def _plain(ddp: Any, name: str) -> str:
    path, _, last = name.rpartition(".")
    return ".".join(part for part in (plain_path(ddp.module, path), last) if part)
