"""The run that a command line names, and the account it leads to.

The analysis is imported where an account is made: a query over what was recorded needs none.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope import later_writes
from stepscope.cli.given.progress import reading_progress
from stepscope.cli.messages import warn
from stepscope.run.load import MAX_FULL_RANKS, Run, incomplete, load_sources, run_name
from stepscope.run.sources import find_sources
from stepscope.trace.budget import keep_freed

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.cost.calibration import Calibration


def account_from(
    args: argparse.Namespace, run: list[str] | None = None, *, unprofiled_ms: float | None = None
) -> "Account":
    """Return the account of the arguments' run, or of another one with the same options and its own unprofiled step."""
    return account_with(args, run_from(args, run), unprofiled_ms=unprofiled_ms if run else args.unprofiled_step_ms)


def run_from(args: argparse.Namespace, run: list[str] | None = None) -> Run:
    """Return the arguments' run, or another one read in the same way."""
    keep_freed()
    given = run or args.run
    on_cluster = getattr(args, "engine", "local") != "local"
    full_ranks = getattr(args, "full_ranks", None)
    how = {"jobs": args.jobs, "cache": not args.no_cache, "cache_folder": args.cache_folder}
    sources = find_sources(given)
    if len(sources.files) > (full_ranks or MAX_FULL_RANKS):
        from stepscope.analyze.sampled import load_run

        outline_files = None
        if on_cluster:
            from stepscope.cli.given.cluster import outlines_from

            outline_files = outlines_from(args)
        with reading_progress() as progress:
            found = load_run(
                given,
                full_ranks=full_ranks,
                wanted=_ranks_asked_for(args),
                outline_files=outline_files,
                progress=progress,
                **how,
            )
    else:
        if on_cluster:
            from stepscope.cli.given.cluster import read_ahead

            read_ahead(args, given)
        with reading_progress() as progress:
            name = run_name(given, sources.folder)
            found = load_sources(sources, name=name, progress=progress, write_later=later_writes.write_later, **how)
    if getattr(args, "copies", None) is None:
        return found
    from stepscope.cli.given.addresses import as_given

    return as_given(args, found)


def _ranks_asked_for(args: argparse.Namespace) -> frozenset[int]:
    one = getattr(args, "rank", None)
    return frozenset(getattr(args, "ranks", None) or ()) | ({one} if one is not None else frozenset())


def account_with(args: argparse.Namespace, run: Run, *, unprofiled_ms: float | None) -> "Account":
    """Return the account of a run with the options of the command line."""
    from stepscope.analyze.account import account_of
    from stepscope.analyze.efficiency import GivenValues
    from stepscope.cost.chips import load_chips

    account = account_of(
        run,
        given=GivenValues(
            flops_per_step=args.flops_per_step,
            tokens_per_step=args.tokens_per_step,
            samples_per_step=args.samples_per_step,
            peak_tflops=args.peak_tflops,
        ),
        unprofiled_ms=unprofiled_ms,
        chips=load_chips(args.hardware) if args.hardware else (),
    )
    later_writes.begin()
    return account


def warn_incomplete(account: "Account") -> None:
    """Print on standard error what was not read or not analysed, for commands whose answer does not show it."""
    for line in (*incomplete(account.run), *account.late_warnings):
        warn(line)


def calibration_for(path: str | None, account: "Account") -> "Calibration | None":
    """Return the calibration in a file, or the one that lies beside the run's traces; None where there is none."""
    from stepscope.cost.calibration import load_calibration

    beside = Path(account.run.ranks[0].trace.path).parent / "calibration.json"
    return load_calibration(path or beside) if path or beside.is_file() else None
