"""The arguments that describe links between ranks, which stand in for a calibration."""

import argparse

from stepscope.cli.arguments.sizes import at_least_one
from stepscope.cost.closed_form import Link


def add_fabric_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the links that stand in for a calibration."""
    parser.add_argument("--link", type=_link, metavar="GB/s[:us]", help="link between ranks, or between nodes")
    parser.add_argument("--node-link", type=_link, metavar="GB/s[:us]", help="link inside a node")
    parser.add_argument("--per-node", type=at_least_one, default=8, metavar="N", help="devices per node (default 8)")


def _link(text: str) -> Link:
    rate, _, latency = text.partition(":")
    try:
        gb_per_s, latency_us = float(rate), float(latency or 5)
    except ValueError:
        gb_per_s = latency_us = -1.0
    if not 0 < gb_per_s < float("inf") or not 0 <= latency_us < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a bandwidth; write GB/s or GB/s:us, such as 50:5")
    return Link(latency_us * 1e3, 1 / gb_per_s)
