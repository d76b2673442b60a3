"""What do collectives take here? Time, algorithm and bus bandwidth of every operation over sizes and world sizes.

examples:
  stepscope bench collectives --backend gloo --world-size 2,4
  stepscope bench collectives --backend nccl --world-size 8 --op all_reduce --limit-s 30

Bytes are the full buffer of the operation. `stepscope calibrate` fits latency and bandwidth to the same measurement.
"""

import argparse

from stepscope.cli.arguments.sizes import ExtendWorldSizes, above_zero, size_bytes, world_sizes

_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def add_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the command's arguments."""
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="gloo on the CPU (default), nccl")
    parser.add_argument(
        "--world-size", type=world_sizes, action=ExtendWorldSizes, metavar="N,N", help="ranks, one or several (2)"
    )
    parser.add_argument("--op", action="append", choices=_OPERATIONS, help="only this operation; several give several")
    parser.add_argument("--limit-s", type=above_zero, default=60.0, metavar="S", help="time to spend (60)")
    parser.add_argument("--max-bytes", type=size_bytes, default=2**30, metavar="N", help="largest size (1GiB)")
    parser.add_argument("--out", metavar="DIR", default=f"stepscope-bench-{what}", help=f"stepscope-bench-{what}")
    parser.add_argument("--json", metavar="PATH", help="write the results there as well; - for standard output")
    parser.add_argument("--html", metavar="PATH", help="write them as one HTML file that needs no network")
    parser.add_argument("--force", action="store_true", help="overwrite results that exist")
