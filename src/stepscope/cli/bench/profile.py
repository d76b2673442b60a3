"""`stepscope bench ddp --profile`: record one implementation on every rank, for `stepscope report`."""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from stepscope.bench.data_parallel.strategies import checked_names
from stepscope.bench.session.launch import LaunchResult
from stepscope.bench.session.rank_records import environment, first
from stepscope.cli.bench.arguments import shared_settings
from stepscope.cli.bench.session import command_line, elsewhere, start_ranks
from stepscope.cli.messages import print_line, print_stderr, say_with_answer
from stepscope.cli.output import refuse_existing, write_json
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import InputError, UsageError

_JOB = "stepscope.bench.data_parallel.profile_job:profile_job"


def run_profile(args: argparse.Namespace) -> int:
    """Return 0 once every rank's trace and the summary are written, 3 where only some are."""
    (name,) = checked_names((args.profile_implementation,))
    if args.json and args.json != "-":
        refuse_existing(Path(args.json), force=args.force)
    folder = _folder(args, name)
    settings = {
        "implementation": name,
        "folder": str(folder.absolute()),
        **shared_settings(args),
        "options": {"bucket_size_mb": args.bucket_size_mb},
        "profile_epochs": args.profile_epochs,
    }
    with tempfile.TemporaryDirectory() as streams:
        result = start_ranks(
            args,
            {"job": _JOB, "settings": settings},
            folder=Path(streams),
            world_size=args.world_size,
            total=1,
            on_line=print_stderr if args.json == "-" else print_line,
        )
    if (code := elsewhere(args, result)) is not None:
        return code
    return _said(args, result, folder, name)


def _folder(args: argparse.Namespace, name: str) -> Path:
    folder = Path(args.profile_output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; choose another --profile-output-dir") from error
    for old in (*folder.glob(f"{name}_rank_*_trace.json"), *folder.glob(f"{name}_summary.txt")):
        refuse_existing(old, force=True)  # what is no regular file is not ours to remove
        if not args.force:
            raise UsageError(f"{old} already exists; use --force or another --profile-output-dir")
        old.unlink()
    return folder


def _said(args: argparse.Namespace, result: LaunchResult, folder: Path, name: str) -> int:
    traces = sorted(folder.glob(f"{name}_rank_*_trace.json"))
    if not traces:
        raise InputError(f"no trace was recorded: {result.message or 'the ranks ended early'}")
    write_json(args.json, _document(args, result, name, traces, folder / f"{name}_summary.txt"), force=args.force)
    if args.json != "-":
        print_line(f"{len(traces)} traces and {folder / f'{name}_summary.txt'}")
        print_line(f"next: stepscope report '{folder}/{name}_rank_*_trace.json'{_unprofiled(result)}")
    if result.message:
        say_with_answer(f"stepscope bench: partial result: {result.message}")
    return 130 if result.interrupted else 3 if result.message else 0


def _document(
    args: argparse.Namespace, result: LaunchResult, name: str, traces: list[Path], summary: Path
) -> dict[str, Any]:
    epochs = first(result.records, what="epochs")
    rates = first(result.records, what="throughput")
    return {
        "schema": SCHEMA,
        "kind": "bench-profile",
        "command": command_line(),
        "environment": environment(result.records, backend=args.backend),
        "complete": result.complete,
        "message": result.message,
        "implementation": name,
        "traces": [str(path) for path in traces],
        "summary": str(summary) if summary.exists() else None,
        "step_ms": rates.get("step_ms"),
        "step_source": rates.get("source"),
        "throughput_samples_per_sec": rates.get("samples_per_s"),
        "tokens_per_sec": rates.get("tokens_per_s"),
        "epochs": epochs.get("epochs", []),
    }


def _unprofiled(result: LaunchResult) -> str:
    epochs = [e for records in result.records for r in records if r["what"] == "epochs" for e in r["epochs"]]
    quiet = [e["step_ms"] for e in epochs if e["kind"] == "training" and not e["recorded"]]
    return f" --unprofiled-step-ms {statistics.median(quiet):.2f}" if quiet else ""
