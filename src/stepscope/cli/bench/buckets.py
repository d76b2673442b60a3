"""`stepscope bench buckets`: the search over bucket sizes, the finalists' times, and the advice."""

import argparse
import math
import sys
from typing import Any

from stepscope.bench.data_parallel.bucket_finalists import finalists
from stepscope.bench.session.rank_records import first
from stepscope.cli.bench.arguments import results_folder, shared_settings
from stepscope.cli.bench.session import Document, document_of, elsewhere, finish_bench, start_ranks
from stepscope.errors import UsageError
from stepscope.report.terminal import console, plain_table
from stepscope.report.text.bench import times_of
from stepscope.results.times import ratio

_JOB = "stepscope.bench.data_parallel.bucket_sweep:bucket_sweep"
_ROUNDS = 15


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where only a part could be measured."""
    settings = {
        **shared_settings(args),
        "implementation": args.implementation,
        "sizes_mb": _sizes(args.sizes_mb),
        "exhaustive": args.exhaustive,
        "round_steps": args.round_steps,
    }
    folder = results_folder(args)
    plan = {"job": _JOB, "settings": settings}

    def document(records: Any, message: str | None) -> Document:
        found = first(records, what="found")
        series = finalists(args.implementation, found["best_mb"]) if found else []
        search = {name: found.get(name) for name in ("best_mb", "tried_mb", "ratios", "same_as")}
        return {**document_of(args, plan, series=series)(records, message), "search": search}

    result = start_ranks(args, plan, folder=folder, world_size=args.world_size, total=_ROUNDS, document=document)
    if (code := elsewhere(args, result)) is not None:
        return code
    whole = _recommended(document(result.records, result.message))
    code = finish_bench(args, whole, folder=folder, interrupted=result.interrupted)
    if "-" not in (args.json, args.html):
        _print_search(whole)
    return code


def _recommended(document: Document) -> Document:
    timed = [(times, row) for row in document["series"] if (times := times_of(row))]
    if not timed:
        return document
    best, row = min(timed, key=lambda pair: pair[0].median_ns)
    default, reference = timed[0]
    over, low, high = ratio(row["samples_ms"], reference["samples_ms"])
    clear = high < 1
    reason = "clearly faster than the default" if clear else "nothing is clearly faster than it"
    return {
        **document,
        "recommendation": {
            "series": row["name"] if clear else reference["name"],
            "saving_pct": 100 * (1 - over) if clear else 0.0,
            "saving_low_pct": 100 * (1 - high) if clear else 0.0,
            "saving_high_pct": 100 * (1 - low) if clear else 0.0,
            "reason": reason if best.steady and default.steady else f"{reason}, but the times are unsteady",
            "results_agree": all((r.get("agreement") or {}).get("agrees", False) for _, r in timed),
        },
    }


def _print_search(document: Document) -> None:
    out, search = console(sys.stdout), document["search"]
    if search["ratios"]:
        table = plain_table(out, "bucket MB", "time over the best")
        for size, over in search["ratios"].items():
            table.add_row(f"{float(size):g}", f"{over:.3f}")
        out.print(table)
    for size, other in (search["same_as"] or {}).items():
        out.print(f"{float(size):g} MB cuts this model into the same buckets as {other:g} MB", markup=False)
    if advice := document.get("recommendation"):
        saves = (
            f"; saves {advice['saving_pct']:.1f} % [{advice['saving_low_pct']:.1f}, {advice['saving_high_pct']:.1f}]"
        )
        out.print(
            f"recommended: {advice['series']} ({advice['reason']}){saves if advice['saving_pct'] else ''}", markup=False
        )


def _sizes(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        sizes = sorted({float(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or not all(0 < size < math.inf for size in sizes):
        raise UsageError(f"--sizes-mb {text!r}: write sizes above 0 in MB, such as 1,5,25")
    return sizes
