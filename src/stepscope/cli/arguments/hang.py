"""Who did not arrive? From the flight recorder dumps of a job that hangs or died.

examples:
  stepscope hang /tmp/nccl_trace_rank_*
  stepscope hang dumps/ --json -
  stepscope hang run-folder/

torch writes the dumps when a collective times out (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1).
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("dumps", metavar="DUMPS", nargs="+", help="dumps of the ranks, their folder, or a run folder")
    parser.add_argument("--json", metavar="PATH", help="write all groups and calls as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
