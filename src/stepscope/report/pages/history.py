"""Runs over time, from the JSON of `stepscope history`: steps, groups, what changed, and slow hosts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
