"""Which operators take the time? Self and total time on host and device, calls, shapes and memory per step.

examples:
  stepscope ops run-folder/
  stepscope ops traces/ --sort host-total -v
  stepscope ops run-folder/ --json - | jq '.operators[0]'

Self time leaves out operators that were called; device time is of the kernels that an operator launched. Shapes and
memory need a recording with them (`record --shapes --memory`). The 20 most expensive are shown, all with -v.
"""

import argparse

from stepscope.cli.arguments import add_html, add_json, add_run_arguments
from stepscope.cli.outputs import show
from stepscope.cli.run import account_from, warn_incomplete
from stepscope.report.pages.code import KEYS, ops_sheet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument("--sort", choices=tuple(KEYS), metavar="KEY", help=f"{', '.join(KEYS)} (device, else host)")
    add_json(parser, "all operators as JSON")
    add_html(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank could not be read."""
    from stepscope.document.report import operators_document

    account = account_from(args)
    document = operators_document(account)
    show(args, document, lambda: ops_sheet(document, sort=args.sort))
    return warn_incomplete(account)
