"""`stepscope report`: the account of a run as text, JSON or HTML; step times where there are no traces; benchmarks.

What is heavy is imported where it is needed: a report that was kept needs no analysis, JSON no terminal library, text
no page.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stepscope.cli.given.kept import place_of_report, raw_bytes_of
from stepscope.cli.output import check_outputs, print_kept, write_json, write_output
from stepscope.contract.run_folder import SCHEMA
from stepscope.document.cache import KeptReport, ReportPlace
from stepscope.errors import UsageError
from stepscope.json_text import json_with_notes
from stepscope.run.sources import RESULTS_JSON, folder_of_runs, has_steps_only

if TYPE_CHECKING:
    from stepscope.report.html.cache import KeptPage

_PAGE = "report.html"
_TERMINAL = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank could not be read."""
    check_outputs(args.json, args.html, force=args.force)
    if has_steps_only(args.run):
        return _report_steps(args)
    if len(args.run) == 1 and _is_bench(args.run[0]):
        return _report_bench(args)
    if len(args.run) == 1 and (runs := folder_of_runs(args.run[0])):
        return _report_runs(args, runs)
    place = place_of_report(args)
    kept = place.found() if place else None
    page = _page_kept(args) if args.html else None
    if kept and _has_what_is_asked(kept, page, args):
        return _show_kept(kept, page, args)
    return _analyse(args, place)


def _analyse(args: argparse.Namespace, place: ReportPlace | None) -> int:
    from stepscope.cli.given.run_arguments import account_from
    from stepscope.diagnose.findings import diagnose
    from stepscope.document.report import report_json

    key = place.key() if place else None
    make_page = None
    if args.html:
        from stepscope.cli.given.kept_page import page_maker

        make_page = page_maker(args, args.run)
    account = account_from(args)
    diagnosis = diagnose(account)
    document = report_json(account, diagnosis) if args.json else None
    page = make_page(account, diagnosis) if make_page else None
    write_json(args.json, document, force=args.force)
    if page is not None:
        write_output(args.html, page.html, force=args.force)
    text = None
    if _wants_text(args):
        from stepscope.report.terminal import console
        from stepscope.report.text.summary import print_summary

        out = _CopyingStream(sys.stdout)
        print_summary(account, diagnosis, console(out), given=_given(args), has_page=_has_page(args))  # type: ignore[arg-type]
        text = out.copy()
    code = 3 if account.run.unreadable else 0
    if place and not account.failures and not (document and json_with_notes(document)[1]):
        texts = {} if text is None else {_terminal(args): text}
        place.keep(KeptReport(code, document, texts), key=key, raw_bytes=raw_bytes_of(account.run))
    return code


# A report that was kept ---------------------------------------------------------------------------------------------


def _wants_text(args: argparse.Namespace) -> bool:
    return "-" not in (args.json, args.html)


def _page_kept(args: argparse.Namespace) -> "KeptPage | None":
    from stepscope.cli.given.kept_page import kept_page

    return kept_page(args, args.run)


def _has_what_is_asked(kept: KeptReport, page: "KeptPage | None", args: argparse.Namespace) -> bool:
    has_text, has_document = _terminal(args) in kept.texts, kept.document is not None
    return (
        (has_document or not args.json) and (page is not None or not args.html) and (has_text or not _wants_text(args))
    )


def _show_kept(kept: KeptReport, page: "KeptPage | None", args: argparse.Namespace) -> int:
    write_json(args.json, kept.document, force=args.force)
    if page is not None:
        write_output(args.html, page.html, force=args.force)
    if _wants_text(args):
        print_kept(kept.texts[_terminal(args)])
    return kept.exit_code


def _terminal(args: argparse.Namespace) -> str:
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
        self._written: list[str] = []

    def write(self, text: str) -> int:
        self._written.append(text)
        return self._out.write(text)

    def copy(self) -> str:
        return "".join(self._written)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


# Text ---------------------------------------------------------------------------------------------------------------


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
        from stepscope.report.terminal import console
        from stepscope.report.text.steps import print_steps

        print_steps(run, console(sys.stdout))
    return 0


def _is_bench(path: str) -> bool:
    if not (Path(path) / RESULTS_JSON).is_file():
        return False
    from stepscope.results.folder import is_bench_folder

    return is_bench_folder(path)


def _report_bench(args: argparse.Namespace) -> int:
    from stepscope.results.folder import read_bench_results

    results = read_bench_results(args.run[0])
    if args.json:
        raise UsageError(f"the JSON of a benchmark is {Path(args.run[0]) / RESULTS_JSON}; leave --json out")
    if args.html:
        from stepscope.report.html.sheets import bench_sheet, sheet_page

        write_output(args.html, sheet_page(bench_sheet(results)), force=args.force)
    if _wants_text(args):
        from stepscope.report.terminal import console
        from stepscope.report.text.bench import print_bench_results

        print_bench_results(results, console(sys.stdout))
    return 0


def _report_runs(args: argparse.Namespace, runs: list[Path]) -> int:
    from stepscope.cli.given.folder_of_runs import run_entries
    from stepscope.report.runs import print_runs, run_rows

    entries = run_entries(args, runs)
    name = Path(args.run[0]).absolute().name
    write_json(args.json, {"schema": SCHEMA, "kind": "runs", "runs": run_rows(entries)}, force=args.force)
    if args.html:
        from stepscope.report.html.sheets import runs_sheet, sheet_page

        write_output(args.html, sheet_page(runs_sheet(name, entries)), force=args.force)
    if _wants_text(args):
        from stepscope.report.terminal import console

        print_runs(name, entries, console(sys.stdout))
    return 3 if any(run.report is None for run in entries) else 0


def _given(args: argparse.Namespace) -> list[str]:
    unprofiled = args.unprofiled_step_ms
    return [*getattr(args, "named_run", args.run), *(["--unprofiled-step-ms", f"{unprofiled:g}"] if unprofiled else [])]
