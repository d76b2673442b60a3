"""Trace files of a run, and the rank of each."""

import glob
import gzip
import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.contract.run_folder import CACHE_FOLDER, RUN_JSON, atomic_write, rank_of
from stepscope.errors import InputError, StepscopeError
from stepscope.records import dataclass
from stepscope.side_file import MAX_LOG_BYTES, open_side_file, side_file_lines
from stepscope.trace.cache import WriteLater, read_cached
from stepscope.trace.nccl import (
    LINE,
    MAGIC,
    NCU_REPORT,
    NSYS_REPORT,
    KernelMetrics,
    export_ncu,
    export_nsys,
    exported_metrics,
    inspected,
    is_inspector,
    is_ncu_csv,
    is_sqlite,
    nccl_logs,
    read_ncu_csv,
    require_tool,
)
from stepscope.trace.read import Budget, read
from stepscope.trace.table import Trace
from stepscope.trusted_file import is_trusted_file
from stepscope.units import printable, readable_bytes

_TRACE_ENDINGS = (".json", ".json.gz", ".json.zst", ".trace", ".trace.gz", ".sqlite", NSYS_REPORT)
_STEP_LOGS = "rank*.steps.jsonl"
# what a benchmark leaves
RESULTS_JSON = "results.json"
# JSON that lies beside traces and is none.
_NO_TRACE = re.compile(
    r"^(run|report|compare|results|investigation|truth|calibration|config|metadata|package)\.json$|\.steps\.jsonl$"
)
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_ ]?(\d+)", re.IGNORECASE)
# May be the rank and may be a revision: believed only where it tells the files apart.
# `rank_3`, `worker3`, `node0_rank3`: what lies below is that rank's
_RANK_FOLDER = re.compile(r"^(?:\w{1,40}[-_.])?(?:rank|worker)[-_ ]?\d{1,9}$", re.IGNORECASE)
# folders below a rank's own that are searched
_MAX_LEVELS = 4
_MAX_FOLDERS = 10_000
_PERHAPS_RANK = re.compile(r"[-_]r[-_ ]?(\d+)", re.IGNORECASE)
_MAX_RANKS = 1 << 30


@dataclass(frozen=True)
class Source:
    """One trace file of a run."""

    path: Path
    #: named by the user or by a run folder's own scheme, so that failing to read it loses a rank
    claimed: bool


@dataclass(frozen=True)
class Sources:
    """The trace files of a run."""

    files: tuple[Source, ...]
    #: where they lie, if a folder was given
    folder: Path | None
    #: one line per file that was given twice, or under two names; it counts once
    repeated: tuple[str, ...]


def find_sources(given: str | Path | Sequence[str | Path]) -> Sources:
    """Return the trace files of a run, from a file, a folder, a glob, or several of them.

    Folders are not searched below their first level, but for those that are named by ranks (`logs/rank_3/...`).
    """
    many = [given] if isinstance(given, str | Path) else list(given)
    try:
        found = [source for one in many for source in _expand(str(one))]
        folder = Path(many[0]) if len(many) == 1 and Path(many[0]).is_dir() else None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot look for traces in {_shown(many)}: {reason}; check the path") from error
    if not found:
        instead = _steps_only(many) or _below(many)
        raise InputError(f"no traces ({', '.join(_TRACE_ENDINGS)}) in {_shown(many)}{instead}")
    unique: dict[str, Source] = {}
    repeated = []
    for source in found:
        first = unique.setdefault(os.path.realpath(source.path), source)
        if first is not source:
            repeated.append(f"{first.path.name} and {source.path.name} are the same file; it counts once")
    return Sources(tuple(unique.values()), folder, tuple(repeated))


