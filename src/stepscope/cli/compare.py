"""What differs between two runs, or two sets of runs, and is the difference significant? Gates for CI.

examples:
  stepscope compare before/ after/
  stepscope compare before/ after/ --fail-on 'step_ms>5%' --html compare.html
  stepscope compare --a run1 run2 run3 --b run4 run5 run6
  stepscope compare bench-results-1/ bench-results-2/
  stepscope compare run/ --against runs/ --fail-on 'step_ms>5%'

A and B are what `stepscope report` takes, a folder of run folders, or the results folder of `stepscope bench`.
Several runs per side are better than one long one: runs differ from each other more than steps do.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.arguments import above_zero, add_cache_options, add_force, add_options, at_least_one
from stepscope.cli.outputs import (
    reading_progress,
    say_with_answer,
    show,
    warn,
)
from stepscope.cli.run import as_given, opener_of, raw_bytes_of
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.diagnose.findings import Diagnosis
    from stepscope.records import Row
    from stepscope.report.drawing import Drawing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("sides", metavar="A B", nargs="*", help="two runs, two folders of runs, or two bench results")
    parser.add_argument("--a", metavar="RUN", nargs="+", default=[], help="runs of the first side")
    parser.add_argument("--b", metavar="RUN", nargs="+", default=[], help="runs of the second side")
    options = {
        "--against": ("FOLDER", "folder of runs: use the last ten runs of the same configuration as A"),
        "--json": ("PATH", "write the comparison as JSON; - for standard output"),
        "--html": ("PATH", "write a self-contained HTML file"),
    }
    add_options(parser, options)
    parser.add_argument(
        "--fail-on", metavar="EXPR", action="append", default=[], help="condition that fails: 'step_ms>5%%'"
    )
    for side in "ab":
        text = f"step time without the profiler in {side.upper()}"
        parser.add_argument(f"--unprofiled-step-ms-{side}", type=above_zero, metavar="X", help=text)
    parser.add_argument("--jobs", type=at_least_one, metavar="N", help="files read in parallel (default: all cores)")
    add_cache_options(parser)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, 1 if a gate fails, 3 if a rank could not be read."""
    from stepscope.compare.conditions import parse_gate
    from stepscope.compare.sides import comparison_document, judge_changes
    from stepscope.report.pages.compare import comparison_sheet

    a, b = _sides(args)
    gates = [parse_gate(text) for text in args.fail_on]
    opener, *others = {opener_of(given) for given in (*a, *b)}
    if others:
        raise UsageError("cannot compare a run with benchmark results; give two runs or two results")
    drawn: list[tuple[Account, Diagnosis]] = []
    is_partial = False
    if opener:
        document = opener.compare(a, b, judge=lambda metrics: judge_changes(gates, metrics, [], []))
    else:
        runs_a, runs_b = (
            [_compared(args, given, ms, drawn if args.html and not i else None) for i, given in enumerate(side)]
            for side, ms in ((a, args.unprofiled_step_ms_a), (b, args.unprofiled_step_ms_b))
        )
        for compared in (*runs_a, *runs_b):
            is_partial |= compared.is_partial
            warn(*compared.not_read)
        document = comparison_document(runs_a, runs_b, gates=gates)
    lanes: list[Drawing] = []
    if len(drawn) == 2:
        from stepscope.report.html.compare import side_by_side

        lanes = side_by_side(*drawn)
    show(args, document, lambda: comparison_sheet(document, lanes=lanes))
    if not all(gate["holds"] for gate in document["gates"]):
        return 1
    return 3 if is_partial else 0


def _sides(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    from stepscope.run.sources import runs_in

    if args.against:
        if len(args.sides) != 1 or args.a or args.b:
            raise UsageError("--against takes one run; e.g. stepscope compare run/ --against runs/")
        from stepscope.compare.history import runs_before

        before = [str(path) for path in runs_before(Path(args.sides[0]), Path(args.against))]
        names = f"{Path(before[0]).name} to {Path(before[-1]).name}"
        say_with_answer(f"A: {len(before)} runs of {args.against} before it, {names}")
        return before, [args.sides[0]]
    named = [side for side in (args.a, args.b) if side]
    given = [*([one] for one in args.sides), *named]
    if len(given) != 2 or (args.sides and named):
        example = "e.g. stepscope compare before/ after/, or --a run1 run2 --b run3 run4"
        raise UsageError(f"give two sides to compare, not {len(given)}; {example}")
    a, b = ([str(path) for one in side for path in runs_in(one)] for side in given)
    return a, b


def _compared(
    args: argparse.Namespace,
    given: str,
    unprofiled_ms: float | None,
    drawn: "list[tuple[Account, Diagnosis]] | None",
) -> "Row":
    from stepscope.compare.sides import compared_place, found_compared, keep_compared
    from stepscope.run.sources import has_steps_only

    if has_steps_only([given]):
        from stepscope.compare.sides import compared_light_run
        from stepscope.run.light import load_light

        return compared_light_run(load_light(given))
    how: dict[str, Any] = {"cache_folder": args.cache_folder}
    place = None if args.no_cache else compared_place([given], options={"unprofiled_step_ms": unprofiled_ms}, **how)
    cached = found_compared(place) if drawn is None else None
    if cached is not None:
        return cached
    from stepscope.analyze.account import account_of
    from stepscope.analyze.sampled import load_run
    from stepscope.compare.sides import compared_run
    from stepscope.diagnose.findings import diagnose

    key = place.key() if place else None
    with reading_progress() as progress:
        loaded = load_run(given, jobs=args.jobs, cache=not args.no_cache, progress=progress, **how)
    account = account_of(as_given(args, loaded), unprofiled_ms=unprofiled_ms)
    diagnosis = diagnose(account)
    if drawn is not None:
        drawn.append((account, diagnosis))
    found = compared_run(account, diagnosis)
    keep_compared(place, found, key=key, raw_bytes=raw_bytes_of(account.run))
    return found
