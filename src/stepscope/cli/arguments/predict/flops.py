"""How many FLOPs does a model take, per token and per step?

examples:
  stepscope predict flops --layers 12 --d-model 1024 --heads 16 --vocab 32768 --seq-len 1024
  stepscope predict flops --config config.json --seq-len 4096 --tokens-per-step 4194304 --recompute blocks

2 FLOPs per multiply-add, attention in full (not halved for a causal mask), training three times forward.
"""

import argparse

from stepscope.cli.arguments.predict.model import RECOMPUTE, add_model_arguments
from stepscope.cli.arguments.sizes import at_least_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_model_arguments(parser)
    parser.add_argument("--seq-len", type=at_least_one, required=True, metavar="N")
    parser.add_argument("--tokens-per-step", type=at_least_one, metavar="N", help="of the whole job")
    parser.add_argument("--recompute", choices=RECOMPUTE, default="none", help="what checkpointing computes again")
