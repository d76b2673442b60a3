"""`stepscope sql`: one query over the tables of a run, its rows as text, CSV or JSON."""

import argparse
import sys
from functools import partial

from stepscope.cli.given.run_arguments import account_with, run_from, warn_incomplete
from stepscope.cli.output import check_outputs, write_json, write_output
from stepscope.errors import UsageError
from stepscope.report.text.tables import answer_json, print_answer
from stepscope.report.text.terminal import console
from stepscope.tables.catalog import RunTables
from stepscope.tables.csv import answer_csv
from stepscope.tables.sql import require_duckdb, run_query


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    if args.csv and args.json:
        raise UsageError("--csv and --json cannot be used together; use one")
    check_outputs(args.csv, args.json, force=args.force)
    require_duckdb()
    recorded = run_from(args)
    tables = RunTables(recorded, account=partial(account_with, args, unprofiled_ms=args.unprofiled_step_ms))
    answer = run_query(tables, args.query)
    if args.csv:
        write_output(args.csv, answer_csv(answer.columns, answer.rows), force=args.force)
    elif args.json:
        write_json(args.json, answer_json(answer), force=args.force)
    else:
        print_answer(answer, console(sys.stdout))
    warn_incomplete(recorded)
    return 3 if recorded.unreadable else 0
