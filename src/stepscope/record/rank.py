"""Rank of this process in the job: by torch.distributed, else by the launcher's variables, else a single process."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple


class Place(NamedTuple):
    """One process's place in the job, and how it is known."""

    rank: int
    world_size: int
    local_rank: int | None
    source: str


def place_of_process(environ: Mapping[str, str] | None = None) -> Place:
    """Return this process's place; a process without any sign of others is rank 0 of 1."""
    env = os.environ if environ is None else environ
    by_variables = place_by_variables(env)
    dist = initialized_distributed()
    if dist is None:
        return by_variables or Place(0, 1, None, "alone")
    local = by_variables.local_rank if by_variables else _local_rank_of_device()
    return Place(dist.get_rank(), dist.get_world_size(), local, "torch.distributed")


def initialized_distributed() -> Any:
    """Return `torch.distributed` where a process group is up, else None."""
    import torch.distributed as dist

    return dist if dist.is_available() and dist.is_initialized() else None


def has_other_ranks() -> bool:
    """Return whether a process group with others is up."""
    dist = initialized_distributed()
    return dist is not None and dist.get_world_size() > 1


def place_by_variables(env: Mapping[str, str]) -> Place | None:
    """Return the place in a launcher's variables, None without any."""
    for rank, world_size, local_rank in (  # torchrun, Slurm, Open MPI, Intel MPI and MPICH
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ):
        if rank in env and world_size in env:
            try:
                return Place(int(env[rank]), int(env[world_size]), _int_or_none(env.get(local_rank)), rank)
            except ValueError:
                continue
    return None


def _int_or_none(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _local_rank_of_device() -> int | None:
    import torch

    return torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
