"""Where did the step go? The account of a run folder, a single trace, or any folder or glob of per-rank traces.

examples:
  stepscope report run-folder/
  stepscope report 'traces/*.json.gz' --json report.json
  stepscope report trace.json --json - | jq .ranks
  stepscope report run-folder/ --html report.html

Files over 32 MB leave a cache in `.stepscope/` beside them, so that a second report is quick (--no-cache).
"""

import argparse
import json
import sys

from stepscope.cli.given_run import account_from, add_run_arguments, calibration_for
from stepscope.cli.output import write_output
from stepscope.diagnose.findings import diagnose
from stepscope.report.html import render_html
from stepscope.report.json_report import report_json
from stepscope.report.terminal import console
from stepscope.report.text import print_summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; - for standard output")
    parser.add_argument("--html", metavar="PATH", help="write the report as one HTML file that needs no network")
    parser.add_argument("--calibration", metavar="FILE", help="calibration.json to draw in it (the run folder's own)")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    account = account_from(args)
    diagnosis = diagnose(account)
    if args.json:
        write_output(args.json, json.dumps(report_json(account, diagnosis), indent=1) + "\n", force=args.force)
    if args.html:
        page = render_html(account, diagnosis, calibration=calibration_for(args.calibration, account))
        write_output(args.html, page, force=args.force)
    if "-" not in (args.json, args.html):
        print_summary(account, diagnosis, console(sys.stdout))
    return 3 if account.run.unreadable else 0
