"""Flight recorder dumps and memory snapshots of a folder by rank."""

import re
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from stepscope.contract.run_folder import json_object, rank_file, rank_of
from stepscope.errors import InputError
from stepscope.records import dataclass
from stepscope.run.formats import FLIGHT_RECORDER, MEMORY_SNAPSHOT, beside, file_head
from stepscope.side_file import side_file_lines
from stepscope.trace.flight_recorder import FlightDump, rank_in, read_flight_dump
from stepscope.trace.memory_snapshot import MemorySnapshot, read_memory_snapshot

_DUMP_NAME = re.compile(
    r"(trace|fr|flight|dump)[A-Za-z]*[_.-]?(rank)?[_-]?\d+(\.json|(\.(pickle|pkl|bin))?(\.gz)?)$|flight_recorder",
    re.IGNORECASE,
)
_OTHER_NAME = re.compile(r"\.(log|txt|md|py|sh|csv|jsonl|html|gz|zst|sqlite|nsys-rep|ncu-rep|yaml|toml|out|err)$")


@dataclass(frozen=True)
class Dumps:
    """The dumps of a job, by rank."""

    by_rank: dict[int, FlightDump]
    #: one sentence per file that is a dump by its name and could not be read
    unreadable: tuple[str, ...]
    notes: tuple[str, ...]


def read_dumps(given: Sequence[str]) -> Dumps:
    """Return the dumps in files and folders; an `InputError` where there is none."""
    named, perhaps = _files(given)
    files = named or perhaps
    dumps: list[FlightDump] = []
    unreadable: list[str] = []
    for path in files[:100_000]:
        try:
            dumps.append(read_flight_dump(path))
        except InputError as error:
            if named:
                unreadable.append(str(error))
    if not dumps:
        if unreadable:
            more = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
            raise InputError(unreadable[0] + more)
        raise InputError(
            f"no flight recorder dump in {', '.join(map(str, given))}; give the files that torch wrote "
            "(TORCH_FR_DUMP_TEMP_FILE, nccl_trace_rank_*) or their folder"
        )
    by_rank, notes = _by_rank(dumps)
    return Dumps(by_rank, tuple(unreadable), tuple(notes))


def _files(given: Sequence[str]) -> tuple[list[Path], list[Path]]:
    named: list[Path] = []
    perhaps: list[Path] = []
    for one in given:
        path = Path(one)
        if not path.is_dir():
            if not path.exists():
                raise InputError(f"{one} does not exist; give flight recorder dumps or their folder")
            named.append(path)
            continue
        inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        known = {one.path for one in beside(path, FLIGHT_RECORDER)}
        named += [p for p in inside if _DUMP_NAME.search(p.name) or p in known]
        perhaps += [p for p in inside if not _OTHER_NAME.search(p.name) and rank_in(p.name) is not None]
    return named, perhaps


def _by_rank(dumps: list[FlightDump]) -> tuple[dict[int, FlightDump], list[str]]:
    by_rank: dict[int, FlightDump] = {}
    for dump in dumps:
        if dump.rank is None:
            continue
        if dump.rank in by_rank:
            first = by_rank[dump.rank].path
            raise InputError(f"two dumps are of rank {dump.rank}: {first} and {dump.path}; give those of one job")
        by_rank[dump.rank] = dump
    unnamed = [dump for dump in dumps if dump.rank is None]
    free = (n for n in range(len(dumps) + len(by_rank) + 1) if n not in by_rank)
    taken = {next(free): dump for dump in unnamed}
    notes = [f"{Path(d.path).name} is taken as rank {r}: not in the file nor in its name" for r, d in taken.items()]
    return dict(sorted({**by_rank, **taken}.items())), notes


# Memory snapshots and storages of a run folder.


def memory_snapshots(folder: Path) -> tuple[list[tuple[int | None, MemorySnapshot]], list[str]]:
    """Return the snapshots of a run folder with their ranks, and a sentence for each that could not be read.

    Those named as the recorder names them, and other files in the folder by content; the rank of such a file is None
    where its name has none.
    """
    named = [
        p
        for p in sorted(folder.glob("rank*"))
        if rank_of(p.name) is not None and p.name.endswith((".memory.pickle", ".memory.pickle.gz"))
    ]
    failed = {rank_of(p.name) for p in named if ".oom." in p.name}  # of these ranks the error matters, not the window
    ranks: dict[Path, int | None] = {
        p: rank for p in named if (rank := rank_of(p.name)) not in failed or ".oom." in p.name
    }
    ranks |= {one.path: one.rank for one in beside(folder, MEMORY_SNAPSHOT) if one.path not in named}
    found: list[tuple[int | None, MemorySnapshot]] = []
    unreadable: list[str] = []
    for path, rank in ranks.items():
        try:
            found.append((rank, read_memory_snapshot(path)))
        except InputError as error:
            unreadable.append(str(error))
    return found, unreadable


@dataclass(frozen=True)
class SaidStorages:
    """The job's own labels of its memory on a device."""

    #: by address
    category: dict[int, str] = field(default_factory=dict)
    #: sizes of DDP's buckets, whose addresses Python does not know
    bucket_bytes: tuple[int, ...] = ()


def storages_beside(path: Path, *, rank: int, device: int) -> SaidStorages:
    """Return the job's own labels of its storages on a device; empty where there are none."""
    category: dict[int, str] = {}
    buckets: list[int] = []
    try:
        for text in side_file_lines(path.parent / rank_file(rank, "memory.jsonl")):
            line = json_object(text) if b'"storage"' in text or b'"bucket"' in text else None
            if not line or line.get("device") != f"cuda:{device}":
                continue
            address, size_bytes = line.get("address"), line.get("size_bytes")
            if isinstance(address, int):
                category[address] = str(line.get("category"))
            elif line.get("kind") == "bucket" and isinstance(size_bytes, int) and 0 < size_bytes < 1 << 48:
                buckets.append(size_bytes)
            if len(category) + len(buckets) >= 1_000_000:
                break
    except OSError:
        return SaidStorages()
    return SaidStorages(category, tuple(buckets))


def is_snapshot(path: Path) -> bool:
    """Return whether a file is a pickle by its first bytes, packed or not: traces are text."""
    try:
        return file_head(path).start[:1] == b"\x80"
    except OSError:
        return False
