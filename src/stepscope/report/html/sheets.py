"""A page of cards, sections and notes: what is shown as data, drawn by the scripts that the report's page uses too.

Numbers carry the unit that they are in, and the page writes them the way the report does (`4.2 ms`, `1.5 GB`). Units:
`ms`, `bytes`, `pct`, `x` (times), `gb_per_s`, `flops`, `number`, `count` and `text`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

import numpy as np

from stepscope.analyze.steadiness import Series
from stepscope.cost.alpha_beta import Curve
from stepscope.cost.calibration import Calibration
from stepscope.dataclass import dataclass
from stepscope.document.values import plain
from stepscope.report.html.cache import assembled
from stepscope.report.html.page_data import ReportData, packed
from stepscope.report.runs import RunEntry, run_rows, step_ms
from stepscope.results.folder import BenchResults, BenchSeries
from stepscope.results.scaling import ScalingPoint, scaling
from stepscope.results.times import BenchTimes, bench_times, ratio
from stepscope.side_file import is_number
from stepscope.units import NS_PER_MS, ms, printable

_SCRIPTS = ("unpack", "numbers", "elements", "theme", "state", "contents", "sized", "tables", "sheet_charts", "sheet")
# of one line in a chart; longer ones are thinned out
_MAX_POINTS = 2000

Value = str | float | int | bool | None


@dataclass(frozen=True)
class Card:
    """One number at the top."""

    title: str
    value: Value
    unit: str = "text"
    why: str = ""
    #: `high` is bad, `low` good
    tone: str = ""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    unit: str = "text"


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted and filtered; None is unknown."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    #: where the first text of each row leads, in a page that is served; none elsewhere
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeasuredRow:
    """One row of a chart of values with their intervals, and the samples behind it."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    #: by run
    samples: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Intervals:
    """Values with intervals, one under the other, from zero."""

    rows: tuple[MeasuredRow, ...]
    unit: str
    label: str
    kind: str = field(default="intervals", init=False)


@dataclass(frozen=True)
class Axis:
    """One axis of a chart of lines."""

    title: str
    unit: str
    log: bool = False


@dataclass(frozen=True)
class Line:
    """Points that belong together: x, y and where known low and high."""

    name: str
    points: tuple[tuple[float, ...], ...]
    #: a line through measurements that are not on it; else its points are marked
    fitted: bool = False
    #: lines of one colour belong together; its place in the list by default
    colour: int | None = None


@dataclass(frozen=True)
class Lines:
    """Lines over one axis."""

    lines: tuple[Line, ...]
    x: Axis
    y: Axis
    label: str
    kind: str = field(default="lines", init=False)


@dataclass(frozen=True)
class Stack:
    """One bar of a chart of stacked parts, by their names."""

    name: str
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Stacks:
    """Bars on one scale, their parts in the same colours; `limit` is drawn as a line."""

    rows: tuple[Stack, ...]
    unit: str
    label: str
    limit: float | None = None
    kind: str = field(default="stacks", init=False)


@dataclass(frozen=True)
class Section:
    """A heading with what belongs to it."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    chart: (Intervals | Lines | Stacks) | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Sheet:
    """A whole page."""

    title: str
    facts: tuple[str, ...]
    cards: tuple[Card, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()


def sheet_page(sheet: Sheet) -> str:
    """Return the page's text."""
    data = ReportData(report=plain(asdict(sheet)), grid=None, slices=None)
    return assembled(packed(data), scripts=_SCRIPTS, title=sheet.title, in_words=_in_words(sheet))


def _thinned(points: Sequence[tuple[float, ...]], most: int = _MAX_POINTS) -> tuple[tuple[float, ...], ...]:
    if len(points) <= most:
        return tuple(points)
    step = (len(points) - 1) / (most - 1)
    return tuple(points[round(i * step)] for i in range(most))


def _table_of(titles: Sequence[tuple[str, str]], rows: Sequence[Sequence[Value]]) -> Table:
    known = [i for i in range(len(titles)) if any(row[i] is not None for row in rows)]
    return Table(tuple(Column(*titles[i]) for i in known), tuple(tuple(row[i] for i in known) for row in rows))


def _in_words(sheet: Sheet) -> str:
    said = [f"{card.title}: {_plain(card)}." for card in sheet.cards]
    return " ".join([*said, *(printable(note) + "." for note in sheet.notes)])


def _plain(card: Card) -> str:
    value: Any = card.value
    if value is None:
        return "unknown"
    return printable(value if isinstance(value, str) else f"{value:.4g} {card.unit.replace('_', ' ')}")


