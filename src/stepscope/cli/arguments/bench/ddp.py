"""Data-parallel implementations side by side, on real ranks, with the same gradients.

examples:
  stepscope bench ddp --world-size 2
  stepscope bench ddp --backend nccl --world-size 8 --d-model 1024 --num-layers 24 --precision bf16
  stepscope bench ddp --implementations ddp,ddp_bucketed,pytorch_ddp --bucket-size-mb 10
  stepscope bench ddp --profile --profile-implementation ddp_bucketed --profile-output-dir traces
  stepscope bench fsdp --world-size 4

Every run measures all of them one after the other. Gradients of the first step, losses, and weights after all steps are
held against those of the first one. A short trace of each says what of the communication was hidden.
"""

import argparse

from stepscope.bench.data_parallel.strategies import NAMES
from stepscope.cli.arguments.bench.shared import add_shared_arguments
from stepscope.cli.arguments.sizes import above_zero, at_least_one

_EPOCHS = 10


def add_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--implementations", type=_names, metavar="A,B", help=f"of {', '.join(NAMES)} (those that run here)"
    )
    parser.add_argument("--bucket-size-mb", type=above_zero, default=25.0, metavar="MB", help="of gradients (25)")
    parser.add_argument("--no-trace", action="store_true", help="measure times only")
    if what == "ddp":
        _add_profile(parser)
    add_shared_arguments(parser, what=what)


def _add_profile(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("profile one implementation")
    group.add_argument("--profile", action="store_true", help="record traces instead of comparing")
    group.add_argument("--profile-implementation", metavar="NAME", default="ddp", help=f"of {', '.join(NAMES)} (ddp)")
    group.add_argument("--profile-output-dir", metavar="DIR", default="./profiler_output", help="(./profiler_output)")
    group.add_argument(
        "--profile-epochs", type=at_least_one, default=_EPOCHS, metavar="N", help=f"epochs in the trace ({_EPOCHS})"
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
