"""A prediction where it was asked for: JSON, a page, or text on the terminal."""

import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.cli.output import write_json, write_output


def _asked() -> str:
    words = iter(sys.argv[1:])
    kept = [Path(word).name or word for word in words if not _is_output(word, words)]
    return shlex.join(["stepscope", *kept])


def _is_output(word: str, rest: Iterator[str]) -> bool:
    if word in ("--html", "--json"):
        next(rest, None)
    return word.startswith(("--html", "--json", "--force"))


def is_for_terminal(args: argparse.Namespace, document: Any) -> bool:
    """Return whether the terminal is free for text, after writing the prediction as JSON and as a page where asked."""
    write_json(args.json, document, force=args.force)
    if args.html:
        from stepscope.report.html.sheets import predict_sheet, sheet_page

        page = sheet_page(predict_sheet(args.what, document, asked=_asked()))
        write_output(args.html, page, force=args.force)
    return "-" not in (args.json, args.html)
