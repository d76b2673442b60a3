"""What was kept of the run that a command line names, and under which of its options it holds. Nothing heavy."""

import argparse
from typing import TYPE_CHECKING, Any

from stepscope.document.cache import KeptPlace, ReportPlace, kept_place, report_place

if TYPE_CHECKING:
    from stepscope.run.load import Run

_OPTIONS = ("flops_per_step", "tokens_per_step", "samples_per_step", "peak_tflops", "full_ranks")


def may_be_kept(args: argparse.Namespace) -> bool:
    """Return whether anything is kept: it is not where the user wants none, nor where chips are given in a file."""
    return not (args.no_cache or args.hardware)


def place_of_report(args: argparse.Namespace) -> ReportPlace | None:
    """Return where the report of the arguments' run is kept, None where it is not."""
    if not may_be_kept(args):
        return None
    return report_place(args.run, options=account_options(args, args.run), cache_folder=args.cache_folder)


def place_of_tables(args: argparse.Namespace) -> KeptPlace | None:
    """Return where the tables of the arguments' one run are kept, None where they are not."""
    if not may_be_kept(args):
        return None
    options = account_options(args, args.run)
    return kept_place([args.run], ending="tables", options=options, cache_folder=args.cache_folder)


def account_options(args: argparse.Namespace, given: list[str] | str) -> dict[str, Any]:
    """Return the options that an account follows from; the step's own time is that of the run on the command line."""
    unprofiled = args.unprofiled_step_ms if given == args.run else None
    return {"unprofiled_step_ms": unprofiled, **{name: getattr(args, name) for name in _OPTIONS}}


def raw_bytes_of(run: "Run") -> int:
    """Return how much JSON a run was read from."""
    return sum(rank.trace.raw_bytes for rank in run.ranks_read)
