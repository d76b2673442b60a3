"""The health of a run, from the JSON of `stepscope health`: ranks, late ranks, checks, gates and guides."""

from collections.abc import Sequence

from stepscope.contract.names import words
from stepscope.document.statements import headline_sentence
from stepscope.report.sheet import Document, Section, Sheet, Values, card, section_of

#: parts of the step by column; together they are the step
_COLUMNS = {
    "compute": ("forward", "backward", "optimizer", "other_compute"),
    "exposed comm": ("exposed_transfer",),
    "wait": ("wait", "pipeline_bubble"),
    "data": ("data_loading",),
    "copies": ("copy",),
    "host": ("launch_gap", "host_sync", "allocator", "host_stall"),
    "unknown": ("unknown",),
}
#: share of the longest step from which a part has a column
_LEAST = 0.0005
_ORDER = ("fail", "borderline", "pass", "not measured")


def health_sheet(document: Document, *, guides: bool = False) -> Sheet:
    """Return the page; late ranks and failed checks come first."""
    run = document["run"]
    gates = section_of(
        "gates",
        "Gates",
        "",
        document["gates"],
        ("condition", "text", "fail_on"),
        ("", "verdict", lambda gate: "passed" if gate["holds"] else "failed"),
        ("found", "text", "said"),
    )
    applying = [section for guide in document["guides"] for section in _guide(guide)] if guides else []
    none = [Section("guides", "Guides", ("none applies",))] if guides and not applying else []
    counts = ((run["num_ranks"], "rank"), (run["num_steps"], "step"))
    return Sheet(
        title=f"Health of {run['name']}",
        facts=tuple(f"{count:,} {noun}{'s' * (count != 1)}" for count, noun in counts),
        cards=tuple(_cards(document)),
        sections=(*gates, *ranks_section(document), *_checks(document["checks"]), *none, *applying),
    )


def _cards(document: Document) -> list[Values]:
    step, run = document["step"], document["run"]
    known = next((name for name in ("unprofiled", "profiled") if step[f"{name}_ms"] is not None), None)
    cards = [card("Verdict", document["verdict"], why=headline_sentence(document))]
    if known:
        cards.append(card("Step" if run["num_steps"] else "Window", step[f"{known}_ms"], "ms", known))
    for one in document["stragglers"]:
        often = f"late in {one['steps_late']} of {one['num_steps']} steps, cause: {one['cause']}"
        late = f"{often}; own time {one['late_ms_per_step']:.1f} ms above the median rank"
        cards.append(card("Straggler", f"rank {one['rank']}", why=late, tone="high"))
    if not document["stragglers"]:
        cards.append(card("Stragglers", "none" if run["num_ranks"] > 1 else "not applicable to one rank"))
    return cards


def ranks_section(document: Document) -> list[Section]:
    """Return the parts of the step by rank."""
    late = {one["rank"]: one for one in document["stragglers"]}
    rows = []
    for rank in document["ranks"]:
        if parts := rank.get("budget_ms_per_step"):
            times = {name: sum(parts.get(part, 0.0) for part in of) for name, of in _COLUMNS.items()}
            cause = late[rank["rank"]]["cause"] if rank["rank"] in late else ""
            rows.append({"rank": rank["rank"], "whole": sum(times.values()), **times, "late": cause})
    least = _LEAST * max((row["whole"] for row in rows), default=0.0)
    most = {name: max((row[name] for row in rows), default=0.0) for name in _COLUMNS}
    shown = sorted((name for name in _COLUMNS if most[name] >= least), key=lambda name: -most[name])
    return section_of(
        "ranks",
        "Ranks",
        f"Time per {'step' if document['run']['num_steps'] else 'window'}; late ranks first.",
        sorted(rows, key=lambda row: row["rank"] not in late),
        ("rank", "rank", "rank"),
        ("step", "ms", "whole"),
        *((name, "ms", name) for name in shown),
        ("late", "text", "late"),
    )


def _checks(checks: Sequence[Document]) -> list[Section]:
    return section_of(
        "checks",
        "Checks",
        "",
        sorted(checks, key=lambda one: _ORDER.index(_status(one))),
        ("check", "text", lambda one: words(one["id"])),
        ("status", "verdict", _status),
        ("value", "number", _tenths),
        ("good", "text", "good"),
        ("bad", "text", "bad"),
        ("reason", "text", "reason"),
        most=50,
    )


def _guide(guide: Document) -> list[Section]:
    return section_of(
        guide["id"],
        guide["title"],
        guide["why"],
        guide["items"],
        ("check", "text", lambda item: words(item["check"]["id"])),
        ("status", "verdict", lambda item: _status(item["check"])),
        ("value", "number", lambda item: _tenths(item["check"])),
        ("good", "text", lambda item: item["check"]["good"]),
        ("reason", "text", lambda item: item["check"]["reason"]),
        ("what to do", "text", lambda item: item["remedy"] if item["check"]["status"] == "fail" else ""),
        most=50,
    )


def _status(check: Document) -> str:
    """Return the status; a value between good and bad does not pass, and is no clear failure either."""
    return "borderline" if check["reason"].startswith("borderline") else str(check["status"])


def _tenths(check: Document) -> float | None:
    return None if check["value"] is None else round(check["value"], 1)
