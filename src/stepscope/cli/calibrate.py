"""`stepscope calibrate`: measured or recorded times of collectives, fitted and written as a calibration."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepscope.analyze.sampled import load_run
from stepscope.cli.given.progress import reading_progress
from stepscope.cli.messages import print_stderr
from stepscope.cli.output import check_outputs, write_json, write_output
from stepscope.cost.calibration import Calibration, calibrate, calibration_json, points_from_run
from stepscope.cost.measured_collectives import Point, points_from_bench, points_from_csv, points_from_nccl_tests
from stepscope.errors import UsageError
from stepscope.report.svg import calibration_svg
from stepscope.report.terminal import console
from stepscope.report.text.bench import print_calibration
from stepscope.run.aligned import aligned


def run(args: argparse.Namespace) -> int:
    """Return 0 once the calibration is written."""
    check_outputs(args.out, args.plot, args.json, args.html, force=args.force)
    points, about = _points(args)
    calibration = calibrate(points, about={**about, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    document = calibration_json(calibration)
    write_json(args.out, document, force=args.force)
    if args.plot:
        write_output(args.plot, calibration_svg(calibration), force=args.force)
    if args.json and args.json != args.out:
        write_json(args.json, document, force=args.force)
    if args.html:
        from stepscope.report.html.sheets import calibration_sheet, sheet_page

        write_output(args.html, sheet_page(calibration_sheet(calibration)), force=args.force)
    if "-" not in (args.json, args.out, args.html):
        _show(calibration, args.out)
    return 0


def _points(args: argparse.Namespace) -> tuple[list[Point], dict[str, Any]]:
    sources = ("backend", "from_csv", "from_nccl_tests", "from_run", "from_bench")
    given = [name for name in sources if getattr(args, name)]
    options = ", ".join(f"--{name.replace('_', '-')}" for name in sources)
    if len(given) != 1:
        found = ", ".join(f"--{name.replace('_', '-')}" for name in given) or "none"
        raise UsageError(f"give exactly one of {options}, not {found}")
    if given == ["backend"]:
        return measure_points(args)
    if given == ["from_run"]:
        with reading_progress() as progress:
            recorded = load_run(args.from_run, progress=progress)
        return points_from_run(aligned(recorded).whole), {"source": f"run {recorded.name}"}
    if given == ["from_bench"]:
        return _from_bench(args.from_bench)
    files = args.from_csv or args.from_nccl_tests
    points = []
    for path in files:
        points += points_from_csv(path) if args.from_csv else points_from_nccl_tests(path, op=args.op)
    return points, {"source": ", ".join(Path(path).name for path in files)}


def _from_bench(paths: list[str]) -> tuple[list[Point], dict[str, Any]]:
    points: list[Point] = []
    about: dict[str, Any] = {}
    for path in paths:
        more, about = points_from_bench(path)
        points += more
    return points, {"source": ", ".join(Path(path).name for path in paths), **about}


def measure_points(args: argparse.Namespace, *, ops: Sequence[str] = ()) -> tuple[list[Point], dict[str, Any]]:
    """Return what processes started for the purpose measured, of every operation or of `ops`."""
    given = args.world_size or [2]
    worlds = given if isinstance(given, list) else [given]  # a configuration's `ranks.world_size` is one
    if min(worlds) < 2:
        raise UsageError(f"world sizes have to be 2 or more, not {min(worlds)}: a single rank does not communicate")
    if find_spec("torch") is None:
        raise UsageError("measuring needs torch, which is not installed here; install it or use --from-csv")
    with tempfile.TemporaryDirectory() as folder:
        times = str(Path(folder) / "times.json")
        command = [sys.executable, "-m", "stepscope.bench.collectives", "--backend", args.backend, "--out", times]
        command += ["--limit-s", str(args.limit_s), "--max-bytes", str(args.max_bytes)]
        for world in worlds:
            command += ["--world-size", str(world)]
        for op in ops:
            command += ["--op", op]
        if sys.stderr.isatty():
            print_stderr(f"measuring for up to {args.limit_s:.0f} s ...")
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise UsageError(f"measuring {args.backend} collectives failed: {last}; try another --backend or size")
        points, about = points_from_bench(times)
    return points, {"source": "measured", **about}


def _show(calibration: Calibration, path: str) -> None:
    out = console(sys.stdout)
    print_calibration(calibration, out)
    out.print(f"written to {path}; use it with `stepscope predict collective --calibration {path} ...`")
