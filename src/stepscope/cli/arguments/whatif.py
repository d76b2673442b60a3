"""What would the step take if something were different? The recorded run, replayed with changes.

examples:
  stepscope whatif run-folder/ --set straggler=off
  stepscope whatif run-folder/ --set network=2x data=instant --json -

Several settings are applied together, in order.
"""

import argparse

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
    parser.add_argument("--json", metavar="PATH", help="write the prediction as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
    width = max(len(f"{s.key}={s.values}") for s in SETTINGS)
    lines = [f"  {f'{s.key}={s.values}':<{width}}  {s.what}" for s in SETTINGS]
    parser.epilog = "\n".join(["what can be set:", *lines])