# The page of a benchmark: series with their intervals, what else was measured of them, scaling and collectives.

# of one run that are drawn
_MAX_SAMPLES = 400
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
            *([Section("advice", "What to take", said)] if results.advice else []),
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


def _cards(results: BenchResults, timed: Sequence[Timed]) -> tuple[Card, ...]:
    if not timed or _is_collectives(results):
        return (Card("Measured", len(results.series), "count", "operations and sizes"),)
    if points := _scaling_points(timed):
        return tuple(_largest(points, mode) for mode in dict.fromkeys(p.mode for p in points))
    best = min(timed, key=lambda one: one[2].median_ns)
    first = timed[0]
    unsteady = sum(not times.steady for _, _, times in timed)
    cards = [
        Card("Fastest", best[0].name, "text", f"of {len(timed)} series"),
        Card("Its step", ms(best[2].median_ns), "ms", "median"),
    ]
    if best is not first:
        over, low, high = ratio(best[1], first[1])
        between = f"{low:.2f} to {high:.2f}, 95 %"
        cards.append(Card(f"Against {first[0].name}", over, "x", between, "low" if high < 1 else ""))
    cards.append(
        Card(
            "Steady",
            f"{len(timed) - unsteady} of {len(timed)}",
            "text",
            "series without a doubt",
            "medium" if unsteady else "low",
        )
    )
    return tuple(cards)


def _series(timed: Sequence[Timed]) -> Section:
    rows = [_row(one, timed[0]) for one in timed]
    titles = (
        ("series", "text"),
        ("median", "ms"),
        ("from", "ms"),
        ("to", "ms"),
        ("mean", "ms"),
        ("std", "ms"),
        ("min", "ms"),
        ("max", "ms"),
        ("time", "x"),
        ("low", "x"),
        ("high", "x"),
        ("steps", "count"),
    )
    chart = Intervals(
        tuple(
            MeasuredRow(
                series.name,
                ms(t.median_ns),
                ms(t.low_ns),
                ms(t.high_ns),
                tuple(
                    tuple(round(point[0], 4) for point in _thinned([(time,) for time in run], _MAX_SAMPLES))
                    for run in samples
                ),
            )
            for series, samples, t in timed
        ),
        "ms",
        "Median step time of each series with its 95 % interval; dots are steps; the table below holds the numbers",
    )
    said = "Dots are steps, a colour per run; the mark is the median with its 95 % interval. Time is against the first."
    return Section("series", "Step times", (said,), chart, _table_of(titles, rows))


def _row(one: Timed, first: Timed) -> tuple[Value, ...]:
    series, samples, t = one
    over: tuple[float | None, ...] = (1.0, None, None) if one is first else ratio(samples, first[1])
    every = [time for run in samples for time in run]
    times = (t.median_ns, t.low_ns, t.high_ns, t.mean_ns, t.std_ns)
    return (series.name, *(ms(ns) for ns in times), min(every), max(every), *over, t.num_steps)


def _figures(results: BenchResults) -> list[Section]:
    names = dict.fromkeys(k for s in results.series.values() for k in s.summary if k not in _SHOWN_ALREADY)
    if not names or _is_collectives(results):
        return []
    units = {
        name: next((u for ending, u in _UNITS.items() if name.endswith(ending)), ("number", 1.0)) for name in names
    }
    titles = [("series", "text"), *((_title(name), units[name][0]) for name in names)]
    rows = [
        (s.name, *(None if (v := s.summary.get(name)) is None else v * units[name][1] for name in names))
        for s in results.series.values()
    ]
    return [Section("figures", "Throughput, communication and memory", (), None, _table_of(titles, rows))]


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


def _largest(points: Sequence[ScalingPoint], mode: str) -> Card:
    last = max((p for p in points if p.mode == mode), key=lambda p: p.world_size)
    between = f"{100 * last.low:.0f} to {100 * last.high:.0f} %"
    return Card(f"{mode} scaling to {last.world_size} ranks", 100 * last.efficiency, "pct", f"efficiency, {between}")


