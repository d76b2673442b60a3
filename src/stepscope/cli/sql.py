"""SQL over the tables of a run: events, collectives, steps, budget, findings and more.

examples:
  stepscope sql --tables
  stepscope sql run-folder/ "SELECT kind, count(*), sum(dur_ns) / 1e6 AS ms FROM device_work GROUP BY 1"
  stepscope sql run-folder/ "SELECT rank, avg(wait_ns) / 1e6 AS ms FROM collectives GROUP BY 1" --csv -

The query reaches nothing but these tables: no file and no network. It needs the extra `sql` (DuckDB, PyArrow).
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from stepscope.cli.arguments import add_html, add_json, add_run_options, at_least_one
from stepscope.cli.outputs import check_outputs, print_rendered, show, warn, write_json, write_output
from stepscope.cli.run import account_with, cache_key, raw_bytes_of, run_from
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.tables.sql import Answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder, trace, folder of traces, or glob")
    parser.add_argument("query", metavar="QUERY", help='one query: "SELECT ..."')
    parser.add_argument("--tables", action=_ListTables, nargs=0, help="list the tables and their columns")
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="the first N rows only")
    parser.add_argument("--csv", metavar="PATH", help="write the rows as CSV; - for standard output")
    add_json(parser, "the rows as JSON")
    add_html(parser)
    add_run_options(parser)


class _ListTables(argparse.Action):
    def __call__(self, *_: Any) -> None:
        from stepscope.report.pages.sql import tables_sheet
        from stepscope.report.sheet_text import sheet_text

        print_rendered(partial(sheet_text, tables_sheet()))
        raise SystemExit(0)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank could not be read."""
    from stepscope.document.cache import kept_place
    from stepscope.tables.cache import found_tables, keep_tables
    from stepscope.tables.sql import named_tables, require_duckdb, run_query, run_query_of_files

    if args.csv and args.json:
        raise UsageError("--csv and --json cannot be used together; use one")
    check_outputs(args.csv, args.json, args.html, force=args.force)
    cache = cache_key(args, args.run)
    place = kept_place([args.run], ending="tables", **cache) if cache else None
    cached = found_tables(place, named_tables(args.query)) if place else None
    answer = run_query_of_files(cached.files, args.query) if cached else None
    if cached and answer:
        return _show(answer, args, warnings=cached.warnings, is_partial=cached.is_partial)
    require_duckdb()
    from stepscope.run.load import incomplete
    from stepscope.tables.catalog import RunTables

    key = place.key() if place else None
    recorded = run_from(args)
    tables = RunTables(recorded, account=partial(account_with, args, unprofiled_ms=args.unprofiled_step_ms))
    answer, warnings, is_partial = run_query(tables, args.query), incomplete(recorded), bool(recorded.unreadable)
    code = _show(answer, args, warnings=warnings, is_partial=is_partial)
    if place:
        made = {name: tables.table(name) for name in named_tables(args.query)}
        raw_bytes = raw_bytes_of(recorded)
        keep_tables(place, made, is_partial=is_partial, warnings=warnings, key=key, raw_bytes=raw_bytes)
    return code


def _show(answer: "Answer", args: argparse.Namespace, *, warnings: Sequence[str], is_partial: bool) -> int:
    if args.limit:
        answer = replace(answer, rows=islice(answer.rows, args.limit))
    if args.csv:
        from stepscope.tables.table import answer_csv

        write_output(args.csv, answer_csv(answer.columns, answer.rows), force=args.force)
    else:
        from stepscope.report.pages.sql import answer_json, answer_sheet

        if args.json:
            write_json(args.json, answer_json(answer), force=args.force)
        else:
            show(args, None, lambda: answer_sheet(answer, args.query, most=args.limit))
    warn(*warnings)
    return 3 if is_partial else 0
