"""A page of the documentation that is made from a schema: write it, or with --check tell whether it is current."""

import argparse
import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent.parent / "docs"


def write_or_check(name: str, text: str, *, description: str) -> int:
    """Return the exit code of a tool that makes docs/`name`: 1 where --check finds another text there."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    page = _DOCS / name
    if not parser.parse_args().check:
        page.write_text(text)
        return 0
    if page.exists() and page.read_text() == text:
        return 0
    print(f"{page} is not what the schema says: run tools/{parser.prog}", file=sys.stderr)
    return 1
