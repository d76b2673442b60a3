"""What do collectives take here? Time, algorithm and bus bandwidth of every operation over sizes and world sizes.

examples:
  stepscope bench collectives --backend gloo --world-size 2 --world-size 4
  stepscope bench collectives --backend nccl --world-size 8 --op all_reduce --limit-s 30

Bytes are the full buffer of the operation. `stepscope calibrate` fits latency and bandwidth to the same measurement.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from stepscope.bench.session.results import results, write_results
from stepscope.cli.bench.arguments import results_folder
from stepscope.cli.bench.session import Document, command_line
from stepscope.cli.calibrate import measured_points
from stepscope.cli.output import write_json
from stepscope.cli.sizes import above_zero, at_least_one, size_bytes
from stepscope.contract.collectives import bus_factor
from stepscope.cost.collectives.points import Point
from stepscope.report.text.terminal import console, plain_table
from stepscope.units import NS_PER_MS, NS_PER_US, readable_bytes

_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def add_arguments(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the command's arguments."""
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="gloo on the CPU (default), nccl")
    parser.add_argument(
        "--world-size", type=at_least_one, action="append", metavar="N", help="several give several (2)"
    )
    parser.add_argument("--op", action="append", choices=_OPERATIONS, help="only this operation; several give several")
    parser.add_argument("--limit-s", type=above_zero, default=60.0, metavar="S", help="time to spend (60)")
    parser.add_argument("--max-bytes", type=size_bytes, default=2**30, metavar="N", help="largest size (1GiB)")
    parser.add_argument("--out", metavar="DIR", default=f"stepscope-bench-{what}", help=f"stepscope-bench-{what}")
    parser.add_argument("--json", metavar="PATH", help="write the results there as well; - for standard output")
    parser.add_argument("--force", action="store_true", help="overwrite results that exist")


def run(args: argparse.Namespace) -> int:
    """Return 0 once the times are written."""
    folder = results_folder(args)
    points, about = measured_points(args, ops=args.op or ())
    document = results([_row(point) for point in points], command=command_line(), environment=about)
    write_results(document, folder)
    write_json(args.json, document, force=args.force)
    if args.json != "-":
        _print(document, folder)
    return 0


def _row(point: Point) -> dict[str, Any]:
    """Return one operation at one size; GB/s are bytes per nanosecond."""
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
    out.print(table)
    out.print(f"results in {folder}", markup=False)
