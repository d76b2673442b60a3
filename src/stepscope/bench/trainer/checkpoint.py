"""A training written down whole, to be taken up again at the same step with the same weights.

Weights and optimizer state are gathered from their shards, so a checkpoint can be taken up with another number of ranks
or another strategy.
"""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from stepscope.bench.trainer.steps import Steps
from stepscope.contract.run_folder import atomic_write
from stepscope.errors import InputError, UsageError

_CHECKPOINT = "checkpoint.pt"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(steps: Steps, folder: Path, *, rank: int) -> None:
    """Write the training as it is between two steps; every rank has to call it, rank 0 writes."""
    model, optimizer = get_state_dict(steps.parallel.model, steps.parallel.optimizer, options=_WHOLE)
    if rank:
        return
    content = {
        "step": steps.number,
        "model": model,
        "optimizer": optimizer,
        "scaler": steps.scaler.state_dict(),
    }
    with atomic_write(folder / _CHECKPOINT) as f:
        torch.save(content, f)


def resume(steps: Steps, folder: Path) -> None:
    """Bring a training that has not begun to where the checkpoint was written."""
    path = folder / _CHECKPOINT
    found = _read(path)
    wanted = steps.config.train.steps
    if found["step"] >= wanted:
        raise UsageError(f"train.steps: {wanted} is not more than the {found['step']} that {path} has")
    try:
        set_state_dict(
            steps.parallel.model,
            steps.parallel.optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
            options=_WHOLE,
        )
    except (RuntimeError, KeyError, ValueError) as e:
        reason = " ".join(str(e).split())[:200]
        raise InputError(f"{path}: not a checkpoint of the configured model and optimizer: {reason}") from e
    steps.scaler.load_state_dict(found["scaler"])
    steps.skip_batches(found["step"])
    steps.number = found["step"]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as e:
        raise InputError(f"{path}: no checkpoint to resume; set train.checkpoint_every") from e
    except (OSError, RuntimeError, EOFError) as e:
        raise InputError(f"{path}: cannot read the checkpoint: {type(e).__name__}: {e}") from e
    return dict(found)
