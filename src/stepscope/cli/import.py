"""`stepscope import`: files of other tools into a run folder, where every command finds them."""

import argparse
from pathlib import Path

from stepscope.cli.given.progress import reading_progress
from stepscope.cli.messages import print_line, warn
from stepscope.errors import InputError, UsageError
from stepscope.output_path import why_no_folder
from stepscope.run.formats import files_beside
from stepscope.run.import_files import PlannedImport, place, planned_imports
from stepscope.units import printable


def run(args: argparse.Namespace) -> int:
    """Return 0; nothing is written where any file cannot be taken."""
    _require_folder(args.into)
    files = [path for given in args.files for path in _expanded(given)]
    with reading_progress() as progress:
        plans = planned_imports(files, args.into, rank=args.rank, force=args.force, progress=progress)
    for plan in plans:
        place(plan)
        print_line(_said(plan))
        for note in plan.notes:
            warn(note)
    print_line(f"next  stepscope report {printable(str(args.into))}")
    return 0


def _said(plan: PlannedImport) -> str:
    there = " (was there already)" if plan.already_there else ""
    return f"{plan.target.name}  {plan.format.title}: {plan.contents.what}{there}"


def _expanded(given: Path) -> list[Path]:
    if not given.exists():
        raise InputError(f"there is nothing at {printable(str(given))}; give a file or a folder")
    if not given.is_dir():
        return [given]
    found = [one.path for one in files_beside(given)]
    if not found:
        raise InputError(f"{printable(str(given))}: no file in it is of a format that can be imported")
    return found


def _require_folder(folder: Path) -> None:
    why_not = why_no_folder(folder.absolute())
    if why_not is not None:
        raise UsageError(f"cannot write into {folder}: {why_not}; give a path without it")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --into takes the folder of a run")
    if not folder.exists() and not folder.absolute().parent.is_dir():
        raise UsageError(f"no folder at {folder.parent}; make it first or give another run")
