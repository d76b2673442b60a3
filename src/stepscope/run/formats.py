"""File formats of other tools, and the files of each format in a run folder.

Detected by content. A name may be anything: a dump called `nccl_trace_rank_3` and one called `rank00003.flight.pickle`
are the same to every reader.
"""

import gzip
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from stepscope.contract.run_folder import CACHE_FOLDER, RUN_JSON, atomic_write
from stepscope.errors import InputError, StepscopeError
from stepscope.records import Row, dataclass
from stepscope.run.sources import CHAKRA, NCU_REPORT, NSYS_REPORT, Source, rank_in_header, rank_in_name
from stepscope.side_file import MAX_LOG_BYTES, open_side_file, side_file_lines
from stepscope.trace.cache import WriteLater, read_cached
from stepscope.trace.read import Budget, is_pftrace, read
from stepscope.trace.table import EventKind, Trace, event_kinds
from stepscope.units import printable, readable_bytes

# Readers of other tools' files are imported where there is such a file.

# ids of formats that are picked up by name
_NCU_REPORT = "ncu-report"
_NCU = "ncu"
MEMORY_SNAPSHOT = "memory"
FLIGHT_RECORDER = "flight"
NCCL_LOG = "nccl-log"

# Definition of a format: detection, name in a run folder, summary of a file.

_HEAD_BYTES = 1 << 16
MAX_FILE_BYTES = 1 << 42
_GZIP = b"\x1f\x8b"
_SQLITE = b"SQLite format 3\0"
# called with the number of bytes read so far
BytesRead = Callable[[int], None]


def no_progress(_read_bytes: int) -> None:
    """No-op progress callback."""


@dataclass(frozen=True)
class FileHead:
    """Input of format detection: a file's name, its size and its first bytes, unpacked where it is gzipped."""

    path: Path
    size: int
    #: at most HEAD_BYTES
    start: bytes

    @property
    def name(self) -> str:
        return self.path.name.lower().removesuffix(".gz")


@dataclass(frozen=True)
class Contents:
    """Contents of a file."""

    #: in a few words, for people: `3,442 kernels of 2 processes`
    what: str
    #: that the file itself names; empty for none
    ranks: tuple[int, ...] = ()
    #: whether it holds several ranks, so that it is no single rank's file
    whole_job: bool = False
    #: whether it is of use only with a rank, which it does not name
    needs_rank: bool = False


@dataclass(frozen=True)
class Format:
    """One format: detected by `is_it`, stored in a run folder as `rank00000.<ending>` (or `job.<ending>`).

    `look` opens a file and returns its contents. It raises a one-sentence `StepscopeError` for a damaged file, so that
    nothing unreadable is put into a run folder. `store` writes the file into the run folder in the form that the reader
    takes; without one it is copied as it is.
    """

    id: str
    #: as in `Nsight Systems export`
    title: str
    ending: str
    is_it: Callable[[FileHead], bool]
    look: Callable[[Path, BytesRead], Contents]
    store: Callable[[Path, Path], None] | None = None
    #: whether only what `store` wrote can be opened
    check_stored: bool = False
    #: further names of files of this format in a run folder
    other_endings: tuple[str, ...] = ()
    #: whether a file is useless without its rank
    needs_rank: bool = True

    @property
    def endings(self) -> tuple[str, ...]:
        return (self.ending, *self.other_endings)


def file_head(path: Path) -> FileHead:
    """Return the head of a file, unpacked where it is gzipped."""
    with open_side_file(path, max_bytes=MAX_FILE_BYTES) as f:
        start = f.read(_HEAD_BYTES)
        size = path.stat().st_size
    if start.startswith(_GZIP):
        try:
            start = zlib.decompressobj(31).decompress(start, _HEAD_BYTES)
        except zlib.error:
            start = b""
    return FileHead(path, size, start)


