"""Record every rank of a PyTorch job, with no code change.

examples:
  stepscope record -- torchrun --nproc-per-node=8 train.py --lr 1e-4
  stepscope record --light -- python train.py
  stepscope record --light --track tensorboard:runs/a -- torchrun --nproc-per-node=8 train.py
  stepscope record --steps 100:105 --ranks 0,3 --out runs/base -- srun python train.py
  stepscope record --light --metrics 9400 -- torchrun --nproc-per-node=8 train.py
  stepscope record --light --on-alarm 5 -- torchrun --nproc-per-node=8 train.py

Steps and regions (data loading, forward, backward, gradient sync, optimizer step) are found by themselves. All steps
are timed on all ranks; a few are profiled (--steps), the others show what the profiler itself cost. The command's
output, exit code and results stay as they are.
"""

import argparse

from stepscope.cli.arguments.sizes import at_least_one
from stepscope.record.nccl_log import SWITCHES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.usage = "stepscope record [options] -- COMMAND ..."
    parser.add_argument("--out", metavar="DIR", help="run folder (default: $TORCH_TRACE_DIR, else ./stepscope-run)")
    parser.add_argument("--steps", metavar="FIRST:LAST", help="steps to profile, from 0, LAST exclusive (10:15)")
    parser.add_argument("--ranks", default="all", metavar="all|0,3", help="ranks to profile; all time their steps")
    parser.add_argument(
        "--step-of", metavar="UNIT", help="what a step is: loader, optimizer, 4 (optimizer steps), Adam#1"
    )
    parser.add_argument("--light", action="store_true", help="time steps and regions only, no profiler")
    parser.add_argument(
        "--track",
        action="append",
        metavar="WHERE",
        help="send numbers: tensorboard:DIR, wandb:PROJECT, mlflow:EXPERIMENT",
    )
    parser.add_argument("--shapes", action="store_true", help="record operator shapes")
    parser.add_argument("--stacks", action="store_true", help="record Python stacks")
    parser.add_argument("--no-owners", action="store_true", help="no step with Python frames after the profiled ones")
    parser.add_argument("--no-source", action="store_true", help="keep no text of your files in the run folder")
    parser.add_argument("--memory", action="store_true", help="record memory: every step, and CUDA's memory history")
    parser.add_argument("--nccl-log", action="store_true", help="keep NCCL's own log of each rank")
    parser.add_argument("--debug", metavar="SWITCH,...", help=f"debug output of torch: {', '.join(SWITCHES)}")
    parser.add_argument(
        "--metrics", metavar="[HOST:]PORT", help="serve Prometheus metrics there, each rank on its port"
    )
    parser.add_argument("--otlp", metavar="URL", help="push OpenTelemetry metrics there (http://localhost:4318)")
    parser.add_argument(
        "--on-alarm",
        type=at_least_one,
        metavar="N",
        help="profile N steps by itself where a rank falls behind or steps get slower",
    )
    parser.add_argument("--nsys", action="store_true", help="run the chosen ranks under Nsight Systems instead")
    parser.add_argument("--ncu", action="store_true", help="run the chosen ranks under Nsight Compute instead")
    parser.add_argument("--kernels", metavar="NAME", help="kernels for --ncu, a name or regex:... (all but NCCL's)")
    parser.add_argument("--launches", type=at_least_one, default=20, metavar="N", help="launches for --ncu (20)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the job, as you start it")
