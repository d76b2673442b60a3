"""Memory through the step: what it is used for, the peak and what is alive at it, gaps, growth.

examples:
  stepscope memory run-folder/
  stepscope memory snapshot.pickle
  stepscope memory run-folder/ --rank 3 --json -
  stepscope memory run-folder/ --what-if checkpointing --what-if zero=2 --what-if batch=2x

Changes: checkpointing[=LAYERS], zero=1|2|3, offload=optimizer, batch=N|2x; by formulas on what was measured.
A snapshot is what torch.cuda.memory._dump_snapshot wrote, or `stepscope record --memory` beside the traces.
"""

import argparse

from stepscope.cli.arguments.given_run import add_run_options
from stepscope.cli.arguments.sizes import at_least_zero


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN|SNAPSHOT", nargs="+", help="run folder, traces, or memory snapshots")
    parser.add_argument("--rank", type=at_least_zero, metavar="R", help="one rank alone (default: the fullest)")
    parser.add_argument(
        "--what-if", metavar="CHANGE", action="append", default=[], help="the peak with one thing changed; repeatable"
    )
    parser.add_argument("--json", metavar="PATH", help="write all ranks as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
    add_run_options(parser)
