"""Two gloo ranks of a script, started as torchrun would start them, without the agent's own import of torch."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.limits import HANG_S

ROOT = Path(__file__).parents[2]


def two_ranks(command: Sequence[str], *, env: dict[str, str] | None = None, slurm: bool = False) -> list[str]:
    """Return what each rank wrote to both its streams, after running `python *command` on two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID") if slurm else ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    ranks = [
        subprocess.Popen(
            [sys.executable, *command],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "KINETO_LOG_LEVEL": "99",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                **(env or {}),
                **dict(zip(names, (str(rank), "2", str(rank)), strict=True)),
            },
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=HANG_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said[0][-3000:] + said[1][-3000:]
    return said
