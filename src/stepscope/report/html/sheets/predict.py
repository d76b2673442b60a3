"""The page of a prediction, from its JSON document: one function per kind of prediction."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepscope.report.html.sheets.sheet import (
    Axis,
    Card,
    Intervals,
    Line,
    Lines,
    MeasuredRow,
    Section,
    Sheet,
    Stack,
    Stacks,
    Value,
    table_of,
)

_US_PER_MS = 1000
_NEAR = 4
"""times the peak that a device's memory is drawn beside it"""
_MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "temporary")

Document = Mapping[str, Any]


def predict_sheet(what: str, document: Any, *, asked: str) -> Sheet:
    """Return the page of `stepscope predict WHAT`; `asked` is the command line."""
    return _PAGES[what](document, asked)


def _collective(document: Document | Sequence[Document], asked: str) -> Sheet:
    rows = [document] if isinstance(document, Mapping) else list(document)
    first = rows[0]
    points = tuple(
        (row["bytes"], row["time_us"] / _US_PER_MS)
        if row["low_us"] is None
        else (row["bytes"], row["time_us"] / _US_PER_MS, row["low_us"] / _US_PER_MS, row["high_us"] / _US_PER_MS)
        for row in sorted(rows, key=lambda row: row["bytes"])
    )
    titles = (
        ("operation", "text"),
        ("size", "bytes"),
        ("ranks", "count"),
        ("time", "ms"),
        ("low", "ms"),
        ("high", "ms"),
        ("how", "text"),
    )
    table = [
        (
            row["op"],
            row["bytes"],
            row["world_size"],
            *(_us(row[k]) for k in ("time_us", "low_us", "high_us")),
            row.get("how") or f"{row['algorithm']} wins",
        )
        for row in rows
    ]
    name = f"{first['op']}, {first['world_size']} ranks"
    chart = Lines(
        (Line(name, points),),
        Axis("size", "bytes", log=True),
        Axis("time", "ms", log=True),
        f"Predicted time of {name} over its size",
    )
    said = ("The band holds 90 % of measured times.",) if first["low_us"] is not None else (first["reason"],)
    cards = (Card(name, _us(first["time_us"]), "ms", "smallest size" if len(rows) > 1 else ""),)
    section = Section("times", "Predicted times", said, chart if len(rows) > 1 else None, table_of(titles, table))
    return Sheet("Prediction of a collective", (asked,), cards, (section,))


def _us(value: float | None) -> float | None:
    return None if value is None else value / _US_PER_MS


def _memory(document: Document, asked: str) -> Sheet:
    moments = tuple(Stack(m["when"], _parts(m)) for m in document["moments"])
    titles = (("moment", "text"), *((part, "bytes") for part in _MEMORY_PARTS), ("sum", "bytes"))
    rows = [
        (m["when"], *(m[f"{part}_bytes"] for part in _MEMORY_PARTS), sum(v for _, v in _parts(m)))
        for m in document["moments"]
    ]
    fits = {True: ("fits", "low"), False: ("does not fit", "high"), None: ("not asked", "")}[document["fits"]]
    cards = (
        Card("Peak per device", document["peak_bytes"], "bytes", f"at {document['peak_when']}"),
        Card("Device", document["device_bytes"], "bytes", fits[0], fits[1]),
        Card("Layout", document["layout"], "text", f"{document['world_size']} ranks"),
    )
    device, peak = document["device_bytes"], document["peak_bytes"]
    near = device is not None and device < _NEAR * peak  # far above, its line would only flatten the rest
    chart = Stacks(moments, "bytes", "Memory by category at each moment of the step", device if near else None)
    sections = [
        Section(
            "memory",
            "Memory through the step",
            ("The red line is the device.",) if near else (),
            chart,
            table_of(titles, rows),
        )
    ]
    if document["collectives"]:
        traffic = (
            ("operation", "text"),
            ("group", "text"),
            ("ranks", "count"),
            ("per step", "count"),
            ("size", "bytes"),
            ("when", "text"),
        )
        listed = [
            tuple(c[k] for k in ("op", "group", "ranks", "count", "bytes", "when")) for c in document["collectives"]
        ]
        sections.append(Section("traffic", "What is sent", (), None, table_of(traffic, listed)))
    context = (
        "Outside of the allocator the context takes more; 5 % and the context are kept free where it is said to fit."
    )
    return Sheet("Prediction of memory", (asked,), cards, tuple(sections), (context,))


def _parts(moment: Document) -> tuple[tuple[str, float], ...]:
    return tuple((part, moment[f"{part}_bytes"]) for part in _MEMORY_PARTS if moment[f"{part}_bytes"])


