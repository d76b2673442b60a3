"""Runs over time: step, MFU, memory and findings by commit, configuration and host; hosts that are slow across jobs.

examples:
  stepscope history runs/
  stepscope history runs/ --by host
  stepscope history runs/ --by config --json history.json
  stepscope history s3://bucket/runs --no-traces

A run is a folder with run.json or traces, up to three levels below. Results are cached in `.stepscope/` there: only
new runs are analysed the next time (--no-cache). `stepscope compare RUN --against runs/` compares one run with them.
"""

import argparse
from pathlib import Path

from stepscope.cli.arguments import add_force, add_html, at_least_one
from stepscope.cli.outputs import show, work_progress
from stepscope.contract.redaction import shown_address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="folder of runs, or its address")
    parser.add_argument(
        "--by", choices=("commit", "config", "host", "device"), default="commit", help="groups (default: commit)"
    )
    parser.add_argument("--no-traces", action="store_true", help="by run.json and step logs alone: quick, no findings")
    parser.add_argument(
        "--json", metavar="PATH", help="write all runs, groups and hosts as JSON; - for standard output"
    )
    add_html(parser)
    parser.add_argument("--jobs", type=at_least_one, metavar="N", help="files read in parallel (default: all cores)")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a run could not be read."""
    from stepscope.compare.history import history_json, history_rows
    from stepscope.report.pages.history import history_sheet

    with work_progress("runs", unit="runs") as progress:
        rows = history_rows(
            Path(args.folder), traces=not args.no_traces, jobs=args.jobs, cache=not args.no_cache, progress=progress
        )
    document = history_json(shown_address(getattr(args, "named_folder", args.folder)), rows, by=args.by)
    show(args, document, lambda: history_sheet(document))
    return 3 if any(row.problem for row in rows) else 0
