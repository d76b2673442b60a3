"""One choice at a time: every variant measured in turn, checked against the first, ended with advice.

examples:
  stepscope bench precision --backend nccl --d-model 1024 --num-layers 12 --batch-size 16
  stepscope bench batch-size --memory-limit 2GB
  stepscope bench dataloader --workers 0,2,8 --preprocess-us 500
  stepscope bench compile --workload mymodule:make --runs 5
  stepscope bench strategy --backend nccl --world-size 8 --workload mymodule:make --batch-size 4
  torchrun --nnodes 2 --nproc-per-node 8 -m stepscope bench strategy --backend nccl --memory-limit 70GB
  stepscope bench accumulation --world-size 4 --batch-size 16
  stepscope bench allocator --backend nccl --setting max_split_size_mb:128,garbage_collection_threshold:0.6

Variants run in a process of their own: one that runs out of memory, crashes or hangs is named, and the rest goes on.
Variants that cannot run here are listed as not measured, with the reason. `strategy`, and `accumulation` and
`batch-size` with --world-size, train on several ranks: what is saved in communication is measured with it.
"""

import argparse

from stepscope.bench.sweeps.choices.batch_size import START
from stepscope.cli.arguments.bench.shared import WORLD_SIZE, add_shared_arguments
from stepscope.cli.arguments.sizes import above_zero, at_least_one, at_least_zero, size_bytes

# sweeps that can train on several ranks, and on how many they do unless told
RANKS = {"strategy": WORLD_SIZE, "accumulation": 1, "batch-size": 1}


def add_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the arguments of one sweep."""
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the workload, such as kv_heads=2"
    )
    parser.add_argument(
        "--variant-limit-s", type=above_zero, default=300.0, metavar="S", help="give up on one measurement after (300)"
    )
    if what != "batch-size":
        parser.add_argument("--only", metavar="NAME,NAME", help="these variants alone, besides the first")
    if what == "batch-size":
        parser.add_argument("--start", type=at_least_one, default=START, metavar="N", help=f"first size ({START})")
        parser.add_argument("--most", type=at_least_one, default=1 << 16, metavar="N", help="last size (65536)")
        parser.add_argument(
            "--memory-limit", type=size_bytes, metavar="SIZE", help="of a rank on the CPU (half of what is free)"
        )
    if what == "strategy":
        parser.add_argument(
            "--memory-limit", type=size_bytes, metavar="SIZE", help="that a rank may take (all of its device)"
        )
    if what == "allocator":
        parser.add_argument(
            "--setting", action="append", default=[], metavar="NAME:VALUE,...",
            help="of PYTORCH_CUDA_ALLOC_CONF, or NAME=VALUE of the environment; one more variant, may be repeated",
        )  # fmt: skip
    if what == "dataloader":
        parser.add_argument("--workers", type=_counts, default=(0, 1, 2, 4), metavar="N,N", help="default 0,1,2,4")
        parser.add_argument(
            "--preprocess-us", type=at_least_zero, default=0, metavar="US", help="work per sample while loading (0)"
        )
    add_shared_arguments(parser, what=what, world_size=RANKS.get(what))


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} are no numbers; write them with commas between") from error
