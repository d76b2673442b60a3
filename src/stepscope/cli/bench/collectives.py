"""`stepscope bench collectives`: every operation measured, with algorithm and bus bandwidth."""

import argparse
import sys
from pathlib import Path
from typing import Any

from stepscope.bench.session.results import results, write_results
from stepscope.cli.bench.arguments import results_folder
from stepscope.cli.bench.session import Document, command_line, write_page
from stepscope.cli.calibrate import measure_points
from stepscope.cli.output import write_json
from stepscope.contract.collectives import bus_factor
from stepscope.cost.measured_collectives import Point
from stepscope.report.terminal import console, plain_table, print_fitting
from stepscope.units import NS_PER_MS, NS_PER_US, readable_bytes


def run(args: argparse.Namespace) -> int:
    """Return 0 once the times are written."""
    folder = results_folder(args)
    points, about = measure_points(args, ops=args.op or ())
    document = results([_row(point) for point in points], command=command_line(), environment=about)
    write_results(document, folder)
    write_json(args.json, document, force=args.force)
    write_page(args, document, folder)
    if "-" not in (args.json, args.html):
        _print(document, folder)
    return 0


def _row(point: Point) -> dict[str, Any]:
    algorithm = point.size_bytes / point.time_ns
    return {
        "name": f"{point.op}-{point.world_size}-{point.size_bytes}",
        "config": {"op": point.op, "world_size": point.world_size, "bytes": point.size_bytes},
        "samples_ms": [[point.time_ns / NS_PER_MS]],
        "summary": {
            "median_us": point.time_ns / NS_PER_US,
            "algbw_gb_per_s": algorithm,
            "busbw_gb_per_s": algorithm * bus_factor(point.op, point.world_size),
        },
    }


def _print(document: Document, folder: Path) -> None:
    out = console(sys.stdout)
    table = plain_table(out, "operation", "ranks", "size", "time us", "algbw GB/s", "busbw GB/s")
    for row in document["series"]:
        c, s = row["config"], row["summary"]
        table.add_row(
            c["op"],
            str(c["world_size"]),
            readable_bytes(c["bytes"]),
            f"{s['median_us']:.1f}",
            f"{s['algbw_gb_per_s']:.3f}",
            f"{s['busbw_gb_per_s']:.3f}",
        )
    print_fitting(table, out, least_needed=("algbw GB/s",))
    out.print(f"results in {folder}", markup=False)
