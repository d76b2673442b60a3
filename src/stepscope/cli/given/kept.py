"""What was kept of the run that a command line names, and under which of its options it holds. Nothing heavy."""

import argparse
from typing import TYPE_CHECKING, Any

from stepscope.document.kept_report import ReportPlace, report_place

if TYPE_CHECKING:
    from stepscope.analyze.account import Account

_OPTIONS = ("flops_per_step", "tokens_per_step", "samples_per_step", "peak_tflops", "full_ranks")


def place_of_report(args: argparse.Namespace) -> ReportPlace | None:
    """Return where the report of the arguments' run is kept, None where it is not."""
    if args.no_cache or args.hardware:
        return None
    return report_place(args.run, options=account_options(args, args.run), cache_folder=args.cache_folder)


def account_options(args: argparse.Namespace, given: list[str]) -> dict[str, Any]:
    """Return the options that an account follows from; the step's own time is that of the run on the command line."""
    unprofiled = args.unprofiled_step_ms if given == args.run else None
    return {"unprofiled_step_ms": unprofiled, **{name: getattr(args, name) for name in _OPTIONS}}


def raw_bytes_of(account: "Account") -> int:
    """Return how much JSON an account was made of."""
    return sum(rank.trace.raw_bytes for rank in account.run.ranks_read)
