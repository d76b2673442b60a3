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
from typing import Any

from stepscope.bench.data_parallel.strategies import NAMES, SHARDED, available, checked_names
from stepscope.cli.bench.arguments import add_shared_arguments, results_folder, shared_settings
from stepscope.cli.bench.overlap import with_overlap
from stepscope.cli.bench.profile import add_profile_arguments, profiled
from stepscope.cli.bench.session import document_of, finished, launched
from stepscope.cli.sizes import above_zero
from stepscope.errors import UsageError

_DEFAULTS = {
    "ddp": NAMES,
    "fsdp": ("pytorch_ddp", "zero1", "fsdp2_zero2", "fsdp2_zero3", *(n for n in NAMES if n.startswith("deepspeed"))),
}
_JOB = "stepscope.bench.data_parallel.compare:compare"
_TRACE_STEPS = 5


def add_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--implementations", type=_names, metavar="A,B", help=f"of {', '.join(NAMES)} (those that run here)"
    )
    parser.add_argument("--bucket-size-mb", type=above_zero, default=25.0, metavar="MB", help="of gradients (25)")
    parser.add_argument("--no-trace", action="store_true", help="measure times only")
    if what == "ddp":
        add_profile_arguments(parser)
    add_shared_arguments(parser, what=what)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where only a part could be measured."""
    if getattr(args, "profile", False):
        return profiled(args)
    folder = results_folder(args)
    plan: dict[str, Any] = {"job": _JOB, "settings": _settings(args)}
    document = document_of(args, plan)
    total = len(plan["settings"]["series"]) * (args.runs + (not args.no_trace))
    result = launched(args, plan, folder=folder, world_size=args.world_size, total=total, document=document)
    found = with_overlap(document(result.records, result.message), result.records, folder)
    return finished(args, found, folder=folder, interrupted=result.interrupted)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    names = _checked(args)
    return {
        **shared_settings(args),
        "series": [{"name": name, "implementation": name} for name in names],
        "options": {"bucket_size_mb": args.bucket_size_mb},
        "trace_steps": 0 if args.no_trace else _TRACE_STEPS,
    }


def _checked(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the implementations to compare: those asked for, or all that can run like this."""
    fp16 = args.precision == "fp16"
    if args.implementations:
        names = checked_names(args.implementations)
        if fp16 and (sharded := [name for name in names if name in SHARDED]):
            raise UsageError(f"fp16 needs a loss scale that shards agree on, found {sharded[0]}; use --precision bf16")
        return names
    return tuple(name for name in available(_DEFAULTS[args.what]) if not (fp16 and name in SHARDED))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
