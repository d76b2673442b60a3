"""The arguments that all benchmarks share: the model, the method, the ranks, and where results go."""

import argparse

from stepscope.cli.arguments.sizes import above_zero, at_least_one
from stepscope.contract.flops import DEFAULT_WORKLOAD, TRAINING_PRECISIONS, WORKLOAD_DEFAULTS

# unless told, or started by a launcher
WORLD_SIZE = 2


def add_shared_arguments(parser: argparse.ArgumentParser, *, what: str, world_size: int | None = WORLD_SIZE) -> None:
    """Add what every benchmark takes; one without a `world_size` chooses its ranks itself."""
    _add_model(parser)
    _add_method(parser)
    _add_ranks(parser, world_size=world_size)
    _add_output(parser, what=what)


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--workload",
        default=DEFAULT_WORKLOAD,
        metavar="NAME",
        help="gpt, deepseek, mlp, transformers:CONFIG, module:function (gpt)",
    )
    for name, value in WORKLOAD_DEFAULTS.items():
        option = f"--{name.replace('_', '-')}"
        help_text = f"samples of one rank in one forward ({value})" if name == "batch_size" else f"default {value}"
        group.add_argument(option, type=at_least_one, default=value, metavar="N", help=help_text)
    group.add_argument("--precision", choices=TRAINING_PRECISIONS, default="fp32", help="default fp32")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")


def _add_method(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("method")
    group.add_argument(
        "--num-epochs", "--steps", dest="steps", type=at_least_one, default=50, metavar="N",
        help="measured epochs of one step each, after the warm-up (50)",
    )  # fmt: skip
    group.add_argument(
        "--warmup-epochs", "--warmup-steps", dest="warmup_steps", type=at_least_one, default=10, metavar="N",
        help="epochs that are not measured, with a rising learning rate (10)",
    )  # fmt: skip
    group.add_argument("--runs", type=at_least_one, default=3, metavar="N", help="interleaved repetitions (3)")
    group.add_argument("--grad-accum", type=at_least_one, default=1, metavar="N", help="micro-batches per step (1)")


def _add_ranks(parser: argparse.ArgumentParser, *, world_size: int | None) -> None:
    group = parser.add_argument_group("ranks")
    if world_size is not None:
        group.add_argument("--world-size", type=at_least_one, default=world_size, metavar="N", help=f"({world_size})")
    group.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="gloo on the CPU (default), nccl")
    group.add_argument("--share-devices", action="store_true", help="let NCCL ranks share a device")
    group.add_argument("--threads", type=at_least_one, default=1, metavar="N", help="threads of one rank (1)")
    group.add_argument("--limit-s", type=above_zero, default=3600.0, metavar="S", help="give up after (3600)")


def _add_output(parser: argparse.ArgumentParser, *, what: str) -> None:
    group = parser.add_argument_group("results")
    group.add_argument("--out", metavar="DIR", default=f"stepscope-bench-{what}", help=f"stepscope-bench-{what}")
    group.add_argument("--json", metavar="PATH", help="write the results there as well; - for standard output")
    group.add_argument("--html", metavar="PATH", help="write them as one HTML file that needs no network")
    group.add_argument("--plot", metavar="PATH", help="where to draw them (results.svg in the folder)")
    group.add_argument("--force", action="store_true", help="overwrite results that exist")
