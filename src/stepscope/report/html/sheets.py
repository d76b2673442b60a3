"""A page of cards, sections and notes: what is shown as data, drawn by the scripts that the report's page uses too.

Numbers carry the unit that they are in, and the page writes them the way the report does (`4.2 ms`, `1.5 GB`). Units:
`ms`, `bytes`, `pct`, `x` (times), `gb_per_s`, `flops`, `number`, `count` and `text`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.analyze.steadiness import Series
from stepscope.contract.names import JOB_PARTS, duration_text
from stepscope.cost.alpha_beta import Curve
from stepscope.cost.calibration import Calibration
from stepscope.document.other_tools import nccl_calls, nccl_facts
from stepscope.document.report import ms_or_none, plain
from stepscope.document.sentence import joules_text
from stepscope.records import dataclass
from stepscope.report import pictures
from stepscope.report.charts import COLOURS, WIDE, Axis, Bar, Lane, Line, Span, bar_chart, lane_chart, line_chart
from stepscope.report.drawing import Drawing, table_of
from stepscope.report.html.assemble import sheet_html
from stepscope.report.html.page_data import PageData, packed
from stepscope.report.runs import RunEntry, run_rows, step_ms
from stepscope.report.svg import calibration_chart, scaling_chart, series_chart
from stepscope.results.folder import BenchResults, BenchSeries
from stepscope.results.times import BenchTimes, ScalingPoint, bench_times, ratio, scaling
from stepscope.side_file import is_number
from stepscope.units import NS_PER_MS, ms, printable

# of one line in a chart; longer ones are thinned out
_MAX_POINTS = 2000

Value = str | float | int | bool | None


Values = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A heading with what belongs to it."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    chart: Drawing | None = None
    table: Values | None = None
    #: below the first one
    more: tuple[Drawing, ...] = ()


@dataclass(frozen=True)
class Sheet:
    """A whole page."""

    title: str
    facts: tuple[str, ...]
    cards: tuple[Values, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()


def sheet_page(sheet: Sheet) -> str:
    """Return the page's text."""
    sections = [
        {**vars(s), "chart": s.chart and s.chart.as_json(), "more": [d.as_json() for d in s.more]}
        for s in sheet.sections
    ]
    data = PageData(report=plain({**vars(sheet), "sections": sections}))
    return sheet_html(packed(data), title=sheet.title, in_words=_in_words(sheet))


def _thinned(points: Sequence[tuple[float, ...]], most: int = _MAX_POINTS) -> tuple[tuple[float, ...], ...]:
    if len(points) <= most:
        return tuple(points)
    step = (len(points) - 1) / (most - 1)
    return tuple(points[round(i * step)] for i in range(most))


def _in_words(sheet: Sheet) -> str:
    said = [f"{card['title']}: {_plain(card)}." for card in sheet.cards]
    return " ".join([*said, *(printable(note) + "." for note in sheet.notes)])


def _plain(card: Values) -> str:
    value = card["value"]
    if value is None:
        return "unknown"
    return printable(value if isinstance(value, str) else f"{value:.4g} {card['unit'].replace('_', ' ')}")


def card(title: str, value: Value, unit: str = "text", why: str = "", tone: str = "") -> Values:
    """Return one number at the top; the tone `high` is bad, `low` good."""
    return {"title": title, "value": value, "unit": unit, "why": why, "tone": tone}


_SIZE, _TIME = Axis("size", "bytes", log=True), Axis("time", "ms", log=True)
_STEP = Axis("step", "ms")
_PART_COLOURS = {
    "data_loading": "input", "forward_pass": "forward", "backward_pass": "backward", "optimizer_step": "optimizer",
    "optimizer": "optimizer", "gradient_sync": "wait", "parameters": "forward", "gradients": "backward",
    "activations": "transfer", "temporary": "host", "other": "unknown",
}  # fmt: skip


def _stacks(
    title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], unit: str, limit: float | None = None
) -> Drawing:
    """Return bars by name and parts; `limit` is drawn as a line."""
    names = list(dict.fromkeys(part for _, parts in rows for part, _ in parts))
    colours = {part: _PART_COLOURS.get(part, COLOURS[k % len(COLOURS)]) for k, part in enumerate(names)}
    bars = [Bar(name, [(colours[part], part.replace("_", " "), size) for part, size in parts]) for name, parts in rows]
    return bar_chart(title, bars, unit, width=760, left=160, limit=limit)


# The page of a benchmark: series with their intervals, what else was measured of them, scaling and collectives.

