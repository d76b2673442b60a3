"""`stepscope bench ddp` and `bench fsdp`: the plan for the implementations, and their results with the overlap."""

import argparse
from typing import Any

from rich.console import Console

from stepscope.bench.data_parallel.strategies import NAMES, SHARDED, available, checked_names
from stepscope.cli.bench.arguments import results_folder, shared_settings
from stepscope.cli.bench.overlap import with_overlap
from stepscope.cli.bench.profile import run_profile
from stepscope.cli.bench.session import Document, document_of, elsewhere, finish_bench, start_ranks
from stepscope.errors import UsageError
from stepscope.report.text.bench import print_bench
from stepscope.results.simplest import simplest_unless_slower

_DEFAULTS = {
    "ddp": NAMES,
    "fsdp": ("pytorch_ddp", "zero1", "fsdp2_zero2", "fsdp2_zero3", *(n for n in NAMES if n.startswith("deepspeed"))),
}
_JOB = "stepscope.bench.data_parallel.compare:compare"
_TRACE_STEPS = 5


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where only a part could be measured."""
    if getattr(args, "profile", False):
        return run_profile(args)
    folder = results_folder(args)
    plan: dict[str, Any] = {"job": _JOB, "settings": _settings(args)}
    document = document_of(args, plan)
    total = len(plan["settings"]["series"]) * (args.runs + (not args.no_trace))
    result = start_ranks(args, plan, folder=folder, world_size=args.world_size, total=total, document=document)
    if (code := elsewhere(args, result)) is not None:
        return code
    found = with_overlap(document(result.records, result.message), result.records, folder)
    if args.what == "fsdp":
        found = _recommended(found)
    return finish_bench(args, found, folder=folder, interrupted=result.interrupted, show=_show)


def _recommended(document: Document) -> Document:
    rows = {row["name"]: row for row in document["series"]}
    order = [name for name in _DEFAULTS["fsdp"] if name in rows]
    choice = simplest_unless_slower([(name, rows[name]["samples_ms"]) for name in order])
    if choice is None:
        return document
    memory = {name: gb for name in order if (gb := rows[name]["summary"].get("peak_memory_allocated_gb"))}
    return {
        **document,
        "recommendation": {
            "series": choice.name,
            "against": choice.against,
            "time_over": choice.over,
            "time_over_low": choice.low,
            "time_over_high": choice.high,
            "reason": "clearly faster" if choice.clear else "the simplest, and nothing is clearly faster",
            "least_memory": min(memory, key=lambda name: memory[name]) if memory else None,
        },
    }


def _show(document: Document, out: Console) -> None:
    print_bench(document, out)
    advice = document.get("recommendation")
    if not advice:
        return
    margin = ""
    if advice["against"]:
        low, high = advice["time_over_low"], advice["time_over_high"]
        margin = f"; {advice['time_over']:.2f} x [{low:.2f}, {high:.2f}] the time of {advice['against']}"
    out.print(f"recommended: {advice['series']} ({advice['reason']}{margin})", markup=False)
    if advice["least_memory"] not in (None, advice["series"]):
        out.print(f"where memory is short: {advice['least_memory']} takes least", markup=False)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    names = _checked(args)
    return {
        **shared_settings(args),
        "series": [{"name": name, "implementation": name} for name in names],
        "options": {"bucket_size_mb": args.bucket_size_mb},
        "trace_steps": 0 if args.no_trace else _TRACE_STEPS,
    }


def _checked(args: argparse.Namespace) -> tuple[str, ...]:
    fp16 = args.precision == "fp16"
    if args.implementations:
        names = checked_names(args.implementations)
        if fp16 and (sharded := [name for name in names if name in SHARDED]):
            raise UsageError(f"fp16 needs a loss scale that shards agree on, and {sharded[0]} has none; use bf16")
        return names
    return tuple(name for name in available(_DEFAULTS[args.what]) if not (fp16 and name in SHARDED))
