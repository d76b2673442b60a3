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
# What may go wrong, and what then happens

Made from `tests/faults.toml` by `tools/write_reliability.py`; do not edit. Each row names the tests that show it.

Two rules hold throughout. Reading ends in a result with a note on the data's quality, or in one line of error with exit
code 2: never a traceback, a hang, unbounded memory or a silently wrong number. Recording leaves the loss curve
bit-equal to that of an unrecorded run, and the exit code and the number of steps unchanged
(`tests/record/test_faults.py::test_losses_are_bit_equal_and_every_step_is_made` holds every scenario against it).
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
    return f"\n## {title}\n\n| id | what was tried | what happens | shown by |\n|---|---|---|---|\n{rows}"


def _row(fault: dict[str, Any]) -> str:
    shown = "<br>".join(map(_short, fault.get("tests", ()))) or f"not tested: {fault['not_tested']}"
    return f"| {fault['id']} | {_cell(fault['input'])} | {_cell(fault['happens'])} | {shown} |\n"


def _short(test: str) -> str:
    path, _, name = test.partition("::")
    return f"`{path.removeprefix('tests/')}` {name.removeprefix('test_').replace('_', ' ')}"


def _cell(text: str) -> str:
    return re.sub(r"([|<>])", r"\\\1", text)


if __name__ == "__main__":
    sys.exit(write_or_check("docs/reliability.md", page(), description=__doc__))
