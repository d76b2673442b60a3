"""How well do more ranks help? Strong scaling (the same work shared out) and weak scaling (the same work each).

examples:
  stepscope bench scaling --world-size 1,2,4
  stepscope bench scaling --mode strong --batch-size 64 --world-size 1,2,4,8 --backend nccl

Efficiency is T1 / (N x TN) for strong and T1 / TN for weak scaling, against the smallest world size. In strong scaling
--batch-size is that of the whole job and every world size has to divide it. Each run measures all world sizes.
"""

import argparse

from stepscope.cli.arguments.bench.shared import add_shared_arguments
from stepscope.cli.arguments.sizes import above_zero

MODES = {"strong": ("strong",), "weak": ("weak",), "both": ("strong", "weak")}
# unless told, or started by a launcher
WORLD_SIZES = "1,2"


def add_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the command's arguments."""
    parser.add_argument("--mode", choices=tuple(MODES), default="both")
    parser.add_argument(
        "--world-size",
        "--world-sizes",
        dest="world_sizes",
        default=WORLD_SIZES,
        metavar="N,N",
        help=f"default {WORLD_SIZES}",
    )
    parser.add_argument("--implementation", default="pytorch_ddp", metavar="NAME", help="default pytorch_ddp")
    parser.add_argument("--bucket-size-mb", type=above_zero, default=25.0, metavar="MB", help="of gradients (25)")
    add_shared_arguments(parser, what=what, world_size=None)
