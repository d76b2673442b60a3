"""`stepscope history`: a folder of runs as rows, groups, the newest against those before it, and slow hosts."""

import argparse
import sys
from pathlib import Path

from stepscope.cli.given.progress import work_progress
from stepscope.cli.output import check_outputs, write_json
from stepscope.compare.history import history_json, history_rows
from stepscope.contract.redaction import shown_address
from stepscope.report.terminal import console
from stepscope.report.text.history import print_history


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a run could not be read."""
    check_outputs(args.json, force=args.force)
    with work_progress("runs", unit="runs") as progress:
        rows = history_rows(
            Path(args.folder), traces=not args.no_traces, jobs=args.jobs, cache=not args.no_cache, progress=progress
        )
    document = history_json(shown_address(getattr(args, "named_folder", args.folder)), rows, by=args.by)
    write_json(args.json, document, force=args.force)
    if args.json != "-":
        print_history(document, console(sys.stdout))
    return 3 if any(row.problem for row in rows) else 0
