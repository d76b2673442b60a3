"""Files of a run read by the workers of a Dask cluster: independent tasks, small results, lost workers' tasks repeated.

The scheduler and its workers are started by the user's own tools. They need stepscope, and the files by the same path.
"""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from stepscope.errors import InputError, UsageError
from stepscope.run.engine.task import Outcome, keep_columns
from stepscope.units import printable

LOCAL = "local"
_ADDRESS = re.compile(r"^dask://([\w.-]{1,253}|\[[0-9a-fA-F:]{2,45}\]):(\d{1,5})$")
_CONNECT_S = 30
_WORKERS_S = 60
_RETRIES = 3
Progress = Callable[[int, int], None]
"""Called with files read so far and files in all."""


def scheduler_address(engine: str) -> str:
    """Return the scheduler's address as Dask writes it.

    >>> scheduler_address("dask://login1:8786")
    'tcp://login1:8786'
    """
    found = _ADDRESS.match(engine)
    if found is None or not 0 < int(found[2]) < 65536:
        raise UsageError(f"--engine takes {LOCAL} or dask://HOST:PORT, not {printable(engine, width=100)!r}")
    return f"tcp://{found[1]}:{found[2]}"


def read_on_cluster(
    engine: str, paths: Sequence[Path], *, cache_folder: Path | None = None, progress: Progress | None = None
) -> list[Outcome]:
    """Return what came of each file, in the order of `paths`; their tables lie where `load` finds them."""
    address = scheduler_address(engine)
    distributed = _distributed()
    total_bytes = sum(path.stat().st_size for path in paths)
    folder = None if cache_folder is None else str(cache_folder.absolute())
    try:
        with distributed.Client(address, timeout=_CONNECT_S, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=_WORKERS_S)
            given = [str(path.absolute()) for path in paths]
            tasks = [client.submit(keep_columns, p, folder, total_bytes, retries=_RETRIES, pure=False) for p in given]
            # Taken as they come: what a worker gave before it died need not be made again.
            came = distributed.as_completed(tasks, loop=client.loop, with_results=True, raise_errors=False)
            found = {}
            for number, (task, result) in enumerate(came, 1):
                found[task.key] = result
                if progress:
                    progress(number, len(tasks))
            return [_outcome(found.get(task.key), path) for task, path in zip(tasks, given, strict=True)]
    except (OSError, TimeoutError) as error:
        what = printable(str(error), width=200)
        raise InputError(
            f"no Dask cluster with a worker at {engine}: {what}; start one, or leave --engine out"
        ) from error


def _outcome(result: Any, path: str) -> Outcome:
    """Return a task's result, or why there is none: workers that die again and again, or are not like this machine."""
    if isinstance(result, Outcome):
        return result
    problem = result[1] if isinstance(result, tuple) and len(result) > 1 else result
    return Outcome(path, None, printable(str(problem), width=300))


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError as error:
        raise UsageError("--engine dask:// needs distributed; pip install 'stepscope[cluster]'") from error
