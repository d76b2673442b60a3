"""The run for other tools: one timeline of all ranks on one clock, or its tables.

examples:
  stepscope export run-folder/ --perfetto timeline.pftrace          open in ui.perfetto.dev
  stepscope export run-folder/ --perfetto timeline.json.gz          Chrome's JSON: chrome://tracing and others
  stepscope export run-folder/ --perfetto t.pftrace --ranks 0-7 --steps 12:14 --gpu-only
  stepscope export run-folder/ --csv tables/ --tables steps,budget
  stepscope export run-folder/ --tensorboard logs/                  then: tensorboard --logdir logs/
  stepscope export run-folder/ --pprof run.pb.gz                    then: pprof -http=: run.pb.gz
  stepscope export run-folder/ --speedscope run.speedscope.json     open in speedscope.app

Without filters a run of more than a million slices is thinned, with a note on what was left out. Times in tables are
nanoseconds; docs/tables.md has every column.
"""

import argparse
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.arguments import above_zero, add_json, add_options, add_run_arguments, at_least_zero, whole_number
from stepscope.cli.outputs import (
    check_outputs,
    print_line,
    refuse_used_folder,
    warn,
    whole_folder,
    work_progress,
    write_json,
    write_pieces,
)
from stepscope.cli.record import steps_from
from stepscope.cli.run import account_with, run_from
from stepscope.contract.run_folder import SCHEMA
from stepscope.document.rows import TABLES
from stepscope.errors import InputError, UsageError
from stepscope.report.timeline_limit import MAX_SLICES
from stepscope.units import NS_PER_US, printable, readable_bytes

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.report.timeline import Filter
    from stepscope.run.load import Run
    from stepscope.tables.catalog import RunTables

_PROFILES = ("pprof", "speedscope")
_FOLDERS = ("csv", "parquet", "tensorboard", "chakra")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    outputs = {
        "--perfetto": ("FILE", "timeline; Chrome's JSON where FILE ends in .json, compressed with .gz"),
        "--csv": ("DIR", "tables as CSV, one file each"),
        "--parquet": ("DIR", "tables as Parquet, one file each"),
        "--tensorboard": ("DIR", "each rank's trace and curves over steps, for TensorBoard"),
        "--chakra": ("DIR", "the replayed steps as Chakra execution traces, a file per rank with a device"),
        "--pprof": ("FILE", "source lines and modules by device, host and critical-path time, for pprof"),
        "--speedscope": ("FILE", "the same for speedscope.app, as JSON"),
    }
    add_options(parser, outputs)
    parser.add_argument(
        "--tables", type=_tables, default=tuple(TABLES), metavar="A,B", help="only these tables (default: all)"
    )
    chosen = parser.add_argument_group("what the timeline shows")
    chosen.add_argument("--ranks", type=_ranks, metavar="0,3,8-15", help="these ranks")
    chosen.add_argument("--steps", metavar="FIRST:LAST", help="these steps, LAST exclusive")
    chosen.add_argument("--gpu-only", action="store_true", help="what ran on devices, steps and collectives")
    chosen.add_argument("--min-us", type=above_zero, metavar="N", help="slices of at least N microseconds")
    chosen.add_argument(
        "--max-slices",
        type=at_least_zero,
        default=MAX_SLICES,
        metavar="N",
        help=f"leave out the least useful slices above this number ({MAX_SLICES:,}); 0: no limit",
    )
    add_json(parser, "what was written where as JSON")


