"""The page of a folder of runs: one row per run, the step over time, and what each one's first finding is."""

from collections.abc import Sequence
from dataclasses import replace

from stepscope.report.html.sheets.sheet import Axis, Card, Line, Lines, Section, Sheet, Table, Value, table_of
from stepscope.report.runs import RunEntry, run_rows, step_ms


def runs_sheet(folder: str, runs: Sequence[RunEntry], *, links: Sequence[str] = ()) -> Sheet:
    """Return the page; `links` are where the runs that were read lead to, in a page that is served."""
    known = [run for run in runs if run.report is not None]
    steps = [step_ms(run) for run in known]
    points = tuple((float(i + 1), step) for i, step in enumerate(steps) if step is not None)
    chart = (
        Lines((Line("step", points),), Axis("run, in this order", "number"), Axis("step", "ms"), "Step of each run")
        if len(points) > 1
        else None
    )
    unread = [f"{run.name}: not read: {run.reason}" for run in runs if run.report is None]
    return Sheet(
        title=folder,
        facts=(f"{len(runs)} runs",),
        cards=_cards(known),
        sections=(Section("runs", "Runs", (), chart, replace(_table(known), links=tuple(links))),),
        notes=tuple(unread),
    )


def _cards(runs: Sequence[RunEntry]) -> tuple[Card, ...]:
    timed = [(step, run) for run in runs if (step := step_ms(run)) is not None]
    if not timed:
        return ()
    fastest, slowest = min(timed, key=lambda pair: pair[0]), max(timed, key=lambda pair: pair[0])
    last = timed[-1]
    return (
        Card("Fastest step", fastest[0], "ms", fastest[1].name, "low"),
        Card("Slowest step", slowest[0], "ms", slowest[1].name),
        Card("Last run", last[0], "ms", last[1].name),
    )


def _table(runs: Sequence[RunEntry]) -> Table:
    titles = (
        ("#", "count"),
        ("run", "text"),
        ("created", "text"),
        ("ranks", "count"),
        ("step", "ms"),
        ("MFU", "pct"),
        ("tokens/s", "count"),
        ("verdict", "text"),
        ("first finding", "text"),
        ("saves", "ms"),
    )
    rows: list[tuple[Value, ...]] = []
    for i, row in enumerate(run_rows(runs)):
        mfu = row["mfu"]
        rows.append(
            (
                i + 1,
                row["name"],
                row["created"],
                row["num_ranks"],
                row["step_ms"],
                None if mfu is None else 100 * mfu,
                row["tokens_per_s"],
                row["verdict"],
                row["first_finding"],
                row["saving_alone_ms"],
            )
        )
    return table_of(titles, rows)
