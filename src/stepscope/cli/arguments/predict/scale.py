"""What would a recorded run's step take on more devices?

examples:
  stepscope predict scale run-folder/ --world-size 64
  stepscope predict scale run-folder/ --world-size 64 --link 50:5 --node-link 450:3 --per-node 8
  stepscope predict scale run-folder/ --world-size 4 --calibration calibration.json --json -

Same work per rank (weak scaling). The run's compute and overlap are replayed with the communication of more ranks;
the curve goes on to 16,384 devices, with a band.
"""

import argparse

from stepscope.cli.arguments.given_run import add_run_arguments
from stepscope.cli.arguments.predict.fabric import add_fabric_arguments
from stepscope.cli.arguments.sizes import ExtendWorldSizes, above_zero, world_sizes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument(
        "--world-size",
        type=world_sizes,
        nargs="+",
        action=ExtendWorldSizes,
        metavar="N,N",
        help="ranks, one or several",
    )
    parser.add_argument("--calibration", metavar="FILE", help="written by `stepscope calibrate`")
    add_fabric_arguments(parser)
    parser.add_argument(
        "--compute-factor",
        type=above_zero,
        default=1.0,
        metavar="X",
        help="what compute takes longer where more ranks share a device or its cores (default 1)",
    )
