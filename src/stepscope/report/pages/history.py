"""Runs of a folder, and runs over time from the JSON of `history`: steps, groups, what changed, and slow hosts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepscope.records import dataclass
from stepscope.report.sheet import Document, Section, Sheet, Values, card, pct, section_of, table_of

if TYPE_CHECKING:
    from stepscope.report.drawing import Drawing

_TONES = {"slower": "high", "faster": "low"}
_SHORT_COMMIT = 10
_MAX_CARDS = 3


def history_sheet(document: Document) -> Sheet:
    """Return the page, the newest runs first."""
    runs, by = document["runs"], document["by"]
    table = table_of(
        reversed(runs),
        ("run", "text", "run"),
        ("step", "ms", "step_ms"),
        ("largest finding", "text", lambda run: "".join(f"{f} {p:.0f} %" for f, p in run["findings"][:1])),
        ("MFU", "pct", lambda run: pct(run["mfu"])),
        ("ranks", "count", "world_size"),
        ("commit", "text", lambda run: _commit(run["commit"])),
        ("created", "text", lambda run: run["created"] and run["created"][:16].replace("T", " ")),
        ("memory", "bytes", "peak_memory_bytes"),
        ("goodput", "pct", "goodput_pct"),
    )
    groups = section_of(
        "groups",
        f"By {by}",
        "",
        reversed(document["groups"]),
        (f"by {by}", "text", lambda group: _commit(group["name"]) if by == "commit" else group["name"]),
        ("runs", "count", "runs"),
        ("step", "ms", "step_ms"),
        ("fastest", "ms", "min_step_ms"),
        ("slowest", "ms", "max_step_ms"),
        ("often found", "text", lambda group: ", ".join(group["findings"])),
        ("MFU", "pct", lambda group: pct(group["mfu"])),
        ("memory", "bytes", "peak_memory_bytes"),
    )
    hosts = section_of(
        "hosts",
        "Hosts",
        _on_hosts(document["hosts"]),
        sorted(document["hosts"], key=lambda host: not host["is_slow"]),
        ("host", "text", "host"),
        ("", "verdict", lambda host: "slow" if host["is_slow"] else ""),
        ("slowdown", "x", "slowdown"),
        ("jobs", "count", "runs"),
        ("slowest in", "count", "slowest"),
        ("expected", "number", "expected"),
        ("p", "number", "p_value"),
        ("not named because", "text", "why_not"),
    )
    notes = [f"{run['run']}: {run['problem']}" for run in runs if run["problem"]]
    sections = (
        Section("runs", "Runs", (), lambda: _steps(document), table),
        *_newest(document["newest"]),
        *groups,
        *hosts,
    )
    cards = tuple(map(_newest_card, document["newest"][:_MAX_CARDS]))
    return Sheet(f"History of {document['folder']}", (f"{len(runs)} runs",), cards, sections, tuple(notes))


def _newest(rows: Sequence[Document]) -> list[Section]:
    return section_of(
        "newest",
        "Newest run of each configuration",
        "Against the earlier runs of its configuration, of which 4 are needed; between: 95 % prediction interval.",
        rows,
        ("run", "text", "run"),
        ("step", "ms", "step_ms"),
        ("change", "signed_pct", "change_pct"),
        ("", "verdict", "verdict"),
        ("earlier runs", "count", "before"),
        ("before", "ms", "usual_ms"),
        ("from", "ms", "low_ms"),
        ("to", "ms", "high_ms"),
        ("commit", "text", lambda one: _commit(one["commit"])),
    )


def _newest_card(one: Document) -> Values:
    change = "" if one["change_pct"] is None else f", {one['change_pct']:+.1f} %"
    return card(
        f"Newest: {one['run']}", one["step_ms"], "ms", f"{one['verdict']}{change}", _TONES.get(one["verdict"], "")
    )


def _on_hosts(hosts: list[Document]) -> str:
    slow = [one["host"] for one in hosts if one["is_slow"]]
    found = f"Slow beyond chance: {', '.join(slow)}" if slow else f"None of {len(hosts)} is slow beyond chance"
    return f"{found}. Slowdown and p are against the other hosts of the same jobs."


def _commit(commit: str | None) -> str | None:
    return commit and commit[:_SHORT_COMMIT]


def _steps(document: Document) -> "Drawing | None":
    from stepscope.report.charts import COLOURS, STEP, WIDE, Axis, Line, line_chart

    lines: list[Line] = []
    for config in dict.fromkeys(run["config"] for run in document["runs"]):
        points = [(float(i + 1), r["step_ms"]) for i, r in enumerate(document["runs"]) if r["config"] == config]
        known = [point for point in points if point[1] is not None]
        if known and len(lines) < len(COLOURS):
            lines.append(Line(str(config or "configuration unknown"), known, COLOURS[len(lines)], "both"))
    legend = [(line.colour, line.name) for line in lines]
    axis = Axis("run, oldest first", "count", zero=False)
    return line_chart("Step of each run", lines, axis, STEP, width=WIDE, legend=legend) if lines else None


# A folder of runs: one row per run, the step over time, and the first finding of each.


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
        sections=(Section("runs", "Runs", (), lambda: _step_series(rows), table | {"links": list(links)}),),
        notes=tuple(f"{run.name}: not read: {run.reason}" for run in runs if run.report is None),
    )


def _cards(rows: Sequence[dict[str, Any]]) -> tuple[Values, ...]:
    timed = [row for row in rows if row["step_ms"] is not None]
    if not timed:
        return ()
    ordered = sorted(timed, key=lambda row: row["step_ms"])
    named = (("Fastest step", ordered[0], "low"), ("Slowest step", ordered[-1], ""), ("Last run", timed[-1], ""))
    return tuple(card(title, row["step_ms"], "ms", row["name"], tone) for title, row, tone in named)


def _step_series(rows: Sequence[dict[str, Any]]) -> "Drawing | None":
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
