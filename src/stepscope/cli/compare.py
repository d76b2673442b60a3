"""What differs between two runs, or two sets of runs, and is it more than chance? Gates for CI.

examples:
  stepscope compare before/ after/
  stepscope compare before/ after/ --fail-on 'step_ms>5%' --html compare.html
  stepscope compare --a run1 run2 run3 --b run4 run5 run6
  stepscope compare bench-results-1/ bench-results-2/

A and B are what `stepscope report` takes, a folder of run folders, or the results folder of `stepscope bench`.
Several runs per side are better than one long one: runs differ from each other more than steps do.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.analyze.account import account_of
from stepscope.cli.output import check_outputs, write_json, write_output
from stepscope.cli.progress import reading_progress
from stepscope.cli.say import warn
from stepscope.cli.sizes import above_zero, at_least_one
from stepscope.compare.benchmarks import compare_bench
from stepscope.compare.conditions import Gate, parse_gate
from stepscope.compare.document import compare_bench_json
from stepscope.compare.gates import judge_changes
from stepscope.compare.sides import ComparedRun, compared_run, comparison_document
from stepscope.diagnose.findings import diagnose
from stepscope.errors import UsageError
from stepscope.report.html.compare import render_comparison
from stepscope.report.text.compare import print_bench_comparison, print_comparison
from stepscope.report.text.terminal import console
from stepscope.results.folder import is_bench_folder, read_bench_results
from stepscope.run.load import load
from stepscope.run.sources import runs_in

_EXAMPLE = "e.g. stepscope compare before/ after/, or --a run1 run2 --b run3 run4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("sides", metavar="A B", nargs="*", help="two runs, two folders of runs, or two bench results")
    parser.add_argument("--a", metavar="RUN", nargs="+", default=[], help="runs of the first side")
    parser.add_argument("--b", metavar="RUN", nargs="+", default=[], help="runs of the second side")
    parser.add_argument("--json", metavar="PATH", help="write the comparison as JSON; - for standard output")
    parser.add_argument("--html", metavar="PATH", help="write the comparison as one HTML file that needs no network")
    parser.add_argument(
        "--fail-on", metavar="EXPR", action="append", default=[], help="condition that fails: 'step_ms>5%%'"
    )
    for side in "ab":
        parser.add_argument(
            f"--unprofiled-step-ms-{side}",
            type=above_zero,
            metavar="X",
            help=f"the step's time without the profiler in {side.upper()}",
        )
    parser.add_argument("--jobs", type=at_least_one, metavar="N", help="files read at once (default: all cores)")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    parser.add_argument("--cache-folder", type=Path, metavar="DIR", help="keep the cache there, not beside the traces")
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")


def run(args: argparse.Namespace) -> int:
    """Return 0, 1 where a gate does not hold, 3 where a rank could not be read."""
    check_outputs(args.json, args.html, force=args.force)
    a, b = _sides(args)
    gates = [parse_gate(text) for text in args.fail_on]
    benches = [is_bench_folder(given) for given in (*a, *b)]
    if any(benches) and not all(benches):
        raise UsageError("expected two runs or two benchmark results, found one of each; compare like with like")
    document, lost = _benches(a, b, gates) if all(benches) else _runs(args, a, b, gates)
    write_json(args.json, document, force=args.force)
    if args.html:
        write_output(args.html, render_comparison(document), force=args.force)
    if "-" not in (args.json, args.html):
        (print_bench_comparison if all(benches) else print_comparison)(document, console(sys.stdout))
    if not all(gate["holds"] for gate in document["gates"]):
        return 1
    return 3 if lost else 0


def _sides(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the runs of both sides; a folder of runs stands for its runs."""
    positional = [[one] for one in args.sides]
    named = [side for side in (args.a, args.b) if side]
    given = [*positional, *named]
    if len(given) != 2 or (positional and named):
        raise UsageError(f"expected two sides, found {len(given)}; {_EXAMPLE}")
    a, b = ([str(path) for one in side for path in runs_in(one)] for side in given)
    return a, b


def _benches(a: Sequence[str], b: Sequence[str], gates: Sequence[Gate]) -> tuple[dict[str, Any], bool]:
    sides = [[read_bench_results(folder) for folder in side] for side in (a, b)]
    found = compare_bench(sides[0], sides[1])
    results = judge_changes(gates, found.metrics, [], [])
    names = [[one.name for one in side] for side in sides]
    return compare_bench_json(found, a=names[0], b=names[1], gates=results), False


def _runs(
    args: argparse.Namespace, a: Sequence[str], b: Sequence[str], gates: Sequence[Gate]
) -> tuple[dict[str, Any], bool]:
    sides = [
        [_compared(args, given, unprofiled_ms) for given in side]
        for side, unprofiled_ms in ((a, args.unprofiled_step_ms_a), (b, args.unprofiled_step_ms_b))
    ]
    for line in (line for side in sides for run in side for line in run.not_read):  # once no side can fail any more
        warn(line)
    document = comparison_document(sides[0], sides[1], gates=gates)
    return document, any(run.is_partial for side in sides for run in side)


def _compared(args: argparse.Namespace, given: str, unprofiled_ms: float | None) -> ComparedRun:
    with reading_progress() as progress:
        found = load(given, jobs=args.jobs, cache=not args.no_cache, cache_folder=args.cache_folder, progress=progress)
    account = account_of(found, unprofiled_ms=unprofiled_ms)
    return compared_run(account, diagnose(account))
