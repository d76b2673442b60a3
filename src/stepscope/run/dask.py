"""Files of a run read by the workers of a Dask cluster: independent tasks, small results, lost workers' tasks repeated.

The scheduler and its workers are started by the user's own tools. They need stepscope, and the files by the same path.
"""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.run.formats import is_sqlite
from stepscope.trace.cache import read_cached
from stepscope.trace.read import Budget
from stepscope.units import printable

# Task of a cluster worker for one file: read it, write its table as columns, return a few bytes.
#
# The table is in `.stepscope` next to the trace, or in a given folder, that all machines share. The caller then maps it
# instead of parsing; where it is missing or does not fit, that machine reads the file itself. So the result is the same
# to the byte, whatever happens to workers.


class Outcome(NamedTuple):
    """Result of one file: small for any file size."""

    path: str
    events: int | None
    problem: str | None


def keep_columns(path: str, cache_folder: str | None, total_bytes: int) -> Outcome:
    """Return the result of reading a file of a run of `total_bytes` and caching its table."""
    try:
        if is_sqlite(Path(path)):
            return Outcome(path, None, "an export of Nsight Systems is read where the report is made")
        folder = None if cache_folder is None else Path(cache_folder)
        trace = read_cached(path, cache_folder=folder, budget=Budget(total_bytes), min_raw_bytes=0)
        return Outcome(path, trace.num_events, None)
    except (StepscopeError, OSError) as error:
        return Outcome(path, None, str(error)[:300])


_ADDRESS = re.compile(r"^dask://([\w.-]{1,253}|\[[0-9a-fA-F:]{2,45}\]):(\d{1,5})$")
Result = TypeVar("Result")
# Called with files read so far and files in all.
Progress = Callable[[int, int], None]


def scheduler_address(engine: str) -> str:
    """Return the scheduler's address as Dask writes it.

    >>> scheduler_address("dask://login1:8786")
    'tcp://login1:8786'
    """
    found = _ADDRESS.match(engine)
    if found is None or not 0 < int(found[2]) < 65536:
        raise UsageError(f"--engine takes {'local'} or dask://HOST:PORT, not {printable(engine, width=100)!r}")
    return f"tcp://{found[1]}:{found[2]}"


class FailedTask(NamedTuple):
    """A task that no worker could do: workers that die again and again, or are not like this machine."""

    why: str


def read_on_cluster(
    engine: str, paths: Sequence[Path], *, cache_folder: Path | None = None, progress: Progress | None = None
) -> list[Outcome]:
    """Return the result of each file, in the order of `paths`; their tables are where `load` finds them."""
    total_bytes = sum(path.stat().st_size for path in paths)
    folder = None if cache_folder is None else str(cache_folder.absolute())
    given = [(str(path.absolute()), folder, total_bytes) for path in paths]
    came = run_on_cluster(engine, keep_columns, given, progress=progress)
    return [
        Outcome(path, None, r.why) if isinstance(r, FailedTask) else r
        for r, (path, *_) in zip(came, given, strict=True)
    ]


def run_on_cluster(
    engine: str,
    task: Callable[..., Result],
    given: Sequence[tuple[Any, ...]],
    *,
    progress: Progress | None = None,
) -> list[Result | FailedTask]:
    """Return what the task gives for each of the given arguments, in their order."""
    address = scheduler_address(engine)
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise UsageError("--engine dask:// needs distributed; pip install 'stepscope[cluster]'") from error
    try:
        with distributed.Client(address, timeout=30, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
            tasks = [client.submit(task, *one, retries=3, pure=False) for one in given]
            # Taken as they come: what a worker gave before it died need not be made again.
            came = distributed.as_completed(tasks, loop=client.loop, with_results=True, raise_errors=False)
            found = {}
            for number, (future, result) in enumerate(came, 1):
                if future.status != "finished":
                    problem = result[1] if isinstance(result, tuple) and len(result) > 1 else result
                    result = FailedTask(printable(str(problem), width=300))
                found[future.key] = result
                if progress:
                    progress(number, len(tasks))
            return [found.get(future.key, FailedTask("no result")) for future in tasks]
    except (OSError, TimeoutError) as error:
        what = printable(str(error), width=200)
        raise InputError(
            f"no Dask cluster with a worker at {engine}: {what}; start one, or leave --engine out"
        ) from error
