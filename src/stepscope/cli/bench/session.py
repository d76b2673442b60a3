"""One benchmark from plan to results: ranks started, progress shown, results written as they grow, the rest shown.

Whatever ends it (a dead rank, a full disk, the time limit, Ctrl-C), the runs that were complete are in results.json.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from stepscope.bench.session.launch import LaunchResult, launch, records_of
from stepscope.bench.session.rank_records import environment, rows
from stepscope.bench.session.results import results, write_results
from stepscope.cli.bench.arguments import PLOT
from stepscope.cli.given.progress import work_progress
from stepscope.cli.messages import say_with_answer
from stepscope.cli.output import write_json, write_output
from stepscope.contract.redaction import redacted
from stepscope.errors import InputError
from stepscope.report.svg import bench_svg
from stepscope.report.terminal import console
from stepscope.report.text.bench import print_bench
from stepscope.results.folder import bench_results_of
from stepscope.run.sources import RESULTS_JSON

Document = dict[str, Any]


def start_ranks(
    args: argparse.Namespace,
    plan: dict[str, Any],
    *,
    folder: Path,
    world_size: int,
    total: int,
    document: Callable[[Sequence[list[dict[str, Any]]], str | None], Document] | None = None,
    on_line: Callable[[str], None] | None = None,
    session: int = 0,
) -> LaunchResult:
    """Return how the ranks ended, with progress shown; `document(records, message)` is written after each run.

    `total` is how many runs there will be, for the progress bar; `session` counts the launches of one command.
    """
    done = 0

    def on_record(record: dict[str, Any]) -> None:
        nonlocal done
        if record["what"] not in ("samples", "trace", "round"):
            return
        done += 1
        if progress:
            progress(done, total)
        if document and record["what"] == "samples":
            write_results(document([records_of(folder, r) for r in range(world_size)], "still measuring"), folder)

    with work_progress("measuring", unit="runs") as progress:
        return launch(
            {**plan, "threads": args.threads, "share_devices": args.share_devices},
            world_size=world_size,
            backend=args.backend,
            out=folder,
            limit_s=args.limit_s,
            on_record=on_record,
            on_line=on_line,
            launched=args.launched,
            session=session,
        )


def elsewhere(args: argparse.Namespace, result: LaunchResult) -> int | None:
    """Return the exit code of a rank that does not write the results; None on the one that does."""
    if args.launched is None or args.launched.writes:
        return None
    if result.message:
        say_with_answer(f"stepscope bench: rank {args.launched.rank}: {result.message}")
    return 130 if result.interrupted else 3 if result.message else 0


def document_of(
    args: argparse.Namespace, plan: dict[str, Any], *, series: Sequence[dict[str, Any]] | None = None
) -> Callable[[Sequence[list[dict[str, Any]]], str | None], Document]:
    """Return the function that makes the results of a comparison from the records of its ranks."""
    settings = plan["settings"]
    shared = {**settings["workload"], "grad_accum": settings.get("grad_accum", 1)}
    shared |= {name: settings[name] for name in ("warmup_steps", "steps", "runs")}

    def document(records: Sequence[list[dict[str, Any]]], message: str | None) -> Document:
        found = rows(records, entries=settings["series"] if series is None else series, config=shared)
        return results(
            found, command=command_line(), environment=environment(records, backend=args.backend), message=message
        )

    return document


def command_line() -> str:
    """Return what the user typed, without secrets."""
    return shlex.join(redacted(["stepscope", *sys.argv[1:]]))


def write_page(args: argparse.Namespace, document: Document, folder: Path) -> None:
    """Write the results as a page where that was asked for."""
    if getattr(args, "html", None):
        from stepscope.report.html.sheets import bench_sheet, sheet_page

        found = bench_results_of(document, name=folder.resolve().name, path=folder / RESULTS_JSON)
        write_output(args.html, sheet_page(bench_sheet(found)), force=args.force)


def finish_bench(
    args: argparse.Namespace,
    document: Document,
    *,
    folder: Path,
    interrupted: bool = False,
    show: Callable[[Document, Console], None] = print_bench,
    picture: Callable[[Document], str] = bench_svg,
) -> int:
    """Return the exit code after writing and showing the results: 0, 3 where they are partial, 130 after Ctrl-C."""
    if not document["series"]:
        raise InputError(f"nothing was measured: {document['message'] or 'no run was complete'}")
    write_results(document, folder)
    write_output(args.plot or str(folder / PLOT), picture(document), force=args.force or not args.plot)
    write_json(args.json, document, force=args.force)
    write_page(args, document, folder)
    if "-" not in (args.json, getattr(args, "html", None)):
        out = console(sys.stdout)
        show(document, out)
        out.print(f"results in {folder}; compare with another folder: stepscope compare {folder} OTHER", markup=False)
    if document["message"]:
        say_with_answer(f"stepscope bench: partial result: {document['message']}")
    return 130 if interrupted else 3 if document["message"] else 0
