"""Find out why a step is slow, in five steps: baseline, category, detail, root cause, and validation of a fix.

examples:
  stepscope investigate run-folder/
  stepscope investigate run-folder/ --fixed second-run/
  stepscope investigate -- torchrun --nproc-per-node=8 train.py

A command is recorded first. What was found stays in the run folder, as investigation.json and investigation.txt;
later investigations are added to them. A single trace or a glob has no run folder: use --json.
"""

import argparse

from stepscope.cli.arguments.given_command import take_command
from stepscope.cli.arguments.given_run import add_run_arguments
from stepscope.cli.arguments.sizes import above_zero


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    take_command(parser, "investigate")
    add_run_arguments(parser, needed=False)
    parser.add_argument("--fixed", metavar="RUN2", help="the run with the fix: did it save what was predicted?")
    parser.add_argument("--finding", metavar="ID", help="the finding that was fixed (default: those that are gone)")
    parser.add_argument(
        "--fixed-unprofiled-step-ms", type=above_zero, metavar="X", help="RUN2's step without the profiler"
    )
    parser.add_argument("--out", metavar="DIR", help="run folder for a command (./stepscope-run)")
    parser.add_argument("--json", metavar="PATH", help="write the investigation as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
