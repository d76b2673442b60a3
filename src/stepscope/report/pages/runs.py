"""A folder of runs: one row per run, the step over time, and the first finding of each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepscope.records import dataclass
from stepscope.report.sheet import Section, Sheet, Values, card, pct, table_of

if TYPE_CHECKING:
    from stepscope.report.drawing import Drawing


@dataclass(frozen=True)
class RunEntry:
    """One run of a folder."""

    name: str
    created: str | None
    #: its JSON, None where it could not be read
    report: dict[str, Any] | None
    #: why it could not
    reason: str = ""


def in_order(runs: Sequence[RunEntry]) -> list[RunEntry]:
    """Return the runs as they were made, where that is known of all; else by name."""
    dated = all(run.created for run in runs)
    return sorted(runs, key=lambda run: (run.created or "" if dated else "", run.name))


def run_rows(runs: Sequence[RunEntry]) -> list[dict[str, Any]]:
    """Return the runs as plain rows; a run that could not be read has a reason and nothing else."""
    return [_row(run) for run in runs]


def runs_sheet(folder: str, runs: Sequence[RunEntry], *, links: Sequence[str] = ()) -> Sheet:
    """Return the page; `links` are where the runs that were read lead to, in a page that is served."""
    rows = run_rows([run for run in runs if run.report is not None])
    table = table_of(
        [{"place": place, **row} for place, row in enumerate(rows, start=1)],
        ("run", "text", "name"),
        ("step", "ms", "step_ms"),
        ("first finding", "text", "first_finding"),
        ("saves", "ms", "saving_alone_ms"),
        ("verdict", "text", "verdict"),
        ("MFU", "pct", lambda row: pct(row["mfu"])),
        ("ranks", "count", "num_ranks"),
        ("tokens/s", "count", "tokens_per_s"),
        ("created", "text", "created"),
        ("#", "count", "place"),
    )
    return Sheet(
        title=folder,
        facts=(f"{len(runs)} runs",),
        cards=_cards(rows),
        sections=(Section("runs", "Runs", (), lambda: _steps(rows), table | {"links": list(links)}),),
        notes=tuple(f"{run.name}: not read: {run.reason}" for run in runs if run.report is None),
    )


def _cards(rows: Sequence[dict[str, Any]]) -> tuple[Values, ...]:
    timed = [row for row in rows if row["step_ms"] is not None]
    if not timed:
        return ()
    ordered = sorted(timed, key=lambda row: row["step_ms"])
    named = (("Fastest step", ordered[0], "low"), ("Slowest step", ordered[-1], ""), ("Last run", timed[-1], ""))
    return tuple(card(title, row["step_ms"], "ms", row["name"], tone) for title, row, tone in named)


def _steps(rows: Sequence[dict[str, Any]]) -> "Drawing | None":
    from stepscope.report.charts import STEP, WIDE, Axis, Line, line_chart

    points = [(float(i + 1), row["step_ms"]) for i, row in enumerate(rows) if row["step_ms"] is not None]
    order = Axis("run, in this order", "count", zero=False)
    line = Line("step", points, "compute", "both")
    return line_chart("Step of each run", [line], order, STEP, width=WIDE) if len(points) > 1 else None


def _row(run: RunEntry) -> dict[str, Any]:
    report = run.report
    if report is None:
        return {"name": run.name, "created": run.created, "reason": run.reason}
    first = next(iter(report["findings"]), None)
    unprofiled_ms = report["step"].get("unprofiled_ms")
    return {
        "name": run.name,
        "created": run.created,
        "num_ranks": report["run"]["num_ranks"],
        "step_ms": report["step"].get("profiled_ms") if unprofiled_ms is None else unprofiled_ms,
        "mfu": report["efficiency"]["mfu"],
        "tokens_per_s": report["step"]["tokens_per_s"],
        "verdict": report["verdict"],
        "first_finding": first and first["id"],
        "saving_alone_ms": first and first["saving_alone_ms"],
    }
