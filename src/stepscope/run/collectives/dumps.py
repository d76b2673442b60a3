"""Which flight recorder dumps lie in a folder, and of which rank is each? All that can be read, the rest named."""

import re
from collections.abc import Sequence
from pathlib import Path

from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.run.imports.detect import beside
from stepscope.run.imports.torch_dumps import FLIGHT_RECORDER
from stepscope.trace.pickles.flight_recorder import FlightDump, rank_in, read_flight_dump

MAX_DUMPS = 100_000
_DUMP_NAME = re.compile(
    r"(trace|fr|flight|dump)[A-Za-z]*[_.-]?(rank)?[_-]?\d+(\.json|(\.(pickle|pkl|bin))?(\.gz)?)$|flight_recorder",
    re.IGNORECASE,
)
_OTHER_NAME = re.compile(r"\.(log|txt|md|py|sh|csv|jsonl|html|gz|zst|sqlite|nsys-rep|ncu-rep|yaml|toml|out|err)$")


@dataclass(frozen=True)
class Dumps:
    """The dumps of a job, by rank."""

    by_rank: dict[int, FlightDump]
    unreadable: tuple[str, ...]
    """one sentence per file that is a dump by its name and could not be read"""
    notes: tuple[str, ...]


def read_dumps(given: Sequence[str]) -> Dumps:
    """Return the dumps in files and folders; an `InputError` where there is none."""
    named, perhaps = _files(given)
    files = named or perhaps
    dumps: list[FlightDump] = []
    unreadable: list[str] = []
    for path in files[:MAX_DUMPS]:
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
    """Return the files that are dumps by name or were named themselves, and those of folders that may be."""
    named: list[Path] = []
    perhaps: list[Path] = []
    for one in given:
        path = Path(one)
        if not path.is_dir():
            if not path.exists():
                raise InputError(f"there is nothing at {one}; give flight recorder dumps or their folder")
            named.append(path)
            continue
        inside = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        known = {one.path for one in beside(path, FLIGHT_RECORDER.id)}
        named += [p for p in inside if _DUMP_NAME.search(p.name) or p in known]
        perhaps += [p for p in inside if not _OTHER_NAME.search(p.name) and rank_in(p.name) is not None]
    return named, perhaps


def _by_rank(dumps: list[FlightDump]) -> tuple[dict[int, FlightDump], list[str]]:
    """Return dumps by rank: by their names where each gives another one, else by order, which is said."""
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
    notes = [
        f"{Path(d.path).name} is taken as rank {r}: neither the file nor its name says it" for r, d in taken.items()
    ]
    return dict(sorted({**by_rank, **taken}.items())), notes