_UNITS = {
    "_gb": ("bytes", 1e9),
    "_gb_per_s": ("gb_per_s", 1.0),
    "_pct": ("pct", 1.0),
    "_ms": ("ms", 1.0),
    "_ms_per_step": ("ms", 1.0),
    "_us": ("ms", 1e-3),
    "_step_time": ("ms", 1.0),
}
_SHOWN_ALREADY = ("mean_step_time", "median_step_time", "std_step_time", "min_step_time", "max_step_time")

Timed = tuple[BenchSeries, list[list[float]], BenchTimes]


def bench_sheet(results: BenchResults) -> Sheet:
    """Return the page of a benchmark's results."""
    timed = [one for series in results.series.values() if (one := _timed(series)) is not None]
    sections = [*_collectives(results), *_scaling(timed)] or [_series(timed)]
    where = results.environment
    named = [
        f"{where[k]:g} ranks" if k == "world_size" else str(where[k])
        for k in ("world_size", "backend", "device")
        if k in where and not (k == "world_size" and isinstance(where[k], str))
    ]
    torch = [f"torch {where['torch']}"] if "torch" in where else []
    steps = [
        f"{times.num_runs} interleaved runs, {times.num_steps} steps" for _, _, times in timed[:1] if times.num_runs > 1
    ]
    said = tuple(line for line in (results.question, *results.advice) if line)
    return Sheet(
        title=results.command or results.name,
        facts=(*named, *torch, *(steps if len(timed) > 1 else ())),
        cards=_cards(results, timed),
        sections=(
            *([Section("advice", "Recommendation", said)] if results.advice else []),
            *sections,
            *_figures(results),
        ),
        notes=tuple(_notes(results, timed)),
    )


def _timed(series: BenchSeries) -> Timed | None:
    samples = [[time / NS_PER_MS for time in run] for run in series.samples_ns]
    warmup = series.config.get("warmup_steps")
    times = bench_times(samples, warmup_steps=warmup if isinstance(warmup, int) else 0)
    return None if times is None else (series, samples, times)


def _cards(results: BenchResults, timed: Sequence[Timed]) -> tuple[Values, ...]:
    if not timed or _is_collectives(results):
        return (card("Measured", len(results.series), "count", "operations and sizes"),)
    if points := _scaling_points(timed):
        return tuple(_largest(points, mode) for mode in dict.fromkeys(p.mode for p in points))
    best = min(timed, key=lambda one: one[2].median_ns)
    first = timed[0]
    unsteady = sum(not times.steady for _, _, times in timed)
    cards = [
        card("Fastest", best[0].name, "text", f"of {len(timed)} series"),
        card("Its step", ms(best[2].median_ns), "ms", "median"),
    ]
    if best is not first:
        over, low, high = ratio(best[1], first[1])
        between = f"{low:.2f} to {high:.2f}, 95 %"
        cards.append(card(f"Against {first[0].name}", over, "x", between, "low" if high < 1 else ""))
    cards.append(
        card(
            "Steady",
            f"{len(timed) - unsteady} of {len(timed)}",
            "text",
            "series with a steady step time",
            "medium" if unsteady else "low",
        )
    )
    return tuple(cards)


def _series(timed: Sequence[Timed]) -> Section:
    chart = series_chart([(series.name, samples, t) for series, samples, t in timed])
    rows = [
        (
            series.name,
            t,
            [time for run in samples for time in run],
            ratio(samples, timed[0][1]) if k else (1.0, None, None),
        )
        for k, (series, samples, t) in enumerate(timed)
    ]
    table = table_of(
        rows,
        ("series", "text", lambda row: row[0]),
        ("median", "ms", lambda row: ms(row[1].median_ns)),
        ("from", "ms", lambda row: ms(row[1].low_ns)),
        ("to", "ms", lambda row: ms(row[1].high_ns)),
        ("mean", "ms", lambda row: ms(row[1].mean_ns)),
        ("std", "ms", lambda row: ms(row[1].std_ns)),
        ("min", "ms", lambda row: min(row[2])),
        ("max", "ms", lambda row: max(row[2])),
        ("time", "x", lambda row: row[3][0]),
        ("low", "x", lambda row: row[3][1]),
        ("high", "x", lambda row: row[3][2]),
        ("steps", "count", lambda row: row[1].num_steps),
    )
    said = "Dots are steps, a colour per run; the mark is the median with its 95 % interval. Time is against the first."
    return Section("series", "Step times", (said,), chart, table)


