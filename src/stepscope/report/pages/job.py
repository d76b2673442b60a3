"""The ledger of a job: where its time went, attempts, and what would save time, from the JSON of `stepscope job`."""

from typing import TYPE_CHECKING

from stepscope.contract.names import JOB_PARTS, duration_text
from stepscope.document.statements import joules_text
from stepscope.report.sheet import Document, Section, Sheet, Values, card, section_of, table_of

if TYPE_CHECKING:
    from stepscope.report.drawing import Drawing

_COLOURS = {
    "startup": "other", "compile": "unmatched", "productive": "compute", "slowed": "transfer",
    "evaluation": "optimizer", "checkpoint_save": "input", "checkpoint_load": "copy", "hang": "high",
    "lost_work": "wait", "restart": "host", "shutdown": "range", "unknown": "unknown",
}  # fmt: skip


def job_sheet(document: Document) -> Sheet:
    """Return the page of a job."""
    parts = {part["part"]: part for part in document["parts"] if part["s"] > 0}
    joules = {one["part"]: joules_text(one["j"]) for one in (document["energy"] or {"parts": ()})["parts"]}
    table = table_of(
        sorted(parts.values(), key=lambda part: -part["s"]),
        ("part", "text", lambda part: JOB_PARTS[part["part"]]),
        ("time", "ms", lambda part: 1e3 * part["s"]),
        ("share", "pct", "pct"),
        *([("energy", "text", lambda part: joules.get(part["part"], "not measured"))] if joules else []),
        ("of which", "text", _details),
    )
    attempts = section_of(
        "attempts",
        "Attempts",
        "",
        document["attempts"],
        ("run", "text", "run"),
        ("steps", "count", "steps"),
        ("lost steps", "count", "steps_lost"),
        ("end", "text", "reason"),
        ("saves", "count", "saves"),
        ("evaluations", "count", "evaluations"),
        ("started", "text", lambda one: _moment(one["started"])),
        ("ended", "text", lambda one: _moment(one["ended"])),
        most=3 if len(document["attempts"]) > 1 else 0,
    )
    savings = section_of(
        "savings",
        "How much time would each change save?",
        "",
        document["savings"],
        ("change", "text", "change"),
        ("saves", "ms", lambda one: 1e3 * one["s"]),
        ("share", "pct", "pct"),
    )
    said = "Each stretch has the colour of the part that took most of it; the parts are means over ranks."
    lost = sum(parts[name]["s"] for name in ("lost_work", "restart", "hang") if name in parts)
    cards = (
        card("Goodput", document["goodput_pct"], "pct", "productive steps of the whole time"),
        card("Time", duration_text(document["total_s"]), "text", "from launch to end"),
        card("Failures cost", duration_text(lost), "text", "lost work, restart, hangs", "high" if lost else ""),
        *_energy_cards(document["energy"]),
    )
    time = Section("time", "Where the time went", (), lambda: _over_time(document, said), table)
    counts = ((len(document["attempts"]), "attempt"), (document["ranks"], "rank"), (document["steps"], "step"))
    facts = tuple(f"{count:,} {noun}{'s' * (count != 1)}" for count, noun in counts)
    return Sheet(f"Job {document['run']}", facts, cards, (time, *savings, *attempts), tuple(document["warnings"]))


def _over_time(document: Document, said: str) -> "Drawing":
    from stepscope.report.charts import Lane, Span, lane_chart

    spans = [
        Span(
            1e3 * one["start_s"],
            1e3 * one["end_s"],
            _COLOURS[one["part"]],
            (JOB_PARTS[one["part"]], f"{duration_text(one['end_s'] - one['start_s'])} from {one['start_s']:,.1f} s"),
        )
        for one in document["timeline"]
    ]
    legend = [(_COLOURS[part["part"]], JOB_PARTS[part["part"]]) for part in document["parts"] if part["s"] > 0]
    title, length_ms = "The job over time", 1e3 * document["total_s"]
    return lane_chart(title, [Lane("job", spans, 40.0)], length_ms, legend=legend, notes=[said])


def _energy_cards(energy: Document | None) -> list[Values]:
    if energy is None:
        return []
    note = f"by {energy['source']}, {energy['measured_pct']:.0f} % of the time measured"
    per_step = [] if energy["j_per_step"] is None else [f"{joules_text(energy['j_per_step'])} per retained step"]
    return [card("Energy", joules_text(energy["total_j"]), "text", "; ".join([note, *per_step]))]


def _moment(text: str | None) -> str | None:
    """Return a moment of the JSON, which is in UTC, to the second."""
    return text and f"{text[:10]} {text[11:19]} UTC"


def _details(part: Document) -> str:
    known = [(name.replace("_", " "), s) for name, s in part["detail"].items() if s >= 0.001 * part["s"]]
    return ", ".join(f"{name} {duration_text(s)}" for name, s in known)
