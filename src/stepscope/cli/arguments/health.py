"""Is the job healthy? Three steps, all ranks, one table; stragglers named, check lists measured, gates for CI.

examples:
  stepscope health run-folder/
  stepscope health -- torchrun --nproc-per-node=8 train.py
  stepscope health run-folder/ --fail-on 'data_loading_pct>30' --fail-on 'stragglers.count>0'

A command is recorded first, for three steps (--steps). --fail-on takes any number of the report's JSON by its dotted
name, and exits with 1 where one of the conditions is met.
"""

import argparse

from stepscope.cli.arguments.given_command import take_command
from stepscope.cli.arguments.given_run import add_run_arguments

_STEPS = "10:13"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    take_command(parser, "health")
    add_run_arguments(parser, needed=False)
    parser.add_argument(
        "--fail-on", metavar="EXPR", action="append", default=[], help="condition that fails the run: 'step_ms>120'"
    )
    parser.add_argument("--guides", action="store_true", help="print the guides that apply, item by item")
    parser.add_argument("--out", metavar="DIR", help="run folder for a command (./stepscope-run)")
    parser.add_argument(
        "--steps", default=_STEPS, metavar="FIRST:LAST", help=f"steps of a command to profile ({_STEPS})"
    )
    parser.add_argument("--json", metavar="PATH", help="write report, checks and gates as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
