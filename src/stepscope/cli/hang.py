"""Who did not arrive? From the flight recorder dumps of a job that hangs or died.

examples:
  stepscope hang /tmp/nccl_trace_rank_*
  stepscope hang dumps/ --json -
  stepscope hang run-folder/

torch writes the dumps when a collective times out (TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1).
"""

import argparse

from stepscope.cli.arguments import add_html, add_json
from stepscope.cli.outputs import show, warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("dumps", metavar="DUMPS", nargs="+", help="dumps of the ranks, their folder, or a run folder")
    add_json(parser, "all groups and calls as JSON")
    add_html(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a dump could not be read."""
    from stepscope.analyze.hang import hang_of
    from stepscope.document.hang import hang_json
    from stepscope.report.pages.hang import hang_sheet
    from stepscope.run.dumps import read_dumps

    dumps = read_dumps(args.dumps)
    document = hang_json(hang_of(dumps.by_rank), dumps)
    show(args, document, lambda: hang_sheet(document))
    warn(*dumps.unreadable, *dumps.notes)
    return 3 if dumps.unreadable else 0
