"""`stepscope bench straggler`: the planted delays, what each cost, and whom the step logs name."""

import argparse
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from stepscope.analyze.log_stragglers import late_ranks
from stepscope.bench.data_parallel.strategies import checked_names
from stepscope.bench.session.rank_records import Records, first
from stepscope.cli.bench.arguments import results_folder, shared_settings
from stepscope.cli.bench.session import Document, document_of, elsewhere, finish_bench, start_ranks
from stepscope.document.values import in_ms
from stepscope.errors import UsageError
from stepscope.report.terminal import plain_table, print_fitting
from stepscope.report.text.bench import print_doubts
from stepscope.results.times import ratio
from stepscope.run.step_log import step_logs

_JOB = "stepscope.bench.data_parallel.slow_rank:measure_slow_rank"


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where only a part could be measured."""
    delays = _delays(args)
    folder = results_folder(args)
    settings = {
        **shared_settings(args),
        "series": [{"name": args.implementation, "implementation": args.implementation}],
        "slow_rank": args.slow_rank,
        "delays_ms": delays,
    }
    plan: dict[str, Any] = {"job": _JOB, "settings": settings}
    entries = [{"name": f"{delay:g}ms", "implementation": args.implementation} for delay in delays]
    measured = document_of(args, plan, series=entries)

    def document(records: Any, message: str | None) -> Document:
        return _with_costs(measured(records, message), records, args)

    result = start_ranks(
        args, plan, folder=folder, world_size=args.world_size, total=args.runs * len(delays), document=document
    )
    if (code := elsewhere(args, result)) is not None:
        return code
    found = document(result.records, result.message)
    return finish_bench(args, found, folder=folder, interrupted=result.interrupted, show=_show)


_LATE_TIMES = ("late", "low", "high", "own", "others")


def _with_costs(document: Document, records: Sequence[Records], args: argparse.Namespace) -> Document:
    rows = []
    for row in document["series"]:
        over, low, high = ratio(row["samples_ms"], document["series"][0]["samples_ms"])
        logs = [first(records, what="log", series=row["name"], run=i) for i in range(len(row["samples_ms"]))]
        runs = [late_ranks(step_logs(log["folder"])) if log.get("folder") else [] for log in logs]
        rows.append(
            {
                **row,
                "straggler": {
                    "planted_rank": args.slow_rank,
                    "planted_ms": float(row["name"].removesuffix("ms")),
                    "lost_throughput_pct": 100 * (1 - 1 / over),
                    "lost_low_pct": 100 * (1 - 1 / low),
                    "lost_high_pct": 100 * (1 - 1 / high),
                    "found": [[in_ms(late, _LATE_TIMES) for late in found] for found in runs],
                },
            }
        )
    return {**document, "series": rows}


def _show(document: Document, out: Console) -> None:
    table = plain_table(out, "delay", "step ms", "throughput lost", "95 % interval", "named", "late by ms", "score")
    for row in document["series"]:
        s = row["straggler"]
        named = [late for found in s["found"] for late in found[:1]]
        right = [late for late in named if late["rank"] == s["planted_rank"]]
        table.add_row(
            f"rank {s['planted_rank']} +{s['planted_ms']:g} ms",
            f"{row['summary']['median_step_time']:.2f}",
            f"{s['lost_throughput_pct']:.1f} %",
            f"{s['lost_low_pct']:.1f} - {s['lost_high_pct']:.1f} %",
            f"{_who(named)} in {len(named)} of {len(s['found'])} runs" if named else "nobody",
            f"{sum(late['late_ms'] for late in right) / len(right):.1f}" if right else "-",
            f"{sum(late['score'] for late in right) / len(right):.1f}" if right else "-",
        )
    print_fitting(table, out, least_needed=("score", "95 % interval", "late by ms"))
    out.print("named: by the step logs of light mode, from own times before the wait for gradients", markup=False)
    print_doubts(document["series"], out)


def _who(named: list[dict[str, Any]]) -> str:
    return "rank " + ", ".join(str(rank) for rank in sorted({late["rank"] for late in named}))


def _delays(args: argparse.Namespace) -> list[float]:
    checked_names((args.implementation,))
    try:
        delays = sorted({0.0, *(float(part) for part in args.delays_ms.split(","))})
    except ValueError:
        delays = [-1.0]
    if not all(0 <= delay < math.inf for delay in delays):
        raise UsageError(f"--delays-ms {args.delays_ms!r}: write times of 0 ms or more, such as 0,10,50")
    if not 0 <= args.slow_rank < args.world_size:
        raise UsageError(f"--slow-rank {args.slow_rank} has to be below --world-size {args.world_size}")
    if args.world_size < 2:
        raise UsageError("--world-size has to be at least 2, so that one rank can wait for another")
    return delays