def _tables(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if not set(names) <= set(TABLES):
        raise argparse.ArgumentTypeError(f"no such table in {text!r}; use some of {', '.join(TABLES)}")
    return names


def _ranks(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = whole_number(first), whole_number(last or first)
        if low is None or high is None or part.endswith("-"):
            raise argparse.ArgumentTypeError(f"{text!r} are no ranks; write them as 0,3,8-15")
        if high < low or high - low > 1 << 20:
            raise argparse.ArgumentTypeError(f"{part!r} are no ranks; write them as 0,3,8-15")
        found.update(range(low, high + 1))
    return frozenset(found)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank could not be read."""
    from stepscope.report.timeline import Filter
    from stepscope.tables.catalog import RunTables

    chosen = Filter(
        ranks=args.ranks,
        steps=range(*steps_from(args.steps)) if args.steps else None,
        gpu_only=args.gpu_only,
        min_ns=round(args.min_us * NS_PER_US) if args.min_us else None,
    )
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
    if args.chakra:
        written.append(_write_chakra(tables.account, args))
    written += [_write_profile(tables.account, args, kind) for kind in _PROFILES if getattr(args, kind)]
    write_json(args.json, {"schema": SCHEMA, "written": written}, force=args.force)
    if args.json != "-":
        for one in written:
            keys = ("slices", "ranks", "flows", "files", "rows", "stacks")
            counts = ", ".join(f"{one[key]:,} {key}" for key in keys if key in one)
            print_line(f"{one['what']}: {printable(one['path'])}  {counts}, {readable_bytes(one['size_bytes'])}")
    warn(*dict.fromkeys([*(line for one in written for line in one["warnings"]), *tables.late_warnings]))
    return 3 if recorded.unreadable else 0


def _refuse_outputs(args: argparse.Namespace) -> None:
    from stepscope.tables.table import pyarrow_module

    if not any(getattr(args, name) for name in ("perfetto", *_FOLDERS, *_PROFILES)):
        raise UsageError(
            "nothing to write; give --perfetto, --pprof or --speedscope FILE, or --csv, --parquet, --tensorboard or "
            "--chakra DIR"
        )
    if args.perfetto == "-":
        raise UsageError("--perfetto: a timeline is binary and cannot go to standard output; give a file name")
    for kind in _PROFILES:
        if getattr(args, kind) == "-":
            raise UsageError(f"--{kind}: a profile cannot go to standard output; give a file name")
    check_outputs(args.perfetto, args.pprof, args.speedscope, args.json, force=args.force)
    if args.parquet:
        pyarrow_module()
    for folder in filter(None, (getattr(args, name) for name in _FOLDERS)):
        refuse_used_folder(folder, force=args.force)


def _refuse_unknown(recorded: "Run", chosen: "Filter") -> None:
    there = {rank.rank for rank in recorded.ranks}
    if chosen.ranks is not None and not chosen.ranks <= there:
        absent = ", ".join(map(str, sorted(chosen.ranks - there)[:10]))
        raise UsageError(f"--ranks: the run has no rank {absent}; it has {len(there)}, {min(there)} to {max(there)}")
    numbers = {int(n) for rank in recorded.ranks for n in rank.steps.number}
    if chosen.steps is not None and not any(n in chosen.steps for n in numbers):
        known = f"the run has {min(numbers)}:{max(numbers) + 1}" if numbers else "the run has no recorded steps"
        raise UsageError(f"--steps: no step was recorded in {chosen.steps.start}:{chosen.steps.stop}; {known}")


def _write_timeline(recorded: "Run", args: argparse.Namespace, chosen: "Filter") -> dict[str, Any]:
    from stepscope.report.perfetto import chrome_trace, perfetto_trace
    from stepscope.report.timeline import timeline_of
    from stepscope.run.aligned import aligned

    with work_progress("laying out slices", unit="slices") as progress:
        shared = aligned(recorded)
        most = args.max_slices or None
        timeline = timeline_of(shared, given=chosen, most=most, owners=True, progress=progress)
    name = Path(args.perfetto).name.lower()
    form = chrome_trace if name.removesuffix(".gz").endswith(".json") else perfetto_trace
    with work_progress("writing the timeline", unit="slices") as progress:
        pieces = form(timeline, progress=progress)
        size = write_pieces(args.perfetto, _gzipped(pieces) if name.endswith(".gz") else pieces, force=args.force)
    return {
        "what": "timeline",
        "path": args.perfetto,
        "size_bytes": size,
        "ranks": len(timeline.ranks),
        "slices": timeline.num_slices,
        "flows": timeline.num_flows,
        "warnings": list(timeline.notes),
    }


def _gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=31)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _write_tables(recorded: "Run", made: "RunTables", args: argparse.Namespace, form: str) -> dict[str, Any]:
    from stepscope.tables.table import table_csv, table_parquet

    pieces_of = table_csv if form == "csv" else table_parquet
    files = ((f"{name}.{form}", pieces_of(made.table(name))) for name in args.tables)
    written = _write_folder(f"tables as {form}", getattr(args, form), files, len(args.tables), args)
    rows = sum(len(made.table(name)) for name in args.tables)
    return {**written, "rows": rows, "warnings": list(recorded.warnings)}


def _write_tensorboard(recorded: "Run", account: "Account", args: argparse.Namespace) -> dict[str, Any]:
    from stepscope.report.tensorboard import tensorboard_files

    files, notes = tensorboard_files(account)
    written = _write_folder("for TensorBoard", args.tensorboard, files, len(files), args)
    return {**written, "warnings": [*notes, *recorded.warnings]}


def _write_chakra(account: "Account", args: argparse.Namespace) -> dict[str, Any]:
    from stepscope.report.exports import chakra_files

    files = list(chakra_files(account.replay)) if account.replay else []
    if not files:
        raise InputError(f"--chakra: {account.run.name}: no step of a device can be replayed")
    written = _write_folder("execution traces", args.chakra, files, len(files), args)
    return {**written, "warnings": list(account.run.warnings)}


def _write_profile(account: "Account", args: argparse.Namespace, kind: str) -> dict[str, Any]:
    from stepscope.report.exports import pprof_profile, speedscope_profile
    from stepscope.whatif.settings import NOT_RECORDED

    name, stacks = account.run.name, account.code_stacks
    if not stacks:
        raise InputError(f"--{kind}: {name}: {'; '.join(account.failures) or NOT_RECORDED}")
    if kind == "pprof":
        profile = pprof_profile(stacks, name=name, step_ns=account.step.step_ns if account.step else None)
    else:
        profile = speedscope_profile(stacks, name=name)
    path = getattr(args, kind)
    size = write_pieces(path, [profile], force=args.force)
    warnings = list(account.run.warnings)
    return {"what": f"{kind} profile", "path": path, "size_bytes": size, "stacks": len(stacks), "warnings": warnings}


def _write_folder(
    what: str, path: str, files: Iterable[tuple[str, Iterable[bytes]]], count: int, args: argparse.Namespace
) -> dict[str, Any]:
    size = 0
    with (
        whole_folder(path, force=args.force) as folder,
        work_progress(f"writing {what}", unit="files") as progress,
    ):
        for i, (name, pieces) in enumerate(files):
            if progress:
                progress(i, count)
            size += write_pieces(folder / name, pieces, force=args.force)
    return {"what": what, "path": path, "size_bytes": size, "files": count}
