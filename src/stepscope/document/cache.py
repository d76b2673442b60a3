"""What was worked out of an unchanged run, kept beside its traces, so that the next look at it costs no analysis.

    .stepscope/rank00000.pt.trace.json.gz.report      JSON: key, and the parts that were kept

The key is all that they follow from: every file of the run by size, times and sampled content, what was given on the
command line, and the code itself. Whatever does not fit it exactly is as good as nothing: the run is analysed again.
The inode's times are part of it, so that what came with somebody's folder fits nothing. Still it is input like any
other: whoever asks for the parts looks at each. Standard library only: what is found needs nothing heavy.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

import stepscope
from stepscope.contract.run_folder import CACHE_FOLDER, RUN_JSON, SCHEMA, rank_of
from stepscope.dataclass import dataclass
from stepscope.digest import Digest
from stepscope.errors import InputError
from stepscope.run.sources import find_sources
from stepscope.side_file import MAX_BYTES, parsed_json
from stepscope.trace.cache_place import MIN_RAW_BYTES, cache_file, content_key
from stepscope.trusted_file import open_trusted_file, write_trusted_file

# beside the traces; a run with more is analysed each time
_MAX_FILES = 5_000
_MAX_DEPTH = 3


@dataclass(frozen=True)
class KeptPlace:
    """Where something of a run is kept, and what has to be as it was for it to hold."""

    path: Path
    given: Sequence[str]
    options: Mapping[str, Any]

    @property
    def folders(self) -> list[Path]:
        """Return where the run's traces lie."""
        return sorted({source.path.parent for source in find_sources(list(self.given)).files})

    def found(self, key: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the parts that were kept, None where there are none of exactly `key`, or of what is there now."""
        try:
            with open_trusted_file(self.path) as f:
                kept, wanted = parsed_json(f.read()).value, key or self.key()
            return kept if wanted is not None and kept["key"] == wanted else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def key(self) -> dict[str, Any] | None:
        """Return what the parts follow from, None where that cannot be told."""
        try:
            files = {str(path): content_key(path) for path in _files(self.given)}
        except (OSError, InputError):
            return None
        if len(files) > _MAX_FILES or None in files.values():
            return None
        asked = {"given": list(self.given), "from": str(Path.cwd()), **self.options}
        return {"files": files, "asked": asked, "code": _code()}

    def keep(self, parts: Mapping[str, Any], *, key: dict[str, Any] | None, raw_bytes: int) -> None:
        """Write the parts, unless the run is small or has changed since `key`, or they are more than is read."""
        if not is_worth_keeping(key, raw_bytes=raw_bytes) or key != self.key():
            return
        text = json.dumps({"key": key, **parts}, allow_nan=False).encode(errors="surrogatepass")
        if len(text) <= MAX_BYTES:
            write_trusted_file(self.path, [text])


def is_worth_keeping(key: dict[str, Any] | None, *, raw_bytes: int) -> bool:
    """Return whether what was made of a run is to be kept: it is known what it follows from, and the run is large."""
    return key is not None and raw_bytes >= MIN_RAW_BYTES


def kept_place(
    given: Sequence[str], *, ending: str, options: Mapping[str, Any], cache_folder: Path | None = None
) -> KeptPlace | None:
    """Return where something of a run lies, by the ending of its file; None where there is no run."""
    try:
        first = find_sources(list(given)).files[0].path
    except InputError:  # said when it is read
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


def code_key() -> str:
    """Return what tells this version of the program, changed files included, from any other."""
    return _code()


@cache
def _code() -> str:
    digest = Digest(sys.version.encode())
    root = Path(stepscope.__file__).parent
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(names):
            status = Path(folder, name).stat()
            digest.add(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.text()


# The report of an unchanged run as it was shown: its document, and its text as printed.
#
# Text is shown only where it holds nothing but letters and colours. Standard library only.

_COLOURS = re.compile(r"\x1b\[[0-9;]{0,40}m")


@dataclass(frozen=True)
class KeptReport:
    """What a report gave."""

    exit_code: int
    document: dict[str, Any] | None = None
    #: as printed, by the kind of terminal
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportPlace:
    """Where the report of a run is kept."""

    place: KeptPlace

    def found(self, key: dict[str, Any] | None = None) -> KeptReport | None:
        """Return the report that was kept, None where there is none of exactly this run, as it is or was at `key`."""
        kept = self.place.found(key)
        try:
            return None if kept is None else _sound(kept)
        except (KeyError, TypeError, AttributeError):
            return None

    def key(self) -> dict[str, Any] | None:
        """Return what the report follows from, None where that cannot be told."""
        return self.place.key()

    def keep(self, report: KeptReport, *, key: dict[str, Any] | None, raw_bytes: int) -> None:
        """Write a report, with what is there of the same."""
        before = self.found(key) or report
        parts = {
            "exit_code": report.exit_code,
            "document": report.document if report.document is not None else before.document,
            "texts": report.texts or before.texts,
        }
        self.place.keep(parts, key=key, raw_bytes=raw_bytes)


def report_place(
    given: Sequence[str], *, options: Mapping[str, Any], cache_folder: Path | None = None
) -> ReportPlace | None:
    """Return where the report of a run lies, None where there is no run."""
    place = kept_place(given, ending="report", options=options, cache_folder=cache_folder)
    return None if place is None else ReportPlace(place)


def _sound(kept: dict[str, Any]) -> KeptReport | None:
    document, texts, exit_code = kept["document"], kept["texts"], kept["exit_code"]
    known = document is None or (isinstance(document, dict) and document.get("schema") == SCHEMA)
    shown = isinstance(texts, dict) and all(isinstance(t, str) and _is_harmless(t) for t in texts.values())
    if not known or not shown or exit_code not in (0, 3):
        return None
    return KeptReport(exit_code, document, texts)


def _is_harmless(text: str) -> bool:
    """Return whether text holds only letters, line ends and colours.

    >>> is_harmless("\\x1b[1mstep\\x1b[0m 3 ms\\n"), is_harmless("\\x1b]0;title\\x07"), is_harmless("a\\rb")
    (True, False, False)
    """
    return all(line.isprintable() for line in _COLOURS.sub("", text).split("\n"))
