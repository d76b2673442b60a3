"""Try fixes that need no change of code on a job, and report which ones help.

examples:
  stepscope tune -- torchrun --nproc-per-node=2 train.py
  stepscope tune --only loader --rounds 3 -- python train.py
  stepscope tune --allow-inexact --out tuned -- python train.py
  stepscope tune --apply tuned/tune.json -- python train.py

A first run is recorded and its findings say what to try first. Each setting (loader workers, pinning and prefetch,
DDP's buckets, a fused optimizer, allocator, NCCL, threads) is then put into the job from outside and timed for some
steps, in turn with the unchanged job. Every trial is your job, started anew and ended after its last timed step.
Recommended settings keep the losses and have a gain with an interval above 0, corrected for the number of settings.
"""

import argparse

from stepscope.cli.arguments import above_zero, at_least_one, take_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    take_command(parser, "tune")
    parser.usage = "stepscope tune [options] -- COMMAND ..."
    parser.add_argument("--out", metavar="DIR", default="stepscope-tune", help="folder for all of it (stepscope-tune)")
    parser.add_argument("--rounds", type=at_least_one, default=5, metavar="N", help="trials of each setting (5)")
    parser.add_argument("--steps", type=at_least_one, metavar="N", help="timed steps of a trial (about 4 s, 20 to 300)")
    parser.add_argument("--warmup", type=at_least_one, default=5, metavar="N", help="steps before those (5)")
    parser.add_argument("--only", action="append", metavar="NAME", help="only settings with this prefix; repeatable")
    parser.add_argument("--most", type=at_least_one, default=8, metavar="N", help="settings to try at most (8)")
    parser.add_argument("--allow-inexact", action="store_true", help="try settings that change results too: TF32")
    parser.add_argument("--compile", action="store_true", help="try a compiled model too")
    parser.add_argument("--time-limit", type=above_zero, metavar="S", help="of a trial, in seconds (5 times the first)")
    parser.add_argument("--apply", metavar="FILE", help="try nothing: run the command with the settings chosen in FILE")
    parser.add_argument("--json", metavar="PATH", help="write the result as JSON too; - for standard output")
    parser.add_argument("--force", action="store_true", help="use a folder that is not empty, overwrite outputs")
