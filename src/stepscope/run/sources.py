"""Trace files of a run, and the rank of each."""

import glob
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.cache_files import is_trusted_file
from stepscope.contract.run_folder import CACHE_FOLDER, CAPTURE, RUN_JSON, rank_of
from stepscope.errors import InputError, MissingFileError
from stepscope.records import dataclass
from stepscope.units import printable

_PERFETTO_ENDINGS = (".pftrace", ".pftrace.gz", ".pftrace.zst", ".perfetto-trace", ".perfetto-trace.gz")
# of rocprofv3's databases; nothing else there has it
_ROCPD = ".db"
# Chakra execution traces: `NAME.3.et` is of rank 3
CHAKRA = ".et"
NSYS_REPORT, NCU_REPORT = ".nsys-rep", ".ncu-rep"
_TRACE_ENDINGS = (
    *(
        ".json",
        ".json.gz",
        ".json.zst",
        ".trace",
        ".trace.gz",
        *_PERFETTO_ENDINGS,
        ".sqlite",
        _ROCPD,
        CHAKRA,
        NSYS_REPORT,
    ),
)
# in a run folder, next to files of the recorder that have a rank in their names too
_OF_RANK = (*_PERFETTO_ENDINGS, ".sqlite", _ROCPD, CHAKRA, NSYS_REPORT)
_STEP_LOGS = "rank*.steps.jsonl"
# what a benchmark leaves
RESULTS_JSON = "results.json"
# JSON files that are found next to traces and are none.
_NO_TRACE = re.compile(
    r"^(run|report|compare|results|investigation|truth|calibration|config|metadata|package)\.json$|\.steps\.jsonl$"
)
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_ ]?(\d+)", re.IGNORECASE)
# `rank_3`, `worker3`, `node0_rank3`: the folder of that rank
_RANK_FOLDER = re.compile(r"^(?:\w{1,40}[-_.])?(?:rank|worker)[-_ ]?\d{1,9}$", re.IGNORECASE)
# folders below a rank's own that are searched
_MAX_LEVELS = 4
_MAX_FOLDERS = 10_000
# the rank or a revision: used only where it differs between the files
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
    #: their folder, if one was given
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
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot list traces in {_shown(many)}: {reason}; check the path") from error
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
    """Return the runs that a name refers to: itself, or the folders in a folder without a trace.

    Such a folder is a set of runs: each folder in it with traces, step logs or the results of a benchmark is one.
    """
    folder = Path(given)
    try:
        if not folder.is_dir() or _is_of_set(folder):
            return [folder]
        below = sorted(p for p in folder.iterdir() if p.is_dir() and p.name != CACHE_FOLDER)
        return list(filter(_is_of_set, below)) or [folder]
    except (OSError, ValueError) as error:
        # An unreadable run would be missing from its set without a warning.
        reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot list runs in {_shown([given])}: {printable(reason)}; check the path") from error


def _is_of_set(folder: Path) -> bool:
    return is_run(folder) or (folder / RESULTS_JSON).is_file()


def is_run(path: Path) -> bool:
    """Return whether this is a file, or a folder with traces or step logs."""
    return not path.is_dir() or bool(_in_folder(path)) or any(path.glob(_STEP_LOGS))


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
    except (OSError, ValueError):  # reported by `find_sources`
        return False


def is_without_traces(given: str) -> bool:
    """Return whether this is a folder in which nothing is named like a trace."""
    try:
        return Path(given).is_dir() and not _in_folder(Path(given))
    except (OSError, ValueError):  # reported by `find_sources`
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
    raise MissingFileError(f"{given} does not exist; give a trace, a folder or a glob")


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
        # A report of Nsight Systems that cannot be read here loses no rank: it is reported separately.
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
    if f".{CAPTURE}" in name:
        return True
    return rank_of(name) is not None and ".trace." not in name and not name.endswith(_OF_RANK)
