"""Two gloo ranks of a script, as torchrun starts them, with one import of torch: they are forked once it is there.

What depends on the launcher is tested with torchrun, in `record/launch/`.
"""

import gc
import importlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RANKS = 2
FIXED = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "KINETO_LOG_LEVEL": "99"}


def on_two_ranks(script: Path | str, *arguments: object, modules: str = "") -> list[str]:
    """Return the command that runs a script on two ranks, which have imported these modules together."""
    # Frames of `-c` are of no file, so that the script's own are the first that have one.
    launch = f"exec(open({__file__!r}).read()); start_ranks(sys.argv[1].split()); exec(the_script())"
    return [sys.executable, "-W", "ignore", "-c", launch, modules, str(script), *map(str, arguments)]


def two_ranks(
    script: Path | str, *arguments: object, modules: str = "", env: dict[str, str] | None = None
) -> list[str]:
    """Return what each rank of a script wrote to both its streams."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, str(rank)) for rank in range(RANKS)]
        environ = {**os.environ, **FIXED, **(env or {}), "RANK_LOGS": folder}
        command = on_two_ranks(script, *arguments, modules=modules)
        done = subprocess.run(command, env=environ, cwd=Path(__file__).parents[1], timeout=600)
        said = [log.read_text() if log.exists() else "" for log in logs]
    assert done.returncode == 0, "".join(text[-3000:] for text in said)
    return said


def two_tasks(command: Sequence[str]) -> list[str]:
    """Return what two tasks of Slurm wrote to both their streams, each started by itself."""
    environ = {**os.environ, **FIXED, **_free_address(), "SLURM_NTASKS": str(RANKS)}
    streams: dict[str, Any] = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    tasks = []
    for rank in map(str, range(RANKS)):
        own = {**environ, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
        tasks.append(subprocess.Popen([sys.executable, *command], env=own, cwd=Path(__file__).parents[1], **streams))
    said = [task.communicate(timeout=600)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0] * RANKS, "".join(text[-3000:] for text in said)
    return said


def _free_address() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def start_ranks(modules: list[str]) -> None:
    """Return in each of the ranks, and end with them in the process that started them."""
    gc.disable()
    for module in ("torch.distributed", *modules):
        importlib.import_module(module)
    gc.freeze()  # else each rank looks through all of it, which copies it
    gc.enable()
    os.environ.update(_free_address(), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS))
    logs = os.environ.pop("RANK_LOGS", None)
    pids = []
    for rank in map(str, range(RANKS)):
        if (pid := os.fork()) == 0:
            os.environ.update(RANK=rank, LOCAL_RANK=rank)
            if logs is not None:
                log = os.open(f"{logs}/{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 1)
                os.dup2(log, 2)
            return
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os._exit(next(filter(None, codes), 0) & 0xFF)


def the_script() -> object:
    """Return the code of the script, with its own arguments and folder from here on."""
    del sys.argv[:2]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    globals()["__file__"] = sys.argv[0]
    return compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec")
