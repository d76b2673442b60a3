"""Record, analyse and report a small real job on this machine, with a fault planted in it.

A small GPT is trained on two CPU ranks with DDP, and one rank is held up for a known time in every step. The job is
an ordinary script that knows nothing of stepscope. It takes about a minute.

examples:
  stepscope demo
  stepscope demo --world-size 4 --out /tmp/demo
"""

import argparse

from stepscope.cli.arguments.sizes import at_least_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--world-size",
        "--ranks",
        dest="ranks",
        type=at_least_one,
        default=2,
        metavar="N",
        help="ranks to train with (2)",
    )
    parser.add_argument("--out", default="stepscope-demo", metavar="DIR", help="run folder (./stepscope-demo)")
