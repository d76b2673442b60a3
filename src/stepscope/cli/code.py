"""`stepscope code`: source lines and modules with what they cost, as text or JSON."""

import argparse
import sys

from stepscope.cli.given.run_arguments import account_from, warn_incomplete
from stepscope.cli.output import check_outputs, write_json
from stepscope.document.code import code_document, code_view
from stepscope.errors import InputError
from stepscope.report.terminal import console
from stepscope.report.text.code import print_code
from stepscope.whatif.settings import NOT_RECORDED


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    check_outputs(args.json, force=args.force)
    account = account_from(args)
    view = code_view(account, rank=args.rank, module_savings=args.modules or bool(args.json))
    if view is None:
        raise InputError(f"{account.run.name}: {'; '.join(account.failures) or NOT_RECORDED}")
    write_json(args.json, code_document(account, view) if args.json else None, force=args.force)
    if args.json != "-":
        print_code(account, view, console(sys.stdout), modules=args.modules, sort=args.sort, everything=args.all)
    warn_incomplete(account)
    return 3 if account.run.unreadable else 0
