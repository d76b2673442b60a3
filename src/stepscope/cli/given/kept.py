"""What was kept of the run that a command line names, and under which of its options it holds. Nothing heavy."""

import argparse
from typing import TYPE_CHECKING, Any

from stepscope.document.kept import KeptPlace
from stepscope.document.kept_report import ReportPlace, report_place
from stepscope.report.html.kept import KeptPage, keep_page, page_place

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.diagnose.findings import Diagnosis

_OPTIONS = ("flops_per_step", "tokens_per_step", "samples_per_step", "peak_tflops", "full_ranks")


def place_of_report(args: argparse.Namespace) -> ReportPlace | None:
    """Return where the report of the arguments' run is kept, None where it is not."""
    if args.no_cache or args.hardware:
        return None
    return report_place(args.run, options=_options(args, args.run), cache_folder=args.cache_folder)


def place_of_page(args: argparse.Namespace, given: list[str]) -> KeptPlace | None:
    """Return where the page of a run is kept that the arguments name, None where it is not."""
    if args.no_cache or args.hardware:
        return None
    options = _options(args, given)
    return page_place(given, options=options, calibration=args.calibration, cache_folder=args.cache_folder)


def made_page(
    args: argparse.Namespace,
    account: "Account",
    diagnosis: "Diagnosis",
    *,
    place: KeptPlace | None,
    key: dict[str, Any] | None,
) -> KeptPage:
    """Return the page of an account, kept where it has a place."""
    from stepscope.cli.given.run_arguments import calibration_for
    from stepscope.report.html.page import parts_of
    from stepscope.report.run_page import report_data

    run = account.run
    data = report_data(account, diagnosis, calibration=calibration_for(args.calibration, account))
    page = KeptPage(run.name, bool(run.unreadable), parts_of(data))
    keep_page(place, page, key=key, raw_bytes=raw_bytes_of(account))
    return page


def raw_bytes_of(account: "Account") -> int:
    """Return how much JSON the account was made of."""
    return sum(rank.trace.raw_bytes for rank in account.run.ranks_read)


def _options(args: argparse.Namespace, given: list[str]) -> dict[str, Any]:
    """Return the options that the account follows from; the step's own time is that of the run on the command line."""
    unprofiled = args.unprofiled_step_ms if given == args.run else None
    return {"unprofiled_step_ms": unprofiled, **{name: getattr(args, name) for name in _OPTIONS}}
