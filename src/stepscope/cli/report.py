"""Where did the step go? The account of a run folder, a single trace, or any folder or glob of per-rank traces.

examples:
  stepscope report run-folder/
  stepscope report 'traces/*.json.gz' --json report.json
  stepscope report trace.json --json - | jq .ranks

Files over 32 MB leave a cache in `.stepscope/` beside them, so that a second report is quick (--no-cache).
"""

import argparse
import json
import sys
from pathlib import Path

from stepscope.analyze.account import account_of
from stepscope.cli.output import write_output
from stepscope.cli.progress import reading_progress
from stepscope.report.json_report import report_json
from stepscope.report.terminal import console
from stepscope.report.text import print_summary
from stepscope.run.load import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", nargs="+", help="run folder, trace, folder of traces, or glob")
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
    parser.add_argument("--jobs", type=_positive, metavar="N", help="files read at once (default: all cores)")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    parser.add_argument("--cache-folder", type=Path, metavar="DIR", help="keep the cache there, not beside the traces")


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    with reading_progress() as progress:
        recorded = load(
            args.run,
            jobs=args.jobs,
            cache=not args.no_cache,
            cache_folder=args.cache_folder,
            progress=progress,
        )
    account = account_of(recorded)
    if args.json:
        write_output(args.json, json.dumps(report_json(account), indent=1) + "\n", force=args.force)
    if args.json != "-":
        print_summary(account, console(sys.stdout))
    return 3 if recorded.unreadable else 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text}")
    return number
