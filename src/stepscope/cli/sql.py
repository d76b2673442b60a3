"""`stepscope sql`: one query over the tables of a run, its rows as text, CSV or JSON.

The tables that it names are kept where the run is large: the next query over them needs no trace.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from stepscope.cli.given.kept import place_of_tables, raw_bytes_of
from stepscope.cli.messages import warn
from stepscope.cli.output import check_outputs, write_json, write_output
from stepscope.document.cache import KeptPlace
from stepscope.errors import UsageError
from stepscope.tables.cache import found_tables, keep_tables
from stepscope.tables.sql import Answer, named_tables, require_duckdb, run_query, run_query_of_files


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    if args.csv and args.json:
        raise UsageError("--csv and --json cannot be used together; use one")
    check_outputs(args.csv, args.json, force=args.force)
    place = place_of_tables(args)
    kept = found_tables(place, named_tables(args.query)) if place else None
    answer = run_query_of_files(kept.files, args.query) if kept else None
    if kept and answer:
        return _show(answer, args, warnings=kept.warnings, is_partial=kept.is_partial)
    return _read(args, place)


def _read(args: argparse.Namespace, place: KeptPlace | None) -> int:
    require_duckdb()
    from stepscope.cli.given.run_arguments import account_with, run_from
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


def _show(answer: Answer, args: argparse.Namespace, *, warnings: Sequence[str], is_partial: bool) -> int:
    if args.csv:
        from stepscope.tables.table import answer_csv

        write_output(args.csv, answer_csv(answer.columns, answer.rows), force=args.force)
    elif args.json:
        from stepscope.report.text.tables import answer_json

        write_json(args.json, answer_json(answer), force=args.force)
    else:
        from stepscope.report.terminal import console
        from stepscope.report.text.tables import print_answer

        print_answer(answer, console(sys.stdout))
    for line in warnings:
        warn(line)
    return 3 if is_partial else 0
