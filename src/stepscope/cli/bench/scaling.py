"""`stepscope bench scaling`: all world sizes in turn, run by run, and their efficiency."""

import argparse
from typing import Any

from rich.console import Console

from stepscope.bench.data_parallel.strategies import checked_names
from stepscope.bench.session.launch import LaunchResult
from stepscope.bench.session.rank_records import complete_runs, environment
from stepscope.bench.session.results import results, series, write_results
from stepscope.cli.arguments.bench.scaling import MODES, WORLD_SIZES
from stepscope.cli.bench.arguments import results_folder, shared_settings, workload_settings
from stepscope.cli.bench.session import Document, command_line, elsewhere, finish_bench, start_ranks
from stepscope.cli.messages import print_stderr
from stepscope.document.values import in_ms
from stepscope.errors import UsageError
from stepscope.report.svg import scaling_svg
from stepscope.report.terminal import plain_table, print_fitting
from stepscope.report.text.bench import print_doubts
from stepscope.results.scaling import ScalingPoint, scaling
from stepscope.units import ms, ns_of_ms

_JOB = "stepscope.bench.data_parallel.compare:compare"


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where only a part could be measured."""
    checked_names((args.implementation,))
    sizes = _sizes(args)
    cases = [(mode, size, _batch(args, mode, size)) for mode in MODES[args.mode] for size in sizes]
    folder = results_folder(args)
    measured: dict[tuple[str, int], list[LaunchResult]] = {}
    ended: LaunchResult | None = None
    writes = args.launched is None or args.launched.writes
    for number in range(args.runs):
        for mode, size, batch in cases:
            place = folder / f"run{number}" / f"{mode}-{size}"
            if writes:
                print_stderr(f"run {number + 1} of {args.runs}: {mode} scaling, {size} ranks ...")
            result = start_ranks(
                args,
                _plan(args, batch),
                folder=place,
                world_size=size,
                total=1,
                session=sum(map(len, measured.values())),
            )
            measured.setdefault((mode, size), []).append(result)
            if writes:
                write_results(_document(args, measured, "still measuring"), folder)
            if not result.complete:
                ended = result
                break
        if ended:
            break
    if (code := elsewhere(args, result)) is not None:
        return code
    document = _document(args, measured, ended.message if ended else None)
    interrupted = bool(ended and ended.interrupted)
    return finish_bench(args, document, folder=folder, interrupted=interrupted, show=_show, picture=_picture)


def _plan(args: argparse.Namespace, batch_size: int) -> dict[str, Any]:
    settings = {
        **shared_settings(args),
        "workload": {**workload_settings(args), "batch_size": batch_size},
        "runs": 1,
        "series": [{"name": args.implementation, "implementation": args.implementation}],
        "options": {"bucket_size_mb": args.bucket_size_mb},
    }
    return {"job": _JOB, "settings": settings}


def _document(
    args: argparse.Namespace, measured: dict[tuple[str, int], list[LaunchResult]], message: str | None
) -> Document:
    rows: list[dict[str, Any]] = []
    where: dict[str, Any] = {}
    for (mode, size), launches in measured.items():
        runs = [run for launch in launches for run in complete_runs(launch.records, args.implementation)]
        where = where or environment(launches[0].records, backend=args.backend)
        if not runs:
            continue
        rows.append(
            series(
                f"{mode}-{size}",
                config={**workload_settings(args), "mode": mode, "world_size": size, "warmup_steps": args.warmup_steps},
                runs=runs,
            )
        )
    scaled = [in_ms(s, ("median",)) for s in scaling(rows)]
    return results(rows, command=command_line(), environment=where, message=message, scaling=scaled)


def _scaled(document: Document) -> list[ScalingPoint]:
    return [
        ScalingPoint(median_ns=ns_of_ms(row["median_ms"]), **{k: v for k, v in row.items() if k != "median_ms"})
        for row in document["scaling"]
    ]


def _picture(document: Document) -> str:
    return scaling_svg(_scaled(document))


def _show(document: Document, out: Console) -> None:
    _print(_scaled(document), out)
    print_doubts(document["series"], out)
    _print_cores(document, out)


def _print(scaled: list[ScalingPoint], out: Console) -> None:
    table = plain_table(out, "mode", "ranks", "step ms", "speed-up", "efficiency", "95 % interval")
    for s in scaled:
        interval = f"{100 * s.low:.0f} - {100 * s.high:.0f} %"
        step = "?" if s.median_ns is None else f"{ms(s.median_ns):.2f}"
        table.add_row(s.mode, str(s.world_size), step, f"{s.speedup:.2f}", f"{100 * s.efficiency:.0f} %", interval)
    print_fitting(table, out, least_needed=("speed-up",))


def _print_cores(document: Document, out: Console) -> None:
    where = document["environment"]
    most = max(row["config"]["world_size"] for row in document["series"])
    if where.get("backend") == "gloo" and where.get("cpus") and most * where.get("threads", 1) > where["cpus"]:
        out.print(f"note: {most} ranks share {where['cpus']} cores, so they cannot all run at full speed", markup=False)


def _sizes(args: argparse.Namespace) -> list[int]:
    text = args.world_sizes
    if args.launched:
        world = args.launched.world_size
        if text not in (WORLD_SIZES, str(world)):
            raise UsageError(
                f"--world-sizes {text}: {args.launched.launcher} started {world} ranks; leave it out, and start other "
                "sizes with the launcher"
            )
        return [world]
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise UsageError(f"--world-sizes {text!r}: write whole numbers of at least 1, such as 1,2,4")
    return sizes


def _batch(args: argparse.Namespace, mode: str, size: int) -> int:
    if mode == "weak":
        return int(args.batch_size)
    if args.batch_size % size:
        raise UsageError(
            f"--batch-size {args.batch_size} cannot be shared by {size} ranks, as strong scaling does; use a multiple "
            f"of {size}, or --mode weak"
        )
    return int(args.batch_size // size)
