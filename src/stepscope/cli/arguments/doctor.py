"""What is installed here and what works: the trace reader, optional extras, torch, devices, external tools."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--json",
        metavar="PATH",
        nargs="?",
        const="-",
        help="write the checks as JSON; standard output without PATH",
    )
    parser.add_argument("--force", action="store_true", help="overwrite outputs that exist")
