"""What does an export hold? Its kernels and its processes, told without keeping an event.

All rows of the device's tables are read, of the host's tables only what tells processes and ranks, chunk by chunk: an
export of any size takes the same memory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.dataclass import dataclass
from stepscope.errors import TraceError
from stepscope.trace.budget import Budget
from stepscope.trace.nsight.database import Database, integers
from stepscope.trace.nsight.device_rows import COPIES, GRAPHS, KERNELS, PID_SHIFT, SETS, device_rows
from stepscope.trace.nsight.events import Texts
from stepscope.trace.nsight.host_rows import CALLS, OVERHEADS, RANGES, Communicators, nccl_range_rows
from stepscope.trace.nsight.nccl_payload import payload_schemas
from stepscope.trace.nsight.read import NO_DEVICE, opened_export
from stepscope.trace.nsight.session import rank_header, session_of
from stepscope.trace.streams import Stream

_ON_DEVICE = (KERNELS, GRAPHS, COPIES, SETS)
_TABLES = (CALLS, *OVERHEADS, RANGES, *_ON_DEVICE)


@dataclass(frozen=True)
class Overview:
    """What a look into an export found."""

    num_kernels: int
    """launches of CUDA graphs that were recorded as a whole count as one each"""
    headers: tuple[dict[str, Any], ...]
    """of each process that used a device, as in its `Trace`"""


def overview(path: str | Path, *, progress: Callable[[int], None] | None = None) -> Overview:
    """Return what an export holds; `progress` is told about how many bytes were read. Raises as `read_nsys` does."""
    size = Stream(Path(path)).size
    with opened_export(path) as db:
        told = _Told(progress, size, max(sum(db.num_rows(table) for table in _TABLES), 1))
        communicators = Communicators()
        hosts = _host_processes(db, told)
        texts = Texts(Budget(size).share())
        for _ in nccl_range_rows(db, texts, payload_schemas(db), communicators):
            pass
        told.add(db.num_rows(RANGES))
        kernels, used = _device_work(db, texts, hosts.pop() if len(hosts) == 1 else None, told)
        if not used:
            raise TraceError(f"{db.path}: {NO_DEVICE}")
        session = session_of(db)
    made = communicators.made
    headers = [rank_header(session, process, made, is_only=len(used) == 1)[0] for process in sorted(used)]
    return Overview(kernels, tuple(headers))


class _Told:
    """Rows read so far, told as bytes of the file."""

    def __init__(self, progress: Callable[[int], None] | None, size: int, total: int) -> None:
        self._progress, self._size, self._total, self._read = progress, size, total, 0

    def add(self, rows: int) -> None:
        self._read += rows
        if self._progress:
            self._progress(self._size * min(self._read, self._total) // self._total)


def _host_processes(db: Database, told: _Told) -> set[int]:
    """Return the processes whose calls were recorded."""
    found: set[int] = set()
    for table in (CALLS, *OVERHEADS):
        for chunk in db.chunks(table, ("globalTid",)):
            thread, known = integers(chunk["globalTid"])
            found.update(np.unique(thread[known] >> PID_SHIFT).tolist())
            told.add(len(thread))
    return found


def _device_work(db: Database, texts: Texts, only_process: int | None, told: _Told) -> tuple[int, set[int]]:
    """Return how many kernels there are and the processes that used a device."""
    number, used = 0, set[int]()
    for table in _ON_DEVICE:
        for rows in device_rows(db, table, texts, only_process=only_process):
            sound = rows.timed & (rows.end_ns >= rows.start_ns)
            used.update(np.unique(rows.process[sound]).tolist())
            number += int(sound.sum()) if table in (KERNELS, GRAPHS) else 0
            told.add(len(rows.process))
    return number, used
