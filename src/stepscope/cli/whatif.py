"""`stepscope whatif`: the prediction for the settings, as text or JSON."""

import argparse
import sys

from stepscope.cli.given.run_arguments import account_from, warn_incomplete
from stepscope.cli.output import check_outputs, write_json
from stepscope.errors import UsageError
from stepscope.report.terminal import console
from stepscope.report.text.whatif import print_whatif, whatif_json
from stepscope.whatif.keys import SETTINGS
from stepscope.whatif.settings import what_if


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    check_outputs(args.json, force=args.force)
    if not (args.settings or args.without or args.scale):
        keys = ", ".join(f"{s.key}={s.values}" for s in SETTINGS)
        raise UsageError(f"give at least one --set KEY=VALUE, --without or --scale; the keys are {keys}")
    if args.ranks is not None and not (args.without or args.scale):
        raise UsageError("--ranks says where --without and --scale apply; give one of them, or leave it out")
    account = account_from(args)
    answer = what_if(account, args.settings, without=args.without, scale=args.scale, ranks=args.ranks)
    write_json(args.json, whatif_json(account.run.name, answer), force=args.force)
    if args.json != "-":
        print_whatif(account.run.name, answer, console(sys.stdout))
    warn_incomplete(account)
    return 3 if account.run.unreadable else 0
