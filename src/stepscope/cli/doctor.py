"""What is installed here and what works: the trace reader, optional extras, torch, devices, external tools."""

import argparse
import os
import platform
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from stepscope.cli.arguments import add_force
from stepscope.cli.outputs import check_outputs, show
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.report.sheet import Section, Sheet, table_of

_PACKAGES = (  # package, needed for the analysis, what it is for
    ("numpy", True, "tables"),
    ("wasmtime", True, "runs the trace scanner"),
    ("zlib-ng", True, "reads .json.gz"),
    ("zstandard", True, "reads .json.zst"),
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
    show(args, [asdict(check) for check in found], lambda: _checks_sheet(found))
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


def _checks_sheet(found: list[Check]) -> Sheet:
    table = table_of(
        found,
        ("what", "text", lambda check: check.what),
        ("works", "text", lambda check: "yes" if check.works else "NO" if check.needed else "no"),
        ("found", "text", lambda check: check.found),
        ("for", "text", lambda check: check.purpose),
    )
    works = all(check.works for check in found if check.needed)
    said = "the analysis works here" if works else "the analysis does not work here"
    return Sheet("Installation", (said,), (), (Section("checks", "Checks", table=table, most=len(found)),))
