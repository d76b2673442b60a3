"""Write docs/reliability.md from tests/faults.toml, or with --check tell whether it is current."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from schema_page import write_or_check

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "tests" / "faults.toml"
PAGE = ROOT / "docs" / "reliability.md"
SOAK = "\n## Soak\n"  # measured, not made here: `benchmarks/overhead.py soak --write` replaces it

HEAD = """\
# What may go wrong

After this page you know what damaged files, hostile input and failing jobs lead to. Made from `tests/faults.toml`,
which names the tests of each row, by `tools/write_reliability.py`; do not edit.

Reading ends in a result with a note on data quality, or in one line of error with exit code 2: never a traceback, a
hang, unbounded memory or a silently wrong number. Recording leaves losses bit-equal and the exit code and number of
steps unchanged in every scenario.
"""
KINDS = {
    "reading": "Reading damaged or hostile input",
    "showing": "Showing and writing",
    "recording": "Recording",
    "hostile": "Found by hostile tests",
}


def faults() -> list[dict[str, Any]]:
    """Return the rows of tests/faults.toml."""
    found: list[dict[str, Any]] = tomllib.loads(FAULTS.read_text())["fault"]
    return found


def page() -> str:
    """Return the text of the page."""
    sections = "".join(_section(kind, title) for kind, title in KINDS.items())
    return HEAD + sections + SOAK + PAGE.read_text(encoding="utf-8").partition(SOAK)[2]


def _section(kind: str, title: str) -> str:
    rows = "".join(_row(fault) for fault in faults() if fault["kind"] == kind)
    return f"\n## {title}\n\n{rows}"


def _row(fault: dict[str, Any]) -> str:
    untested = f"; not tested: {fault['not_tested']}" if "not_tested" in fault else ""
    return f"- {_escaped(fault['input'])}: *{_escaped(fault['happens'] + untested)}*\n"


def _escaped(text: str) -> str:
    return re.sub(r"([*<>])", r"\\\1", text)


if __name__ == "__main__":
    sys.exit(write_or_check("docs/reliability.md", page(), description=__doc__))