def _figures(results: BenchResults) -> list[Section]:
    names = dict.fromkeys(k for s in results.series.values() for k in s.summary if k not in _SHOWN_ALREADY)
    if not names or _is_collectives(results):
        return []
    units = {
        name: next((u for ending, u in _UNITS.items() if name.endswith(ending)), ("number", 1.0)) for name in names
    }
    columns = [(_title(name), unit, _summary_value(name, scale)) for name, (unit, scale) in units.items()]
    table = table_of(results.series.values(), ("series", "text", lambda s: s.name), *columns)
    return [Section("figures", "Throughput, communication and memory", (), None, table)]


def _summary_value(name: str, scale: float) -> Callable[[BenchSeries], Value]:
    return lambda series: None if (value := series.summary.get(name)) is None else value * scale


def _title(name: str) -> str:
    for ending in _UNITS:
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def _scaling_points(timed: Sequence[Timed]) -> list[ScalingPoint]:
    rows: list[dict[str, Any]] = [
        {"config": series.config, "samples_ms": samples}
        for series, samples, _ in timed
        if series.config.get("mode") in ("strong", "weak") and is_number(series.config.get("world_size"), low=1)
    ]
    return scaling(rows) if len(rows) == len(timed) else []


def _largest(points: Sequence[ScalingPoint], mode: str) -> Values:
    last = max((p for p in points if p.mode == mode), key=lambda p: p.world_size)
    between = f"{100 * last.low:.0f} to {100 * last.high:.0f} %"
    return card(f"{mode} scaling to {last.world_size} ranks", 100 * last.efficiency, "pct", f"efficiency, {between}")


def _scaling(timed: Sequence[Timed]) -> list[Section]:
    points = _scaling_points(timed)
    if not points:
        return []
    table = table_of(
        points,
        ("mode", "text", lambda p: p.mode),
        ("ranks", "count", lambda p: p.world_size),
        ("step", "ms", lambda p: ms_or_none(p.median_ns)),
        ("speed-up", "x", lambda p: p.speedup),
        ("efficiency", "pct", lambda p: 100 * p.efficiency),
        ("low", "pct", lambda p: 100 * p.low),
        ("high", "pct", lambda p: 100 * p.high),
    )
    said = "Efficiency against the smallest world size; the band is its 95 % interval."
    return [Section("scaling", "Scaling", (said,), scaling_chart(points), table)]


def _is_collectives(results: BenchResults) -> bool:
    return all(
        isinstance(s.config.get("bytes"), int) and isinstance(s.config.get("op"), str) for s in results.series.values()
    )


def _collectives(results: BenchResults) -> list[Section]:
    if not _is_collectives(results):
        return []
    groups: dict[str, list[tuple[float, ...]]] = {}
    for s in results.series.values():
        group = f"{s.config['op']}, {s.config.get('world_size')} ranks"
        groups.setdefault(group, []).append((s.config["bytes"], s.samples_ns[0][0] / NS_PER_MS))
    table = table_of(
        results.series.values(),
        ("operation", "text", lambda s: s.config["op"]),
        ("ranks", "count", lambda s: world if isinstance(world := s.config.get("world_size"), int) else None),
        ("size", "bytes", lambda s: s.config["bytes"]),
        ("time", "ms", lambda s: s.samples_ns[0][0] / NS_PER_MS),
        ("algorithm", "gb_per_s", lambda s: s.summary.get("algbw_gb_per_s")),
        ("bus", "gb_per_s", lambda s: s.summary.get("busbw_gb_per_s")),
    )
    lines = [Line(name, sorted(points), COLOURS[k % 9], "both") for k, (name, points) in enumerate(groups.items())]
    chart = line_chart("Time of each collective over its size", lines, _SIZE, _TIME, width=760)
    return [Section("collectives", "Collectives", (), chart, table)]


def _notes(results: BenchResults, timed: Sequence[Timed]) -> list[str]:
    found: dict[str, list[str]] = {}
    if not _is_collectives(results):
        for series, _, times in timed:
            for doubt in times.doubts:
                found.setdefault(doubt.remedy, []).append(f"{series.name}: {doubt.evidence}")
    lines = [f"unsteady: {'; '.join(evidence[:3])}. What to do: {remedy}." for remedy, evidence in found.items()]
    return [*([f"not complete: {results.message}"] if results.message else []), *lines]


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
        ("on sizes left out", "pct", lambda curve: _pct(curve.left_out_error)),
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
        f"op-{op.replace('_', '-')}", op.replace("_", " "), (said,), calibration_chart(calibration, op), table
    )


