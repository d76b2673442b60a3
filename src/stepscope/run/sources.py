"""Which files make up the run, and which rank does each belong to?"""

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import InputError
from stepscope.run_folder import CACHE_FOLDER, RUN_JSON, rank_of

TRACE_ENDINGS = (".json", ".json.gz", ".json.zst", ".trace", ".trace.gz")
# JSON that lies beside traces and is none.
_NO_TRACE = re.compile(r"^(run|report|investigation|truth|calibration|config|metadata|package)\.json$|\.steps\.jsonl$")
_RANK_IN_NAME = re.compile(r"(?:rank|worker|_r|-r)[-_ ]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """One trace file of a run."""

    path: Path
    claimed: bool
    """named by the user or by a run folder's own scheme, so that failing to read it loses a rank"""


def find_sources(given: str | Path | Sequence[str | Path]) -> tuple[list[Source], Path | None]:
    """Return the trace files of a run and its folder, from a file, a folder, a glob, or several of them.

    Folders are not searched below their first level.
    """
    many = [given] if isinstance(given, str | Path) else list(given)
    sources: list[Source] = []
    for one in many:
        sources += _expand(str(one))
    if not sources:
        raise InputError(f"expected traces ({', '.join(TRACE_ENDINGS)}), found none in {', '.join(map(str, many))}")
    unique = {s.path.resolve(): s for s in sources}
    folder = Path(many[0]) if len(many) == 1 and Path(many[0]).is_dir() else None
    return list(unique.values()), folder


def rank_in_header(header: dict[str, Any]) -> int | None:
    """Return `distributedInfo.rank`."""
    info = header.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


def rank_in_name(name: str) -> int | None:
    """Return the rank a file name states, e.g. 3 for `worker3_step_12.pt.trace.json.gz`."""
    own = rank_of(name)
    if own is not None:
        return own
    found = _RANK_IN_NAME.search(name)
    return int(found.group(1)) if found else None


def assign_ranks(named: Sequence[tuple[str, int | None]]) -> list[tuple[int, str]]:
    """Return `(rank, how it is known)` for each `(file name, rank in its header)`.

    Header first, else the name, else the order among those that have neither. Files whose names give the same
    rank as a file that knows better are ordered too.
    """
    out: list[tuple[int, str] | None] = [(rank, "distributedInfo") if rank is not None else None for _, rank in named]
    taken = {rank for rank, _ in filter(None, out)}
    for i, (name, _) in enumerate(named):
        in_name = rank_in_name(name) if out[i] is None else None
        if in_name is not None and in_name not in taken:
            out[i] = (in_name, "file name")
            taken.add(in_name)
    free = (n for n in range(len(named) + len(taken) + 1) if n not in taken)
    return [known if known is not None else (next(free), "order") for known in out]


def _expand(given: str) -> list[Source]:
    path = Path(given)
    if path.is_dir():
        return _in_folder(path)
    if path.exists():
        return [Source(path, claimed=True)]
    if glob.has_magic(given):
        return [
            Source(p, claimed=True)
            for p in map(Path, sorted(glob.glob(given)))  # noqa: PTH207  absolute patterns too
            if not p.is_dir() and not _NO_TRACE.search(p.name)
        ]
    raise InputError(f"expected a trace, a folder or a glob, found nothing at {given}; check the path")


def _in_folder(folder: Path) -> list[Source]:
    names = sorted(p for p in folder.iterdir() if p.name.endswith(TRACE_ENDINGS) and p.name != CACHE_FOLDER)
    return [
        Source(p, claimed=rank_in_name(p.name) is not None)
        for p in names
        if not _NO_TRACE.search(p.name) and p.name != RUN_JSON and not p.name.startswith(".") and not _beside(p.name)
    ]


def _beside(name: str) -> bool:
    """Return whether a file of a run folder belongs to a rank but is not its trace (`rank00000.groups.json`)."""
    return rank_of(name) is not None and ".trace." not in name
