"""What to fix, what it saves and where the step goes, on one screen; -v shows everything.

RUN is a run folder, a trace, or any folder or glob of per-rank traces. Use `report` to find what to fix, `health` for
pass or fail in CI, and `investigate` for a written record of the analysis and of a fix.

examples:
  stepscope report run-folder/
  stepscope report 'traces/*.json.gz' --json report.json
  stepscope report trace.json --json - | jq .ranks
  stepscope report run-folder/ --html report.html

"likely" is the range of a saving: the measured saving was in this range for 28 of 30 fixed faults.
Late ranks are marked if the other ranks wait for them. Exit code 3: a rank could not be read.

A run without traces (`record --light`, or a job that ended before recording began) shows step and region times by
rank; imported files alone (NCCL logs, Nsight Compute, flight recorder) show what they hold. For a folder of runs,
prints one row per run; for a `stepscope bench` folder, its results. Results of runs over 32 MB are cached in
`.stepscope/` next to the traces (disable with --no-cache).
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.cli.arguments import add_force, add_options, add_run_arguments
from stepscope.cli.outputs import print_rendered, show, write_json, write_output
from stepscope.cli.run import cached_page, kind_of_input, opener_of, page_maker, report_of, run_entries
from stepscope.contract.run_folder import SCHEMA


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    options = {
        "--json": ("PATH", "write the report as JSON; - for standard output"),
        "--html": ("PATH", "write a self-contained HTML file"),
        "--calibration": ("FILE", "calibration.json for the page (default: the run folder's)"),
    }
    add_options(parser, options)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank could not be read."""
    kinds = {"run": _report_run, "runs": _report_runs, "steps": _report_steps, "files": _report_files}
    kind = kind_of_input(args.run)
    return int(opener_of(args.run[0]).report(args)) if kind == "results" else kinds[kind](args)


def _report_run(args: argparse.Namespace) -> int:
    page = cached_page(args, args.run) if args.html else None
    report, made = report_of(args, make_page=page_maker(args, args.run) if args.html and page is None else None)
    write_json(args.json, report["document"], force=args.force)
    if found := page or made:
        write_output(args.html, found.html, force=args.force)
    _print_summary(args, report["document"])
    return int(report["exit_code"])


def _print_summary(args: argparse.Namespace, document: dict[str, Any]) -> None:
    if not _wants_text(args):
        return
    from stepscope.report.summary import summary_text

    given = [*getattr(args, "named_run", args.run)]
    given += ["--unprofiled-step-ms", f"{args.unprofiled_step_ms:g}"] if args.unprofiled_step_ms else []
    print_rendered(partial(summary_text, document, command=given, verbose=args.verbose))


def _wants_text(args: argparse.Namespace) -> bool:
    return "-" not in (args.json, args.html)


def _report_steps(args: argparse.Namespace) -> int:
    from stepscope.document.light import light_json
    from stepscope.run.light import load_light

    run = load_light(args.run[0])
    document = light_json(run)
    write_json(args.json, document, force=args.force)
    if args.html:
        from stepscope.analyze.steadiness import log_series
        from stepscope.report.html.sheets import sheet_page
        from stepscope.report.pages.light import steps_sheet

        write_output(args.html, sheet_page(steps_sheet(document, log_series(run.logs))), force=args.force)
    _print_summary(args, document)
    return 0


def _report_files(args: argparse.Namespace) -> int:
    from stepscope.document.other_tools import files_json
    from stepscope.report.pages.light import files_sheet

    document = files_json(Path(args.run[0]))
    show(args, document, lambda: files_sheet(document))
    return 0


def _report_runs(args: argparse.Namespace) -> int:
    from stepscope.report.pages.history import run_rows, runs_sheet

    entries = run_entries(args, args.run[0])
    name = Path(args.run[0]).absolute().name
    show(args, {"schema": SCHEMA, "kind": "runs", "runs": run_rows(entries)}, lambda: runs_sheet(name, entries))
    return 3 if any(run.report is None for run in entries) else 0