def _scaling(timed: Sequence[Timed]) -> list[Section]:
    points = _scaling_points(timed)
    if not points:
        return []
    lines = tuple(
        Line(
            mode, tuple((p.world_size, 100 * p.efficiency, 100 * p.low, 100 * p.high) for p in points if p.mode == mode)
        )
        for mode in dict.fromkeys(p.mode for p in points)
    )
    titles = (
        ("mode", "text"),
        ("ranks", "count"),
        ("step", "ms"),
        ("speed-up", "x"),
        ("efficiency", "pct"),
        ("low", "pct"),
        ("high", "pct"),
    )
    table = [
        (
            p.mode,
            p.world_size,
            None if p.median_ns is None else ms(p.median_ns),
            p.speedup,
            *(100 * v for v in (p.efficiency, p.low, p.high)),
        )
        for p in points
    ]
    chart = Lines(
        lines, Axis("ranks", "count", log=True), Axis("efficiency", "pct"), "Scaling efficiency over world size"
    )
    return [
        Section(
            "scaling",
            "Scaling",
            ("Efficiency against the smallest world size; the band is its 95 % interval.",),
            chart,
            _table_of(titles, table),
        )
    ]


def _is_collectives(results: BenchResults) -> bool:
    return all(
        isinstance(s.config.get("bytes"), int) and isinstance(s.config.get("op"), str) for s in results.series.values()
    )


def _collectives(results: BenchResults) -> list[Section]:
    if not _is_collectives(results):
        return []
    groups: dict[str, list[tuple[float, ...]]] = {}
    rows: list[tuple[Value, ...]] = []
    for s in results.series.values():
        time_ms = s.samples_ns[0][0] / NS_PER_MS
        world = s.config.get("world_size")
        groups.setdefault(f"{s.config['op']}, {world} ranks", []).append((s.config["bytes"], time_ms))
        rates = (s.summary.get("algbw_gb_per_s"), s.summary.get("busbw_gb_per_s"))
        rows.append((s.config["op"], world if isinstance(world, int) else None, s.config["bytes"], time_ms, *rates))
    titles = (
        ("operation", "text"),
        ("ranks", "count"),
        ("size", "bytes"),
        ("time", "ms"),
        ("algorithm", "gb_per_s"),
        ("bus", "gb_per_s"),
    )
    lines = tuple(Line(name, tuple(sorted(points))) for name, points in groups.items())
    chart = Lines(
        lines, Axis("size", "bytes", log=True), Axis("time", "ms", log=True), "Time of each collective over its size"
    )
    return [Section("collectives", "Collectives", (), chart, _table_of(titles, rows))]


def _notes(results: BenchResults, timed: Sequence[Timed]) -> list[str]:
    found: dict[str, list[str]] = {}
    if not _is_collectives(results):
        for series, _, times in timed:
            for doubt in times.doubts:
                found.setdefault(doubt.remedy, []).append(f"{series.name}: {doubt.evidence}")
    lines = [f"unsteady: {'; '.join(evidence[:3])}. What to do: {remedy}." for remedy, evidence in found.items()]
    return [*([f"not complete: {results.message}"] if results.message else []), *lines]


# The page of a calibration: what every collective takes by size, measured and fitted, and how far the fit is off.

_SAMPLES = 40
_SHOWN = ("source", "backend", "device", "machine", "torch", "created")


def calibration_sheet(calibration: Calibration) -> Sheet:
    """Return the page of a calibration."""
    ops = list(dict.fromkeys(curve.op for curve in calibration.curves))
    about = calibration.about
    titles = (
        ("operation", "text"),
        ("ranks", "count"),
        ("latency", "ms"),
        ("rate", "gb_per_s"),
        ("R²", "number"),
        ("mean error", "pct"),
        ("largest error", "pct"),
        ("on sizes left out", "pct"),
        ("points", "count"),
    )
    rows = [
        (
            curve.op,
            curve.world_size,
            _latency_ms(curve),
            _rate(curve),
            round(curve.r2, 4),
            100 * curve.mean_error,
            100 * curve.max_error,
            None if curve.left_out_error is None else 100 * curve.left_out_error,
            len(curve.points),
        )
        for curve in calibration.curves
    ]
    return Sheet(
        title="Collectives of this machine",
        facts=tuple(printable(str(about[name])) for name in _SHOWN if about.get(name)),
        cards=_calibration_cards(calibration),
        sections=(
            Section("fits", "What was fitted", (), None, _table_of(titles, rows)),
            *(_operation(calibration, op) for op in ops),
        ),
        notes=(
            "Times are of the full buffer of the operation, without waiting for other ranks.",
            *(curve.doubt for curve in calibration.curves if curve.doubt),
        ),
    )