def runs_in(given: str) -> list[Path]:
    """Return the runs that a name stands for: itself, or the folders in a folder that holds no trace of its own.

    Such a folder is a set of runs: each folder in it with traces, step logs or the results of a benchmark is one.
    """
    folder = Path(given)
    try:
        own = folder.is_dir() and (
            _in_folder(folder) or (folder / RESULTS_JSON).is_file() or any(folder.glob(_STEP_LOGS))
        )
        if own or not folder.is_dir():
            return [folder]
        below = sorted(p for p in folder.iterdir() if p.is_dir() and p.name != CACHE_FOLDER)
        return [p for p in below if _in_folder(p) or (p / RESULTS_JSON).is_file() or any(p.glob(_STEP_LOGS))] or [
            folder
        ]
    except (OSError, ValueError) as error:
        # A run that cannot be looked into would be missing from its set without a word.
        reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot look for runs in {_shown([given])}: {printable(reason)}; check the path") from error


def folder_of_runs(given: str) -> list[Path]:
    """Return the runs of a folder that holds several and is none itself; none where it is anything else."""
    try:
        if not Path(given).is_dir():
            return []
    except (OSError, ValueError):
        return []
    runs = [path for path in runs_in(given) if not (path / RESULTS_JSON).is_file()]
    return [] if runs == [Path(given)] else runs


def holds_traces(folder: Path) -> bool:
    """Return whether a folder holds traces, directly or in folders of ranks; an `OSError` where it cannot be read."""
    return bool(_in_folder(folder))


def has_steps_only(given: Sequence[str | Path]) -> bool:
    """Return whether this is one run folder with step logs and no trace."""
    folder = Path(given[0]) if len(given) == 1 else None
    try:
        return (
            folder is not None
            and folder.is_dir()
            and all(is_unreadable_report(source.path) for source in _in_folder(folder))
            and any(folder.glob(_STEP_LOGS))
        )
    except (OSError, ValueError):  # said by `find_sources`
        return False


def is_unreadable_report(path: Path) -> bool:
    """Return whether a file is a report of Nsight Systems that nothing here can read."""
    if not path.name.endswith(NSYS_REPORT) or shutil.which("nsys") is not None:
        return False
    cached = (path.parent / CACHE_FOLDER).glob("*")  # none where it is another user's
    return not any(p.name.startswith(f"{path.name}.") and is_trusted_file(p) for p in cached)


def _steps_only(given: Sequence[str | Path]) -> str:
    if not has_steps_only(given):
        return ""
    return (
        f", only step logs: stepscope report {_shown(given)} shows them; stepscope record without --light and with "
        "--steps that the job reaches leaves traces"
    )


def _below(given: Sequence[str | Path]) -> str:
    try:
        runs = [run for one in given for run in runs_in(str(one)) if run != Path(one)]
    except InputError:  # what cannot be read is none to name
        runs = []
    if not runs:
        return "; give the folder that holds them"
    return f"; there are runs below: give one of {_shown(runs[:3])}"


def _shown(given: Sequence[str | Path]) -> str:
    return printable(", ".join(map(str, given)))


def rank_in_header(header: dict[str, Any]) -> int | None:
    """Return `distributedInfo.rank`."""
    info = header.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank <= _MAX_RANKS else None


def rank_in_name(name: str) -> int | None:
    """Return the rank a file name states, e.g. 3 for `worker3_step_12.pt.trace.json.gz`."""
    own = rank_of(name)
    return own if own is not None else _number(_RANK_IN_NAME, name)


def stated_name(path: Path, *, root: Path | None = None) -> str:
    """Return what may state the rank of a file: its name, or that of a rank's folder around it, inside of `root`.

    >>> stated_name(Path("logs/rank_3/trace.json")), stated_name(Path("rank_3/worker0.json"))
    ('rank_3', 'worker0.json')
    """
    if rank_in_name(path.name) is not None:
        return path.name
    inside = list(path.parents)[: _MAX_LEVELS if root else 1]
    inside = inside[: inside.index(root)] if root in inside else inside[:1]
    return next((folder.name for folder in inside if _RANK_FOLDER.match(folder.name)), path.name)


