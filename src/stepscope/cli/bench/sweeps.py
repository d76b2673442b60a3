"""`stepscope bench precision`, `compile`, `batch-size` and the like: the sweep, its results, its verdict."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from stepscope.bench.session.results import write_results
from stepscope.bench.sweeps.choices.batch_size import largest_fitting, measured_sizes
from stepscope.bench.sweeps.choices.sweep import Sweep, only, sweep_named
from stepscope.bench.sweeps.control import Progress, SweepMeasurements, fitting_sizes, run_sweep
from stepscope.bench.sweeps.host_memory import NOTHING_IN_RESERVE, available_bytes
from stepscope.bench.sweeps.rows import sweep_document
from stepscope.bench.sweeps.sessions import FITTING, MEASURING, Method, Sessions
from stepscope.cli.bench.arguments import results_folder, workload_settings
from stepscope.cli.bench.session import command_line, elsewhere, finish_bench
from stepscope.cli.given.progress import work_progress
from stepscope.document.values import in_ms
from stepscope.errors import InputError, UsageError
from stepscope.report.text.bench import print_doubts, print_sweep
from stepscope.results.sweeps.verdict import sweep_verdict

# sweeps that start from bf16 on a CUDA device, as jobs there do
_HALF_PRECISION = ("attention", "checkpointing", "compile", "accumulation", "allocator", "dataloader", "offload")


def run(args: argparse.Namespace) -> int:
    """Return the exit code: 0, 3 where the sweep is not complete, 130 after Ctrl-C."""
    folder, spec, sessions = results_folder(args), _spec(args), Sessions(args.launched)
    method = Method(
        backend=args.backend, runs=args.runs, warmup_steps=args.warmup_steps, steps=args.steps, threads=args.threads,
        accumulation=args.grad_accum, item_limit_s=args.variant_limit_s, limit_s=args.limit_s,
        world_size=getattr(args, "world_size", 1), share_devices=args.share_devices,
        memory_limit_bytes=args.memory_limit if args.what == "strategy" else None,
    )  # fmt: skip
    if args.launched and not args.launched.writes:
        return _follow(args, method, folder, sessions)
    with _progress() as progress:
        sweep, notes = _prepare_sweep(args, spec, method, folder, sessions, progress)

        def document_of(so_far: SweepMeasurements) -> dict[str, Any]:
            return _with_advice(
                sweep_document(sweep, so_far, spec=spec, method=method, command=command_line(), **notes)
            )

        found = run_sweep(
            sweep, spec=spec, method=method, out=folder / "processes", progress=progress,
            keep=lambda so_far: _keep(document_of(so_far), folder), sessions=sessions,
        )  # fmt: skip
    document = document_of(found)
    if not document["series"]:
        raise InputError(f"nothing was measured: {found.message or _refusals(found)}")
    return finish_bench(args, document, folder=folder, interrupted=found.interrupted, show=_show)


def _follow(args: argparse.Namespace, method: Method, folder: Path, sessions: Sessions) -> int:
    place = folder / "processes"
    if args.what == "batch-size":
        result = sessions.follow(FITTING, method=method, out=place, environ=NOTHING_IN_RESERVE)
        if not result.complete:
            return elsewhere(args, result) or 0
    return elsewhere(args, sessions.follow(MEASURING, method=method, out=place)) or 0


def _with_advice(document: dict[str, Any]) -> dict[str, Any]:
    verdict = sweep_verdict(document)
    found = asdict(verdict)
    recommendation = found.pop("recommendation")
    variants = [in_ms(asdict(v), ("step", "first_step")) for v in verdict.variants]
    document["sweep"]["verdict"] = {**found, "variants": variants}
    return document if recommendation is None else {**document, "recommendation": recommendation}


def _keep(document: dict[str, Any], folder: Path) -> None:
    if document["series"]:
        write_results({**document, "complete": False, "message": "still measuring"}, folder)


def _show(document: dict[str, Any], out: Console) -> None:
    print_sweep(document, sweep_verdict(document), out)
    print_doubts(document["series"], out)


def _prepare_sweep(
    args: argparse.Namespace, spec: dict[str, Any], method: Method, folder: Path, sessions: Sessions,
    progress: Progress | None,
) -> tuple[Sweep, dict[str, Any]]:  # fmt: skip
    if args.what != "batch-size":
        sweep = sweep_named(args.what, spec, _sweep_options(args))
        return (only(sweep, args.only.split(",")) if args.only else sweep), {}
    limit = _memory_limit(args)
    known, reasons = fitting_sizes(
        spec, start=args.start, most=args.most, memory_limit_bytes=limit, method=method, out=folder / "processes",
        progress=progress, sessions=sessions,
    )  # fmt: skip
    sizes = measured_sizes(known)
    if not sizes:
        raise UsageError(f"even a batch of 1 does not fit into memory: {next(iter(reasons.values()), 'no reason')}")
    notes = {
        "largest": largest_fitting(known),
        "did_not_fit": {str(size): reason for size, reason in sorted(reasons.items())},
        "memory_limit_bytes": limit,
    }
    return sweep_named("batch-size", spec, {"sizes": sizes}), {"fitting": notes}


def _sweep_options(args: argparse.Namespace) -> dict[str, Any]:
    if args.what == "dataloader":
        return {"workers": args.workers}
    if args.what == "allocator":
        return {"settings": tuple(args.setting)}
    return {"world_size": args.world_size} if args.what in ("strategy", "accumulation") else {}


def _memory_limit(args: argparse.Namespace) -> int | None:
    if args.backend == "nccl":
        if args.memory_limit:
            raise UsageError("--memory-limit is for the CPU only; with --backend nccl the device is the limit")
        return None
    if args.memory_limit:
        return int(args.memory_limit)
    free = available_bytes()
    if free is None:
        raise UsageError("the system does not say how much memory is free; give --memory-limit")
    return free // 2 // args.world_size


def _spec(args: argparse.Namespace) -> dict[str, Any]:
    spec = workload_settings(args)
    if args.backend == "nccl" and args.what in _HALF_PRECISION and args.precision == "fp32":
        spec["precision"] = "bf16"
    options = dict(spec["options"])
    for given in args.option:
        name, _, value = given.partition("=")
        if not name or not value:
            raise UsageError(f"--option has to be NAME=VALUE, not {given!r}")
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


def _refusals(found: SweepMeasurements) -> str:
    return "; ".join(f"{name}: {record['reason']}" for name, record in found.refusals.items()) or "no variant"


@contextmanager
def _progress() -> Iterator[Progress | None]:
    with work_progress("measuring", unit="runs") as update:
        yield (lambda done, total, name: update(done, total)) if update else None
