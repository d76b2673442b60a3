"""How much memory does a training step take on each device, by category, and does it fit?

examples:
  stepscope predict memory --layers 12 --d-model 1024 --heads 16 --vocab 32768 --seq-len 1024 --micro-batch 8
  stepscope predict memory --config config.json --seq-len 4096 --strategy zero3 --data 64 --device H200
  stepscope predict memory --layers 32 --d-model 4096 --heads 32 --vocab 32000 --seq-len 2048 --strategy zero3 \\
      --data 128 --tensor 8 --precision fp32 --simulate

--simulate runs one step without data in a process of its own (needs torch) and shows what it held and sent.
"""

import argparse

from stepscope.cli.arguments.predict.model import RECOMPUTE, add_device_arguments, add_model_arguments
from stepscope.cli.arguments.sizes import at_least_one
from stepscope.cost.model_shape import Optimizer, Precision, Sharding

STRATEGIES = {**{s.value: s for s in Sharding}, "fsdp": Sharding.ZERO3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_model_arguments(parser)
    add_device_arguments(parser)
    job = parser.add_argument_group("job")
    job.add_argument("--seq-len", type=at_least_one, required=True, metavar="N")
    job.add_argument("--micro-batch", type=at_least_one, default=1, metavar="N", help="sequences of a rank at a time")
    job.add_argument("--micro-batches", type=at_least_one, default=1, metavar="N", help="accumulated per step")
    job.add_argument("--strategy", choices=STRATEGIES, default="ddp", help="fsdp is zero3")
    for name in ("data", "tensor", "pipeline", "expert"):
        job.add_argument(f"--{name}", type=at_least_one, default=1, metavar="N", help=f"ranks of {name} parallelism")
    job.add_argument("--precision", choices=[p.value for p in Precision], default="amp")
    job.add_argument("--optimizer", choices=[o.value for o in Optimizer], default="adam")
    job.add_argument("--fused-optimizer", action="store_true", help="one that makes no copy of the weights")
    job.add_argument("--recompute", choices=RECOMPUTE, default="none")
    job.add_argument("--plain-attention", action="store_true", help="attention that keeps its scores")
    parser.add_argument("--simulate", action="store_true", help="run one step without data as well")
