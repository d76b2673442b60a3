"""The report of an unchanged run as it was shown: its document, and its text as printed.

Text is shown only where it holds nothing but letters and colours. Standard library only.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import SCHEMA
from stepscope.dataclass import dataclass
from stepscope.document.kept import KeptPlace, kept_place

_COLOURS = re.compile(r"\x1b\[[0-9;]{0,40}m")
_EXIT_CODES = (0, 3)


@dataclass(frozen=True)
class KeptReport:
    """What a report gave."""

    exit_code: int
    document: dict[str, Any] | None = None
    texts: dict[str, str] = field(default_factory=dict)
    """as printed, by the kind of terminal"""


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
    """Return a report whose parts are what we would have written, None otherwise."""
    document, texts, exit_code = kept["document"], kept["texts"], kept["exit_code"]
    known = document is None or (isinstance(document, dict) and document.get("schema") == SCHEMA)
    shown = isinstance(texts, dict) and all(isinstance(t, str) and is_harmless(t) for t in texts.values())
    if not known or not shown or exit_code not in _EXIT_CODES:
        return None
    return KeptReport(exit_code, document, texts)


def is_harmless(text: str) -> bool:
    """Return whether text holds only letters, line ends and colours.

    >>> is_harmless("\\x1b[1mstep\\x1b[0m 3 ms\\n"), is_harmless("\\x1b]0;title\\x07"), is_harmless("a\\rb")
    (True, False, False)
    """
    return all(line.isprintable() for line in _COLOURS.sub("", text).split("\n"))