def _calibration_cards(calibration: Calibration) -> tuple[Card, ...]:
    curves = calibration.curves
    rates = [rate for curve in curves if (rate := _rate(curve)) is not None]
    errors = [curve.left_out_error for curve in curves if curve.left_out_error is not None]
    return (
        Card("Curves", len(curves), "count", "one per operation and world size"),
        Card(
            "Smallest latency",
            min((_latency_ms(curve) for curve in curves), default=None),
            "ms",
            "before the first byte",
        ),
        Card("Highest rate", max(rates, default=None), "gb_per_s", "bytes of the buffer over time"),
        Card(
            "Typical error", 100 * float(np.median(errors)) if errors else None, "pct", "on sizes left out of the fit"
        ),
    )


def _operation(calibration: Calibration, op: str) -> Section:
    curves = [curve for curve in calibration.curves if curve.op == op]
    lines = [line for place, curve in enumerate(curves) for line in _lines(calibration, curve, place)]
    chart = Lines(
        tuple(lines), Axis("size", "bytes", log=True), Axis("time", "ms", log=True), f"Time of {op} over its size"
    )
    said = "Dots were measured, lines are fitted; 90 % of measurements lie in the band."
    rows = [
        (curve.world_size, size, time / NS_PER_MS, size / time if time else None)
        for curve in curves
        for size, time in curve.points
    ]
    titles = (("ranks", "count"), ("size", "bytes"), ("time", "ms"), ("rate", "gb_per_s"))
    return Section(f"op-{op.replace('_', '-')}", op.replace("_", " "), (said,), chart, _table_of(titles, rows))


