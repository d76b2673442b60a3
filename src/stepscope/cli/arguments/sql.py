"""SQL over the tables of a run: events, collectives, steps, budget, findings and more.

examples:
  stepscope sql --tables
  stepscope sql run-folder/ "SELECT kind, count(*), sum(dur_ns) / 1e6 AS ms FROM device_work GROUP BY 1"
  stepscope sql run-folder/ "SELECT rank, avg(wait_ns) / 1e6 AS ms FROM collectives GROUP BY 1" --csv -

The query reaches nothing but these tables: no file and no network. It needs the extra `sql` (DuckDB, PyArrow).
"""

import argparse
import sys
from typing import Any

from stepscope.cli.arguments.given_run import add_run_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder, trace, folder of traces, or glob")
    parser.add_argument("query", metavar="QUERY", help='one query: "SELECT ..."')
    parser.add_argument("--tables", action=_ListTables, nargs=0, help="list the tables and their columns")
    parser.add_argument("--csv", metavar="PATH", help="write the rows as CSV; - for standard output")
    parser.add_argument("--json", metavar="PATH", help="write the rows as JSON; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
    add_run_options(parser)


class _ListTables(argparse.Action):
    def __call__(self, *_: Any) -> None:
        from stepscope.report.terminal import console
        from stepscope.report.text.tables import print_tables

        print_tables(console(sys.stdout))
        raise SystemExit(0)
