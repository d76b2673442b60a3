"""A running job as it goes: steps per second, MFU, regions, late ranks, memory, alarms, ranks that stand still.

examples:
  stepscope watch stepscope-run/
  stepscope watch stepscope-run/ --every 10 > watch.log
  stepscope watch stepscope-run/ --trigger 5
  stepscope watch stepscope-run/ --once
  stepscope watch stepscope-run/ --json - | jq .steps_per_s

It reads the step logs that the recorder writes (stepscope record, also with --light) and nothing else of the job. On a
terminal one screen is drawn again and again, elsewhere a line is printed per look. After an elastic restart it goes on
with the new attempt; it ends with the job, or by Ctrl-C.
"""

import argparse

from stepscope.cli.arguments.sizes import above_zero, at_least_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder of a job that runs")
    parser.add_argument("--every", type=above_zero, default=2.0, metavar="S", help="seconds from look to look (2)")
    parser.add_argument("--once", action="store_true", help="look once and end")
    parser.add_argument(
        "--trigger", type=at_least_one, metavar="N", help="ask for N profiled steps where an alarm rises"
    )
    parser.add_argument("--json", metavar="PATH", help="write each look as one line of JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
    parser.add_argument("--flops-per-step", type=above_zero, metavar="F", help="model FLOPs of the whole job per step")
    parser.add_argument("--peak-tflops", type=above_zero, metavar="P", help="peak of one device in TFLOP/s")
