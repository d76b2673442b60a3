"""Ask a running job for a profile window, without restarting it.

examples:
  stepscope trigger stepscope-run/
  stepscope trigger stepscope-run/ --steps 3
  stepscope trigger stepscope-run/ --no-wait
  stepscope trigger stepscope-run/ --json -

The job has to be under the recorder: stepscope record, also with --light, or stepscope.profile. All ranks profile the
same steps; none of them waits for another. The window lies in the run folder, a second one in window1/, and so on.
"""

import argparse

from stepscope.cli.arguments.sizes import at_least_one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder of a job that runs")
    parser.add_argument("--steps", type=at_least_one, default=5, metavar="N", help="steps to profile (5)")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until the traces are written")
    parser.add_argument("--json", metavar="PATH", help="write steps and traces as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
