"""The page of a benchmark: series with their intervals, what else was measured of them, scaling and collectives."""

from collections.abc import Sequence
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
    Value,
    table_of,
    thinned,
)
from stepscope.results.folder import BenchResults, BenchSeries
from stepscope.results.scaling import ScalingPoint, scaling
from stepscope.results.times import BenchTimes, bench_times, ratio
from stepscope.side_file import is_number
from stepscope.units import NS_PER_MS, ms

_MAX_SAMPLES = 400
"""of one run that are drawn"""
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
    return Sheet(
        title=results.command or results.name,
        facts=_facts(results, timed),
        cards=_cards(results, timed),
        sections=(*_advice(results), *sections, *_figures(results)),
        notes=tuple(_notes(results, timed)),
    )


def _timed(series: BenchSeries) -> Timed | None:
    samples = [[time / NS_PER_MS for time in run] for run in series.samples_ns]
    warmup = series.config.get("warmup_steps")
    times = bench_times(samples, warmup_steps=warmup if isinstance(warmup, int) else 0)
    return None if times is None else (series, samples, times)


def _facts(results: BenchResults, timed: Sequence[Timed]) -> tuple[str, ...]:
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
    return (*named, *torch, *(steps if len(timed) > 1 else ()))


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
                series.name, ms(t.median_ns), ms(t.low_ns), ms(t.high_ns), tuple(_drawn(run) for run in samples)
            )
            for series, samples, t in timed
        ),
        "ms",
        "Median step time of each series with its 95 % interval; dots are steps; the table below holds the numbers",
    )
    said = "Dots are steps, a colour per run; the mark is the median with its 95 % interval. Time is against the first."
    return Section("series", "Step times", (said,), chart, table_of(titles, rows))


def _row(one: Timed, first: Timed) -> tuple[Value, ...]:
    series, samples, t = one
    over: tuple[float | None, ...] = (1.0, None, None) if one is first else ratio(samples, first[1])
    every = [time for run in samples for time in run]
    times = (t.median_ns, t.low_ns, t.high_ns, t.mean_ns, t.std_ns)
    return (series.name, *(ms(ns) for ns in times), min(every), max(every), *over, t.num_steps)


def _drawn(run: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(point[0], 4) for point in thinned([(time,) for time in run], _MAX_SAMPLES))


def _figures(results: BenchResults) -> list[Section]:
    """Return whatever else was measured of the series, one column each."""
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
    return [Section("figures", "Throughput, communication and memory", (), None, table_of(titles, rows))]


def _title(name: str) -> str:
    for ending in _UNITS:
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def _scaling_points(timed: Sequence[Timed]) -> list[ScalingPoint]:
    """Return how well more ranks help, none where this is no benchmark of that."""
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
            table_of(titles, table),
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
    return [Section("collectives", "Collectives", (), chart, table_of(titles, rows))]


def _advice(results: BenchResults) -> list[Section]:
    said = tuple(line for line in (results.question, *results.advice) if line)
    return [Section("advice", "What to take", said)] if results.advice else []


def _notes(results: BenchResults, timed: Sequence[Timed]) -> list[str]:
    """Return what speaks against the measurement, the same doubt of several series once."""
    found: dict[str, list[str]] = {}
    if not _is_collectives(results):
        for series, _, times in timed:
            for doubt in times.doubts:
                found.setdefault(doubt.remedy, []).append(f"{series.name}: {doubt.evidence}")
    lines = [f"unsteady: {'; '.join(evidence[:3])}. What to do: {remedy}." for remedy, evidence in found.items()]
    return [*([f"not complete: {results.message}"] if results.message else []), *lines]
