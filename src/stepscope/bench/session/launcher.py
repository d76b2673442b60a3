"""Is this process one rank of a job that a launcher started? Then its ranks are the ranks of the benchmark.

    torchrun --nproc-per-node 2 -m stepscope bench ddp        so do accelerate launch and Ray Train: RANK, WORLD_SIZE
    srun --ntasks 16 stepscope bench ddp                      SLURM_PROCID, SLURM_STEP_NUM_TASKS
    mpirun -n 8 stepscope bench ddp                           OMPI_COMM_WORLD_RANK, PMI_RANK

Every process starts one rank of each session, and rank 0 writes the results. Standard library only.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from stepscope.contract.run_folder import first_node
from stepscope.errors import UsageError

# What tells rank, world size, rank and ranks on this machine. A batch script of Slurm has SLURM_PROCID and
# SLURM_NTASKS too, though it runs alone: only the tasks of the step that srun started count.
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
_JOB_IDS = ("SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_ID")
_FIRST_PORT, _PORTS = 20_000, 10_000


@dataclass(frozen=True)
class LauncherPlace:
    """This process's place among the ranks of a launcher."""

    launcher: str
    rank: int
    world_size: int
    #: what a rank of a session finds in its environment, as torchrun would set it
    variables: dict[str, str]

    @property
    def writes(self) -> bool:
        """Return whether this process writes the results."""
        return self.rank == 0

    def of_session(self, number: int) -> dict[str, str]:
        """Return the variables for the ranks of one session: those of the next must not meet the last one's."""
        port = self.variables["MASTER_PORT"]
        if self.variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            port = str(int(port) + number)
        return {**self.variables, "MASTER_PORT": port, "STEPSCOPE_BENCH_SESSION": str(number)}


def launched_by(environ: Mapping[str, str] | None = None) -> LauncherPlace | None:
    """Return the place that a launcher gave this process; None where it is alone."""
    env = os.environ if environ is None else environ
    for launcher, (rank, world_size, local_rank, local_size) in _LAUNCHERS.items():
        if not (_is_number(env.get(rank)) and _is_number(env.get(world_size))) or int(env[world_size]) < 2:
            continue
        found = {"RANK": env[rank], "WORLD_SIZE": env[world_size], "LOCAL_RANK": env.get(local_rank, "0")}
        if _is_number(env.get(local_size)):
            found["LOCAL_WORLD_SIZE"] = env[local_size]
        if "TORCHELASTIC_USE_AGENT_STORE" in env:
            found["TORCHELASTIC_USE_AGENT_STORE"] = env["TORCHELASTIC_USE_AGENT_STORE"]
        return LauncherPlace(
            launcher, int(env[rank]), int(env[world_size]), {**found, **_meeting_place(env, found, launcher)}
        )
    return None


def _meeting_place(env: Mapping[str, str], found: Mapping[str, str], launcher: str) -> dict[str, str]:
    address = env.get("MASTER_ADDR")
    if address is None and (nodes := env.get("SLURM_STEP_NODELIST")):
        address = first_node(nodes)
    if address is None and found.get("LOCAL_WORLD_SIZE") == found["WORLD_SIZE"]:
        address = "127.0.0.1"
    if address is None:
        raise UsageError(f"{launcher} does not tell where rank 0 is; set MASTER_ADDR to its host and MASTER_PORT")
    job = "".join(env.get(name, "") for name in _JOB_IDS)  # two jobs may share a machine
    port = env.get("MASTER_PORT") or str(_FIRST_PORT + crc32(job.encode()) % _PORTS)
    if not _is_number(port):
        raise UsageError(f"MASTER_PORT is {port!r}; set it to the number of a free port")
    return {"MASTER_ADDR": address, "MASTER_PORT": port}


def _is_number(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit() and len(text) < 10
