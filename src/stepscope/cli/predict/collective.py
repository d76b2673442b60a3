"""What does a collective take? From a calibration with its interval, or from a link's latency and bandwidth.

examples:
  stepscope predict collective --calibration calibration.json --op all_reduce --bytes 25MB --world-size 8 --json -
  stepscope predict collective --link 50:5 --node-link 400:2 --per-node 8 --op all_reduce --bytes 25MB --world-size 64

--bytes is the full buffer: what a gather receives, what a scatter sends; several give a list. A link is
GB/s:microseconds per device and direction.
"""

import argparse
import sys
from typing import Any

from stepscope.cli.output import write_json
from stepscope.cli.sizes import at_least_one, size_bytes
from stepscope.cost.collectives.calibration_file import load_calibration
from stepscope.cost.collectives.closed_form import Fabric, Link, fastest
from stepscope.cost.collectives.points import OPERATIONS
from stepscope.errors import UsageError
from stepscope.report.text.terminal import console, plain_table
from stepscope.units import readable_bytes, us


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--op", required=True, choices=OPERATIONS)
    parser.add_argument("--bytes", required=True, type=size_bytes, nargs="+", action="extend", metavar="N")
    parser.add_argument("--world-size", required=True, type=at_least_one, metavar="W")
    parser.add_argument("--calibration", metavar="FILE", help="written by `stepscope calibrate`")
    add_fabric_arguments(parser)


def add_fabric_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the links that stand in for a calibration."""
    parser.add_argument("--link", type=link, metavar="GB/s[:us]", help="link between ranks, or between nodes")
    parser.add_argument("--node-link", type=link, metavar="GB/s[:us]", help="link inside a node")
    parser.add_argument("--per-node", type=at_least_one, default=8, metavar="N", help="devices per node (default 8)")


def run(args: argparse.Namespace) -> int:
    """Return 0 after showing the prediction."""
    rows = [_prediction(args, size) for size in args.bytes]
    write_json(args.json, rows if len(rows) > 1 else rows[0], force=args.force)
    if args.json != "-":
        _print(rows)
    return 0


def link(text: str) -> Link:
    """Return the link written as `GB/s` or `GB/s:microseconds` (5 us by default)."""
    rate, _, latency = text.partition(":")
    try:
        gb_per_s, latency_us = float(rate), float(latency or 5)
    except ValueError:
        gb_per_s = latency_us = -1.0
    if not 0 < gb_per_s < float("inf") or not 0 <= latency_us < float("inf"):
        raise argparse.ArgumentTypeError(f"expected GB/s or GB/s:us such as 50:5, found {text!r}")
    return Link(latency_us * 1e3, 1 / gb_per_s)


def fabric(args: argparse.Namespace) -> Fabric | None:
    """Return the links that were given."""
    if args.link is None and args.node_link is None:
        return None
    if args.node_link is None:
        return Fabric(args.link)
    return Fabric(args.node_link, args.link, args.per_node)


def _prediction(args: argparse.Namespace, size: int) -> dict[str, Any]:
    """Return one row of the answer; times in microseconds."""
    asked: dict[str, Any] = {"op": args.op, "bytes": size, "world_size": args.world_size}
    links = fabric(args)
    if (args.calibration is None) == (links is None):
        raise UsageError("expected either --calibration FILE or --link GB/s:us; `stepscope calibrate` makes the former")
    if links is None:
        found = load_calibration(args.calibration).predict(args.op, size_bytes=size, world_size=args.world_size)
        times = {"time_us": us(found.time_ns), "low_us": us(found.low_ns), "high_us": us(found.high_ns)}
        return {**asked, **times, "coverage": 0.9, "how": found.how}
    if args.world_size < 2:
        raise UsageError(f"expected a world size of 2 or more, found {args.world_size}; one rank has nobody to talk to")
    choice = fastest(args.op, size_bytes=size, ranks=args.world_size, fabric=links)
    each = {name: us(time) for name, time in choice.all_ns.items()}
    reason = "a link alone gives no error; calibrate for an interval"
    none = {"low_us": None, "high_us": None, "reason": reason}
    return {**asked, "time_us": us(choice.time_ns), **none, "algorithm": choice.algorithm, "algorithms_us": each}


def _print(rows: list[dict[str, Any]]) -> None:
    out = console(sys.stdout)
    table = plain_table(out, "operation", "bytes", "ranks", "time us", "90 % between", "how")
    for row in rows:
        between = "-" if row["low_us"] is None else f"{row['low_us']:.1f} and {row['high_us']:.1f}"
        how = row.get("how") or f"{row['algorithm']} wins"
        cells = (readable_bytes(row["bytes"]), str(row["world_size"]), f"{row['time_us']:.1f}", between, how)
        table.add_row(row["op"], *cells)
    out.print(table)
