"""Slurm: the process group of a job that `srun` started, from Slurm's own variables.

    from stepscope.integrations.slurm import join
    from stepscope.integrations.torchrun import recorded

    join()
    with recorded(out=f"runs/{os.environ['SLURM_JOB_ID']}"):
        ...

The run folder must be on storage that all nodes share. Where `srun` starts one torchrun per node instead, torchrun
sets the ranks and `join` leaves its variables alone.
"""

import os
from collections.abc import Mapping

from stepscope.contract.run_folder import first_node
from stepscope.errors import UsageError

_FIRST_PORT, _PORTS = 20_000, 20_000


def join(backend: str | None = None) -> int:
    """Return this process's rank, after joining the job's process group; `backend` as in `init_process_group`."""
    import torch
    import torch.distributed as dist

    os.environ.update(launcher_variables(os.environ))
    if not dist.is_initialized():
        cuda = torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        dist.init_process_group(backend or ("nccl" if cuda else "gloo"))
    return int(dist.get_rank())


def launcher_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for one task of a Slurm step; nothing where torchrun has set them."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return {}
    try:
        task = {
            "RANK": environ["SLURM_PROCID"],
            "WORLD_SIZE": environ["SLURM_NTASKS"],
            "LOCAL_RANK": environ["SLURM_LOCALID"],
        }
    except KeyError as e:
        raise UsageError(f"slurm: {e.args[0]} is not set; start the job with srun") from e
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "localhost"
    port = _FIRST_PORT + int(environ.get("SLURM_JOB_ID", "0")) % _PORTS  # two jobs may share a node
    where = {"MASTER_ADDR": first_node(nodes), "MASTER_PORT": str(port)}
    return {**task, **{name: value for name, value in where.items() if name not in environ}}
