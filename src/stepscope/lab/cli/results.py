"""What `report`, `view` and `compare` do with the results folder of a benchmark."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.outputs import show
from stepscope.compare.document import Judge
from stepscope.errors import UsageError
from stepscope.lab.results.folder import read_bench_results
from stepscope.run.sources import RESULTS_JSON

if TYPE_CHECKING:
    from stepscope.report.view.server import Site


def report(args: argparse.Namespace) -> int:
    """Return 0 after showing the results."""
    results = read_bench_results(args.run[0])
    if args.json:
        raise UsageError(f"the JSON of a benchmark is {Path(args.run[0]) / RESULTS_JSON}; leave --json out")
    from stepscope.lab.report.bench import bench_sheet

    show(args, None, lambda: bench_sheet(results))
    return 0


def view(folder: str) -> "tuple[str, Site, bool]":
    """Return name and site of the results, and that nothing of them is missing."""
    from stepscope.lab.report.bench import bench_sheet
    from stepscope.report.html.sheets import sheet_page
    from stepscope.report.view.site import ViewSite
    from stepscope.tables.catalog import LogTables

    results = read_bench_results(folder)
    page = sheet_page(bench_sheet(results))
    return results.name, ViewSite(results.name, page, LogTables(()), None, names=()), False


def compare(a: Sequence[str], b: Sequence[str], *, judge: Judge) -> dict[str, Any]:
    """Return the comparison of the results in two sides of folders."""
    from stepscope.lab.results.folder import compare_bench_json

    sides = ([read_bench_results(folder) for folder in side] for side in (a, b))
    return compare_bench_json(*sides, judge=judge)
