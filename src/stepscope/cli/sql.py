"""SQL over the tables of a run: events, collectives, steps, budget, findings and more.

examples:
  stepscope sql --tables
  stepscope sql run-folder/ "SELECT kind, count(*), sum(dur_ns) / 1e6 AS ms FROM device_work GROUP BY 1"
  stepscope sql run-folder/ "SELECT rank, avg(wait_ns) / 1e6 AS ms FROM collectives GROUP BY 1" --csv -

The query reaches nothing but these tables: no file and no network. It needs the extra `sql` (DuckDB, PyArrow).
"""

import argparse
import sys
from functools import partial
from typing import Any

from stepscope.cli.given_run import account_with, add_run_options, run_from, warn_incomplete
from stepscope.cli.output import check_outputs, write_json, write_output
from stepscope.errors import UsageError
from stepscope.report.text.tables import answer_json, print_answer, print_tables
from stepscope.report.text.terminal import console
from stepscope.tables.catalog import RunTables
from stepscope.tables.csv import answer_csv
from stepscope.tables.sql import queried, require_duckdb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder, trace, folder of traces, or glob")
    parser.add_argument("query", metavar="QUERY", help='one query: "SELECT ..."')
    parser.add_argument("--tables", action=_ListTables, nargs=0, help="list the tables and their columns")
    parser.add_argument("--csv", metavar="PATH", help="write the rows as CSV; - for standard output")
    parser.add_argument("--json", metavar="PATH", help="write the rows as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
    add_run_options(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    if args.csv and args.json:
        raise UsageError("expected --csv or --json, found both: the rows are written once")
    check_outputs(args.csv, args.json, force=args.force)
    require_duckdb()
    recorded = run_from(args)
    tables = RunTables(recorded, account=partial(account_with, args, unprofiled_ms=args.unprofiled_step_ms))
    answer = queried(tables, args.query)
    if args.csv:
        write_output(args.csv, answer_csv(answer.columns, answer.rows), force=args.force)
    elif args.json:
        write_json(args.json, answer_json(answer), force=args.force)
    else:
        print_answer(answer, console(sys.stdout))
    warn_incomplete(recorded)
    return 3 if recorded.unreadable else 0


class _ListTables(argparse.Action):
    """Lists the tables and ends, as --help does: no run is needed for it."""

    def __call__(self, *_: Any) -> None:
        print_tables(console(sys.stdout))
        raise SystemExit(0)
