"""One choice at a time: every variant measured in turn, checked against the first, ended with advice.

examples:
  stepscope bench precision --backend nccl --d-model 1024 --num-layers 12 --batch-size 16
  stepscope bench batch-size --memory-limit 2GB
  stepscope bench dataloader --workers 0,2,8 --preprocess-us 500
  stepscope bench compile --workload mymodule:make --runs 5

Variants run in a process of their own: one that runs out of memory, crashes or hangs is named, and the rest goes on.
Variants that cannot run here are listed as not measured, with the reason.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from stepscope.bench.session.results import write_results
from stepscope.bench.sweeps.choices.batch_size import START, largest_fitting, measured_sizes
from stepscope.bench.sweeps.choices.sweep import Sweep, only, sweep_named
from stepscope.bench.sweeps.control import Measured, Method, Progress, fitting_sizes, run_sweep
from stepscope.bench.sweeps.host_memory import available_bytes
from stepscope.bench.sweeps.rows import sweep_document
from stepscope.cli.bench.arguments import add_shared_arguments, results_folder, workload_settings
from stepscope.cli.bench.session import command_line, finished
from stepscope.cli.progress import work_progress
from stepscope.cli.sizes import above_zero, at_least_one, at_least_zero, size_bytes
from stepscope.errors import InputError, UsageError
from stepscope.report.text.bench import print_doubts
from stepscope.report.text.sweep import print_sweep
from stepscope.results.sweeps.verdict import sweep_verdict

_HALF_PRECISION = ("attention", "checkpointing", "compile", "accumulation", "allocator", "dataloader", "offload")
"""sweeps that start from bf16 on a CUDA device, as jobs there do"""


def add_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the arguments of one sweep."""
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the workload, such as kv_heads=2"
    )
    parser.add_argument(
        "--variant-limit-s", type=above_zero, default=300.0, metavar="S", help="give up on one measurement after (300)"
    )
    if what != "batch-size":
        parser.add_argument("--only", metavar="NAME,NAME", help="these variants alone, besides the first")
    if what == "batch-size":
        parser.add_argument("--start", type=at_least_one, default=START, metavar="N", help=f"first size ({START})")
        parser.add_argument("--most", type=at_least_one, default=1 << 16, metavar="N", help="last size (65536)")
        parser.add_argument(
            "--memory-limit", type=size_bytes, metavar="SIZE", help="of the process on the CPU (half of what is free)"
        )
    if what == "dataloader":
        parser.add_argument("--workers", type=_counts, default=(0, 1, 2, 4), metavar="N,N", help="default 0,1,2,4")
        parser.add_argument(
            "--preprocess-us", type=at_least_zero, default=0, metavar="US", help="work per sample while loading (0)"
        )
    add_shared_arguments(parser, what=what, world_size=None)


def run(args: argparse.Namespace) -> int:
    """Return the exit code: 0, 3 where the sweep is not complete, 130 after Ctrl-C."""
    folder, spec = results_folder(args), _spec(args)
    method = Method(
        backend=args.backend, runs=args.runs, warmup_steps=args.warmup_steps, steps=args.steps, threads=args.threads,
        accumulation=args.grad_accum, item_limit_s=args.variant_limit_s, limit_s=args.limit_s,
    )  # fmt: skip
    with _progress() as progress:
        sweep, notes = _prepared(args, spec, method, folder, progress)

        def document_of(so_far: Measured) -> dict[str, Any]:
            return _judged(sweep_document(sweep, so_far, spec=spec, method=method, command=command_line(), **notes))

        found = run_sweep(
            sweep, spec=spec, method=method, out=folder / "processes", progress=progress,
            keep=lambda so_far: _kept(document_of(so_far), folder),
        )  # fmt: skip
    document = document_of(found)
    if not document["series"]:
        raise InputError(f"nothing was measured: {found.message or _refusals(found)}")
    return finished(args, document, folder=folder, interrupted=found.interrupted, show=_show)


def _judged(document: dict[str, Any]) -> dict[str, Any]:
    """Return the results with the verdict in them."""
    document["sweep"]["verdict"] = asdict(sweep_verdict(document))
    return document


def _kept(document: dict[str, Any], folder: Path) -> None:
    if document["series"]:
        write_results({**document, "complete": False, "message": "still measuring"}, folder)


def _show(document: dict[str, Any], out: Console) -> None:
    print_sweep(document, sweep_verdict(document), out)
    print_doubts(document["series"], out)


def _prepared(
    args: argparse.Namespace, spec: dict[str, Any], method: Method, folder: Path, progress: Progress | None
) -> tuple[Sweep, dict[str, Any]]:
    """Return the sweep to measure; for batch sizes, after finding those that fit."""
    if args.what != "batch-size":
        options = {"workers": args.workers} if args.what == "dataloader" else {}
        sweep = sweep_named(args.what, spec, options)
        return (only(sweep, args.only.split(",")) if args.only else sweep), {}
    limit = _memory_limit(args)
    known, reasons = fitting_sizes(
        spec, start=args.start, most=args.most, memory_limit_bytes=limit, method=method, out=folder / "processes",
        progress=progress,
    )  # fmt: skip
    sizes = measured_sizes(known)
    if not sizes:
        raise UsageError(
            f"expected a batch of 1 to fit into memory, found: {next(iter(reasons.values()), 'no reason')}"
        )
    notes = {
        "largest": largest_fitting(known),
        "did_not_fit": {str(size): reason for size, reason in sorted(reasons.items())},
        "memory_limit_bytes": limit,
    }
    return sweep_named("batch-size", spec, {"sizes": sizes}), {"fitting": notes}


def _memory_limit(args: argparse.Namespace) -> int | None:
    """Return the limit on the CPU, where running out would take other processes along; devices have their own."""
    if args.backend == "nccl":
        if args.memory_limit:
            raise UsageError("expected --memory-limit on the CPU only, found --backend nccl; the device is the limit")
        return None
    if args.memory_limit:
        return int(args.memory_limit)
    free = available_bytes()
    if free is None:
        raise UsageError("expected --memory-limit here: the system does not say how much memory is free")
    return free // 2


def _spec(args: argparse.Namespace) -> dict[str, Any]:
    """Return the workload's description, with the options given by name."""
    spec = workload_settings(args)
    if args.backend == "nccl" and args.what in _HALF_PRECISION and args.precision == "fp32":
        spec["precision"] = "bf16"
    options = dict(spec["options"])
    for given in args.option:
        name, _, value = given.partition("=")
        if not name or not value:
            raise UsageError(f"expected --option NAME=VALUE, found {given!r}")
        options[name] = _value(value)
    if getattr(args, "preprocess_us", 0):
        options["preprocess_us"] = args.preprocess_us
    return {**spec, "options": options}


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected numbers with commas, found {text!r}") from error


def _refusals(found: Measured) -> str:
    return "; ".join(f"{name}: {record['reason']}" for name, record in found.refusals.items()) or "no variant"


@contextmanager
def _progress() -> Iterator[Progress | None]:
    with work_progress("measuring", unit="runs") as update:
        yield (lambda done, total, name: update(done, total)) if update else None
