"""What is installed here and what works: the trace reader, optional extras, torch, devices, external tools."""

import argparse
import os
import platform
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.arguments import add_force
from stepscope.cli.outputs import check_outputs, terminal, write_json
from stepscope.errors import StepscopeError
from stepscope.records import dataclass

if TYPE_CHECKING:
    from rich.console import Console

_PACKAGES = (  # package, needed for the analysis, what it is for
    ("numpy", True, "tables"),
    ("wasmtime", True, "runs the trace scanner"),
    ("zlib-ng", True, "reads .json.gz"),
    ("zstandard", True, "reads .json.zst"),
    ("rich", True, "terminal output"),
    ("torch", False, "record, demo, bench"),
    ("duckdb", False, "sql (extra: sql)"),
    ("pyarrow", False, "Parquet and Arrow export (extra: sql)"),
    ("mcp", False, "tools for coding agents (extra: mcp)"),
)
_TOOLS = (
    ("torchrun", "starts distributed jobs"),
    ("nvidia-smi", "NVIDIA driver is installed"),
    ("nsys", "Nsight Systems"),
    ("ncu", "Nsight Compute"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--json",
        metavar="PATH",
        nargs="?",
        const="-",
        help="write the checks as JSON; standard output without PATH",
    )
    add_force(parser)


@dataclass(frozen=True)
class Check:
    """One thing that works here or does not."""

    what: str
    works: bool
    needed: bool
    found: str
    purpose: str


def run(args: argparse.Namespace) -> int:
    """Return 0 if everything that the analysis needs works, else 2."""
    check_outputs(args.json, force=args.force)
    found = checks()
    write_json(args.json, [asdict(check) for check in found], force=args.force)
    if args.json != "-":
        print_checks_table(found, terminal())
    return 0 if all(check.works for check in found if check.needed) else 2


def checks() -> list[Check]:
    """Return every check. Nothing is imported to find out that it is there, so torch stays untouched."""
    python = Check("python", sys.version_info >= (3, 11), True, platform.python_version(), f"{os.cpu_count()} cores")
    packages = [_package(name, needed, purpose) for name, needed, purpose in _PACKAGES]
    tools = [
        Check(name, bool(shutil.which(name)), False, shutil.which(name) or "not on PATH", purpose)
        for name, purpose in _TOOLS
    ]
    return [python, _reader(), *packages, *tools]


def _package(name: str, needed: bool, purpose: str) -> Check:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Check(name, True, needed, version(name), purpose)
    except PackageNotFoundError:
        return Check(name, False, needed, "not installed", purpose)


def _reader() -> Check:
    import tempfile

    from stepscope.trace.read import read

    event = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 3850983455851.745, "dur": 0.001}'
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "one.json"
            path.write_text(f'{{"traceEvents": [{event}]}}')
            trace = read(path)
        exact = trace["ts_ns"].tolist() == [3850983455851745] and trace["dur_ns"].tolist() == [1]
        return Check("trace reader", exact, True, "reads exactly" if exact else "reads wrongly", "reads traces")
    except (StepscopeError, ImportError, OSError) as error:
        return Check("trace reader", False, True, str(error), "reads traces")


def print_checks_table(found: list[Check], out: "Console") -> None:
    """Print a row per check."""
    from stepscope.report.terminal import plain_table, print_fitting

    table = plain_table(out, "what", "works", "found", "for")
    for column in table.columns[2:]:
        column.justify = "left"
    table.columns[2].no_wrap = False  # a long path continues in the next line
    table.columns[2].overflow = "fold"
    table.columns[0].no_wrap = True
    for check in found:
        works = "yes" if check.works else "NO" if check.needed else "no"
        table.add_row(check.what, works, check.found, check.purpose)
    print_fitting(table, out, least_needed=("for",))
