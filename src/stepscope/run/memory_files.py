"""Which memory snapshots does a run folder hold, and what did the job say of its storages?"""

import zlib
from dataclasses import field
from pathlib import Path

from stepscope.contract.run_folder import json_object, rank_file, rank_of
from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.run.imports.detect import beside
from stepscope.run.imports.torch_dumps import MEMORY_SNAPSHOT
from stepscope.side_file import open_side_file, side_file_lines
from stepscope.trace.pickles.memory_snapshot import MemorySnapshot, read_memory_snapshot

_ENDINGS = (".memory.pickle", ".memory.pickle.gz")
_MAX_STORAGES = 1_000_000
_HEAD_BYTES = 1 << 12


def memory_snapshots(folder: Path) -> tuple[list[tuple[int | None, MemorySnapshot]], list[str]]:
    """Return the snapshots of a run folder with their ranks, and a sentence for each that could not be read.

    Those named as the recorder names them, and whatever else in the folder is one by its content; the rank of such a
    file is None where its name does not say it.
    """
    named = [p for p in sorted(folder.glob("rank*")) if rank_of(p.name) is not None and p.name.endswith(_ENDINGS)]
    ranks: dict[Path, int | None] = {p: rank_of(p.name) for p in named}
    ranks |= {one.path: one.rank for one in beside(folder, MEMORY_SNAPSHOT.id) if one.path not in ranks}
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
    """What the job said of its memory on a device."""

    category: dict[int, str] = field(default_factory=dict)
    """by address"""
    bucket_bytes: tuple[int, ...] = ()
    """sizes of DDP's buckets, whose addresses Python does not know"""


def storages_beside(path: Path, *, rank: int, device: int) -> SaidStorages:
    """Return what the job said of its storages on a device; nothing where it said nothing."""
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
            if len(category) + len(buckets) >= _MAX_STORAGES:
                break
    except OSError:
        return SaidStorages()
    return SaidStorages(category, tuple(buckets))


def is_snapshot(path: Path) -> bool:
    """Return whether a file is a pickle by its first bytes, packed or not: traces are text."""
    try:
        with open_side_file(path, max_bytes=1 << 42) as f:
            start = f.read(_HEAD_BYTES)
    except OSError:
        return False
    if start.startswith(b"\x1f\x8b"):
        try:
            start = zlib.decompressobj(31).decompress(start, 2)
        except zlib.error:
            return False
    return start[:1] == b"\x80"