def _pct(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _latency_ms(curve: Curve) -> float:
    return float(curve.pieces.lines()[0].alpha_ns) / NS_PER_MS


def _rate(curve: Curve) -> float | None:
    per_byte = curve.pieces.lines()[-1].ns_per_byte
    return 1 / per_byte if per_byte else None


# The page of a prediction, from its JSON document: one function per kind of prediction.

_US_PER_MS = 1000
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
    chart = line_chart(title, [Line(name, points, "compute", "both")], _SIZE, _TIME, width=760)
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
    chart = _stacks("Memory by category at each moment of the step", moments, "bytes", device if near else None)
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
    chart = _stacks("FLOPs of a token's forward pass by part", [("forward", tuple(parts.items()))], "flops")
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
        card("MFU", _pct(document["mfu"]), "pct", peak),
        card("HFU", _pct(document["hfu"]), "pct", "with recomputation"),
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
        ("MFU", "pct", lambda row: _pct(row["mfu"])),
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
    chart = line_chart("Predicted step", [Line("predicted step", points, "compute", "both")], ranks, _STEP, width=760)
    table = table_of(
        curve,
        ("ranks", "count", "world_size"),
        ("step", "ms", "step_ms"),
        ("low", "ms", "low_ms"),
        ("high", "ms", "high_ms"),
        ("comm", "pct", "comm_pct"),
        ("last rank", "ms", "straggler_ms"),
        ("efficiency", "pct", lambda row: 100 * row["weak_efficiency"]),
        ("MFU", "pct", lambda row: _pct(row["mfu"])),
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


# The page of a folder of runs: one row per run, the step over time, and what each one's first finding is.


def runs_sheet(folder: str, runs: Sequence[RunEntry], *, links: Sequence[str] = ()) -> Sheet:
    """Return the page; `links` are where the runs that were read lead to, in a page that is served."""
    known = [run for run in runs if run.report is not None]
    steps = [step_ms(run) for run in known]
    points = tuple((float(i + 1), step) for i, step in enumerate(steps) if step is not None)
    order = Axis("run, in this order", "count", zero=False)
    line = Line("step", points, "compute", "both")
    chart = line_chart("Step of each run", [line], order, _STEP, width=WIDE) if len(points) > 1 else None
    unread = [f"{run.name}: not read: {run.reason}" for run in runs if run.report is None]
    return Sheet(
        title=folder,
        facts=(f"{len(runs)} runs",),
        cards=_runs_cards(known),
        sections=(Section("runs", "Runs", (), chart, _table(known) | {"links": list(links)}),),
        notes=tuple(unread),
    )


def _runs_cards(runs: Sequence[RunEntry]) -> tuple[Values, ...]:
    timed = [(step, run) for run in runs if (step := step_ms(run)) is not None]
    if not timed:
        return ()
    fastest, slowest = min(timed, key=lambda pair: pair[0]), max(timed, key=lambda pair: pair[0])
    last = timed[-1]
    return (
        card("Fastest step", fastest[0], "ms", fastest[1].name, "low"),
        card("Slowest step", slowest[0], "ms", slowest[1].name),
        card("Last run", last[0], "ms", last[1].name),
    )


def _table(runs: Sequence[RunEntry]) -> Values:
    return table_of(
        [{"place": place, **row} for place, row in enumerate(run_rows(runs), start=1)],
        ("#", "count", "place"),
        ("run", "text", "name"),
        ("created", "text", "created"),
        ("ranks", "count", "num_ranks"),
        ("step", "ms", "step_ms"),
        ("MFU", "pct", lambda row: _pct(row["mfu"])),
        ("tokens/s", "count", "tokens_per_s"),
        ("verdict", "text", "verdict"),
        ("first finding", "text", "first_finding"),
        ("saves", "ms", "saving_alone_ms"),
    )


# The page of a run without traces: its steps over the run, and what the regions of a step take on each rank.

_MAX_RANKS = 32
_MAX_DRAWN = 6
_PERCENTS = {"occupancy_pct": "occupancy", "sm_pct": "SM", "dram_pct": "DRAM", "tensor_pct": "tensor"}


def steps_sheet(document: dict[str, Any], series: Series | None) -> Sheet:
    """Return the page, from the report's JSON of the run (`light_json`) and the job's steps in order."""
    run, ranks = document["run"], _late_first(document)
    facts = [f"{run['num_ranks']} rank{'s' * (run['num_ranks'] != 1)}", f"{run['num_steps']} steps", "no trace"]
    names = list(dict.fromkeys(name for rank in ranks for name in rank["regions_ms"]))
    bars = [
        (f"rank {rank['rank']}", _steps_parts(rank))
        for rank in ranks[:_MAX_RANKS]
        if rank["median_step_ms"] is not None
    ]
    chart = _stacks("Regions of the step by rank", bars, "ms") if bars else None
    table = table_of(
        ranks,
        ("rank", "count", "rank"),
        ("host", "text", "host"),
        ("steps", "count", "num_steps"),
        ("step", "ms", "median_step_ms"),
        *((name.replace("_", " "), "ms", _region(name)) for name in names),
    )
    said = "Medians of the steps without the profiler; late ranks first. Other is what no region covers."
    return Sheet(
        title=run["name"],
        facts=(*facts, *(str(run[k]) for k in ("device", "backend", "torch") if run[k])),
        cards=_steps_cards(document),
        sections=(
            *_over_the_run(document, series),
            Section("ranks", "Regions of the step by rank", (said,), chart, table),
            *_measured(document),
        ),
        notes=tuple(document["warnings"]),
    )


def files_sheet(document: dict[str, Any]) -> Sheet:
    """Return the page of files of other tools, from their report's JSON (`files_json`)."""
    run, hang, logs = document["run"], document["hang"], document["nccl"]
    sections = []
    if hang:
        columns = (("operation", "text", "op"), ("calls of a rank", "count", "calls"), ("group", "text", "group"))
        table = table_of(document["recorded_calls"], *columns, ("called at", "text", "place"))
        sections.append(Section("hang", "Flight recorder", tuple(map(printable, hang["conclusions"])), None, table))
    if logs:
        table = table_of(
            nccl_calls(logs),
            ("operation", "text", "op"),
            ("size", "bytes", "size_bytes"),
            ("calls of a rank", "count", "calls"),
            ("algorithm", "text", "algorithm"),
        )
        sections.append(Section("nccl", "NCCL log", tuple(map(printable, nccl_facts(logs))), None, table))
    if document["collectives_live"]:
        table = table_of(
            document["collectives_live"],
            ("rank", "count", "rank"),
            ("operation", "text", "op"),
            ("group", "text", "group_desc"),
            ("calls", "count", "count"),
            ("time", "ms", "time_ms"),
            ("bus bandwidth", "gb_per_s", "busbw_gb_per_s"),
        )
        sections.append(Section("collectives", "NCCL inspector", (), None, table))
    files = table_of(
        document["files"], ("file", "text", "file"), ("format", "text", "format"), ("rank", "count", "rank")
    )
    sections += [*_measured(document), Section("files", "Files", (), None, files)]
    cards = [card("Files", len(document["files"]), "count", "of other tools; no trace")]
    cards += [card("Hang", "yes" if hang["hang"] else "none", tone="high" if hang["hang"] else "low")] if hang else []
    cards += [card("NCCL", next((log["version"] for log in logs if log["version"]), None))] if logs else []
    facts = [f"{run['num_ranks']} ranks"] if run["num_ranks"] else []
    return Sheet(run["name"], tuple(facts), tuple(cards), tuple(sections), tuple(document["warnings"]))


def _region(name: str) -> Callable[[Document], Value]:
    return lambda rank: rank["regions_ms"].get(name)


def _late_first(document: dict[str, Any]) -> list[dict[str, Any]]:
    late = [s["rank"] for s in document["stragglers"]]
    return sorted(document["ranks"], key=lambda r: late.index(r["rank"]) if r["rank"] in late else len(late))


def _steps_cards(document: dict[str, Any]) -> tuple[Values, ...]:
    step, steady = document["step"], document["steadiness"]
    cards = [card("Step", step["unprofiled_ms"], "ms", "without the profiler")]
    if steady:
        cards.append(card("99 % below", steady["p99_ms"], "ms", f"spread {steady['robust_spread_pct']:.1f} %"))
        cards.append(
            card(
                "Spikes",
                steady["num_spikes"],
                "count",
                "much longer than their neighbours",
                "medium" if steady["num_spikes"] else "low",
            )
        )
    if step["tokens_per_s"]:
        cards.append(card("Tokens per second", step["tokens_per_s"], "count", "of the whole job"))
    if document["stragglers"]:
        first = document["stragglers"][0]
        late = f"{first['late_ms_per_step']:.2f} ms late per step"
        cards.append(card("Straggler", f"rank {first['rank']}", "text", late, "high"))
    elif len(document["ranks"]) > 1:
        cards.append(card("Straggler", "none", "text", "by the step logs", "low"))
    return tuple(cards)


def _over_the_run(document: dict[str, Any], series: Series | None) -> list[Section]:
    if series is None:
        return []
    points = [
        (float(n), d) for n, d in zip(series.step.tolist(), (series.dur_ns / NS_PER_MS).round(4).tolist(), strict=True)
    ]
    steady = document["steadiness"]
    said = (
        "Median over ranks of the steps without the profiler."
        if len(document["ranks"]) > 1
        else "Steps without the profiler."
    )
    table = steady and table_of(
        [steady],
        ("steps", "count", "num_steps"),
        ("warm-up", "count", "warm_up_steps"),
        *((k, "ms", f"{k}_ms") for k in ("median", "mean", "std", "p10", "p90", "p99", "min", "max")),
    )
    look = "line" if len(points) > 200 else "both"
    line = Line("step", _thinned(points), "compute", look)
    chart = line_chart("Step time over the run", [line], Axis("step", "count", zero=False), _STEP, width=WIDE)
    return [Section("steps", "Steps over the run", (said,), chart, table)]


def _measured(document: dict[str, Any]) -> list[Section]:
    if not document["kernels"]:
        return []
    table = table_of(
        document["kernels"],
        ("kernel", "text", lambda kernel: printable(kernel["name"].removeprefix("void "), width=44)),
        ("launches", "count", "count"),
        ("mean", "ms", "mean_ms"),
        *((f"{title} %", "number", _rounded(key)) for key, title in _PERCENTS.items()),
        ("bound", "text", "bound"),
        ("waits for", "text", "stall"),
    )
    said = "As Nsight Compute measured them, each launch alone and with fixed clocks: not the times of training."
    return [Section("kernels", "Measured kernels", (said,), None, table)]


def _rounded(key: str) -> Callable[[Document], Value]:
    return lambda row: None if row[key] is None else round(row[key], 1)


def _steps_parts(rank: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    parts = [(name, value) for name, value in rank["regions_ms"].items() if value]
    rest = rank["median_step_ms"] - float(np.sum([value for _, value in parts]))
    return (*parts, *((("other", rest),) if rest > 0 else ()))


# The pages of `memory`, `history` and `hang`.


def memory_sheet(document: Document) -> Sheet:
    """Return the page of the memory of a run or of snapshots, from the JSON of `stepscope memory`."""
    sections = [*_traced_memory(document), *(_snapshot(one) for one in _fullest_snapshots(document))]
    rows = [row for row in document["predicted"] if row["predicted_bytes"] is not None]
    if rows:
        columns = (("category", "text", "category"), ("measured", "bytes", "measured_bytes"))
        table = table_of(rows, *columns, ("formula", "bytes", "predicted_bytes"))
        sections.append(Section("predicted", "Measured and predicted", (), None, table))
    if document["what_ifs"]:
        table = table_of(
            document["what_ifs"],
            ("change", "text", "change"),
            ("peak now", "bytes", "measured_bytes"),
            ("peak, at least", "bytes", "peak_low_bytes"),
            ("peak, at most", "bytes", "peak_high_bytes"),
            ("extra time, at least", "ms", "extra_low_ms"),
            ("extra time, at most", "ms", "extra_high_ms"),
        )
        sections.append(Section("what-if", "Peak with changes", ("By formulas on what was measured.",), None, table))
    cards = _memory_cards(document)
    names = [one["path"] for one in document["snapshots"]]
    title = document["run"] or (names[0] if names else "memory")
    facts = ("memory", *([f"{len(names)} snapshot{'s' * (len(names) != 1)}"] if names else []))
    return Sheet(f"Memory of {title}", facts, cards, tuple(sections), tuple(document["warnings"]))


def _traced_memory(document: Document) -> list[Section]:
    drawn = [
        picture
        for draw in (pictures.memory_of_fullest, pictures.memory_peak, pictures.memory_over_steps)
        if (picture := draw(document)) is not None
    ]
    over_run = pictures.memory_over_run(document)
    drawn += [over_run] if over_run else []
    return [Section("memory", "Memory of the run", (), drawn[0], None, tuple(drawn[1:]))] if drawn else []


def _fullest_snapshots(document: Document, most: int = 8) -> list[Document]:
    return sorted(document["snapshots"], key=lambda one: -one["peak"]["allocated_bytes"])[:most]


def _snapshot(one: Document) -> Section:
    by_owner, by_purpose = (pictures.snapshot_memory(one, by) for by in ("owner", "purpose"))
    table = table_of(
        one["peak"]["by_line"],
        ("alive at the peak, by line", "text", "place"),
        ("purpose", "text", "purpose"),
        ("size", "bytes", "size_bytes"),
        ("blocks", "count", "blocks"),
    )
    leaks = [f"Leak suspect: {leak['place']} ({leak['steps']} steps)." for leak in one["leaks"][:5]]
    rank = one["rank"]
    title = "Memory snapshot" if rank is None else f"Memory snapshot of rank {rank}"
    return Section(
        "snapshot" if rank is None else f"snapshot-{rank}",
        title,
        tuple(leaks),
        by_owner or by_purpose,
        table,
        (by_purpose,) if by_owner and by_purpose else (),
    )


def _memory_cards(document: Document) -> tuple[Values, ...]:
    cards = []
    memory = document["memory"]
    ranks = [r for r in memory["ranks"] if r["peak_allocated_bytes"] is not None] if memory else []
    if ranks:
        most = max(ranks, key=lambda r: r["peak_allocated_bytes"])
        cards.append(card("Peak allocated", most["peak_allocated_bytes"], "bytes", f"rank {most['rank']}"))
        if most["device_total_bytes"]:
            cards.append(card("Device", most["device_total_bytes"], "bytes"))
    for one in _fullest_snapshots(document, 1):
        cards.append(card("Peak of the snapshot", one["peak"]["allocated_bytes"], "bytes", one["path"]))
        cards.append(card("Free in segments", one["free_bytes"], "bytes", "reserved, held by no tensor"))
    return tuple(cards)


def history_sheet(document: Document) -> Sheet:
    """Return the page of runs over time, from the JSON of `stepscope history`."""
    runs, by = document["runs"], document["by"]
    configs = list(dict.fromkeys(run["config"] for run in runs))
    lines = []
    for k, config in enumerate(configs[: len(COLOURS)]):
        points = [(float(i + 1), run["step_ms"]) for i, run in enumerate(runs) if run["config"] == config]
        known = [p for p in points if p[1] is not None]
        lines += [Line(str(config or "configuration unknown"), known, COLOURS[k], "both")] if known else []
    legend = [(line.colour, line.name) for line in lines]
    axis = Axis("run, oldest first", "count", zero=False)
    chart = line_chart("Step of each run", lines, axis, _STEP, width=WIDE, legend=legend) if lines else None
    table = table_of(
        runs,
        ("run", "text", "run"),
        ("created", "text", "created"),
        ("commit", "text", "commit"),
        ("ranks", "count", "world_size"),
        ("step", "ms", "step_ms"),
        ("MFU", "pct", lambda run: _pct(run["mfu"])),
        ("goodput", "pct", "goodput_pct"),
        ("memory", "bytes", "peak_memory_bytes"),
        ("largest finding", "text", lambda run: "".join(f"{f} {p:.0f} %" for f, p in run["findings"][:1])),
    )
    groups = table_of(
        document["groups"],
        (f"by {by}", "text", "name"),
        ("runs", "count", "runs"),
        ("step", "ms", "step_ms"),
        ("fastest", "ms", "min_step_ms"),
        ("slowest", "ms", "max_step_ms"),
        ("MFU", "pct", lambda group: _pct(group["mfu"])),
    )
    hosts = table_of(
        document["hosts"],
        ("host", "text", "host"),
        ("slow", "text", lambda host: "slow" if host["is_slow"] else ""),
        ("jobs", "count", "runs"),
        ("slowest in", "count", "slowest"),
        ("expected", "number", "expected"),
        ("slowdown", "x", "slowdown"),
    )
    sections = [
        Section("runs", "Runs", ("One line per configuration.",) if len(lines) > 1 else (), chart, table),
        Section("groups", f"By {by}", (), None, groups),
        *([Section("hosts", "Hosts", (), None, hosts)] if document["hosts"] else []),
    ]
    tones = {"slower": "high", "faster": "low"}
    cards = [
        card(
            f"Newest: {one['run']}",
            one["step_ms"],
            "ms",
            one["verdict"] if one["change_pct"] is None else f"{one['verdict']}, {one['change_pct']:+.1f} %",
            tones.get(one["verdict"], ""),
        )
        for one in document["newest"][:3]
    ]
    notes = [f"{run['run']}: {run['problem']}" for run in runs if run["problem"]]
    return Sheet(
        f"History of {document['folder']}", (f"{len(runs)} runs",), tuple(cards), tuple(sections), tuple(notes)
    )


def hang_sheet(document: Document) -> Sheet:
    """Return the page of flight recorder dumps, from the JSON of `stepscope hang`."""
    suspects, ranks = document["suspects"], document["ranks"]
    last = dict.fromkeys(ranks, 0)
    for group in document["groups"]:
        for one in group["last_by_rank"]:
            last[one["rank"]] = max(last[one["rank"]], one["seq"])
    bars = [
        Bar(f"rank {rank}", [("high" if rank in suspects else "compute", "collectives issued", float(seq))])
        for rank, seq in sorted(last.items())[:_MAX_RANKS]
    ]
    chart = bar_chart("Collectives issued by each rank", bars, "count", width=760) if bars else None
    calls = table_of(
        document["last_calls"],
        ("rank", "count", "rank"),
        ("last call", "text", "name"),
        ("number", "count", "seq"),
        ("state", "text", "state"),
        ("at", "text", lambda call: None if call["file"] is None else f"{call['file']}:{call['line']}"),
        ("function", "text", "function"),
    )
    groups = table_of(
        document["groups"],
        ("group", "text", "desc"),
        ("ranks", "count", lambda group: len(group["ranks"])),
        ("state", "text", "verdict"),
        ("waiting at", "text", lambda group: str(group["waiting_at"] or "")),
        ("missing", "text", lambda group: ", ".join(map(str, group["missing"]))),
    )
    found = card("Hung", "yes" if document["hang"] else "no", "text", tone="high" if document["hang"] else "low")
    who = card(
        "Check rank", ", ".join(map(str, suspects)) or "none", "text", "first suspects", "high" if suspects else ""
    )
    sections = (
        Section("conclusions", "What is wrong", tuple(document["conclusions"]), chart),
        Section("calls", "Last call of each rank", (), None, calls),
        Section("groups", "Process groups", (), None, groups),
    )
    of = f" of {document['world_size']}" if document["world_size"] else ""
    facts = (f"flight recorder dumps of {len(ranks)}{of} ranks",)
    return Sheet("Hung ranks", facts, (found, who), sections, tuple(document["warnings"]))


_LEDGER_COLOURS = {
    "startup": "other", "compile": "unmatched", "productive": "compute", "slowed": "transfer",
    "evaluation": "optimizer", "checkpoint_save": "input", "checkpoint_load": "copy", "hang": "high",
    "lost_work": "wait", "restart": "host", "shutdown": "range", "unknown": "unknown",
}  # fmt: skip


def job_sheet(document: Document) -> Sheet:
    """Return the page of a job's ledger, from the JSON of `stepscope job`."""
    parts = {part["part"]: part for part in document["parts"] if part["s"] > 0}
    legend = [(_LEDGER_COLOURS[name], JOB_PARTS[name]) for name in parts]
    spans = [
        Span(
            1e3 * one["start_s"],
            1e3 * one["end_s"],
            _LEDGER_COLOURS[one["part"]],
            (JOB_PARTS[one["part"]], f"{duration_text(one['end_s'] - one['start_s'])} from {one['start_s']:,.1f} s"),
        )
        for one in document["timeline"]
    ]
    over_time = lane_chart("The job over time", [Lane("job", spans, 40.0)], 1e3 * document["total_s"], legend=legend)
    energy = document["energy"] or {"parts": []}
    joules = {one["part"]: joules_text(one["j"]) for one in energy["parts"]}
    table = table_of(
        sorted(parts.values(), key=lambda part: -part["s"]),
        ("part", "text", lambda part: JOB_PARTS[part["part"]]),
        ("time", "ms", lambda part: 1e3 * part["s"]),
        ("share", "pct", "pct"),
        *([("energy", "text", lambda part: joules.get(part["part"], "not measured"))] if joules else []),
        ("of which", "text", _details),
    )
    attempts = table_of(
        document["attempts"],
        ("run", "text", "run"),
        ("started", "text", lambda one: _moment(one["started"])),
        ("ended", "text", lambda one: _moment(one["ended"])),
        ("steps", "count", "steps"),
        ("lost steps", "count", "steps_lost"),
        ("saves", "count", "saves"),
        ("evaluations", "count", "evaluations"),
        ("end", "text", "reason"),
    )
    savings = table_of(
        document["savings"],
        ("change", "text", "change"),
        ("saves", "ms", lambda one: 1e3 * one["s"]),
        ("share", "pct", "pct"),
    )
    said = "Each stretch has the colour of the part that took most of it; the parts are means over ranks."
    sections = (
        Section("time", "Over time", (said,), over_time, table),
        Section("attempts", "Attempts", (), None, attempts),
        *(
            [Section("savings", "How much time would each change save?", (), None, savings)]
            if document["savings"]
            else []
        ),
    )
    lost = sum(parts[name]["s"] for name in ("lost_work", "restart", "hang") if name in parts)
    cards = (
        card("Goodput", document["goodput_pct"], "pct", "productive steps of the whole time"),
        card("Time", duration_text(document["total_s"]), "text", "from launch to end"),
        card("Attempts", len(document["attempts"]), "count", "restarts and resumed runs included"),
        card("Failures cost", duration_text(lost), "text", "lost work, restart, hangs", "high" if lost else ""),
        *_energy_cards(document["energy"]),
    )
    facts = (f"{document['ranks']} ranks", f"{document['steps']} steps")
    return Sheet(f"Job {document['run']}", facts, cards, sections, tuple(document["warnings"]))


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
