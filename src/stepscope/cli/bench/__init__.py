"""`stepscope bench`: one file per benchmark that starts the ranks, follows them and shows the results.

`arguments` and `session` are what they share, `overlap` and `profile` belong to `ddp`.
"""

import argparse
from importlib import import_module

from stepscope.cli.arguments.bench import WHAT


def run(args: argparse.Namespace) -> int:
    """Return the exit code of the benchmark that was asked for."""
    code: int = import_module(f"stepscope.cli.bench.{WHAT[args.what][0]}").run(args)
    return code
