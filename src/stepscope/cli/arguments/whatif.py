"""What would the step take if something were different? The recorded run, replayed with changes.

examples:
  stepscope whatif run-folder/ --set straggler=off
  stepscope whatif run-folder/ --set network=2x data=instant --json -
  stepscope whatif run-folder/ --without train.py:42
  stepscope whatif run-folder/ --without "module:layers.*.bn" --scale data.py:7=0.5 --ranks 0,3

Several settings are applied together, in order; then lines and modules are taken out or scaled.
"""

import argparse
import re

from stepscope.cli.arguments.given_run import add_run_arguments
from stepscope.whatif.keys import SETTINGS


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
    parser.add_argument(
        "--without",
        metavar="OWNER",
        nargs="+",
        action="extend",
        default=[],
        help="a line (train.py:42) or modules (module:GLOB) deleted, with all that they called",
    )
    parser.add_argument(
        "--scale",
        metavar="OWNER=FACTOR",
        nargs="+",
        action="extend",
        default=[],
        help="a line or modules that take so many times their time",
    )
    parser.add_argument(
        "--ranks", metavar="R,...", type=_ranks, help="--without and --scale on these ranks only (all by default)"
    )
    parser.add_argument("--json", metavar="PATH", help="write the prediction as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
    width = max(len(f"{s.key}={s.values}") for s in SETTINGS)
    lines = [f"  {f'{s.key}={s.values}':<{width}}  {s.what}" for s in SETTINGS]
    parser.epilog = "\n".join(["what can be set:", *lines])


def _ranks(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} are no ranks; write them as 0,3")
    return [int(part) for part in text.split(",")]