def _lines(calibration: Calibration, curve: Curve, place: int) -> list[Line]:
    first, last = curve.points[0][0], curve.points[-1][0]
    sizes = np.geomspace(first, max(last, first + 1), _SAMPLES).tolist()
    found = [calibration.predict(curve.op, size_bytes=size, world_size=curve.world_size) for size in sizes]
    fitted = tuple(
        (size, e.time_ns / NS_PER_MS, e.low_ns / NS_PER_MS, e.high_ns / NS_PER_MS)
        for size, e in zip(sizes, found, strict=True)
    )
    measured = tuple((float(size), time / NS_PER_MS) for size, time in curve.points)
    name = f"{curve.world_size} ranks"
    return [Line(name, measured, colour=place), Line(f"{name}, fitted", fitted, fitted=True, colour=place)]


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
    section = Section("times", "Predicted times", said, chart if len(rows) > 1 else None, _table_of(titles, table))
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
    # times the peak that a device's memory is drawn beside it
    near = device is not None and device < 4 * peak  # far above, its line would only flatten the rest
    chart = Stacks(moments, "bytes", "Memory by category at each moment of the step", device if near else None)
    sections = [
        Section(
            "memory",
            "Memory through the step",
            ("The red line is the device.",) if near else (),
            chart,
            _table_of(titles, rows),
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
        sections.append(Section("traffic", "What is sent", (), None, _table_of(traffic, listed)))
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
    table = _table_of((("forward, per token", "text"), ("FLOPs", "flops"), ("share", "pct")), rows)
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
    sections = [Section("candidates", "What fits, the fastest first", (), chart, _table_of(titles, table))]
    if document["not_fitting"]:
        gone = [(layout_name(row), row["memory_bytes"]) for row in document["not_fitting"]]
        sections.append(
            Section(
                "not-fitting",
                "What does not fit",
                (),
                None,
                _table_of((("strategy", "text"), ("memory", "bytes")), gone),
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
    section = Section("curve", "The step at other world sizes", said, chart, _table_of(titles, rows))
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


# The page of a folder of runs: one row per run, the step over time, and what each one's first finding is.


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
        cards=_runs_cards(known),
        sections=(Section("runs", "Runs", (), chart, replace(_table(known), links=tuple(links))),),
        notes=tuple(unread),
    )


def _runs_cards(runs: Sequence[RunEntry]) -> tuple[Card, ...]:
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
    return _table_of(titles, rows)


# The page of a run without traces: its steps over the run, and what the regions of a step take on each rank.

_MAX_RANKS = 32
_MAX_DRAWN = 6
_PERCENTS = {"occupancy_pct": "occupancy", "sm_pct": "SM", "dram_pct": "DRAM", "tensor_pct": "tensor"}


def steps_sheet(document: dict[str, Any], series: Series | None) -> Sheet:
    """Return the page, from the report's JSON of the run (`light_json`) and the job's steps in order."""
    run, ranks = document["run"], _late_first(document)
    facts = [f"{run['num_ranks']} rank{'s' * (run['num_ranks'] != 1)}", f"{run['num_steps']} steps", "no trace"]
    names = list(dict.fromkeys(name for rank in ranks for name in rank["regions_ms"]))
    bars = tuple(
        Stack(f"rank {rank['rank']}", _steps_parts(rank))
        for rank in ranks[:_MAX_RANKS]
        if rank["median_step_ms"] is not None
    )
    chart = Stacks(bars, "ms", "Regions of the step by rank; the table below holds the numbers") if bars else None
    titles = [
        ("rank", "count"),
        ("host", "text"),
        ("steps", "count"),
        ("step", "ms"),
        *((name.replace("_", " "), "ms") for name in names),
    ]
    rows = [
        (r["rank"], r["host"], r["num_steps"], r["median_step_ms"], *(r["regions_ms"].get(name) for name in names))
        for r in ranks
    ]
    said = "Medians of the steps without the profiler; late ranks first. Other is what no region covers."
    return Sheet(
        title=run["name"],
        facts=(*facts, *(str(run[k]) for k in ("device", "backend", "torch") if run[k])),
        cards=_steps_cards(document),
        sections=(
            *_over_the_run(document, series),
            Section("ranks", "Regions of the step by rank", (said,), chart, _table_of(titles, rows)),
            *_measured(document),
        ),
        notes=tuple(document["warnings"]),
    )


def _late_first(document: dict[str, Any]) -> list[dict[str, Any]]:
    late = [s["rank"] for s in document["stragglers"]]
    return sorted(document["ranks"], key=lambda r: late.index(r["rank"]) if r["rank"] in late else len(late))


def _steps_cards(document: dict[str, Any]) -> tuple[Card, ...]:
    step, steady = document["step"], document["steadiness"]
    cards = [Card("Step", step["unprofiled_ms"], "ms", "without the profiler")]
    if steady:
        cards.append(Card("99 % below", steady["p99_ms"], "ms", f"spread {steady['robust_spread_pct']:.1f} %"))
        cards.append(
            Card(
                "Spikes",
                steady["num_spikes"],
                "count",
                "much longer than their neighbours",
                "medium" if steady["num_spikes"] else "low",
            )
        )
    if step["tokens_per_s"]:
        cards.append(Card("Tokens per second", step["tokens_per_s"], "count", "of the whole job"))
    if document["stragglers"]:
        first = document["stragglers"][0]
        late = f"{first['late_ms_per_step']:.2f} ms late per step"
        cards.append(Card("Straggler", f"rank {first['rank']}", "text", late, "high"))
    elif len(document["ranks"]) > 1:
        cards.append(Card("Straggler", "none", "text", "by the step logs", "low"))
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
    table = None
    if steady:
        rows: list[Sequence[Value]] = [
            (
                steady["num_steps"],
                steady["warm_up_steps"],
                *(steady[f"{k}_ms"] for k in ("median", "mean", "std", "p10", "p90", "p99", "min", "max")),
            )
        ]
        titles = [
            ("steps", "count"),
            ("warm-up", "count"),
            *((k, "ms") for k in ("median", "mean", "std", "p10", "p90", "p99", "min", "max")),
        ]
        table = _table_of(titles, rows)
    chart = Lines(
        (Line("step", _thinned(points)),), Axis("step", "number"), Axis("step time", "ms"), "Step time over the run"
    )
    return [Section("steps", "Steps over the run", (said,), chart, table)]


def _measured(document: dict[str, Any]) -> list[Section]:
    if not document["kernels"]:
        return []
    titles = [("kernel", "text"), ("launches", "count"), ("mean", "ms")]
    titles += [*((f"{title} %", "number") for title in _PERCENTS.values()), ("bound", "text"), ("waits for", "text")]
    rows = [_kernel(kernel) for kernel in document["kernels"]]
    said = "As Nsight Compute measured them, each launch alone and with fixed clocks: not the times of training."
    return [Section("kernels", "Measured kernels", (said,), None, _table_of(titles, rows))]


def _kernel(kernel: dict[str, Any]) -> tuple[Value, ...]:
    name = printable(kernel["name"].removeprefix("void "), width=44)
    percents = [None if kernel[key] is None else round(kernel[key], 1) for key in _PERCENTS]
    return name, kernel["count"], kernel["mean_ms"], *percents, kernel["bound"], kernel["stall"]


def _steps_parts(rank: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    parts = [(name, value) for name, value in rank["regions_ms"].items() if value]
    rest = rank["median_step_ms"] - float(np.sum([value for _, value in parts]))
    return (*parts, *((("other", rest),) if rest > 0 else ()))
