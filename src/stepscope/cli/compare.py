"""`stepscope compare`: two sides, runs or benchmark results, compared and judged by gates.

What is heavy is imported where it is needed: runs of which all that is compared was kept need no analysis.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.given.kept import raw_bytes_of
from stepscope.cli.messages import say_with_answer, warn
from stepscope.cli.output import check_outputs, write_json, write_output
from stepscope.compare.cache import compared_place, found_compared, keep_compared
from stepscope.compare.conditions import Gate, parse_gate
from stepscope.compare.sides import ComparedRun, comparison_document
from stepscope.errors import UsageError
from stepscope.report.terminal import console
from stepscope.report.text.compare import print_bench_comparison, print_comparison
from stepscope.results.folder import is_bench_folder
from stepscope.run.sources import has_steps_only, runs_in

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.diagnose.findings import Diagnosis

_EXAMPLE = "e.g. stepscope compare before/ after/, or --a run1 run2 --b run3 run4"


def run(args: argparse.Namespace) -> int:
    """Return 0, 1 where a gate does not hold, 3 where a rank could not be read."""
    check_outputs(args.json, args.html, force=args.force)
    a, b = _sides(args)
    gates = [parse_gate(text) for text in args.fail_on]
    benches = [is_bench_folder(given) for given in (*a, *b)]
    if any(benches) and not all(benches):
        raise UsageError("cannot compare a run with benchmark results; give two runs or two results")
    drawn: list[tuple[Account, Diagnosis]] = []
    document, lost = _benches(a, b, gates) if all(benches) else _runs(args, a, b, gates, drawn)
    write_json(args.json, document, force=args.force)
    if args.html:
        from stepscope.report.html.compare import render_comparison, side_by_side

        lanes = side_by_side(*drawn) if len(drawn) == 2 else None
        write_output(args.html, render_comparison(document, lanes=lanes), force=args.force)
    if "-" not in (args.json, args.html):
        (print_bench_comparison if all(benches) else print_comparison)(document, console(sys.stdout))
    if not all(gate["holds"] for gate in document["gates"]):
        return 1
    return 3 if lost else 0


def _sides(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    if args.against:
        return _against(args)
    positional = [[one] for one in args.sides]
    named = [side for side in (args.a, args.b) if side]
    given = [*positional, *named]
    if len(given) != 2 or (positional and named):
        raise UsageError(f"give two sides to compare, not {len(given)}; {_EXAMPLE}")
    a, b = ([str(path) for one in side for path in runs_in(one)] for side in given)
    return a, b


def _against(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    if len(args.sides) != 1 or args.a or args.b:
        raise UsageError("--against takes one run; e.g. stepscope compare run/ --against runs/")
    from stepscope.compare.history import runs_before

    before = [str(path) for path in runs_before(Path(args.sides[0]), Path(args.against))]
    names = f"{Path(before[0]).name} to {Path(before[-1]).name}"
    say_with_answer(f"A: {len(before)} runs of {args.against} before it, {names}")
    return before, [args.sides[0]]


def _benches(a: Sequence[str], b: Sequence[str], gates: Sequence[Gate]) -> tuple[dict[str, Any], bool]:
    from stepscope.compare.document import compare_bench, compare_bench_json
    from stepscope.compare.sides import judge_changes
    from stepscope.results.folder import read_bench_results

    sides = [[read_bench_results(folder) for folder in side] for side in (a, b)]
    found = compare_bench(sides[0], sides[1])
    results = judge_changes(gates, found.metrics, [], [])
    names = [[one.name for one in side] for side in sides]
    return compare_bench_json(found, a=names[0], b=names[1], gates=results), False


def _runs(
    args: argparse.Namespace,
    a: Sequence[str],
    b: Sequence[str],
    gates: Sequence[Gate],
    drawn: "list[tuple[Account, Diagnosis]]",
) -> tuple[dict[str, Any], bool]:
    sides = [
        [_compared(args, given, unprofiled_ms, drawn if args.html and not i else None) for i, given in enumerate(side)]
        for side, unprofiled_ms in ((a, args.unprofiled_step_ms_a), (b, args.unprofiled_step_ms_b))
    ]
    for line in (line for side in sides for run in side for line in run.not_read):
        warn(line)
    document = comparison_document(sides[0], sides[1], gates=gates)
    return document, any(run.is_partial for side in sides for run in side)


def _compared(
    args: argparse.Namespace,
    given: str,
    unprofiled_ms: float | None,
    drawn: "list[tuple[Account, Diagnosis]] | None",
) -> ComparedRun:
    if has_steps_only([given]):
        from stepscope.compare.sides import compared_light_run
        from stepscope.run.light import load_light

        return compared_light_run(load_light(given))
    options = {"unprofiled_step_ms": unprofiled_ms}
    place = None if args.no_cache else compared_place([given], options=options, cache_folder=args.cache_folder)
    kept = found_compared(place) if drawn is None else None
    if kept is not None:
        return kept
    key = place.key() if place else None
    account, diagnosis = _analysed(args, given, unprofiled_ms)
    if drawn is not None:
        drawn.append((account, diagnosis))
    from stepscope.compare.sides import compared_run

    found = compared_run(account, diagnosis)
    keep_compared(place, found, key=key, raw_bytes=raw_bytes_of(account.run))
    return found


def _analysed(args: argparse.Namespace, given: str, unprofiled_ms: float | None) -> "tuple[Account, Diagnosis]":
    from stepscope.analyze.account import account_of
    from stepscope.analyze.sampled import load_run
    from stepscope.cli.given.addresses import as_given
    from stepscope.cli.given.progress import reading_progress
    from stepscope.diagnose.findings import diagnose

    with reading_progress() as progress:
        found = load_run(
            given, jobs=args.jobs, cache=not args.no_cache, cache_folder=args.cache_folder, progress=progress
        )
    account = account_of(as_given(args, found), unprofiled_ms=unprofiled_ms)
    return account, diagnose(account)
