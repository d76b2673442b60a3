"""Where a training runs: its rank, its device, and the process group that it joins and leaves again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Process:
    """One rank of a training; a single process is rank 0 of 1 without a group."""

    rank: int
    world_size: int
    device: torch.device

    def gather(self, thing: Any) -> list[Any]:
        """Return what every rank gave, in order of rank, on rank 0; elsewhere an empty list."""
        if self.world_size == 1:
            return [thing]
        found: list[Any] = [None] * self.world_size
        dist.gather_object(thing, found if self.rank == 0 else None)
        return found if self.rank == 0 else []


@contextmanager
def join_group(device: torch.device | str | None = None) -> Iterator[Process]:
    """Join the group that torchrun's variables describe, unless the script has; a group that we made is left again."""
    where = _device(device)
    make = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if make:
        cuda = where.type == "cuda"
        dist.init_process_group("nccl" if cuda else "gloo", device_id=where if cuda else None)
    try:
        if dist.is_initialized():
            yield Process(dist.get_rank(), dist.get_world_size(), where)
        else:
            yield Process(0, 1, where)
    finally:
        if make:
            dist.destroy_process_group()


def _device(wanted: torch.device | str | None) -> torch.device:
    if wanted is not None:
        device = torch.device(wanted)
    elif torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    else:
        device = torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
