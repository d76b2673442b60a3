"""What would the step take if something were different? The recorded run, replayed with changes.

examples:
  stepscope whatif run-folder/ --set straggler=off
  stepscope whatif run-folder/ --set network=2x data=instant --json -

Several settings are applied together, in order.
"""

import argparse
import sys

from stepscope.cli.given_run import account_from, add_run_arguments, warn_incomplete
from stepscope.cli.output import check_outputs, write_json
from stepscope.errors import UsageError
from stepscope.report.text.terminal import console
from stepscope.report.text.whatif import print_whatif, whatif_json
from stepscope.whatif.settings import SETTINGS, what_if


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="a change",
    )
    parser.add_argument("--json", metavar="PATH", help="write the prediction as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
    width = max(len(f"{s.key}={s.values}") for s in SETTINGS)
    lines = [f"  {f'{s.key}={s.values}':<{width}}  {s.what}" for s in SETTINGS]
    parser.epilog = "\n".join(["what can be set:", *lines])


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    check_outputs(args.json, force=args.force)
    if not args.settings:
        keys = ", ".join(f"{s.key}={s.values}" for s in SETTINGS)
        raise UsageError(f"expected --set KEY=VALUE, found none; there are {keys}")
    account = account_from(args)
    answer = what_if(account, args.settings)
    write_json(args.json, whatif_json(account.run.name, answer), force=args.force)
    if args.json != "-":
        print_whatif(account.run.name, answer, console(sys.stdout))
    warn_incomplete(account.run)
    return 3 if account.run.unreadable else 0
