"""`stepscope export`: the run's timeline, tables and TensorBoard files, written where the user asked."""

import argparse
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.analyze.account import Account
from stepscope.cli.given.progress import work_progress
from stepscope.cli.given.run_arguments import account_with, run_from
from stepscope.cli.messages import print_line, warn
from stepscope.cli.output import check_outputs, refuse_used_folder, whole_folder, write_json, write_pieces
from stepscope.cli.record import steps_from
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import UsageError
from stepscope.record.sinks import tracking_module
from stepscope.report.chrome import chrome_trace
from stepscope.report.perfetto import perfetto_trace
from stepscope.report.tensorboard import tensorboard_files
from stepscope.report.timeline import Filter, Timeline, timeline_of, with_owner_tracks
from stepscope.run.aligned import aligned
from stepscope.run.load import Run
from stepscope.run.read_files import Progress
from stepscope.tables.catalog import RunTables
from stepscope.tables.table import pyarrow_module, table_csv, table_parquet
from stepscope.units import NS_PER_US, printable, readable_bytes

_GZIP = 31
_SENT = ("wandb", "mlflow")


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    chosen = _filter(args)
    _refuse_outputs(args)
    recorded = run_from(args)
    _refuse_unknown(recorded, chosen)
    tables = RunTables(recorded, account=partial(account_with, args, unprofiled_ms=args.unprofiled_step_ms))
    written = []
    if args.perfetto:
        written.append(_write_timeline(recorded, args, chosen))
    written += [_write_tables(recorded, tables, args, form) for form in ("csv", "parquet") if getattr(args, form)]
    if args.tensorboard:
        written.append(_write_tensorboard(recorded, tables.account, args))
    written += [_send(tables.account, kind, getattr(args, kind)) for kind in _SENT if getattr(args, kind)]
    _say(written, args, tables.late_warnings)
    return 3 if recorded.unreadable else 0


def _refuse_outputs(args: argparse.Namespace) -> None:
    if not any(getattr(args, name) for name in ("perfetto", "csv", "parquet", "tensorboard", *_SENT)):
        raise UsageError("nothing to write; give --perfetto FILE, --csv DIR, --parquet DIR or --tensorboard DIR")
    if args.perfetto == "-":
        raise UsageError("--perfetto: a timeline is binary and cannot go to standard output; give a file name")
    check_outputs(args.perfetto, args.json, force=args.force)
    if args.parquet:
        pyarrow_module()
    for kind in filter(partial(getattr, args), _SENT):
        tracking_module(kind)
    for folder in filter(None, (args.csv, args.parquet, args.tensorboard)):
        refuse_used_folder(folder, force=args.force)


def _write_tables(recorded: Run, made: RunTables, args: argparse.Namespace, form: str) -> dict[str, Any]:
    path = getattr(args, form)
    size = rows = 0
    with (
        whole_folder(path, force=args.force) as folder,
        work_progress(f"writing tables as {form}", unit="tables") as progress,
    ):
        for i, name in enumerate(args.tables):
            if progress:
                progress(i, len(args.tables))
            table = made.table(name)
            pieces = table_csv(table) if form == "csv" else table_parquet(table)
            size += write_pieces(folder / f"{name}.{form}", pieces, force=args.force)
            rows += len(table)
    return {
        "what": f"tables as {form}",
        "path": path,
        "size_bytes": size,
        "files": len(args.tables),
        "rows": rows,
        "warnings": list(recorded.warnings),
    }


def _write_timeline(recorded: Run, args: argparse.Namespace, chosen: Filter) -> dict[str, Any]:
    with work_progress("laying out slices", unit="slices") as progress:
        shared = aligned(recorded)
        timeline = timeline_of(shared, given=chosen, most=args.max_slices or None, progress=progress)
        timeline = with_owner_tracks(timeline, shared, given=chosen)
    with work_progress("writing the timeline", unit="slices") as progress:
        size = write_pieces(args.perfetto, _pieces(timeline, args.perfetto, progress), force=args.force)
    return {
        "what": "timeline",
        "path": args.perfetto,
        "size_bytes": size,
        "ranks": len(timeline.ranks),
        "slices": timeline.num_slices,
        "flows": timeline.num_flows,
        "warnings": list(timeline.notes),
    }


def _write_tensorboard(recorded: Run, account: Account, args: argparse.Namespace) -> dict[str, Any]:
    files, notes = tensorboard_files(account)
    size = 0
    with (
        whole_folder(args.tensorboard, force=args.force) as folder,
        work_progress("writing for TensorBoard", unit="files") as progress,
    ):
        for i, (name, pieces) in enumerate(files):
            if progress:
                progress(i, len(files))
            size += write_pieces(folder / name, pieces, force=args.force)
    return {
        "what": "for TensorBoard",
        "path": args.tensorboard,
        "size_bytes": size,
        "files": len(files),
        "warnings": [*notes, *recorded.warnings],
    }


def _send(account: Account, kind: str, name: str) -> dict[str, Any]:
    from stepscope.cli.given.send_run import send_run

    return send_run(account, kind, name)


def _pieces(timeline: Timeline, path: str, progress: Progress | None) -> Iterable[bytes]:
    name = Path(path).name.lower()
    form = chrome_trace if name.removesuffix(".gz").endswith(".json") else perfetto_trace
    pieces = form(timeline, progress=progress)
    return _compressed(pieces) if name.endswith(".gz") else pieces


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=_GZIP)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _say(written: list[dict[str, Any]], args: argparse.Namespace, late: Sequence[str]) -> None:
    write_json(args.json, {"schema": SCHEMA, "written": written}, force=args.force)
    if args.json != "-":
        for one in written:
            print_line(_line(one))
    for warning in dict.fromkeys([*(warning for one in written for warning in one["warnings"]), *late]):
        warn(warning)


def _line(one: dict[str, Any]) -> str:
    counts = ", ".join(f"{one[key]:,} {key}" for key in ("slices", "ranks", "flows", "files", "rows") if key in one)
    return f"{one['what']}: {printable(one['path'])}  {counts}, {readable_bytes(one['size_bytes'])}"


def _filter(args: argparse.Namespace) -> Filter:
    steps = steps_from(args.steps) if args.steps else None
    return Filter(
        ranks=args.ranks,
        steps=range(*steps) if steps else None,
        gpu_only=args.gpu_only,
        min_ns=round(args.min_us * NS_PER_US) if args.min_us else None,
    )


def _refuse_unknown(recorded: Run, chosen: Filter) -> None:
    there = {rank.rank for rank in recorded.ranks}
    if chosen.ranks is not None and not chosen.ranks <= there:
        absent = ", ".join(map(str, sorted(chosen.ranks - there)[:10]))
        raise UsageError(f"--ranks: the run has no rank {absent}; it has {len(there)}, {min(there)} to {max(there)}")
    numbers = {int(n) for rank in recorded.ranks for n in rank.steps.number}
    if chosen.steps is not None and not any(n in chosen.steps for n in numbers):
        known = f"the run has {min(numbers)}:{max(numbers) + 1}" if numbers else "the run has no recorded steps"
        raise UsageError(f"--steps: no step was recorded in {chosen.steps.start}:{chosen.steps.stop}; {known}")
