"""Take files of other tools into a run: Nsight Systems and Compute, NCCL, flight recorder, memory, Kineto traces.

examples:
  stepscope import profile.sqlite --into run-folder/
  stepscope import rank3.ncu-rep --into run-folder/ --rank 3
  stepscope import logs/*.csv --into run-folder/

The format is told by the content. A folder that does not exist yet becomes a run; `stepscope report` then reads it.
"""

import argparse
from pathlib import Path

from stepscope.cli.arguments.sizes import at_least_zero


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="file of another tool, or a folder of them")
    parser.add_argument("--into", metavar="RUN", type=Path, required=True, help="run folder")
    parser.add_argument("--rank", type=at_least_zero, metavar="R", help="whose the files are, where they do not say")
    parser.add_argument("--force", action="store_true", help="overwrite files of the run that exist")
