"""Flight recorder dumps: who did not arrive, from the JSON of `stepscope hang`."""

from typing import TYPE_CHECKING

from stepscope.report.sheet import Document, Section, Sheet, card, section_of, table_of
from stepscope.units import rank_ranges

if TYPE_CHECKING:
    from stepscope.report.drawing import Drawing

_MAX_RANKS = 32


def hang_sheet(document: Document) -> Sheet:
    """Return the page; what is stuck comes first."""
    suspects, ranks = document["suspects"], document["ranks"]
    hung = card("Hung", "yes" if document["hang"] else "no", tone="high" if document["hang"] else "low")
    check = card("Check rank", rank_ranges(suspects) or "none", why="first suspects", tone="high" if suspects else "")
    groups = table_of(
        sorted(document["groups"], key=lambda group: group["waiting_at"] is None and not group["mismatch"]),
        ("group", "text", "desc"),
        ("state", "text", "verdict"),
        ("missing", "text", lambda group: rank_ranges(group["missing"])),
        ("waiting at", "text", lambda group: str(group["waiting_at"] or "")),
        ("ranks", "text", lambda group: rank_ranges(group["ranks"])),
        ("issued", "text", _issued),
        ("last common call", "text", _last_common),
    )
    calls = section_of(
        "calls",
        "Last call of each rank",
        "",
        sorted(document["last_calls"], key=lambda call: call["rank"] not in suspects),
        ("rank", "rank", "rank"),
        ("last call", "text", "name"),
        ("number", "count", "seq"),
        ("state", "text", "state"),
        ("at", "text", lambda call: None if call["file"] is None else f"{call['file']}:{call['line']}"),
        ("function", "text", "function"),
    )
    sections = (
        Section("conclusions", "What is wrong", tuple(document["conclusions"]), lambda: _issued_by_rank(document)),
        Section("groups", "Process groups", table=groups),
        *calls,
    )
    of = f" of {document['world_size']}" if document["world_size"] else ""
    facts = (f"flight recorder dumps of {len(ranks)}{of} ranks",)
    return Sheet("Hung ranks", facts, (hung, check), sections, tuple(document["warnings"]))


def _issued(group: Document) -> str:
    by_number: dict[int, list[int]] = {}
    for one in group["last_by_rank"]:
        by_number.setdefault(one["seq"], []).append(one["rank"])
    return "; ".join(f"{seq} by rank {rank_ranges(ranks)}" for seq, ranks in by_number.items()) or "nothing"


def _last_common(group: Document) -> str:
    call = group["last_common"]
    if call is None:
        return "none in the dumps"
    at = f"{call['file']}:{call['line']} ({call['function']})" if call["file"] else "(no stack recorded)"
    return f"number {call['seq']}, {call['name']} at {at}"


def _issued_by_rank(document: Document) -> "Drawing | None":
    from stepscope.report.charts import Bar, bar_chart

    last = dict.fromkeys(document["ranks"], 0)
    for group in document["groups"]:
        for one in group["last_by_rank"]:
            last[one["rank"]] = max(last[one["rank"]], one["seq"])
    bars = [
        Bar(f"rank {rank}", [("high" if rank in document["suspects"] else "compute", "collectives issued", float(seq))])
        for rank, seq in sorted(last.items())[:_MAX_RANKS]
    ]
    return bar_chart("Collectives issued by each rank", bars, "count", width=760) if bars else None