def assign_ranks(named: Sequence[tuple[str, int | None]]) -> list[tuple[int, str]]:
    """Return `(rank, how it is known)` for each `(file name, rank in its header)`.

    Header first, else the name, else the order among those that have neither. Two files may come out as the same
    rank: that is for the caller to refuse.
    """
    out: list[tuple[int, str] | None] = []
    for name, in_header in named:
        stated = rank_in_name(name)
        known = (in_header, "distributedInfo") if in_header is not None else None
        out.append(known or (None if stated is None else (stated, "file name")))
    taken = {rank for rank, _ in filter(None, out)}
    perhaps = [
        _number(_PERHAPS_RANK, name) if known is None else None for (name, _), known in zip(named, out, strict=True)
    ]
    for i, rank in enumerate(perhaps):
        if rank is not None and rank not in taken and perhaps.count(rank) == 1 and len(named) > 1:
            out[i] = (rank, "file name")
    taken |= {rank for rank, _ in filter(None, out)}
    free = (n for n in range(len(named) + len(taken) + 1) if n not in taken)
    return [known if known is not None else (next(free), "order") for known in out]


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.search(name)
    number = int(found.group(1)[:12]) if found else None
    return number if number is not None and number <= _MAX_RANKS else None


def _expand(given: str) -> list[Source]:
    path = Path(given)
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [Source(path, claimed=True)]
    if glob.has_magic(given):
        return [
            Source(p, claimed=True)
            for found in map(Path, sorted(glob.glob(given)))  # noqa: PTH207  absolute patterns too
            for p in (_of_rank(found) if found.is_dir() and _RANK_FOLDER.match(found.name) else [found])
            if not p.is_dir() and not _NO_TRACE.search(p.name)
        ]
    raise InputError(f"there is nothing at {given}; give a trace, a folder or a glob")


def _in_folder(folder: Path) -> list[Source]:
    own = _directly_in(folder)
    if own:
        return own
    named = [p for p in sorted(folder.iterdir())[:_MAX_FOLDERS] if _RANK_FOLDER.match(p.name)]
    below = [p for p in named if p.is_dir() and not p.is_symlink()]
    return [Source(path, claimed=True) for one in below for path in _of_rank(one)]


def _of_rank(folder: Path) -> list[Path]:
    level = [folder]
    for _ in range(_MAX_LEVELS):
        found = [source.path for one in level for source in _directly_in(one)]
        if found:
            return found
        inside = (p for one in level for p in sorted(one.iterdir()) if not p.name.startswith("."))
        level = [p for p in inside if p.is_dir() and not p.is_symlink()][:_MAX_FOLDERS]
    return []


def _directly_in(folder: Path) -> list[Source]:
    names = sorted(p for p in folder.iterdir() if p.name.endswith(_TRACE_ENDINGS) and p.name != CACHE_FOLDER)
    return [
        # A report of Nsight Systems that nothing here can read loses no rank: it says so itself.
        Source(p, claimed=rank_in_name(p.name) is not None and not p.name.endswith(NSYS_REPORT))
        for p in names
        if not _NO_TRACE.search(p.name) and p.name != RUN_JSON and not p.name.startswith(".") and not _beside(p.name)
        if not _is_exported(p)
    ]


def _is_exported(path: Path) -> bool:
    if not path.name.endswith(NSYS_REPORT):
        return False
    stem = path.name.removesuffix(NSYS_REPORT)
    return any((path.parent / f"{stem}{ending}").is_file() for ending in (".sqlite", ".nsys.sqlite"))


def _beside(name: str) -> bool:
    return rank_of(name) is not None and ".trace." not in name and not name.endswith((".sqlite", NSYS_REPORT))


# File formats of other tools, and the files of each format in a run folder.
#
# Told by content. A name may be anything: a dump called `nccl_trace_rank_3` and one called `rank00003.flight.pickle`
# are the same to every reader.

# Definition of a format: detection, name in a run folder, summary of a file.