def _flops(document: Document, asked: str) -> Sheet:
    forward, training = document["forward_per_token"], document["training_per_token"]
    parts = {name: flops for name, flops in forward.items() if name != "total" and flops}
    chart = Stacks(
        (Stack("forward, per token", tuple(parts.items())),), "flops", "FLOPs of a token's forward pass by part"
    )
    rows = [(name, flops, 100 * flops / forward["total"]) for name, flops in forward.items()]
    table = table_of((("forward, per token", "text"), ("FLOPs", "flops"), ("share", "pct")), rows)
    cards = (
        Card("Parameters", document["parameters"], "count"),
        Card("Training", training["model"], "flops", "per token"),
        Card("With recomputation", training["hardware"], "flops", "per token"),
        Card("Per step", document["model_flops_per_step"], "flops", "of the whole job"),
    )
    known = tuple(card for card in cards if card.value is not None)
    return Sheet(
        "FLOPs of a model",
        (asked,),
        known,
        (Section("flops", "Where they are", (), chart, table),),
        (document["convention"],),
    )


def _strategy(document: Document, asked: str) -> Sheet:
    rows = document["candidates"]
    best, rule = document["recommended"], document["simple_rule"]
    chart = Intervals(
        tuple(MeasuredRow(layout_name(row), row["step_ms"], row["low_ms"], row["high_ms"]) for row in rows),
        "ms",
        "Predicted step of each candidate, and between what it may be",
    )
    titles = (
        ("strategy", "text"),
        ("micro-batch", "count"),
        ("micro-batches", "count"),
        ("memory", "bytes"),
        ("step", "ms"),
        ("low", "ms"),
        ("high", "ms"),
        ("exposed comm", "ms"),
        ("bubble", "ms"),
        ("recompute", "ms"),
        ("optimizer", "ms"),
        ("MFU", "pct"),
    )
    table = [_candidate(row) for row in rows]
    cards = (
        Card("Recommended", layout_name(best), "text", document["reason"], "low"),
        Card("Its step", best["step_ms"], "ms", "predicted"),
        Card("Simple rule", layout_name(rule), "text", rule["rule"]),
        Card("Its step by the rule", rule["step_ms"], "ms", "predicted"),
    )
    sections = [Section("candidates", "What fits, the fastest first", (), chart, table_of(titles, table))]
    if document["not_fitting"]:
        gone = [(layout_name(row), row["memory_bytes"]) for row in document["not_fitting"]]
        sections.append(
            Section(
                "not-fitting",
                "What does not fit",
                (),
                None,
                table_of((("strategy", "text"), ("memory", "bytes")), gone),
            )
        )
    also = ", ".join(layout_name(row) for row in document["test_also"])
    notes = [f"too close to call, measure both: {also}"] if also else []
    return Sheet(
        "Which strategy",
        (asked,),
        cards,
        tuple(sections),
        (*notes, *(f"assumed: {line}" for line in document["assumed"])),
    )


def _candidate(row: Document) -> tuple[Value, ...]:
    known = (
        "micro_batch",
        "micro_batches",
        "memory_bytes",
        "step_ms",
        "low_ms",
        "high_ms",
        "exposed_comm_ms",
        "bubble_ms",
        "recompute_ms",
        "optimizer_ms",
    )
    return (layout_name(row), *(row[k] for k in known), None if row["mfu"] is None else 100 * row["mfu"])


def layout_name(row: Document) -> str:
    """Return a candidate in words: `zero3 dp 8 tp 2 checkpointed`."""
    parts = [row["strategy"], *(f"{k} {row[n]}" for k, n in (("dp", "data"), ("tp", "tensor"), ("pp", "pipeline")))]
    name = " ".join(p for p in parts if not p.endswith(" 1"))
    return name + (" checkpointed" if row["recompute"] != "none" else "")


def _scale(document: Document, asked: str) -> Sheet:
    curve = document["curve"]
    chart = Lines(
        (Line("predicted step", tuple((r["world_size"], r["step_ms"], r["low_ms"], r["high_ms"]) for r in curve)),),
        Axis("ranks", "count", log=True),
        Axis("step", "ms"),
        "Predicted step over world size",
    )
    titles = (
        ("ranks", "count"),
        ("step", "ms"),
        ("low", "ms"),
        ("high", "ms"),
        ("comm", "pct"),
        ("last rank", "ms"),
        ("efficiency", "pct"),
        ("MFU", "pct"),
    )
    rows = [
        (
            r["world_size"],
            r["step_ms"],
            r["low_ms"],
            r["high_ms"],
            r["comm_pct"],
            r["straggler_ms"],
            100 * r["weak_efficiency"],
            None if r["mfu"] is None else 100 * r["mfu"],
        )
        for r in curve
    ]
    recorded = document["recorded"]
    cards = [Card("Recorded", recorded["step_ms"], "ms", f"at {recorded['world_size']} ranks")]
    cards += [
        Card(f"At {r['world_size']:,} ranks", r["step_ms"], "ms", f"{100 * r['weak_efficiency']:.0f} % efficiency")
        for r in document["asked"]
    ]
    said = (f"Communication from {document['source']}. The band is what the step may be.",)
    section = Section("curve", "The step at other world sizes", said, chart, table_of(titles, rows))
    return Sheet(
        f"{document['run']} at other world sizes", (asked,), tuple(cards), (section,), tuple(document["notes"])
    )


_PAGES: dict[str, Callable[[Any, str], Sheet]] = {
    "collective": _collective,
    "memory": _memory,
    "flops": _flops,
    "strategy": _strategy,
    "scale": _scale,
}