def is_sqlite(path: Path) -> bool:
    """Return whether a regular file begins as an sqlite file does; False where it is none or cannot be read."""
    try:
        with open_side_file(path, max_bytes=MAX_FILE_BYTES) as f:
            return f.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def is_rocpd(start: bytes) -> bool:
    """Return whether a file that begins with these bytes is an sqlite database of rocprofiler-sdk.

    The first pages have the names of its tables.
    """
    return start.startswith(_SQLITE) and b"rocpd_" in start


# lines of a JSON export: rows with the names of their tables; before 2024 events, after one line of all texts
_ROW_OF_TABLE = re.compile(rb'^\s*\{[^\n]{0,4096}"table"\s*:\s*"[A-Za-z]\w*"')
_EVENT_LINE = re.compile(rb'^\s*\{\s*"(?:data"\s*:\s*\[|Type"\s*:\s*\d+\s*,\s*"\w+Event")')


def is_nsys_json(start: bytes) -> bool:
    """Return whether a file that begins with these bytes is a JSON export of Nsight Systems, of any version."""
    return bool(_ROW_OF_TABLE.match(start) or (_EVENT_LINE.match(start) and b"Event" in start))


# of a folder that are checked
_MAX_FILES = 100_000
_OURS = re.compile(r"^rank\d{5,9}\.((steps|telemetry|memory|collectives|samples)\.jsonl|owners\.json\.gz)$")

_TRACE = re.compile(r"\.pt\.trace\.json(\.gz|\.zst)?$")


@dataclass(frozen=True)
class DetectedFile:
    """One file of a known format."""

    path: Path
    format: Format
    #: by the file's name; None where that does not say
    rank: int | None


