"""Did a change make the training step slower? Runs base and head in turn on this machine; a gate for pull requests.

examples:
  stepscope gate --base origin/main -- python train.py --steps 1000
  stepscope gate --base v1.2 --head v1.3 --threshold 5 -- torchrun --nproc-per-node=2 train.py
  stepscope gate --base ../main-checkout -- python train.py
  stepscope gate --base 'python old.py' --head 'python new.py' --markdown summary.md --bencher bencher.json

With a command after --, base and head are git revisions or folders with a checkout, and head is the current folder
unless given. Without one they are two commands. Both jobs run at the same time and take turns of a few steps, on a GPU
where both fit in its memory; otherwise they start anew in every round. Exit code 1 is a regression.
"""

import argparse

from stepscope.cli.arguments import above_zero, add_force, add_options, at_least_one, take_command

# rounds before the first test
TURNS, RESTARTS = 64, 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    take_command(parser, "gate")
    parser.usage = (
        "stepscope gate [options] --base REVISION|FOLDER -- COMMAND ...\n"
        "       stepscope gate [options] --base COMMAND --head COMMAND"
    )
    parser.add_argument("--base", metavar="X", required=True, help="revision or folder before the change, or a command")
    parser.add_argument("--head", metavar="X", help="the same after the change (default: the current folder)")
    parser.add_argument(
        "--threshold", type=above_zero, default=3.0, metavar="PCT", help="smallest regression that matters, in %% (3)"
    )
    parser.add_argument(
        "--false-alarms", type=above_zero, default=2.0, metavar="PCT", help="at most, of gates without a change (2 %%)"
    )
    parser.add_argument(
        "--rounds",
        type=at_least_one,
        metavar="N",
        help=f"rounds before the first test ({TURNS}; {RESTARTS} with --restart)",
    )
    parser.add_argument("--max-rounds", type=at_least_one, metavar="N", help="if undecided (4 times --rounds)")
    parser.add_argument(
        "--restart", action="store_true", help="start the jobs anew in every round, instead of stopping them in turn"
    )
    parser.add_argument(
        "--steps", type=at_least_one, metavar="N", help="steps of a turn (about 0.1 s), or of a trial (about 4 s)"
    )
    parser.add_argument("--time-limit", type=above_zero, metavar="S", help="of a trial, in seconds (5 times the first)")
    parser.add_argument("--no-lines", action="store_true", help="do not record a regression to name its source lines")
    parser.add_argument("--out", metavar="DIR", default="stepscope-gate", help="folder of the trials (stepscope-gate)")
    parser.add_argument("--name", metavar="NAME", default="training step", help="of the benchmark in --bencher")
    outputs = {
        "--json": ("PATH", "write the result as JSON; - for standard output"),
        "--markdown": ("PATH", "write a summary for a pull request; - for standard output"),
        "--bencher": ("PATH", "write Bencher Metric Format; - for standard output"),
    }
    add_options(parser, outputs)
    add_force(parser)
