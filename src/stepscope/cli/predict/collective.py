"""`stepscope predict collective`: the time from a calibration or from links, as text or JSON."""

import argparse
import sys
from typing import Any

from rich.console import Console

from stepscope.cli.predict.answer import is_for_terminal
from stepscope.cost.calibration import load_calibration
from stepscope.cost.closed_form import Fabric, fastest
from stepscope.errors import UsageError
from stepscope.report.terminal import console, plain_table, print_fitting
from stepscope.units import readable_bytes, us


def run(args: argparse.Namespace) -> int:
    """Return 0 after showing the prediction."""
    rows = [_prediction(args, size) for size in args.bytes]
    if is_for_terminal(args, rows if len(rows) > 1 else rows[0]):
        _print(rows)
    return 0


def fabric(args: argparse.Namespace) -> Fabric | None:
    """Return the links that were given."""
    if args.link is None and args.node_link is None:
        return None
    if args.node_link is None:
        return Fabric(args.link)
    return Fabric(args.node_link, args.link, args.per_node)


def _prediction(args: argparse.Namespace, size: int) -> dict[str, Any]:
    asked: dict[str, Any] = {"op": args.op, "bytes": size, "world_size": args.world_size}
    links = fabric(args)
    if (args.calibration is None) == (links is None):
        raise UsageError("give either --calibration FILE (from `stepscope calibrate`) or --link GB/s:us")
    if links is None:
        found = load_calibration(args.calibration).predict(args.op, size_bytes=size, world_size=args.world_size)
        times = {"time_us": us(found.time_ns), "low_us": us(found.low_ns), "high_us": us(found.high_ns)}
        return {**asked, **times, "coverage": 0.9, "how": found.how}
    if args.world_size < 2:
        raise UsageError(
            f"the world size has to be 2 or more, not {args.world_size}: a single rank does not communicate"
        )
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
    print_fitting(table, out, least_needed=("how", "90 % between"))
    _print_algorithms(rows, out)


def _print_algorithms(rows: list[dict[str, Any]], out: Console) -> None:
    every = [row["algorithms_us"] for row in rows if len(row.get("algorithms_us", ())) > 1]
    names = list(dict.fromkeys(name for times in every for name in times))
    if not names:
        return
    table = plain_table(out, "bytes", *(f"{name} us" for name in names))
    for row in rows:
        times = row.get("algorithms_us", {})
        table.add_row(readable_bytes(row["bytes"]), *(f"{times[n]:.1f}" if n in times else "-" for n in names))
    out.print(table)
