"""A what-if as JSON and as a page: the step as measured and as predicted with the changes."""

from typing import Any

from stepscope.contract.run_folder import SCHEMA
from stepscope.report.sheet import Document, Section, Sheet, card, section_of, table_of, unit_text
from stepscope.units import ms
from stepscope.whatif.settings import Answer


def whatif_json(name: str, answer: Answer) -> dict[str, Any]:
    """Return the answer as a JSON object; what is predicted is what was measured less the saving."""
    found = answer.prediction
    beside_ns = 0.0 if answer.measured_ns is None else answer.measured_ns - found.baseline_ns
    return {
        "schema": SCHEMA,
        "run": name,
        "set": list(found.changes),
        "measured_ms": None if answer.measured_ns is None else ms(answer.measured_ns),
        "baseline_ms": ms(found.baseline_ns),
        "predicted_ms": ms(found.step_ns + beside_ns),
        "predicted_low_ms": ms(found.low_ns + beside_ns),
        "predicted_high_ms": ms(found.high_ns + beside_ns),
        "saving_ms": ms(found.baseline_ns - found.step_ns),
        "saving_pct": round(answer.saving_pct, 3),
        "ranks": [{"rank": rank, "predicted_ms": ms(ns + beside_ns)} for rank, ns in found.rank_step_ns.items()],
        "notes": list(answer.notes),
    }


def whatif_sheet(document: Document) -> Sheet:
    """Return the page, from the JSON."""
    step_ms = document["baseline_ms"] if document["measured_ms"] is None else document["measured_ms"]
    saving, verb = document["saving_ms"], "Saves" if document["saving_ms"] >= 0 else "Costs"
    ends = sorted(abs(step_ms - document[f"predicted_{end}_ms"]) for end in ("low", "high"))
    likely = f"likely {unit_text(ends[0], 'ms')} to {unit_text(ends[1], 'ms')}"
    if (step_ms - document["predicted_low_ms"]) * (step_ms - document["predicted_high_ms"]) < 0:
        ends = [step_ms - document[f"predicted_{end}_ms"] for end in ("high", "low")]
        likely = f"likely {unit_text(ends[0], 'signed_ms')} to {unit_text(ends[1], 'signed_ms')}"
    share = f"{abs(document['saving_pct']):.1f} % of the step, {likely}"
    cards = (card(verb, abs(saving), "ms", share, "low" if saving > 0 else "high" if saving < 0 else ""),)
    rows = [
        {"step": "measured", "time_ms": document["measured_ms"], "low": "", "high": ""},
        {"step": "predicted", **{k: document[f"predicted_{k}_ms"] for k in ("low", "high")}}
        | {"time_ms": document["predicted_ms"]},
    ]
    columns = (
        ("step", "text", "step"),
        ("time", "ms", "time_ms"),
        ("at least", "ms", "low"),
        ("at most", "ms", "high"),
    )
    ranks = section_of(
        "ranks",
        "Predicted step by rank",
        "",
        document["ranks"] if len(document["ranks"]) > 1 else (),
        ("rank", "rank", "rank"),
        ("time", "ms", "predicted_ms"),
    )
    step = Section("step", "Step", table=table_of(rows[document["measured_ms"] is None :], *columns))
    facts = (" ".join(document["set"]),)
    return Sheet(f"What if: {document['run']}", facts, cards, (step, *ranks), tuple(document["notes"]))