_HEAD_BYTES = 1 << 16
MAX_FILE_BYTES = 1 << 42
_GZIP = b"\x1f\x8b"
# told how many bytes of a file were read so far
BytesRead = Callable[[int], None]


def no_progress(_read_bytes: int) -> None:
    """No-op progress callback."""


@dataclass(frozen=True)
class FileHead:
    """What a format is told by: the name of a file, its size and its first bytes, unpacked where it is gzipped."""

    path: Path
    size: int
    #: at most HEAD_BYTES
    start: bytes

    @property
    def name(self) -> str:
        return self.path.name.lower().removesuffix(".gz")


@dataclass(frozen=True)
class Contents:
    """What a look into a file found."""

    #: in a few words, for people: `3,442 kernels of 2 processes`
    what: str
    #: that the file itself names; empty where it says none
    ranks: tuple[int, ...] = ()
    #: whether it holds several ranks, so that it is no single rank's file
    whole_job: bool = False


@dataclass(frozen=True)
class Format:
    """One format: told by `is_it`, kept in a run folder as `rank00000.<ending>` (or `job.<ending>`).

    `look` opens a file and says what it holds. It raises a `StepscopeError` of one sentence where the file is damaged,
    so that nothing unreadable is put into a run folder. `store` writes it into the run folder in the form that the
    reader takes; without one it is copied as it is.
    """

    id: str
    #: as in `Nsight Systems export`
    title: str
    ending: str
    is_it: Callable[[FileHead], bool]
    look: Callable[[Path, BytesRead], Contents]
    store: Callable[[Path, Path], None] | None = None
    #: whether only what `store` wrote can be looked into
    check_stored: bool = False
    #: further names under which files of this format lie in a run folder
    other_endings: tuple[str, ...] = ()
    #: whether a file is of use only where it is known whose it is
    needs_rank: bool = True

    @property
    def endings(self) -> tuple[str, ...]:
        return (self.ending, *self.other_endings)


def _file_head(path: Path) -> FileHead:
    with open_side_file(path, max_bytes=MAX_FILE_BYTES) as f:
        start = f.read(_HEAD_BYTES)
        size = path.stat().st_size
    if start.startswith(_GZIP):
        try:
            start = zlib.decompressobj(31).decompress(start, _HEAD_BYTES)
        except zlib.error:
            start = b""
    return FileHead(path, size, start)


