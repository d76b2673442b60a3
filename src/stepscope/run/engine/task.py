"""What a worker of a cluster does with one file: read it, keep its table as columns, say so in a few bytes.

The table lies in `.stepscope` beside the trace, or in a given folder, that all machines share. Whoever asked then maps
it instead of parsing; where it is missing or does not fit, that machine reads the file itself. So what comes out is the
same to the byte, whatever happens to workers.
"""

from pathlib import Path
from typing import NamedTuple

from stepscope.errors import StepscopeError
from stepscope.trace.budget import Budget
from stepscope.trace.cache import read_cached
from stepscope.trace.nsight.magic import is_sqlite


class Outcome(NamedTuple):
    """What came of one file: small, whatever the file's size."""

    path: str
    events: int | None
    problem: str | None


def keep_columns(path: str, cache_folder: str | None, total_bytes: int) -> Outcome:
    """Return what came of reading a file of a run of `total_bytes` and keeping its table."""
    try:
        if is_sqlite(Path(path)):
            return Outcome(path, None, "an export of Nsight Systems is read where the report is made")
        folder = None if cache_folder is None else Path(cache_folder)
        trace = read_cached(path, cache_folder=folder, budget=Budget(total_bytes), min_raw_bytes=0)
        return Outcome(path, trace.num_events, None)
    except (StepscopeError, OSError) as error:
        return Outcome(path, None, str(error)[:300])
