"""The page of the run that a command line names: as it was kept, or made and kept."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepscope.cli.given.kept import account_options, may_be_kept, raw_bytes_of
from stepscope.document.cache import KeptPlace
from stepscope.report.html.cache import KeptPage, found_page, keep_page, page_place

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.diagnose.findings import Diagnosis


def kept_page(args: argparse.Namespace, given: list[str]) -> KeptPage | None:
    """Return the page that was kept of a run the arguments name, None where there is none."""
    return found_page(_place(args, given))


def page_maker(args: argparse.Namespace, given: list[str]) -> "Callable[[Account, Diagnosis], KeptPage]":
    """Return what makes the page of a run, and keeps it where the run lay still from now on until then."""
    place = _place(args, given)
    key = place.key() if place else None

    def made(account: "Account", diagnosis: "Diagnosis") -> KeptPage:
        from stepscope.cli.given.run_arguments import calibration_for
        from stepscope.report.html.page import parts_of, report_data

        run = account.run
        data = report_data(account, diagnosis, calibration=calibration_for(args.calibration, account))
        page = KeptPage(run.name, bool(run.unreadable), parts_of(data))
        keep_page(place, page, key=key, raw_bytes=raw_bytes_of(account.run))
        return page

    return made


def _place(args: argparse.Namespace, given: list[str]) -> KeptPlace | None:
    if not may_be_kept(args):
        return None
    options = account_options(args, given)
    return page_place(given, options=options, calibration=args.calibration, cache_folder=args.cache_folder)
