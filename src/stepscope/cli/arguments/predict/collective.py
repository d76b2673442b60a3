"""What does a collective take? From a calibration with its interval, or from a link's latency and bandwidth.

examples:
  stepscope predict collective --calibration calibration.json --op all_reduce --bytes 25MB --world-size 8 --json -
  stepscope predict collective --link 50:5 --node-link 400:2 --per-node 8 --op all_reduce --bytes 25MB --world-size 64

--bytes is the full buffer: what a gather receives, what a scatter sends; several give a list. A link is
GB/s:microseconds per device and direction.
"""

import argparse

from stepscope.cli.arguments.predict.fabric import add_fabric_arguments
from stepscope.cli.arguments.sizes import at_least_one, size_bytes
from stepscope.cost.measured_collectives import OPERATIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--op", required=True, choices=OPERATIONS)
    parser.add_argument("--bytes", required=True, type=size_bytes, nargs="+", action="extend", metavar="N")
    parser.add_argument("--world-size", required=True, type=at_least_one, metavar="W")
    parser.add_argument("--calibration", metavar="FILE", help="written by `stepscope calibrate`")
    add_fabric_arguments(parser)
