"""One Nsight Systems export to one table per process that used a device: the same tables that Kineto traces give."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.dataclass import dataclass
from stepscope.errors import TraceError
from stepscope.trace.budget import Budget, OverBudget, Share
from stepscope.trace.implausible_values import drop_implausible
from stepscope.trace.nsight_rows import (
    CALLS,
    COPIES,
    DEVICE_TABLES,
    GRAPHS,
    KERNELS,
    OVERHEADS,
    PID_SHIFT,
    RANGES,
    SETS,
    Communicators,
    Events,
    NcclCall,
    Rows,
    Texts,
    call_rows,
    device_rows,
    nccl_range_rows,
    overhead_rows,
    payload_schemas,
    range_rows,
    world_of,
)
from stepscope.trace.sqlite_file import Database, integers
from stepscope.trace.streams import Stream
from stepscope.trace.table import Quality, Trace

# Where and when was an export recorded: clock, machine, devices, and which rank was each process?
#
# wall clock    TARGET_INFO_SESSION_START_TIME.utcEpochNs is time 0; where the times of events count from when the
#               machine started instead, that table's systemClockNs is the capture's start
# rank          by NCCL's communicators where their payloads are there; by RANK and WORLD_SIZE in the environment
#               of the command, where the export is of one rank's command; else the file's name or the order tells

_MAX_EPOCH_NS = 1 << 62
# columns of TARGET_INFO_GPU and what Kineto's `deviceProperties` call them; a later one overwrites an earlier
_DEVICE_FIELDS = (
    ("id", "id"),
    ("cuDevice", "id"),
    ("totalMemory", "totalGlobalMem"),
    ("smCount", "numSms"),
    ("computeMajor", "computeMajor"),
    ("computeMinor", "computeMinor"),
)


@dataclass(frozen=True)
class Session:
    """What holds for all processes of an export."""

    #: to be added to all times
    base_ns: int
    notes: tuple[str, ...]
    header: dict[str, Any]
    #: rank and world size of the command that was recorded
    environment_rank: tuple[int, int | None] | None


def _session_of(db: Database) -> Session:
    base_ns, notes = _wall_clock(db)
    header: dict[str, Any] = {"nsight": _versions(db)}
    devices = _devices(db)
    if devices:
        header["deviceProperties"] = devices
    host = _system(db, "Hostname")
    if host:
        header["host_name"] = host
    return Session(base_ns, notes, header, _environment_rank(db))


def _rank_header(
    session: Session, process: int, made: dict[int, list[NcclCall]], *, is_only: bool
) -> tuple[dict[str, Any], str | None]:
    by_nccl = world_of(made.get(process, ()))
    said = session.environment_rank if is_only else None
    rank, world = by_nccl or said or (None, None)
    header = dict(session.header)
    if rank is None:
        return header, None
    header["distributedInfo"] = {"rank": rank, "backend": "nccl", "pg_config": _groups(made)} | (
        {"world_size": world} if world else {}
    )
    if by_nccl and said and said[0] != by_nccl[0]:
        return header, f"NCCL says rank {by_nccl[0]}, the command's RANK says {said[0]}; NCCL's is taken"
    return header, None


def _groups(made: dict[int, list[NcclCall]]) -> list[dict[str, Any]]:
    world = {process: world_of(calls) for process, calls in made.items()}
    members: dict[int, dict[int, int | None]] = {}
    sizes: dict[int, int] = {}
    for process, calls in made.items():
        own = world[process]
        for call in calls:
            if call.communicator is None or not call.num_ranks or call.rank is None:
                continue
            sizes[call.communicator] = call.num_ranks
            members.setdefault(call.communicator, {})[call.rank] = own[0] if own else None
    groups = []
    for communicator, size in sizes.items():
        of = members[communicator]
        entry: dict[str, Any] = {"pg_name": f"{communicator:#x}", "pg_desc": "", "pg_size": size}
        if len(of) == size and None not in of.values():
            entry["ranks"] = [of[rank] for rank in sorted(of)]
        elif any(own and own[1] == size for own in world.values()):
            entry["ranks"] = list(range(size))
        groups.append(entry)
    return groups


def _wall_clock(db: Database) -> tuple[int, tuple[str, ...]]:
    started = _first(db, "TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
    details = _first(db, "ANALYSIS_DETAILS", ("startTime",))
    epoch, system_clock = started.get("utcEpochNs"), started.get("systemClockNs")
    if epoch is None or not 0 <= epoch < _MAX_EPOCH_NS:
        return 0, ("the export has no wall clock: its times count from the start of the capture",)
    if system_clock and system_clock == details.get("startTime") and 0 < system_clock < _MAX_EPOCH_NS:
        return epoch - system_clock, ()
    return epoch, ()


def _first(db: Database, table: str, columns: Sequence[str]) -> dict[str, int]:
    for chunk in db.chunks(table, columns):
        return {name: chunk[name][0] for name in columns if type(chunk[name][0]) is int}
    return {}


def _versions(db: Database) -> dict[str, str]:
    wanted = {"EXPORT_SCHEMA_VERSION": "schema", "EXPORT_PRODUCT_VERSION": "version"}
    found = {}
    for chunk in db.chunks("META_DATA_EXPORT", ("name", "value")):
        for raw, value in zip(chunk["name"], chunk["value"], strict=True):
            name = wanted.get(db.text(raw) or "")
            if name:
                found[name] = (db.text(value) or "")[:64]
    return found


def _devices(db: Database) -> list[dict[str, Any]]:
    columns = tuple(name for name, _ in _DEVICE_FIELDS)
    devices: list[dict[str, Any]] = []
    for chunk in db.chunks("TARGET_INFO_GPU", ("name", *columns)):
        numbers = {name: integers(chunk[name]) for name in columns}
        for i, raw in enumerate(chunk["name"]):
            known = {as_: int(numbers[name][0][i]) for name, as_ in _DEVICE_FIELDS if numbers[name][1][i]}
            devices.append({"name": db.text(raw) or "", **known})
    return devices[:1024]


def _system(db: Database, wanted: str) -> str | None:
    for chunk in db.chunks("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
        for raw, value in zip(chunk["name"], chunk["value"], strict=True):
            if db.text(raw) == wanted:
                return (db.text(value) or "")[:256] or None
    return None


def _environment_rank(db: Database) -> tuple[int, int | None] | None:
    found: dict[str, int] = {}
    for chunk in db.chunks("META_DATA_CAPTURE", ("name", "value")):
        for raw, value in zip(chunk["name"], chunk["value"], strict=True):
            if (db.text(raw) or "").endswith(":ENVIRONMENT_VARIABLE"):
                name, _, said = (db.text(value) or "").partition("=")
                number = said.strip('"')
                if name in ("RANK", "WORLD_SIZE") and number.isdecimal() and len(number) < 8:
                    found[name] = int(number)
    rank, world = found.get("RANK"), found.get("WORLD_SIZE")
    if rank is None or rank >= (world or 1 << 20):
        return None
    return rank, world if world else None


_TABLES = (CALLS, RANGES, *OVERHEADS, *DEVICE_TABLES)
_NO_DEVICE = "no process in it used a device; record with nsys profile --trace=cuda,nvtx"


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
    with _opened_export(path) as db:
        try:
            return _read(db, size, share, progress, str(named or path))
        except OverBudget:
            share.give_back()
            raise


@contextmanager
def _opened_export(path: str | Path) -> Iterator[Database]:
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
    session = _session_of(db)
    traces = _traces(db, named, size, texts, events, communicators, session)
    if not traces:
        raise TraceError(f"{db.path}: {_NO_DEVICE}")
    return traces


def _all_rows(db: Database, texts: Texts, events: Events, communicators: Communicators) -> Iterator[Rows]:
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
    on_device = np.array([texts.id(category) for category in ("kernel", "gpu_memcpy", "gpu_memset")])
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
        header, conflict = _rank_header(session, process, communicators.made, is_only=len(found) == 1)
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


# What does an export hold? Its kernels and its processes, told without keeping an event.
#
# All rows of the device's tables are read, of the host's tables only what tells processes and ranks, chunk by chunk:
# an
# export of any size takes the same memory.

_ON_DEVICE = (KERNELS, GRAPHS, COPIES, SETS)
_OVERVIEW_TABLES = (CALLS, *OVERHEADS, RANGES, *_ON_DEVICE)


@dataclass(frozen=True)
class Overview:
    """What a look into an export found."""

    #: launches of CUDA graphs that were recorded as a whole count as one each
    num_kernels: int
    #: of each process that used a device, as in its `Trace`
    headers: tuple[dict[str, Any], ...]


def overview(path: str | Path, *, progress: Callable[[int], None] | None = None) -> Overview:
    """Return what an export holds; `progress` is told about how many bytes were read. Raises as `read_nsys` does."""
    size = Stream(Path(path)).size
    with _opened_export(path) as db:
        told = _Told(progress, size, max(sum(db.num_rows(table) for table in _OVERVIEW_TABLES), 1))
        communicators = Communicators()
        hosts = _host_processes(db, told)
        texts = Texts(Budget(size).share())
        for _ in nccl_range_rows(db, texts, payload_schemas(db), communicators):
            pass
        told.add(db.num_rows(RANGES))
        kernels, used = _device_work(db, texts, hosts.pop() if len(hosts) == 1 else None, told)
        if not used:
            raise TraceError(f"{db.path}: {_NO_DEVICE}")
        session = _session_of(db)
    made = communicators.made
    headers = [_rank_header(session, process, made, is_only=len(used) == 1)[0] for process in sorted(used)]
    return Overview(kernels, tuple(headers))


class _Told:
    def __init__(self, progress: Callable[[int], None] | None, size: int, total: int) -> None:
        self._progress, self._size, self._total, self._read = progress, size, total, 0

    def add(self, rows: int) -> None:
        self._read += rows
        if self._progress:
            self._progress(self._size * min(self._read, self._total) // self._total)


def _host_processes(db: Database, told: _Told) -> set[int]:
    found: set[int] = set()
    for table in (CALLS, *OVERHEADS):
        for chunk in db.chunks(table, ("globalTid",)):
            thread, known = integers(chunk["globalTid"])
            found.update(np.unique(thread[known] >> PID_SHIFT).tolist())
            told.add(len(thread))
    return found


def _device_work(db: Database, texts: Texts, only_process: int | None, told: _Told) -> tuple[int, set[int]]:
    number, used = 0, set[int]()
    for table in _ON_DEVICE:
        for rows in device_rows(db, table, texts, only_process=only_process):
            sound = rows.timed & (rows.end_ns >= rows.start_ns)
            used.update(np.unique(rows.process[sound]).tolist())
            number += int(sound.sum()) if table in (KERNELS, GRAPHS) else 0
            told.add(len(rows.process))
    return number, used
