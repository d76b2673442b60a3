"""One Nsight Systems export to one table per process that used a device: the same tables that Kineto traces give."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.errors import TraceError
from stepscope.trace.budget import Budget, OverBudget, Share
from stepscope.trace.implausible_values import drop_implausible
from stepscope.trace.nsight.database import Database
from stepscope.trace.nsight.device_rows import DEVICE_TABLES, GRAPHS, device_rows
from stepscope.trace.nsight.events import Events, Rows, Texts
from stepscope.trace.nsight.host_rows import (
    CALLS,
    OVERHEADS,
    RANGES,
    Communicators,
    call_rows,
    overhead_rows,
    range_rows,
)
from stepscope.trace.nsight.nccl_payload import payload_schemas
from stepscope.trace.nsight.session import Session, rank_header, session_of
from stepscope.trace.streams import Stream
from stepscope.trace.table import Quality, Trace

_TABLES = (CALLS, RANGES, *OVERHEADS, *DEVICE_TABLES)
_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
NO_DEVICE = "no process in it used a device; record with nsys profile --trace=cuda,nvtx"


def read_nsys(
    path: str | Path,
    *,
    progress: Callable[[int], None] | None = None,
    budget: Budget | None = None,
    named: str | Path | None = None,
) -> tuple[Trace, ...]:
    """Return the tables of an export, by device and process; `progress` is told about how many bytes were read.

    `named` is the file that the user knows, where the export was made from it.
    Raises `TraceError` where it is no export, is damaged, or holds no process that used a device.
    """
    size = Stream(Path(path)).size
    share = (budget or Budget(size)).share()
    with opened_export(path) as db:
        try:
            return _read(db, size, share, progress, str(named or path))
        except OverBudget:
            share.give_back()
            raise


@contextmanager
def opened_export(path: str | Path) -> Iterator[Database]:
    """Open an export; a `TraceError` where it is none, is damaged, or holds more than fits."""
    try:
        with Database(Path(path)) as db:
            if not any(db.has(table) for table in _TABLES) or not db.has("StringIds"):
                raise TraceError(
                    f"{path}: is an sqlite file, but no export of Nsight Systems: it has none of its tables"
                )
            yield db
    except OverBudget as error:
        raise TraceError(f"{path}: {error}") from error
    except (sqlite3.Error, OverflowError) as error:
        raise TraceError(f"{path}: cannot be read as an sqlite file ({error}); export it again") from error
    except MemoryError as error:
        raise TraceError(f"{path}: not enough memory; export a shorter time with nsys export --times") from error


def _read(
    db: Database, size: int, share: Share, progress: Callable[[int], None] | None, named: str
) -> tuple[Trace, ...]:
    texts, events, communicators = Texts(share), Events(share), Communicators()
    total = max(sum(db.num_rows(table) for table in _TABLES), 1)
    read = 0
    for rows in _all_rows(db, texts, events, communicators):
        events.add(rows)
        read += len(rows.process)
        if progress:
            progress(size * min(read, total) // total)
    session = session_of(db)
    traces = _traces(db, named, size, texts, events, communicators, session)
    if not traces:
        raise TraceError(f"{db.path}: {NO_DEVICE}")
    return traces


def _all_rows(db: Database, texts: Texts, events: Events, communicators: Communicators) -> Iterator[Rows]:
    """Yield the rows of all tables, the host's first: they tell whose the device's are where it does not say."""
    yield from call_rows(db, texts)
    yield from range_rows(db, texts, payload_schemas(db), communicators)
    for table in OVERHEADS:
        yield from overhead_rows(db, table, texts)
    hosts = events.processes()
    for table in DEVICE_TABLES:
        yield from device_rows(db, table, texts, only_process=hosts[0] if len(hosts) == 1 else None)


def _traces(
    db: Database, named: str, size: int, texts: Texts, events: Events, communicators: Communicators, session: Session
) -> tuple[Trace, ...]:
    on_device = np.array([texts.id(category) for category in _DEVICE_CATEGORIES])
    found = []
    notes = (*session.notes, *_notes(db, communicators))
    bad_text, shortened = len(db.replaced), len(db.shortened)
    for process in events.processes():
        counts = events.counts(process)
        columns, args = events.take(process)
        used = np.isin(columns["cat"], on_device)
        if not used.any():
            continue
        devices, often = np.unique(columns["pid"][used], return_counts=True)
        found.append((int(devices[often.argmax()]), process, columns, args, counts))
    traces = []
    for _, process, columns, args, counts in sorted(found, key=lambda one: one[:2]):
        header, conflict = rank_header(session, process, communicators.made, is_only=len(found) == 1)
        table = drop_implausible(columns, args, base_ns=session.base_ns)
        quality = Quality(
            bad_text=bad_text,
            shortened=shortened,
            far_times=table.far_times,
            bad_args=table.bad_args,
            notes=(*notes, *table.notes, *((conflict,) if conflict else ())),
            bad_time=counts.get("bad_time", 0),
            negative_duration=counts.get("negative_duration", 0),
        )
        for array in _arrays(table.columns, table.args):
            array.flags.writeable = False
        header["nsight"] = {**header["nsight"], "process": process & 0xFFFFFF}
        traces.append(Trace(named, size // len(found), header, texts.strings(), table.columns, table.args, quality))
    return tuple(trace for trace in traces if trace.num_events)


def _arrays(columns: dict[str, Any], args: dict[str, Any]) -> Iterator[Any]:
    yield from columns.values()
    for sparse in args.values():
        yield sparse.rows
        yield sparse.values


def _notes(db: Database, communicators: Communicators) -> list[str]:
    notes = []
    graphs = db.num_rows(GRAPHS)
    if graphs:
        notes.append(
            f"{graphs:,} launches of CUDA graphs were recorded as a whole; which kernels ran in them is unknown: "
            "record with nsys profile --cuda-graph-trace=node"
        )
    if communicators.open_ranges:
        notes.append(f"{communicators.open_ranges:,} NVTX ranges had not ended when the capture did; left out")
    if communicators.without_payload and not communicators.with_payload:
        notes.append(
            "NCCL's calls are there without their sizes and communicators: nsys export --include-blobs=true keeps them"
        )
    return notes
