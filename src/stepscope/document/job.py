"""The ledger of a job as JSON, and what it would save to checkpoint, evaluate or fail less often."""

import datetime
from collections.abc import Sequence
from math import floor, log10, sqrt
from typing import Any

from stepscope.analyze.job_energy import energy_of_job
from stepscope.analyze.ledger import PARTS, Ledger, ledger_of
from stepscope.document.rows import json_rows
from stepscope.records import Row
from stepscope.run.attempts import Attempt
from stepscope.units import NS_PER_S, finite_document

_SCHEMA = 1
# of the job: less is not worth a line
_MIN_PCT = 1.0
_LESS_OFTEN = 5


def job_json(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return the document of `stepscope job`; parts sum to the whole."""
    ledger = ledger_of(attempts)
    energy, unknown = energy_of_job(ledger, attempts)
    total_s = ledger.total_ns / NS_PER_S
    document = {
        "schema": _SCHEMA,
        "run": ledger.name,
        "total_s": total_s,
        "goodput_pct": _pct(ledger, ledger.part_ns("productive")),
        "ranks": max(one.num_ranks for one in ledger.attempts),
        "steps": sum(one.steps for one in ledger.attempts),
        "step_ms": None if ledger.step_ns is None else ledger.step_ns / 1e6,
        "attempts": json_rows(
            "attempts",
            (Row(one, started=_moment(one.start_ns), ended=_moment(one.end_ns)) for one in ledger.attempts),
        ),
        "parts": [
            {
                "part": part,
                "s": ledger.part_ns(part) / NS_PER_S,
                "pct": _pct(ledger, ledger.part_ns(part)),
                "detail": {
                    label.partition("/")[2]: ns / NS_PER_S
                    for label, ns in ledger.parts_ns.items()
                    if label.startswith(f"{part}/")
                },
            }
            for part in PARTS
        ],
        "savings": _savings(ledger),
        "timeline": [{"start_s": a / NS_PER_S, "end_s": b / NS_PER_S, "part": part} for a, b, part in ledger.timeline],
        "energy": energy,
        "warnings": [*ledger.warnings, *(f"energy unknown: {reason}" for reason in unknown)],
    }
    return finite_document(document)[0]


def _pct(ledger: Ledger, ns: float) -> float:
    return 100.0 * ns / ledger.total_ns if ledger.total_ns > 0 else 0.0


def _moment(time_ns: int) -> str | None:
    try:
        return datetime.datetime.fromtimestamp(time_ns / 1e9, tz=datetime.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return None


def _savings(ledger: Ledger) -> list[dict[str, Any]]:
    """Return what single changes would save, the largest first."""
    failures = sum(one.failed for one in ledger.attempts)
    found = [_fewer_saves(ledger, failures), _fewer_evaluations(ledger)]
    failed = {part: ledger.part_ns(part) for part in ("lost_work", "restart", "hang")}
    if failures:
        found.append(
            ("restart", f"without {'the failure' if failures == 1 else f'{failures} failures'}", sum(failed.values()))
        )
    elif failed["hang"]:
        found.append(("hang", "without hangs", failed["hang"]))
    ranks = " and ".join(f"rank {rank}" for rank in ledger.late_ranks[:3])
    causes = {
        "slowed/data": "without waiting for data",
        "slowed/straggler": f"with {ranks} as fast as the others" if ranks else "without stragglers",
        "slowed/host": "without other long steps",
        "slowed/profiler": "without the profiler (record --light)",
        "compile": "without compilation and first calls",
    }
    found += [(label.partition("/")[0], words, ledger.parts_ns.get(label, 0.0)) for label, words in causes.items()]
    worth = [(part, words, ns) for part, words, ns in filter(None, found) if _pct(ledger, ns) >= _MIN_PCT]
    return [
        {"part": part, "change": words, "s": ns / NS_PER_S, "pct": _pct(ledger, ns)}
        for part, words, ns in sorted(worth, key=lambda one: -one[2])
    ]


def _fewer_saves(ledger: Ledger, failures: int) -> tuple[str, str, float] | None:
    """Return the interval that costs least: saving against repeating half an interval after each failure.

    With no failure so far, a fifth of the saves.
    """
    saves, steps = sum(one.saves for one in ledger.attempts), sum(one.steps for one in ledger.attempts)
    cost_ns = ledger.part_ns("checkpoint_save")
    if not saves or not cost_ns or not ledger.step_ns or saves >= steps:
        return None
    interval, each_ns = steps / saves, cost_ns / saves
    if not failures:
        better = _LESS_OFTEN * interval
        gain_ns = cost_ns * (1 - 1 / _LESS_OFTEN)
    else:
        better = sqrt(2 * each_ns * ledger.total_ns / failures) / ledger.step_ns
        lost_ns = ledger.part_ns("lost_work")
        longer_ns = failures * ledger.step_ns * (better - interval) / 2  # no more can be saved than was lost
        repeated_ns = longer_ns if better > interval else -lost_ns * (1 - better / interval)
        gain_ns = cost_ns * (1 - interval / better) - repeated_ns
    every, instead = _rounded(better), _rounded(interval)
    if every == instead:
        return None
    also = f" ({failures} failure{'s' * (failures > 1)})" if failures else ""
    return "checkpoint_save", f"saving every {every} instead of every {instead} steps{also}", gain_ns


def _fewer_evaluations(ledger: Ledger) -> tuple[str, str, float] | None:
    evaluations, steps = (sum(getattr(one, name) for one in ledger.attempts) for name in ("evaluations", "steps"))
    if not evaluations:
        return None
    interval = _rounded(steps / evaluations)
    words = f"evaluating every {2 * interval} instead of every {interval} steps"
    return "evaluation", words, ledger.part_ns("evaluation") / 2


def _rounded(value: float) -> int:
    """Return a number of steps with two digits."""
    digits = max(0, floor(log10(max(value, 1.0))) - 1)
    return max(1, round(value / 10**digits) * 10**digits)
