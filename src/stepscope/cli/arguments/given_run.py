"""The arguments that name a run, and those that say what its files do not."""

import argparse
from pathlib import Path

from stepscope.cli.arguments.sizes import above_zero, at_least_one


def add_run_arguments(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """Add what names a run and what its files do not say."""
    parser.add_argument(
        "run", metavar="RUN", nargs="+" if needed else "*", help="run folder, trace, folder of traces, or glob"
    )
    add_run_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what the files of a run do not say, and how they are read."""
    for name, metavar, what in (
        ("--unprofiled-step-ms", "X", "the step's time without the profiler"),
        ("--flops-per-step", "F", "model FLOPs of the whole job per step"),
        ("--tokens-per-step", "N", "tokens of the whole job per step"),
        ("--samples-per-step", "N", "samples of the whole job per step"),
        ("--peak-tflops", "P", "peak of one device in TFLOP/s"),
    ):
        parser.add_argument(name, type=above_zero, metavar=metavar, help=what)
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="TOML file with chips of your own")
    parser.add_argument("--jobs", type=at_least_one, metavar="N", help="files read at once (default: all cores)")
    parser.add_argument(
        "--engine", default="local", metavar="dask://HOST:PORT", help="read ranks on a Dask cluster (default: here)"
    )
    parser.add_argument(
        "--full-ranks",
        type=at_least_one,
        metavar="N",
        help="ranks analysed in full where there are more (default: 128, fewer of very large traces)",
    )
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    parser.add_argument("--cache-folder", type=Path, metavar="DIR", help="keep the cache there, not beside the traces")
