"""A file that is made from another one: write it, or with --check tell whether it is current."""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_check(name: str, text: str, *, description: str) -> int:
    """Return the exit code of a tool that makes a file of the repository: 1 where --check finds another text there."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    made = ROOT / name
    if not parser.parse_args().check:
        made.write_text(text)
        return 0
    if made.exists() and made.read_text() == text:
        return 0
    print(f"{made} is not what it is made from: run tools/{parser.prog}", file=sys.stderr)
    return 1
