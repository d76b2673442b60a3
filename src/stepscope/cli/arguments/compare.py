"""What differs between two runs, or two sets of runs, and is it more than chance? Gates for CI.

examples:
  stepscope compare before/ after/
  stepscope compare before/ after/ --fail-on 'step_ms>5%' --html compare.html
  stepscope compare --a run1 run2 run3 --b run4 run5 run6
  stepscope compare bench-results-1/ bench-results-2/
  stepscope compare run/ --against runs/ --fail-on 'step_ms>5%'

A and B are what `stepscope report` takes, a folder of run folders, or the results folder of `stepscope bench`.
Several runs per side are better than one long one: runs differ from each other more than steps do.
"""

import argparse
from pathlib import Path

from stepscope.cli.arguments.sizes import above_zero, at_least_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("sides", metavar="A B", nargs="*", help="two runs, two folders of runs, or two bench results")
    parser.add_argument("--a", metavar="RUN", nargs="+", default=[], help="runs of the first side")
    parser.add_argument("--b", metavar="RUN", nargs="+", default=[], help="runs of the second side")
    parser.add_argument(
        "--against", metavar="FOLDER", help="folder of runs: the last ten like the one given are the first side"
    )
    parser.add_argument("--json", metavar="PATH", help="write the comparison as JSON; - for standard output")
    parser.add_argument("--html", metavar="PATH", help="write the comparison as one HTML file that needs no network")
    parser.add_argument(
        "--fail-on", metavar="EXPR", action="append", default=[], help="condition that fails: 'step_ms>5%%'"
    )
    for side in "ab":
        parser.add_argument(
            f"--unprofiled-step-ms-{side}",
            type=above_zero,
            metavar="X",
            help=f"the step's time without the profiler in {side.upper()}",
        )
    parser.add_argument("--jobs", type=at_least_one, metavar="N", help="files read at once (default: all cores)")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    parser.add_argument("--cache-folder", type=Path, metavar="DIR", help="keep the cache there, not beside the traces")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
