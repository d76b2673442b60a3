"""What do collectives take on this machine? Latency and bandwidth of every operation, with their error.

examples:
  stepscope calibrate --backend gloo --world-size 2,4
  stepscope calibrate --from-csv times.csv --out calibration.json
  stepscope calibrate --from-nccl-tests all_reduce.txt all_gather.json
  stepscope calibrate --from-run run-folder/

A CSV has the columns op, world_size, bytes (the full buffer of the operation) and median_us. On a cluster run
`torchrun ... -m stepscope.bench.collectives --backend nccl --out times.json` and use --from-bench times.json.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.arguments import ExtendWorldSizes, above_zero, add_json, size_bytes, world_sizes
from stepscope.cli.outputs import (
    check_outputs,
    print_stderr,
    reading_progress,
    say_with_answer,
    show,
    write_json,
    write_output,
)
from stepscope.errors import UsageError
from stepscope.units import NS_PER_US

if TYPE_CHECKING:
    from stepscope.lab.predict.calibrate import Point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    live = parser.add_argument_group("measure here")
    live.add_argument("--backend", choices=("gloo", "nccl"), help="start processes and measure")
    live.add_argument(
        "--world-size", type=world_sizes, action=ExtendWorldSizes, metavar="N,N", help="ranks, one or several"
    )
    live.add_argument("--limit-s", type=above_zero, default=60.0, metavar="S", help="time to spend (default 60)")
    live.add_argument("--max-bytes", type=size_bytes, default=2**30, metavar="N", help="largest size (default 1GiB)")
    known = parser.add_argument_group("or take what was measured")
    known.add_argument("--from-csv", nargs="+", metavar="FILE")
    known.add_argument("--from-nccl-tests", nargs="+", metavar="FILE", help="its printed table or its JSON (-J)")
    known.add_argument("--op", help="operation of --from-nccl-tests if neither output nor name shows it")
    known.add_argument("--from-run", metavar="RUN", help="recorded run: transfer times, waiting removed")
    known.add_argument("--from-bench", nargs="+", metavar="FILE", help="written by stepscope.bench.collectives")
    parser.add_argument("--out", default="calibration.json", metavar="PATH", help="default calibration.json")
    parser.add_argument("--plot", metavar="PATH", help="measured against predicted, as SVG")
    parser.add_argument("--html", metavar="PATH", help="write curves and errors to a self-contained HTML file")
    add_json(parser, "the calibration there as well")


def run(args: argparse.Namespace) -> int:
    """Return 0 once the calibration is written."""
    from stepscope.lab.predict.calibrate import calibrate, calibration_json

    check_outputs(args.out, args.plot, args.json, args.html, force=args.force)
    points, about = _points(args)
    calibration = calibrate(points, about={**about, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    document = calibration_json(calibration)
    write_json(args.out, document, force=args.force)
    from stepscope.lab.report.sheets import calibration_sheet
    from stepscope.lab.report.svg import sheet_svg
    from stepscope.report.html.sheets import sheet_page

    sheet = calibration_sheet(calibration)
    if args.plot:
        write_output(args.plot, sheet_svg(sheet), force=args.force)
    if args.out == "-":
        if args.html:
            write_output(args.html, sheet_page(sheet), force=args.force)
        return 0
    show(args, document, lambda: sheet)
    use = f"stepscope predict collective --calibration {args.out} ..."
    say_with_answer(f"written to {args.out}; use it with `{use}`")
    return 0


def _given(args: argparse.Namespace) -> str:
    sources = ("backend", "from_csv", "from_nccl_tests", "from_run", "from_bench")
    given = [name for name in sources if getattr(args, name)]
    if len(given) != 1:
        options, found = (", ".join(f"--{name.replace('_', '-')}" for name in names) for names in (sources, given))
        raise UsageError(f"give exactly one of {options}, not {found or 'none'}")
    return given[0]


def _needs_torch(instead: str) -> None:
    if find_spec("torch") is None:
        raise UsageError(f"measuring needs torch, which is not installed here; {instead}")


def _points(args: argparse.Namespace) -> "tuple[list[Point], dict[str, Any]]":
    from stepscope.lab.predict.calibrate import points_from_bench, points_from_csv, points_from_nccl_tests

    given = _given(args)
    if args.backend:
        return measure_points(args)
    if args.from_run:
        from stepscope.analyze.sampled import load_run
        from stepscope.lab.predict.calibrate import points_from_run
        from stepscope.run.aligned import aligned

        with reading_progress() as progress:
            recorded = load_run(args.from_run, progress=progress)
        return points_from_run(aligned(recorded).whole), {"source": f"run {recorded.name}"}
    files = getattr(args, given)
    points: list[Point] = []
    about: dict[str, Any] = {}
    for path in files:
        if args.from_bench:
            more, about = points_from_bench(path)
        else:
            more = points_from_csv(path) if args.from_csv else points_from_nccl_tests(path, op=args.op)
        points += more
    return points, {"source": ", ".join(Path(path).name for path in files), **about}


def measure_points(args: argparse.Namespace, *, ops: Sequence[str] = ()) -> "tuple[list[Point], dict[str, Any]]":
    """Return what ranks started for the purpose measured, of every operation or of `ops`."""
    from stepscope.lab.bench.sessions import collective_times
    from stepscope.lab.predict.calibrate import Point

    given = args.world_size or [2]
    _needs_torch("install it or use --from-csv")
    if sys.stderr.isatty():
        print_stderr(f"measuring for up to {args.limit_s:.0f} s ...")
    # a configuration's `ranks.world_size` is one
    worlds = given if isinstance(given, list) else [given]
    found = collective_times(args.backend, worlds, ops=ops, max_bytes=args.max_bytes, limit_s=args.limit_s)
    points = [Point(op, world, size, median_us * NS_PER_US) for op, world, size, median_us, *_ in found["rows"]]
    return points, {"source": "measured", **{name: found[name] for name in ("backend", "machine", "software")}}
