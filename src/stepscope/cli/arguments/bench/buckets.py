"""Which bucket size is best for DDP's gradients, and do its options help? Found by a search, then measured properly.

examples:
  stepscope bench buckets --world-size 2
  stepscope bench buckets --backend nccl --world-size 8 --d-model 1024 --precision bf16
  stepscope bench buckets --implementation ddp_bucketed --sizes-mb 1,5,25,100

Sizes from 1 to 250 MB. Those that cut the model into the same buckets are measured once; the search tries every third,
then the neighbours of the best. --exhaustive tries all.
"""

import argparse

from stepscope.cli.arguments.bench.shared import add_shared_arguments
from stepscope.cli.arguments.sizes import at_least_one


def add_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the command's arguments."""
    parser.add_argument("--implementation", choices=("pytorch_ddp", "ddp_bucketed"), default="pytorch_ddp")
    parser.add_argument("--sizes-mb", metavar="A,B", help="sizes to choose from (14 sizes from 1 to 250)")
    parser.add_argument("--exhaustive", action="store_true", help="try every size")
    parser.add_argument("--round-steps", type=at_least_one, default=10, metavar="N", help="steps of one turn (10)")
    add_shared_arguments(parser, what=what)
