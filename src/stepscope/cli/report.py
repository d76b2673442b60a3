"""Where did the step go? The account of a run folder, a single trace, or any folder or glob of per-rank traces.

examples:
  stepscope report run-folder/
  stepscope report 'traces/*.json.gz' --json report.json
  stepscope report trace.json --json - | jq .ranks
  stepscope report run-folder/ --html report.html

A run without traces (`record --light`, or a job shorter than its window) shows step and region times by rank. A folder
of runs shows one row per run, and the results folder of `stepscope bench` its series.
Files over 32 MB leave a cache in `.stepscope/` beside them, so that a second report is quick (--no-cache).
"""

import argparse
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stepscope.cli.arguments import add_force, add_options, add_run_arguments
from stepscope.cli.output import check_outputs, print_cached, terminal, write_json, write_output
from stepscope.cli.run_arguments import (
    account_from,
    cache_key,
    cached_page,
    kind_of_input,
    page_maker,
    raw_bytes_of,
    run_entries,
)
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import UsageError
from stepscope.json_text import json_with_notes

if TYPE_CHECKING:
    from stepscope.document.cache import ReportPlace

_PAGE = "report.html"
_TERMINAL = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    options = {
        "--json": ("PATH", "write the report as JSON; - for standard output"),
        "--html": ("PATH", "write the report as one HTML file that needs no network"),
        "--calibration": ("FILE", "calibration.json to draw in it (the run folder's own)"),
    }
    add_options(parser, options)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank could not be read."""
    check_outputs(args.json, args.html, force=args.force)
    kinds = {"run": _report_run, "runs": _report_runs, "steps": _report_steps, "bench": _report_bench}
    return kinds[kind_of_input(args.run)](args)


def _report_run(args: argparse.Namespace) -> int:
    from stepscope.document.cache import report_place

    key = cache_key(args, args.run)
    place = report_place(args.run, **key) if key else None
    cached = place.found() if place else None
    page = cached_page(args, args.run) if args.html else None
    if (
        cached is None
        or (args.json and cached.document is None)
        or (args.html and page is None)
        or (_wants_text(args) and _terminal(args) not in cached.texts)
    ):
        return _analyse(args, place)
    write_json(args.json, cached.document, force=args.force)
    if page is not None:
        write_output(args.html, page.html, force=args.force)
    if _wants_text(args):
        print_cached(cached.texts[_terminal(args)])
    return cached.exit_code


def _analyse(args: argparse.Namespace, place: "ReportPlace | None") -> int:
    from stepscope.diagnose.findings import diagnose
    from stepscope.document.cache import KeptReport
    from stepscope.document.report import report_json

    key = place.key() if place else None
    make_page = page_maker(args, args.run) if args.html else None
    account = account_from(args)
    diagnosis = diagnose(account)
    document = report_json(account, diagnosis, details=True) if args.json or args.html else None
    page = make_page(account, document) if make_page and document else None
    write_json(args.json, document, force=args.force)
    if page is not None:
        write_output(args.html, page.html, force=args.force)
    texts = {}
    if _wants_text(args):
        from stepscope.report.terminal import console
        from stepscope.report.text.summary import print_summary

        out = _CopyingStream(sys.stdout)
        unprofiled = args.unprofiled_step_ms
        given = [*getattr(args, "named_run", args.run)]
        given += ["--unprofiled-step-ms", f"{unprofiled:g}"] if unprofiled else []
        print_summary(account, diagnosis, console(out), given=given, has_page=_has_page(args))  # type: ignore[arg-type]
        texts[_terminal(args)] = "".join(out.written)
    code = 3 if account.run.unreadable else 0
    if place and not account.failures and not (document and json_with_notes(document)[1]):
        place.keep(KeptReport(code, document, texts), key=key, raw_bytes=raw_bytes_of(account.run))
    return code


def _wants_text(args: argparse.Namespace) -> bool:
    return "-" not in (args.json, args.html)


def _terminal(args: argparse.Namespace) -> str:
    """Return all that the text of a report depends on, besides the run."""
    encoding = f"{getattr(sys.stdout, 'encoding', None)}{' page' * _has_page(args)}"
    if not sys.stdout.isatty():
        return f"pipe {encoding}"
    known = " ".join(f"{name}={os.environ.get(name)}" for name in _TERMINAL)
    return f"terminal {os.get_terminal_size().columns} {encoding} {known}"


def _has_page(args: argparse.Namespace) -> bool:
    return os.path.lexists(_PAGE) or bool(args.html and Path(args.html).resolve() == Path(_PAGE).resolve())


class _CopyingStream:
    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.written.append(text)
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def _report_steps(args: argparse.Namespace) -> int:
    from stepscope.document.light import light_json
    from stepscope.run.light import load_light

    run = load_light(args.run[0])
    document = light_json(run) if args.json or args.html else None
    write_json(args.json, document, force=args.force)
    if args.html and document:
        from stepscope.analyze.steadiness import log_series
        from stepscope.report.html.sheets import sheet_page, steps_sheet

        write_output(args.html, sheet_page(steps_sheet(document, log_series(run.logs))), force=args.force)
    if _wants_text(args):
        from stepscope.report.text.steps import print_steps

        print_steps(run, terminal())
    return 0


def _report_bench(args: argparse.Namespace) -> int:
    from stepscope.results.folder import read_bench_results
    from stepscope.run.sources import RESULTS_JSON

    results = read_bench_results(args.run[0])
    if args.json:
        raise UsageError(f"the JSON of a benchmark is {Path(args.run[0]) / RESULTS_JSON}; leave --json out")
    if args.html:
        from stepscope.report.html.sheets import bench_sheet, sheet_page

        write_output(args.html, sheet_page(bench_sheet(results)), force=args.force)
    if _wants_text(args):
        from stepscope.report.text.bench import print_bench_results

        print_bench_results(results, terminal())
    return 0


def _report_runs(args: argparse.Namespace) -> int:
    from stepscope.report.runs import print_runs, run_rows

    entries = run_entries(args, args.run[0])
    name = Path(args.run[0]).absolute().name
    write_json(args.json, {"schema": SCHEMA, "kind": "runs", "runs": run_rows(entries)}, force=args.force)
    if args.html:
        from stepscope.report.html.sheets import runs_sheet, sheet_page

        write_output(args.html, sheet_page(runs_sheet(name, entries)), force=args.force)
    if _wants_text(args):
        print_runs(name, entries, terminal())
    return 3 if any(run.report is None for run in entries) else 0
