"""Look at a run in the browser: its report, its tables, its timeline in Perfetto.

The pages are served on this machine only, behind a token that is in the printed address. Ctrl-C ends it. The timeline
opens at ui.perfetto.dev, which reads it inside your browser and uploads nothing; where the `perfetto` extra is
installed (pip install 'stepscope[perfetto]'), Perfetto's pages come from this machine too and no network is needed.

A folder of runs shows a list of them. A run without traces and the results of `stepscope bench` have a page too.

examples:
  stepscope view run-folder/
  stepscope view run-folder/ --live                       how a running job goes, as stepscope watch shows it
  stepscope view run-folder/ --port 9000 --no-browser     then: ssh -L 9000:localhost:9000 HOST
"""

import argparse

from stepscope.cli.arguments.given_run import add_run_arguments
from stepscope.cli.arguments.sizes import whole_number

_DEFAULT_PORT = 8750


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument("--calibration", metavar="FILE", help="calibration.json to compare with (the run folder's own)")
    parser.add_argument(
        "--port", type=_port, default=_DEFAULT_PORT, metavar="N", help=f"port, or the next free one ({_DEFAULT_PORT})"
    )
    parser.add_argument("--live", action="store_true", help="how a running job goes now, without its report")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")


def _port(text: str) -> int:
    number = whole_number(text)
    if number is None or number > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 0 to 65535")
    return number
