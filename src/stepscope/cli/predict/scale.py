"""`stepscope predict scale`: the recorded step at other world sizes, as text or JSON."""

import argparse
import sys
from typing import Any

from stepscope.cli.given.run_arguments import account_from, warn_incomplete
from stepscope.cli.predict.answer import is_for_terminal
from stepscope.cli.predict.collective import fabric
from stepscope.cost.calibration import Calibration, load_calibration
from stepscope.cost.closed_form import Fabric
from stepscope.errors import UsageError
from stepscope.predict.scale import ScaledStep, Scaling, scaled
from stepscope.report.terminal import console, plain_table, print_fitting
from stepscope.units import ms

_MAX_RANKS = 16384


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 where a rank of the run could not be read."""
    account = account_from(args)
    asked = args.world_size or []
    found = scaled(
        account,
        [*asked, *_curve(account.run.world_size or 2)],
        source=_source(args),
        compute_factor=args.compute_factor,
    )
    document = _json(account.run.name, found, asked)
    if is_for_terminal(args, document):
        _print(document, asked)
    warn_incomplete(account)
    return 3 if account.run.unreadable else 0


def _curve(recorded: int) -> list[int]:
    sizes = []
    while recorded <= _MAX_RANKS:
        sizes.append(max(recorded, 2))
        recorded *= 2
    return sizes


def _source(args: argparse.Namespace) -> Calibration | Fabric | None:
    links = fabric(args)
    if args.calibration and links is not None:
        raise UsageError("--calibration and --link cannot be used together; use one")
    return load_calibration(args.calibration) if args.calibration else links


def _json(name: str, found: Scaling, asked: list[int]) -> dict[str, Any]:
    rows = [_row(point) for point in found.curve]
    return {
        "run": name,
        "recorded": {"world_size": found.recorded_world_size, "step_ms": ms(found.recorded_ns)},
        "without_comm_ms": ms(found.without_comm_ns),
        "rank_spread_ms": ms(found.spread_ns),
        "source": found.source,
        "asked": [row for row in rows if row["world_size"] in asked],
        "curve": rows,
        "notes": list(found.notes),
    }


def _row(point: ScaledStep) -> dict[str, Any]:
    return {
        "world_size": point.world_size,
        "step_ms": ms(point.step_ns),
        "low_ms": ms(point.low_ns),
        "high_ms": ms(point.high_ns),
        "comm_pct": round(100 * point.comm_share, 2),
        "straggler_ms": ms(point.straggler_ns),
        "mfu": None if point.mfu is None else round(point.mfu, 4),
        "weak_efficiency": round(point.weak_efficiency, 4),
    }


def _print(document: dict[str, Any], asked: list[int]) -> None:
    out = console(sys.stdout)
    recorded = document["recorded"]
    out.print(f"{document['run']}: {recorded['step_ms']:.2f} ms per step at {recorded['world_size']} ranks")
    table = plain_table(out, "ranks", "step ms", "between", "comm", "last rank", "efficiency", "MFU")
    for row in document["curve"]:
        mfu = "?" if row["mfu"] is None else f"{100 * row['mfu']:.1f} %"
        table.add_row(
            f"{row['world_size']:,}{' *' if row['world_size'] in asked else ''}",
            f"{row['step_ms']:.2f}",
            f"{row['low_ms']:.2f} - {row['high_ms']:.2f}",
            f"{row['comm_pct']:.1f} %",
            f"+{row['straggler_ms']:.2f} ms",
            f"{100 * row['weak_efficiency']:.0f} %",
            mfu,
        )
    print_fitting(table, out, least_needed=("last rank", "comm", "MFU"))
    out.print(f"communication from {document['source']}")
    for note in document["notes"]:
        out.print(note)
