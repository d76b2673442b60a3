"""Which line of the training script takes the time? Source lines and modules with what they cost per step.

examples:
  stepscope code run-folder/
  stepscope code run-folder/ --sort saving
  stepscope code run-folder/ --modules --rank 2

A line's cost includes what it called: lines do not add up. `saves`: saving if the line is removed, by replay.
"""

import argparse

from stepscope.cli.arguments import add_html, add_json, add_run_arguments, at_least_zero
from stepscope.cli.outputs import show
from stepscope.cli.run import account_from, warn_incomplete
from stepscope.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument("--modules", action="store_true", help="modules as a tree, in place of source lines")
    parser.add_argument("--rank", type=at_least_zero, metavar="R", help="cost on one rank (default: mean over ranks)")
    parser.add_argument(
        "--sort",
        choices=("device", "host", "exposed", "saving"),
        help="the largest first, in place of the order in the source",
    )
    parser.add_argument("--all", action="store_true", help="include lines below 0.1 %% of the step")
    add_json(parser, "all lines and modules as JSON")
    add_html(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank could not be read."""
    from stepscope.document.report import code_document, code_view
    from stepscope.report.pages.code import code_sheet
    from stepscope.whatif.settings import NOT_RECORDED

    account = account_from(args)
    view = code_view(account, rank=args.rank, module_savings=args.modules or bool(args.json))
    if view is None:
        raise InputError(f"{account.run.name}: {'; '.join(account.failures) or NOT_RECORDED}")
    document = code_document(account, view)
    show(args, document, lambda: code_sheet(document, modules=args.modules, sort=args.sort, everything=args.all))
    return warn_incomplete(account)
