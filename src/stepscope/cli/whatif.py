"""What would the step take if something were different? The recorded run, replayed with changes.

examples:
  stepscope whatif run-folder/ --set straggler=off
  stepscope whatif run-folder/ --set network=2x data=instant --json -
  stepscope whatif run-folder/ --without train.py:42
  stepscope whatif run-folder/ --without "module:layers.*.bn" --scale data.py:7=0.5 --ranks 0,3

Several settings are applied together, in order; then lines and modules are removed or scaled.
"""

import argparse
import re

from stepscope.cli.arguments import add_html, add_json, add_run_arguments
from stepscope.cli.outputs import show
from stepscope.cli.run import account_from, warn_incomplete
from stepscope.errors import UsageError
from stepscope.whatif.keys import SETTINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    for name, dest, metavar, text in (
        ("--set", "settings", "KEY=VALUE", "a change"),
        (
            "--without",
            "without",
            "OWNER",
            "a line (train.py:42) or modules (module:GLOB) deleted, with all that they called",
        ),
        ("--scale", "scale", "OWNER=FACTOR", "scale the time of a line or modules"),
    ):
        parser.add_argument(name, dest=dest, metavar=metavar, nargs="+", action="extend", default=[], help=text)
    parser.add_argument(
        "--ranks", metavar="R,...", type=_ranks, help="--without and --scale on these ranks only (all by default)"
    )
    add_json(parser, "the prediction as JSON")
    add_html(parser)
    width = max(len(f"{s.key}={s.values}") for s in SETTINGS)
    lines = [f"  {f'{s.key}={s.values}':<{width}}  {s.what}" for s in SETTINGS]
    parser.epilog = "\n".join(["what can be set:", *lines])


def _ranks(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} are no ranks; write them as 0,3")
    return [int(part) for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank could not be read."""
    from stepscope.report.pages.whatif import whatif_json, whatif_sheet
    from stepscope.whatif.settings import what_if

    if not (args.settings or args.without or args.scale):
        keys = ", ".join(f"{s.key}={s.values}" for s in SETTINGS)
        raise UsageError(f"give at least one --set KEY=VALUE, --without or --scale; the keys are {keys}")
    if args.ranks is not None and not (args.without or args.scale):
        raise UsageError("--ranks needs --without or --scale")
    account = account_from(args)
    answer = what_if(account, args.settings, without=args.without, scale=args.scale, ranks=args.ranks)
    document = whatif_json(account.run.name, answer)
    show(args, document, lambda: whatif_sheet(document))
    return warn_incomplete(account)
