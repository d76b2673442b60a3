"""Take files of other tools into a run: Nsight Systems and Compute, NCCL, flight recorder, memory, Kineto traces.

examples:
  stepscope import profile.sqlite --into run-folder/
  stepscope import rank3.ncu-rep --into run-folder/ --rank 3
  stepscope import logs/*.csv --into run-folder/

Formats are detected from the content. A new folder becomes a run that `stepscope report` reads.
"""

import argparse
from pathlib import Path

from stepscope.cli.arguments import at_least_zero
from stepscope.cli.outputs import print_line, reading_progress, warn
from stepscope.errors import InputError, UsageError
from stepscope.side_file import why_no_folder
from stepscope.units import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="file of another tool, or a folder of them")
    parser.add_argument("--into", metavar="RUN", type=Path, required=True, help="run folder")
    parser.add_argument("--rank", type=at_least_zero, metavar="R", help="rank, if not in the file")
    parser.add_argument("--force", action="store_true", help="overwrite files of the run that exist")


def run(args: argparse.Namespace) -> int:
    """Return 0; nothing is written if any file cannot be imported."""
    from stepscope.run.import_files import place, planned_imports

    _require_folder(args.into)
    files = [path for given in args.files for path in _expanded(given)]
    with reading_progress() as progress:
        plans = planned_imports(files, args.into, rank=args.rank, force=args.force, progress=progress)
    for plan in plans:
        place(plan)
        there = " (was there already)" if plan.already_there else ""
        print_line(f"{plan.target.name}  {plan.format.title}: {plan.contents.what}{there}")
        warn(*plan.notes)
    print_line(f"next  stepscope report {printable(str(args.into))}")
    return 0


def _require_folder(folder: Path) -> None:
    why_not = why_no_folder(folder.absolute())
    if why_not is not None:
        raise UsageError(f"cannot write into {folder}: {why_not}; give a path without it")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --into takes the folder of a run")
    if not folder.exists() and not folder.absolute().parent.is_dir():
        raise UsageError(f"no folder at {folder.parent}; make it first or give another run")


def _expanded(given: Path) -> list[Path]:
    from stepscope.run.formats import files_beside

    if not given.exists():
        raise InputError(f"{printable(str(given))} does not exist; give a file or a folder")
    if not given.is_dir():
        return [given]
    found = [one.path for one in files_beside(given)]
    if not found:
        raise InputError(f"{printable(str(given))}: no file in it is of a format that can be imported")
    return found