# of a folder that are looked at
_MAX_FILES = 100_000
_OURS = re.compile(r"^rank\d{5,9}\.(steps\.jsonl|owners\.json\.gz|telemetry\.jsonl|memory\.jsonl|collectives\.jsonl)$")

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
        head = _file_head(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{printable(str(path))}: cannot be read: {reason}") from error

    return next((known for known in FORMATS if known.is_it(head)), None)


def files_beside(folder: Path) -> tuple[DetectedFile, ...]:
    """Return the files of known formats that lie in a run folder, by name; what cannot be read is left out."""
    return _detected(_candidates(folder))


def _detected(paths: list[Path]) -> tuple[DetectedFile, ...]:
    found = []
    for path in paths:
        try:
            known = _format_of_unchanged(path, path.stat().st_mtime_ns)
        except (InputError, OSError):  # said by whoever reads it
            continue
        if known is not None:
            found.append(DetectedFile(path, known, rank_in_name(path.name)))
    return tuple(found)


def beside(folder: Path, format_id: str, *, but: Collection[str] = ()) -> tuple[DetectedFile, ...]:
    """Return the files of one format in a run folder, by name; traces, and those named in `but`, are not opened."""
    return tuple(one for one in _detected(others_in(folder, but=but)) if one.format.id == format_id)


def others_in(folder: Path, *, but: Collection[str] = ()) -> list[Path]:
    """Return the files of a run folder whose name does not say what they are, less those named in `but`."""
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


_KINETO = Format(
    id="kineto",
    title="Kineto trace",
    ending="pt.trace.json.gz",
    is_it=lambda head: _EVENTS.search(head.start) is not None,
    look=_look,
    store=_store,
)


# What NCCL writes, in a run folder: its debug log, of one rank or of all, and NCCL inspector's measurements.


def _look_log(path: Path, told: BytesRead) -> Contents:
    logs = nccl_logs(_lines(path, told))
    if not logs:
        raise InputError(f"{path}: is a log of NCCL in which no rank says its number; log with NCCL_DEBUG=INFO")
    version = next((log.version for log in logs if log.version), None)
    transports = sorted({name for log in logs for name in log.transports})
    what = f"NCCL {version or 'of unknown version'}, {', '.join(transports) or 'no connections'}"
    several = f", {len(logs)} ranks" if len(logs) > 1 else ""
    return Contents(what + several, tuple(log.rank for log in logs), whole_job=len(logs) > 1)


def _look_inspector(path: Path, told: BytesRead) -> Contents:
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


NCCL_LOG = Format(
    id="nccl-log",
    title="NCCL log",
    ending="nccl.log",
    is_it=lambda head: b"NCCL " in head.start and LINE.search(head.start.decode(errors="replace")) is not None,
    look=_look_log,
    store=_nccl_store,
    needs_rank=False,
)
_NCCL_INSPECTOR = Format(
    id="nccl-inspector",
    title="NCCL inspector output",
    ending="nccl_inspector.jsonl",
    is_it=lambda head: is_inspector(head.start),
    look=_look_inspector,
    store=_nccl_store,
    needs_rank=False,
)


# Nsight's files in a run folder: exports and reports of Nsight Systems, metrics of Nsight Compute.


def _look_nsys(path: Path, told: BytesRead) -> Contents:
    from stepscope.trace.nsight import overview  # only where there is such a file

    found = overview(path, progress=told)
    ranks = tuple(rank for header in found.headers if (rank := rank_in_header(header)) is not None)
    processes = len(found.headers)
    several = f" of {processes} processes" if processes > 1 else ""
    return Contents(f"{found.num_kernels:,} kernels{several}", ranks, whole_job=processes > 1)


def _look_ncu(path: Path, _told: BytesRead) -> Contents:
    launches = read_ncu_csv(path).launches
    if not launches:
        raise InputError(f"{path}: holds no launch; was --kernel-name or --launch-skip too narrow?")
    return Contents(f"{len(launches):,} launches of {len({launch.name for launch in launches}):,} kernels")


def _exported_later(tool: str) -> Callable[[Path, BytesRead], Contents]:
    def look(path: Path, _told: BytesRead) -> Contents:
        require_tool(tool, path)
        return Contents(f"to be exported by {tool}")

    return look


_NSIGHT_SYSTEMS = Format(
    id="nsys",
    title="Nsight Systems export",
    ending="nsys.sqlite",
    is_it=lambda head: head.start.startswith(MAGIC),
    look=_look_nsys,
    needs_rank=False,
)
_NSIGHT_SYSTEMS_REPORT = Format(
    id="nsys-report",
    title="Nsight Systems report",
    ending="nsys.sqlite",
    is_it=lambda head: head.name.endswith(NSYS_REPORT),
    look=_exported_later("nsys"),
    store=export_nsys,
    check_stored=True,
    needs_rank=False,
)
_NSIGHT_COMPUTE = Format(
    id="ncu",
    title="Nsight Compute metrics",
    ending="ncu.csv",
    is_it=lambda head: is_ncu_csv(head.start),
    look=_look_ncu,
    needs_rank=False,
)
_NSIGHT_COMPUTE_REPORT = Format(
    id="ncu-report",
    title="Nsight Compute report",
    ending="ncu.csv",
    is_it=lambda head: head.name.endswith(NCU_REPORT),
    look=_exported_later("ncu"),
    store=export_ncu,
    check_stored=True,
    needs_rank=False,
)


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


FLIGHT_RECORDER = Format(
    id="flight",
    title="flight recorder dump",
    ending="flight_recorder.dump",
    is_it=_is_flight,
    look=_look_flight,
    other_endings=("flight_recorder.jsonl", "flight_recorder.pickle"),
)
MEMORY_SNAPSHOT = Format(
    id="memory",
    title="CUDA memory snapshot",
    ending="memory.pickle",
    is_it=lambda head: head.start.startswith(_PICKLE) and b"segments" in head.start[:256],
    look=_look_snapshot,
)


# Kernels as Nsight Compute measured them, from the files of a run folder.


@dataclass(frozen=True)
class MeasuredLaunches:
    """The launches that one file holds, in their order."""

    file: str
    #: whose they are; None where the file does not say: then they are those of any rank
    rank: int | None
    launches: tuple[KernelMetrics, ...]


def measured_launches(folder: Path, *, but: Collection[str] = ()) -> tuple[tuple[MeasuredLaunches, ...], list[str]]:
    """Return what the files of Nsight Compute in a run folder measured, and a line for each that has a fault; files
    named in `but` are known to be something else.
    """
    if not others_in(folder, but=but):
        return (), []
    found, lines = [], []
    tables = beside(folder, _NSIGHT_COMPUTE.id, but=but)
    named = {one.path.name for one in tables}
    reports = [
        one for one in beside(folder, _NSIGHT_COMPUTE_REPORT.id, but=but) if not _formats_is_exported(one.path, named)
    ]
    for one in (*tables, *reports):
        try:
            read = read_ncu_csv(exported_metrics(one.path) if one in reports else one.path)
        except StepscopeError as error:
            lines.append(f"not read: {error}")
            continue
        found.append(MeasuredLaunches(one.path.name, one.rank, read.launches))
        if read.unusable:
            lines.append(f"{one.path.name}: {read.unusable:,} values out of range or no numbers; taken as unknown")
    return tuple(found), lines


def _formats_is_exported(report: Path, tables: set[str]) -> bool:

    stem = report.name.removesuffix(NCU_REPORT)
    return f"{stem}.csv" in tables or f"{stem}.{_NSIGHT_COMPUTE.ending}" in tables


# The one list of formats that can be imported and that are picked up in a run folder.
#
# A new format is one line here: its `Format` is defined beside its reader's look, in a file of this folder named by
# it.
# The order counts: the first that says yes has the file, so those told by a magic number come first.

FORMATS: tuple[Format, ...] = (
    _NSIGHT_SYSTEMS,
    _NSIGHT_SYSTEMS_REPORT,
    _NSIGHT_COMPUTE_REPORT,
    _NSIGHT_COMPUTE,
    MEMORY_SNAPSHOT,
    FLIGHT_RECORDER,
    _NCCL_INSPECTOR,
    _KINETO,
    NCCL_LOG,
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
            is_report = source.path.name.endswith(NSYS_REPORT)
            if is_report or is_sqlite(source.path):
                from stepscope.trace.nccl import exported_report  # only where there is such a file
                from stepscope.trace.nsight import read_nsys

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
        except StepscopeError as error:
            error.__cause__ = error.__context__ = None  # frames would hold what was read
            return FailedSource(source, error.with_traceback(None))
        return (trace,)

    return read


def size_on_disk(source: Source) -> int:
    """Return the bytes that a file takes, those of a sparse one without its holes."""
    try:
        status = source.path.stat()
    except OSError:  # said when it is read
        return 0
    return min(status.st_size, 512 * status.st_blocks) if stat.S_ISREG(status.st_mode) else 0


def refuse_too_many(num_files: int, budget: Budget) -> None:
    """Raise where so many files of next to nothing would take more memory than their size accounts for."""
    most = budget.limit_bytes // _BYTES_PER_RANK
    if num_files > most:
        raise InputError(
            f"{num_files:,} files are too small to be traces of ranks; at most {most:,} of this size are read at once: "
            "pass some of them, by glob"
        )
