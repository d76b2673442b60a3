"""What does one slow rank cost, and is it found? A delay is planted on one rank; light mode has to name it.

examples:
  stepscope bench straggler --world-size 2
  stepscope bench straggler --world-size 4 --slow-rank 2 --delays-ms 0,10,50

The job is recorded in light mode: step and region times, no profiler. Each delay's log is judged as soon as its run is
over, while the job goes on (results.json grows). Lost throughput is against the run without a delay.
"""

import argparse

from stepscope.cli.arguments.bench.shared import add_shared_arguments


def add_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the command's arguments."""
    parser.add_argument("--slow-rank", type=int, default=1, metavar="R", help="rank that is slowed down (1)")
    parser.add_argument("--delays-ms", default="0,5,20,60", metavar="A,B", help="per step, 0 first (0,5,20,60)")
    parser.add_argument("--implementation", default="ddp_bucketed", metavar="NAME", help="default ddp_bucketed")
    add_shared_arguments(parser, what=what)