def format_of(path: Path) -> Format | None:
    """Return the format of a file, None where no known one fits; an `InputError` where it cannot be read."""
    try:
        head = file_head(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{printable(str(path))}: cannot be read: {reason}") from error

    return next((known for known in FORMATS if known.is_it(head)), None)


def files_beside(folder: Path) -> tuple[DetectedFile, ...]:
    """Return the files of known formats in a run folder, by name; unreadable files are left out."""
    return _detected(_candidates(folder))


def _detected(paths: list[Path]) -> tuple[DetectedFile, ...]:
    found = []
    for path in paths:
        try:
            known = _format_of_unchanged(path, path.stat().st_mtime_ns)
        except (InputError, OSError):  # reported by the reader
            continue
        if known is not None:
            found.append(DetectedFile(path, known, rank_in_name(path.name)))
    return tuple(found)


def beside(folder: Path, format_id: str, *, but: Collection[str] = ()) -> tuple[DetectedFile, ...]:
    """Return the files of one format in a run folder, by name; traces, and those named in `but`, are not opened."""
    return tuple(one for one in _detected(others_in(folder, but=but)) if one.format.id == format_id)


def others_in(folder: Path, *, but: Collection[str] = ()) -> list[Path]:
    """Return the files of a run folder whose name does not show their format, less those named in `but`."""
    return [path for path in _candidates(folder) if not _TRACE.search(path.name) and path.name not in but]


@lru_cache(maxsize=4096)
def _format_of_unchanged(path: Path, _mtime_ns: int) -> Format | None:
    return format_of(path)


def _candidates(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())[:_MAX_FILES]
    except OSError:
        return []
    names = (RUN_JSON, CACHE_FOLDER)
    return [
        path
        for path in entries
        if not path.name.startswith(".") and path.name not in names and not _OURS.match(path.name) and path.is_file()
    ]


# Kineto traces of a run folder: what PyTorch's profiler writes, under the name that the recorder gives them.

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[|^\s*\[\s*\{\s*"(?:ph|name|cat|pid|tid|ts)"\s*:')
_CHUNK_BYTES = 1 << 20
_JSON = (".json", ".jsonl")


def _look(path: Path, told: BytesRead) -> Contents:
    trace = read(path, progress=told)
    rank = rank_in_header(trace.header)
    return Contents(f"{trace.num_events:,} events", () if rank is None else (rank,))


def _store(source: Path, target: Path) -> None:
    with open_side_file(source, max_bytes=MAX_FILE_BYTES) as f, atomic_write(target) as out:
        start = f.read(2)
        f.seek(0)
        if start in (b"\x1f\x8b", b"\x28\xb5"):
            shutil.copyfileobj(f, out, _CHUNK_BYTES)
            return
        pack = zlib.compressobj(level=3, wbits=31)
        while chunk := f.read(_CHUNK_BYTES):
            out.write(pack.compress(chunk))
        out.write(pack.flush())


# What NCCL writes, in a run folder: its debug log, of one rank or of all, and NCCL inspector's measurements.


def _look_log(path: Path, told: BytesRead) -> Contents:
    from stepscope.trace.nccl import nccl_log, nccl_logs, shows_anything

    logs = nccl_logs(_lines(path, told))
    ranks = tuple(log.rank for log in logs)
    logs = logs or (nccl_log(_lines(path, told), rank=0),)
    if not ranks and not shows_anything(logs[0]):
        raise InputError(f"{path}: a log of NCCL without a rank, topology or collective; log with NCCL_DEBUG=INFO")
    version = next((log.version for log in logs if log.version), None)
    transports = sorted({name for log in logs for name in log.transports})
    what = f"NCCL {version or 'of unknown version'}, {', '.join(transports) or 'no connections'}"
    several = f", {len(logs)} ranks" if len(logs) > 1 else ""
    return Contents(what + several, ranks, whole_job=len(logs) > 1, needs_rank=not ranks)


def _look_inspector(path: Path, told: BytesRead) -> Contents:
    from stepscope.trace.nccl import inspected

    found, damaged = inspected(_lines(path, told))
    if not found:
        raise InputError(f"{path}: none of its {damaged:,} lines is a measurement of NCCL inspector")
    ranks = tuple(sorted({one.rank for one in found}))
    count = sum(one.count for one in found)
    return Contents(f"{count:,} collectives measured", ranks, whole_job=len(ranks) > 1)


def _lines(path: Path, told: BytesRead = no_progress) -> Iterator[bytes]:
    try:
        if not _is_packed(path):
            yield from _counted(side_file_lines(path), told)
            return
        left = 1 << 30
        with open_side_file(path, max_bytes=MAX_LOG_BYTES) as packed, gzip.GzipFile(fileobj=packed) as f:
            while left > 0 and (line := f.readline(1 << 20)):
                left -= len(line)
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _counted(lines: Iterator[bytes], told: BytesRead) -> Iterator[bytes]:
    read = said = 0
    for line in lines:
        read += len(line)
        if read - said >= 1 << 20:
            told(read)
            said = read
        yield line
    told(read)


def _nccl_store(source: Path, target: Path) -> None:
    with atomic_write(target) as out:
        if _is_packed(source):
            for line in _lines(source):
                out.write(line)
        else:
            with open_side_file(source, max_bytes=MAX_LOG_BYTES) as f:
                shutil.copyfileobj(f, out, 1 << 20)


def _is_packed(path: Path) -> bool:
    with open_side_file(path, max_bytes=MAX_LOG_BYTES) as f:
        return f.read(2) == _GZIP


def _is_nccl_log(head: FileHead) -> bool:
    if b"NCCL " not in head.start:
        return False
    from stepscope.trace.nccl import BARE_LINE, LINE

    text = head.start.decode(errors="replace")
    return LINE.search(text) is not None or BARE_LINE.search(text) is not None


def _is_inspector(head: FileHead) -> bool:
    first, start = head.start.lstrip()[:1], head.start
    return first == b"{" and (b'"coll_perf"' in start or b'"p2p_perf"' in start) and b'"header"' in start


# Nsight's files in a run folder: exports and reports of Nsight Systems, metrics of Nsight Compute.


def _look_nsys(path: Path, told: BytesRead) -> Contents:
    from stepscope.trace.nsight import overview  # only where there is such a file

    found = overview(path, progress=told)
    ranks = tuple(rank for header in found.headers if (rank := rank_in_header(header)) is not None)
    processes = len(found.headers)
    several = f" of {processes} processes" if processes > 1 else ""
    return Contents(f"{found.num_kernels:,} kernels{several}", ranks, whole_job=processes > 1)


def _is_ncu_csv(head: FileHead) -> bool:
    if b"Kernel Name" not in head.start:
        return False
    from stepscope.trace.ncu import is_ncu_csv

    return is_ncu_csv(head.start)


def _look_ncu(path: Path, _told: BytesRead) -> Contents:
    from stepscope.trace.ncu import read_ncu_csv

    launches = read_ncu_csv(path).launches
    if not launches:
        raise InputError(f"{path}: holds no launch; was --kernel-name or --launch-skip too narrow?")
    return Contents(f"{len(launches):,} launches of {len({launch.name for launch in launches}):,} kernels")


def _look_report(tool: str, path: Path, _told: BytesRead) -> Contents:
    from stepscope.trace.nsight_tools import require_tool  # only where there is a report

    require_tool(tool, path)
    return Contents(f"to be exported by {tool}")


def _export(tool: str, source: Path, target: Path) -> None:
    from stepscope.trace.nsight_tools import EXPORTS  # only where there is a report

    EXPORTS[tool](source, target)


def _look_rocpd(path: Path, told: BytesRead) -> Contents:
    from stepscope.trace.rocpd import read_rocpd  # only where there is such a file

    traces = read_rocpd(path, progress=told)
    count = sum(trace.num_events for trace in traces)
    several = f" of {len(traces)} processes" if len(traces) > 1 else ""
    return Contents(f"{count:,} kernels, copies and calls{several}", whole_job=len(traces) > 1)


def _look_chakra(path: Path, told: BytesRead) -> Contents:
    from stepscope.trace.chakra import read_chakra  # only where there is such a file

    (trace,) = read_chakra(path, progress=told)
    rank = rank_in_header(trace.header)
    return Contents(f"{trace.num_events:,} operations", () if rank is None else (rank,))


def _look_nsys_json(path: Path, told: BytesRead) -> Contents:
    from stepscope.trace.nsight_tools import read_nsys_json  # only where there is such a file

    traces = read_nsys_json(path, progress=told)
    ranks = tuple(rank for trace in traces if (rank := rank_in_header(trace.header)) is not None)
    return Contents(f"{len(traces)} processes", ranks, whole_job=len(traces) > 1)


def _store_nsys_json(source: Path, target: Path) -> None:
    from stepscope.trace.nsight_tools import to_sqlite  # only where there is such a file

    to_sqlite(source, target)


# What torch itself dumps, in a run folder: flight recorder dumps and CUDA memory snapshots.

_PICKLE = b"\x80"


def _is_flight(head: FileHead) -> bool:
    if head.start.startswith(_PICKLE):
        return b"entries" in head.start and (b"pg_config" in head.start or b"profiling_name" in head.start)
    return head.start.lstrip().startswith(b"{") and b'"collective_seq_id"' in head.start


def _look_flight(path: Path, _told: BytesRead) -> Contents:
    from stepscope.trace.flight_recorder import read_flight_dump  # only where there is such a file

    dump = read_flight_dump(path)
    groups = len({e.group for e in dump.entries})
    what = f"{len(dump.entries):,} collectives of {groups} group{'' if groups == 1 else 's'}"
    return Contents(what, () if dump.rank is None else (dump.rank,))


def _look_snapshot(path: Path, _told: BytesRead) -> Contents:
    from stepscope.trace.memory_snapshot import read_memory_snapshot  # only where there is such a file

    found = read_memory_snapshot(path)
    return Contents(f"{readable_bytes(found.allocated_bytes)} allocated, {len(found.action):,} events")


# Kernels as Nsight Compute measured them, from the files of a run folder.


def measured_launches(folder: Path, *, but: Collection[str] = ()) -> tuple[tuple[Row, ...], list[str]]:
    """Return what the files of Nsight Compute in a run folder measured, and a line for each that has a fault; files
    named in `but` are known to be something else.
    """
    if not others_in(folder, but=but):
        return (), []
    found, lines = [], []
    tables = beside(folder, _NCU, but=but)
    named = {one.path.name for one in tables}
    reports = [one for one in beside(folder, _NCU_REPORT, but=but) if not _is_exported(one.path, named)]
    for one in (*tables, *reports):
        try:
            from stepscope.trace.ncu import read_ncu_csv
            from stepscope.trace.nsight_tools import exported_metrics

            read = read_ncu_csv(exported_metrics(one.path) if one in reports else one.path)
        except StepscopeError as error:
            lines.append(f"not read: {error}")
            continue
        # without a rank they are any rank's; launches are in their order
        found.append(Row(file=one.path.name, rank=one.rank, launches=read.launches))
        if read.unusable:
            lines.append(f"{one.path.name}: {read.unusable:,} values out of range or no numbers; taken as unknown")
    return tuple(found), lines


def _is_exported(report: Path, tables: set[str]) -> bool:

    stem = report.name.removesuffix(NCU_REPORT)
    return f"{stem}.csv" in tables or f"{stem}.ncu.csv" in tables


# The one list of formats that can be imported and that are picked up in a run folder.
#
# A new format is one line here: its `Format` is defined next to its reader, in a file of this folder named after it.
# The first match wins, so formats with a magic number come first.

FORMATS: tuple[Format, ...] = (
    Format("rocpd", "rocpd database", "rocpd.db", lambda head: is_rocpd(head.start), _look_rocpd, needs_rank=False),
    Format("chakra", "Chakra execution trace", "chakra.et", lambda head: head.name.endswith(CHAKRA), _look_chakra),
    Format(
        "nsys-json",
        "Nsight Systems JSON export",
        "nsys.sqlite",
        lambda head: is_nsys_json(head.start),
        _look_nsys_json,
        store=_store_nsys_json,
        needs_rank=False,
    ),
    Format(
        "nsys",
        "Nsight Systems export",
        "nsys.sqlite",
        lambda head: head.start.startswith(_SQLITE),
        _look_nsys,
        needs_rank=False,
    ),
    Format(
        "nsys-report",
        "Nsight Systems report",
        "nsys.sqlite",
        lambda head: head.name.endswith(NSYS_REPORT),
        partial(_look_report, "nsys"),
        store=partial(_export, "nsys"),
        check_stored=True,
        needs_rank=False,
    ),
    Format(
        _NCU_REPORT,
        "Nsight Compute report",
        "ncu.csv",
        lambda head: head.name.endswith(NCU_REPORT),
        partial(_look_report, "ncu"),
        store=partial(_export, "ncu"),
        check_stored=True,
        needs_rank=False,
    ),
    Format(_NCU, "Nsight Compute metrics", "ncu.csv", _is_ncu_csv, _look_ncu, needs_rank=False),
    Format(
        MEMORY_SNAPSHOT,
        "CUDA memory snapshot",
        "memory.pickle",
        lambda head: head.start.startswith(_PICKLE) and b"segments" in head.start[:256],
        _look_snapshot,
    ),
    Format("pftrace", "Perfetto trace", "pftrace.gz", lambda head: is_pftrace(head.start), _look, store=_store),
    Format(
        FLIGHT_RECORDER,
        "flight recorder dump",
        "flight_recorder.dump",
        _is_flight,
        _look_flight,
        other_endings=("flight_recorder.jsonl", "flight_recorder.pickle"),
    ),
    Format(
        "nccl-inspector",
        "NCCL inspector output",
        "nccl_inspector.jsonl",
        _is_inspector,
        _look_inspector,
        store=_nccl_store,
        needs_rank=False,
    ),
    Format(
        "kineto",
        "Kineto trace",
        "pt.trace.json.gz",
        lambda head: _EVENTS.search(head.start) is not None,
        _look,
        store=_store,
    ),
    Format(NCCL_LOG, "NCCL log", "nccl.log", _is_nccl_log, _look_log, store=_nccl_store, needs_rank=False),
)


# Each file as the traces in it, or why it could not be read; all files share threads, progress and a budget.

# of memory that a rank takes however small its trace is
_BYTES_PER_RANK = 1 << 16
# Called with bytes read so far and bytes in all.
Progress = Callable[[int, int], None]


class FailedSource(NamedTuple):
    """A file that could not be read, and why."""

    source: Source
    error: StepscopeError


# a file holds the trace of one rank, or those of all ranks on a machine
ReadSource = tuple[Trace, ...] | FailedSource


def source_reader(
    sources: Sequence[Source],
    *,
    jobs: int,
    cache: bool,
    cache_folder: Path | None,
    progress: Progress | None,
    write_later: WriteLater | None = None,
) -> Callable[[Source], ReadSource]:
    """Return a function that reads one source, or gives back why it could not; `write_later` is for `read_cached`."""
    total = sum(map(size_on_disk, sources))
    budget = Budget(total)
    refuse_too_many(len(sources), budget)
    threads = max(1, jobs // len(sources))
    done: dict[Path, int] = {}

    def read(source: Source) -> ReadSource:
        def report(size_bytes: int) -> None:
            done[source.path] = size_bytes
            if progress:
                progress(sum(done.values()), total)

        try:
            if source.path.name.endswith(CHAKRA):
                from stepscope.trace.chakra import read_chakra  # only where there is such a file

                return read_chakra(source.path, progress=report, budget=budget)
            is_report = source.path.name.endswith(NSYS_REPORT)
            if source.path.name.endswith(_JSON) and is_nsys_json(file_head(source.path).start):
                from stepscope.trace.nsight_tools import read_nsys_json  # only where there is such a file

                return read_nsys_json(source.path, progress=report, budget=budget)
            if is_sqlite(source.path) and is_rocpd(file_head(source.path).start):
                from stepscope.trace.rocpd import read_rocpd  # only where there is such a file

                return read_rocpd(source.path, progress=report, budget=budget)
            if is_report or is_sqlite(source.path):
                from stepscope.trace.nsight import read_nsys  # only where there is such a file
                from stepscope.trace.nsight_tools import exported_report

                export = (
                    exported_report(source.path, cache_folder=cache_folder, keep=cache) if is_report else source.path
                )
                return read_nsys(export, progress=report, budget=budget, named=source.path)
            trace = read_cached(
                source.path,
                cache_folder=cache_folder,
                enabled=cache,
                threads=threads,
                progress=report,
                budget=budget,
                write_later=write_later,
            )
            of_operators = trace["pid"][event_kinds(trace) == EventKind.HOST_OP]
            if (of_operators == of_operators[:1]).all():
                return (trace,)
            from stepscope.trace.merged import split_by_rank  # only where several processes run operators

            return split_by_rank(trace)
        except StepscopeError as error:
            error.__cause__ = error.__context__ = None  # frames would hold what was read
            return FailedSource(source, error.with_traceback(None))

    return read


def size_on_disk(source: Source) -> int:
    """Return the bytes that a file takes, those of a sparse one without its holes."""
    try:
        status = source.path.stat()
    except OSError:  # reported when it is read
        return 0
    return min(status.st_size, 512 * status.st_blocks) if stat.S_ISREG(status.st_mode) else 0


def refuse_too_many(num_files: int, budget: Budget) -> None:
    """Raise where many tiny files would take more memory than their size accounts for."""
    most = budget.limit_bytes // _BYTES_PER_RANK
    if num_files > most:
        raise InputError(
            f"{num_files:,} files are too small to be traces of ranks; at most {most:,} of this size are read at once: "
            "pass some of them, by glob"
        )
