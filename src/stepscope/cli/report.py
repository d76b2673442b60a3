"""`stepscope report`: the account of a run as text, JSON or HTML; step times where there are no traces."""

import argparse
import sys
from pathlib import Path

from stepscope.cli.given.run_arguments import account_from, calibration_for
from stepscope.cli.output import check_outputs, write_json, write_output
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import report_json
from stepscope.errors import InputError
from stepscope.report.html import render_html
from stepscope.report.text.steps import print_steps
from stepscope.report.text.summary import print_summary
from stepscope.report.text.terminal import console
from stepscope.run.sources import has_steps_only, is_unreadable_report
from stepscope.run.step_log import readable_step_logs

_MAX_NAMED = 3


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    check_outputs(args.json, args.html, force=args.force)
    if has_steps_only(args.run):
        return _report_steps(args)
    account = account_from(args)
    diagnosis = diagnose(account)
    document = report_json(account, diagnosis) if args.json else None
    page = None
    if args.html:
        page = render_html(account, diagnosis, calibration=calibration_for(args.calibration, account))
    write_json(args.json, document, force=args.force)
    if page is not None:
        write_output(args.html, page, force=args.force)
    if "-" not in (args.json, args.html):
        print_summary(account, diagnosis, console(sys.stdout), given=_given(args))
    return 3 if account.run.unreadable else 0


def _report_steps(args: argparse.Namespace) -> int:
    """Print what the step logs of a run without traces say; its files would be empty, so they are refused."""
    folder = Path(args.run[0])
    if args.json or args.html:
        raise InputError(
            f"--json and --html need traces, and {folder} has only step logs; stepscope report {folder} shows "
            "them, stepscope record without --light and with --steps that the job reaches leaves traces"
        )
    logs, warnings = readable_step_logs(folder)
    unread = sorted(p.name for p in folder.iterdir() if is_unreadable_report(p))
    if unread:
        warnings = [*warnings, f"{', '.join(unread[:_MAX_NAMED])}: not read, because nsys is not on PATH"]
    if not logs:
        raise InputError(f"none of the step logs in {folder} could be read; {'; '.join(warnings)}")
    print_steps(folder, logs, console(sys.stdout), warnings=warnings)
    return 0


def _given(args: argparse.Namespace) -> list[str]:
    """Return the run as it was named, with the step's time where that was given."""
    unprofiled = args.unprofiled_step_ms
    return [*args.run, *(["--unprofiled-step-ms", f"{unprofiled:g}"] if unprofiled else [])]
