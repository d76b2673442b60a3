"""Pages of calibrations and predictions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.cost.alpha_beta import Curve
from stepscope.cost.calibration import Calibration
from stepscope.lab.report.svg import SIZE, TIME
from stepscope.report.charts import COLOURS, STEP, Axis, Bar, Line, bar_chart, line_chart, stacks
from stepscope.report.drawing import Drawing
from stepscope.report.pictures import calibration_lines
from stepscope.report.sheet import Document, Section, Sheet, Values, card, pct, table_of
from stepscope.units import NS_PER_MS, printable

# The page of a calibration: what every collective takes by size, measured and fitted, and how far the fit is off.

_SHOWN = ("source", "backend", "device", "machine", "torch", "created")


def calibration_sheet(calibration: Calibration) -> Sheet:
    """Return the page of a calibration."""
    ops = list(dict.fromkeys(curve.op for curve in calibration.curves))
    about = calibration.about
    table = table_of(
        calibration.curves,
        ("operation", "text", lambda curve: curve.op),
        ("ranks", "count", lambda curve: curve.world_size),
        ("latency", "ms", _latency_ms),
        ("rate", "gb_per_s", _rate),
        ("R²", "number", lambda curve: round(curve.r2, 4)),
        ("mean error", "pct", lambda curve: 100 * curve.mean_error),
        ("largest error", "pct", lambda curve: 100 * curve.max_error),
        ("on sizes left out", "pct", lambda curve: pct(curve.left_out_error)),
        ("points", "count", lambda curve: len(curve.points)),
    )
    return Sheet(
        title="Collectives of this machine",
        facts=tuple(printable(str(about[name])) for name in _SHOWN if about.get(name)),
        cards=_calibration_cards(calibration),
        sections=(
            Section("fits", "What was fitted", (), None, table),
            *(_operation(calibration, op) for op in ops),
        ),
        notes=(
            "Times are of the full buffer of the operation, without waiting for other ranks.",
            *(curve.doubt for curve in calibration.curves if curve.doubt),
        ),
    )


def _calibration_cards(calibration: Calibration) -> tuple[Values, ...]:
    curves = calibration.curves
    rates = [rate for curve in curves if (rate := _rate(curve)) is not None]
    errors = [curve.left_out_error for curve in curves if curve.left_out_error is not None]
    return (
        card("Curves", len(curves), "count", "one per operation and world size"),
        card(
            "Smallest latency",
            min((_latency_ms(curve) for curve in curves), default=None),
            "ms",
            "before the first byte",
        ),
        card("Highest rate", max(rates, default=None), "gb_per_s", "bytes of the buffer over time"),
        card(
            "Typical error", 100 * float(np.median(errors)) if errors else None, "pct", "on sizes left out of the fit"
        ),
    )


def _operation(calibration: Calibration, op: str) -> Section:
    curves = [curve for curve in calibration.curves if curve.op == op]
    said = "Dots were measured, lines are fitted; 90 % of measurements lie in the band."
    points = [(curve.world_size, size, time) for curve in curves for size, time in curve.points]
    table = table_of(
        points,
        ("ranks", "count", lambda point: point[0]),
        ("size", "bytes", lambda point: point[1]),
        ("time", "ms", lambda point: point[2] / NS_PER_MS),
        ("rate", "gb_per_s", lambda point: point[1] / point[2] if point[2] else None),
    )
    return Section(
        f"op-{op.replace('_', '-')}", op.replace("_", " "), (said,), _calibration_chart(calibration, op), table
    )


def _calibration_chart(calibration: Calibration, op: str) -> Drawing:
    """Return the measured points, the fitted curves and their intervals of one operation."""
    curves = [curve for curve in calibration.curves if curve.op == op]
    lines = [
        line
        for k, curve in enumerate(curves)
        for line in calibration_lines(calibration, curve, COLOURS[k % len(COLOURS)], f"{curve.world_size} ranks")
    ]
    return line_chart(
        op.replace("_", " "), lines, SIZE, TIME,
        label=f"Time of {op} over its size", legend=[(line.colour, line.name) for line in lines[::2]],
    )  # fmt: skip


def _latency_ms(curve: Curve) -> float:
    return float(curve.pieces.lines()[0].alpha_ns) / NS_PER_MS


def _rate(curve: Curve) -> float | None:
    per_byte = curve.pieces.lines()[-1].ns_per_byte
    return 1 / per_byte if per_byte else None


# The page of a prediction, from its JSON document: one function per kind of prediction.

_US_PER_MS = 1000
_MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "temporary")


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
    table = table_of(
        rows,
        ("operation", "text", "op"),
        ("size", "bytes", "bytes"),
        ("ranks", "count", "world_size"),
        ("time", "ms", lambda row: _us(row["time_us"])),
        ("low", "ms", lambda row: _us(row["low_us"])),
        ("high", "ms", lambda row: _us(row["high_us"])),
        ("how", "text", lambda row: row.get("how") or f"{row['algorithm']} wins"),
    )
    name = f"{first['op']}, {first['world_size']} ranks"
    title = f"Predicted time of {name} over its size"
    chart = line_chart(title, [Line(name, points, "compute", "both")], SIZE, TIME, width=760)
    said = ("The band holds 90 % of measured times.",) if first["low_us"] is not None else (first["reason"],)
    cards = (card(name, _us(first["time_us"]), "ms", "smallest size" if len(rows) > 1 else ""),)
    section = Section("times", "Predicted times", said, chart if len(rows) > 1 else None, table)
    return Sheet("Prediction of a collective", (asked,), cards, (section,))


def _us(value: float | None) -> float | None:
    return None if value is None else value / _US_PER_MS


def _memory(document: Document, asked: str) -> Sheet:
    moments = [(m["when"], _parts(m)) for m in document["moments"]]
    table = table_of(
        document["moments"],
        ("moment", "text", "when"),
        *((part, "bytes", f"{part}_bytes") for part in _MEMORY_PARTS),
        ("sum", "bytes", lambda m: sum(v for _, v in _parts(m))),
    )
    fits = {True: ("fits", "low"), False: ("does not fit", "high"), None: ("not given", "")}[document["fits"]]
    cards = (
        card("Peak per device", document["peak_bytes"], "bytes", f"at {document['peak_when']}"),
        card("Device", document["device_bytes"], "bytes", fits[0], fits[1]),
        card("Layout", document["layout"], "text", f"{document['world_size']} ranks"),
    )
    device, peak = document["device_bytes"], document["peak_bytes"]
    # a device's memory is drawn if it is below four times the peak
    near = device is not None and device < 4 * peak  # far above, its line would only flatten the rest
    chart = stacks("Memory by category at each moment of the step", moments, "bytes", device if near else None)
    sections = [
        Section(
            "memory",
            "Memory through the step",
            ("The red line is the device.",) if near else (),
            chart,
            table,
        )
    ]
    if document["collectives"]:
        traffic = table_of(
            document["collectives"],
            ("operation", "text", "op"),
            ("group", "text", "group"),
            ("ranks", "count", "ranks"),
            ("per step", "count", "count"),
            ("size", "bytes", "bytes"),
            ("when", "text", "when"),
        )
        sections.append(Section("traffic", "What is sent", (), None, traffic))
    context = "Outside of the allocator the context takes more; a fit leaves 5 % and the context free."
    return Sheet("Prediction of memory", (asked,), cards, tuple(sections), (context,))


def _parts(moment: Document) -> tuple[tuple[str, float], ...]:
    return tuple((part, moment[f"{part}_bytes"]) for part in _MEMORY_PARTS if moment[f"{part}_bytes"])


def _flops(document: Document, asked: str) -> Sheet:
    forward, training = document["forward_per_token"], document["training_per_token"]
    parts = {name: flops for name, flops in forward.items() if name != "total" and flops}
    chart = stacks("FLOPs of a token's forward pass by part", [("forward", tuple(parts.items()))], "flops")
    table = table_of(
        forward.items(),
        ("forward, per token", "text", lambda part: part[0]),
        ("FLOPs", "flops", lambda part: part[1]),
        ("share", "pct", lambda part: 100 * part[1] / forward["total"]),
    )
    cards = (
        card("Parameters", document["parameters"], "count"),
        card("Training", training["model"], "flops", "per token"),
        card("With recomputation", training["hardware"], "flops", "per token"),
        card("Per step", document["model_flops_per_step"], "flops", "of the whole job"),
    )
    known = tuple(card for card in cards if card["value"] is not None)
    return Sheet(
        "FLOPs of a model",
        (asked,),
        known,
        (Section("flops", "Where they are", (), chart, table),),
        (document["convention"],),
    )


def _mfu(document: Document, asked: str) -> Sheet:
    peak = f"of {document['peak_tflops']:.0f} TFLOP/s ({document['peak_source']})"
    cards = (
        card("MFU", pct(document["mfu"]), "pct", peak),
        card("HFU", pct(document["hfu"]), "pct", "with recomputation"),
        card("Reached", document["tflops_per_device"] * 1e12, "flops", "per second and device"),
        card("Step", document["step_ms"], "ms", f"on {document['devices']} devices"),
        card("Per step", document["model_flops_per_step"], "flops", "of the whole job"),
        card("Tokens per second", document["tokens_per_s"], "count", "of the whole job"),
    )
    known = tuple(card for card in cards if card["value"] is not None)
    return Sheet("MFU of a step", (asked,), known, (), (document["convention"],))


def _strategy(document: Document, asked: str) -> Sheet:
    rows = document["candidates"]
    best, rule = document["recommended"], document["simple_rule"]
    bars = [
        Bar(layout_name(r), [("compute", "predicted step", r["step_ms"])], low=r["low_ms"], high=r["high_ms"])
        for r in rows
    ]
    chart = bar_chart("Predicted step of each candidate", bars, "ms", width=760, left=200)
    table = table_of(
        rows,
        ("strategy", "text", layout_name),
        ("micro-batch", "count", "micro_batch"),
        ("micro-batches", "count", "micro_batches"),
        ("memory", "bytes", "memory_bytes"),
        ("step", "ms", "step_ms"),
        ("low", "ms", "low_ms"),
        ("high", "ms", "high_ms"),
        ("exposed comm", "ms", "exposed_comm_ms"),
        ("bubble", "ms", "bubble_ms"),
        ("recompute", "ms", "recompute_ms"),
        ("optimizer", "ms", "optimizer_ms"),
        ("MFU", "pct", lambda row: pct(row["mfu"])),
    )
    cards = (
        card("Recommended", layout_name(best), "text", document["reason"], "low"),
        card("Its step", best["step_ms"], "ms", "predicted"),
        card("Simple rule", layout_name(rule), "text", rule["rule"]),
        card("Its step by the rule", rule["step_ms"], "ms", "predicted"),
    )
    sections = [Section("candidates", "What fits, the fastest first", (), chart, table)]
    if document["not_fitting"]:
        gone = table_of(document["not_fitting"], ("strategy", "text", layout_name), ("memory", "bytes", "memory_bytes"))
        sections.append(Section("not-fitting", "What does not fit", (), None, gone))
    also = ", ".join(layout_name(row) for row in document["test_also"])
    notes = [f"too close to call, measure both: {also}"] if also else []
    return Sheet(
        "Which strategy",
        (asked,),
        cards,
        tuple(sections),
        (*notes, *(f"assumed: {line}" for line in document["assumed"])),
    )


def layout_name(row: Document) -> str:
    """Return a candidate in words: `zero3 dp 8 tp 2 checkpointed`."""
    parts = [row["strategy"], *(f"{k} {row[n]}" for k, n in (("dp", "data"), ("tp", "tensor"), ("pp", "pipeline")))]
    name = " ".join(p for p in parts if not p.endswith(" 1"))
    return name + (" checkpointed" if row["recompute"] != "none" else "")


def _scale(document: Document, asked: str) -> Sheet:
    curve = document["curve"]
    points = [(r["world_size"], r["step_ms"], r["low_ms"], r["high_ms"]) for r in curve]
    ranks = Axis("ranks", "count", log=True)
    chart = line_chart("Predicted step", [Line("predicted step", points, "compute", "both")], ranks, STEP, width=760)
    table = table_of(
        curve,
        ("ranks", "count", "world_size"),
        ("step", "ms", "step_ms"),
        ("low", "ms", "low_ms"),
        ("high", "ms", "high_ms"),
        ("comm", "pct", "comm_pct"),
        ("last rank", "ms", "straggler_ms"),
        ("efficiency", "pct", lambda row: 100 * row["weak_efficiency"]),
        ("MFU", "pct", lambda row: pct(row["mfu"])),
    )
    recorded = document["recorded"]
    cards = [card("Recorded", recorded["step_ms"], "ms", f"at {recorded['world_size']} ranks")]
    cards += [
        card(f"At {r['world_size']:,} ranks", r["step_ms"], "ms", f"{100 * r['weak_efficiency']:.0f} % efficiency")
        for r in document["asked"]
    ]
    said = (f"Communication from {document['source']}. The band is what the step may be.",)
    section = Section("curve", "The step at other world sizes", said, chart, table)
    return Sheet(
        f"{document['run']} at other world sizes", (asked,), tuple(cards), (section,), tuple(document["notes"])
    )


_PAGES: dict[str, Callable[[Any, str], Sheet]] = {
    "collective": _collective,
    "memory": _memory,
    "flops": _flops,
    "mfu": _mfu,
    "strategy": _strategy,
    "scale": _scale,
}
