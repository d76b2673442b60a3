"""What `torch.save` writes of a model, its state, its optimizers and an average of it, as digests on standard output.

Scripts of the tests call it at their end, while they are recorded or not: the lines must be the same.
"""

import copy
import hashlib
import io
import sys
from typing import Any

import torch


def print_digests(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Print a line for each thing that people keep."""
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    kept: dict[str, Any] = {
        "model": model,
        "state": model.state_dict(),
        "copy": copy.deepcopy(model),
        "average": average,
    }
    for number, optimizer in enumerate(optimizers):
        kept |= {f"optimizer {number}": optimizer, f"its state {number}": optimizer.state_dict()}
    for name, what in kept.items():
        file = io.BytesIO()
        torch.save(what, file)
        print("saved", name, len(file.getvalue()), hashlib.sha256(file.getvalue()).hexdigest())
    sys.stdout.flush()
