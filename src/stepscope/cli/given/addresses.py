"""A command on runs that lie elsewhere: their files are copied here, and the answer speaks of the addresses."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepscope.contract.run_folder import RUN_JSON
from stepscope.errors import StepscopeError, UsageError
from stepscope.run.address import is_address

if TYPE_CHECKING:
    from stepscope.run.load import Run

# of arguments that name runs
_NAMES = ("run", "sides", "a", "b", "dumps", "folder", "against")
_WRITES_INTO_THE_RUN = {"investigate": "keeps its record beside the run", "import": "writes into the run"}


def run_on_copies(name: str, command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Return the exit code of a command whose runs are addresses, on copies that are gone afterwards."""
    from stepscope.cli.given.progress import work_progress
    from stepscope.run.remote import local_copies

    given = {one: value for one in _NAMES if (value := getattr(args, one, None))}
    flat = [word for value in given.values() for word in ([value] if isinstance(value, str) else value)]
    if not any(map(is_address, flat)):
        return command(args)
    if name in _WRITES_INTO_THE_RUN:
        raise UsageError(f"{name} {_WRITES_INTO_THE_RUN[name]}, so it takes no address; copy the run here first")
    wanted = _is_small if getattr(args, "no_traces", False) else None
    with (
        work_progress("copying", unit="files") as progress,
        local_copies(flat, wanted=wanted, progress=progress) as here,
    ):
        paths = iter(here.paths)
        for one, value in given.items():
            setattr(args, f"named_{one}", value)
            setattr(args, one, next(paths) if isinstance(value, str) else [next(paths) for _ in value])
        args.copies, args.no_cache = here, True
        try:
            return command(args)
        except StepscopeError as error:
            raise type(error)(here.shown(str(error))) from error


def _is_small(name: str) -> bool:
    return name == RUN_JSON or name.endswith(".steps.jsonl")


def as_given(args: argparse.Namespace, run: "Run") -> "Run":
    """Return a run that speaks of what the command line named, where it was read from copies."""
    copies = getattr(args, "copies", None)
    if copies is None:
        return run
    from stepscope.run.remote import named_as_given

    return named_as_given(run, copies)
