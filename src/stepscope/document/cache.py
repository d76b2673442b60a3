"""Cached results of an unchanged run, next to its traces: document, page, tables and compared samples.

    .stepscope/rank00000.pt.trace.json.gz.report      JSON: key, and the cached values

The key holds every file of the run by size, times and sampled content, the options, and the code. Inode times are part
of it, so a cache that was copied together with a run never matches. Files of other users are refused (`cache_files`).
Standard library only: a cached result is shown without importing anything heavy.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.cache_files import MIN_RAW_BYTES, cache_file, content_key, open_trusted_file, write_trusted_file
from stepscope.contract.run_folder import CACHE_FOLDER, RUN_JSON, rank_of
from stepscope.errors import InputError
from stepscope.records import dataclass
from stepscope.run.sources import find_sources
from stepscope.side_file import MAX_BYTES, parsed_json
from stepscope.units import Digest

# a run with more is analysed each time
MAX_FILES = 5_000
_MAX_DEPTH = 3


@dataclass(frozen=True)
class KeptPlace:
    """A cache file of a run, and what its content depends on."""

    path: Path
    given: Sequence[str]
    options: Mapping[str, Any]

    @property
    def folders(self) -> list[Path]:
        """Return the folders of the run's traces."""
        return sorted({source.path.parent for source in find_sources(list(self.given)).files})

    def found(self, key: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the cached values, None unless their key is `key` (by default that of the run as it is now)."""
        try:
            with open_trusted_file(self.path) as f:
                kept, wanted = parsed_json(f.read()).value, key or self.key()
            return kept if wanted is not None and kept["key"] == wanted else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def key(self) -> dict[str, Any] | None:
        """Return what the cached values depend on, None if that is unknown."""
        try:
            files = {str(path): content_key(path) for path in _files(self.given)}
        except (OSError, InputError):
            return None
        if len(files) > MAX_FILES or None in files.values():
            return None
        asked = {"given": list(self.given), "from": str(Path.cwd()), **self.options}
        return {"files": files, "asked": asked, "code": code_key()}

    def keep(self, parts: Mapping[str, Any], *, key: dict[str, Any] | None, raw_bytes: int) -> None:
        """Write the values, unless the run is small or has changed since `key`, or they are too large to be read."""
        if not is_worth_keeping(key, raw_bytes=raw_bytes) or key != self.key():
            return
        text = json.dumps({"key": key, **parts}, allow_nan=False).encode(errors="surrogatepass")
        if len(text) <= MAX_BYTES:
            write_trusted_file(self.path, [text])


def is_worth_keeping(key: dict[str, Any] | None, *, raw_bytes: int) -> bool:
    """Return whether results of a run are cached: its key is known and it is large."""
    return key is not None and raw_bytes >= MIN_RAW_BYTES


def kept_place(
    given: Sequence[str], *, ending: str, options: Mapping[str, Any], cache_folder: Path | None = None
) -> KeptPlace | None:
    """Return the cache file of a run with this ending, None if there is no run."""
    try:
        first = find_sources(list(given)).files[0].path
    except InputError:  # reported when it is read
        return None
    return KeptPlace(cache_file(first, cache_folder, ending=ending), given, options)


def _files(given: Sequence[str]) -> Iterator[Path]:
    sources = find_sources(list(given))
    traces = [source.path for source in sources.files]
    yield from traces
    for folder in sorted({path.parent for path in traces}):
        yield from (path for path in sorted(folder.iterdir()) if rank_of(path.name) is not None and path.is_file())
    if sources.folder is not None:
        yield from _below(sources.folder, _MAX_DEPTH)
        around = sources.folder.resolve().parent
        if (around / RUN_JSON).is_file():  # this may be a later window of that run
            yield from _below(around, _MAX_DEPTH)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            if entry.name != CACHE_FOLDER and depth:
                yield from _below(entry, depth - 1)
        else:
            yield entry


@cache
def code_key() -> str:
    """Return a digest of this version of the program, local changes included."""
    digest = Digest(sys.version.encode())
    for folder, below, names in os.walk(Path(__file__).parents[1]):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(names):
            status = Path(folder, name).stat()
            digest.add(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.text()
