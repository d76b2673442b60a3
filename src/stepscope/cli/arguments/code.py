"""Which line of the training script takes the time? Source lines and modules with what they cost per step.

examples:
  stepscope code run-folder/
  stepscope code run-folder/ --sort saving
  stepscope code run-folder/ --modules --rank 2

A line's cost includes what it called: lines do not add up. `saves` is the step without the line, by replay.
"""

import argparse

from stepscope.cli.arguments.given_run import add_run_arguments
from stepscope.cli.arguments.sizes import at_least_zero

_SORTS = ("device", "host", "exposed", "saving")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument("--modules", action="store_true", help="modules as a tree, in place of source lines")
    parser.add_argument("--rank", type=at_least_zero, metavar="R", help="cost on one rank (default: mean over ranks)")
    parser.add_argument("--sort", choices=_SORTS, help="the largest first, in place of the order in the source")
    parser.add_argument("--all", action="store_true", help="also what takes less than 0.1 %% of the step")
    parser.add_argument("--json", metavar="PATH", help="write all lines and modules as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
