"""The page of a benchmark: series with their intervals, what else was measured of them, scaling and collectives.

Of one that has just run also what only the whole document shows: the variants of a sweep against the first, agreement
of results, late ranks, and the search for a bucket size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from stepscope.lab.report.svg import SIZE, TIME
from stepscope.lab.results.folder import BenchResults, BenchSeries, bench_results_of
from stepscope.lab.results.times import BenchTimes, bench_times, over, scaling
from stepscope.report.charts import COLOURS, Axis, Bar, Line, bar_chart, line_chart
from stepscope.report.drawing import Drawing
from stepscope.report.sheet import Section, Sheet, Value, Values, card, pct, section_of, table_of
from stepscope.run.sources import RESULTS_JSON
from stepscope.side_file import is_number
from stepscope.units import NS_PER_MS, ms, printable

_UNITS = {
    "_gb": ("bytes", 1e9),
    "_gb_per_s": ("gb_per_s", 1.0),
    "_pct": ("pct", 1.0),
    "_ms": ("ms", 1.0),
    "_ms_per_step": ("ms", 1.0),
    "_us": ("ms", 1e-3),
    "_step_time": ("ms", 1.0),
}
# of one run that are drawn
_MAX_SAMPLES = 400
_SHOWN_ALREADY = ("mean_step_time", "median_step_time", "std_step_time", "min_step_time", "max_step_time")

Document = Mapping[str, Any]
Row = Mapping[str, Any]
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
    steps = [f"{len(runs)} interleaved runs, {sum(map(len, runs))} steps" for _, runs, _ in timed[:1] if len(runs) > 1]
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
        return tuple(_largest(points, mode) for mode in dict.fromkeys(p["mode"] for p in points))
    best = min(timed, key=lambda one: one[2].median_ns)
    first = timed[0]
    unsteady = sum(not times.steady for _, _, times in timed)
    cards = [
        card("Fastest", best[0].name, "text", f"of {len(timed)} series"),
        card("Its step", ms(best[2].median_ns), "ms", "median"),
    ]
    if best is not first:
        found = over(best[1], first[1])
        between = f"{found.low:.2f} to {found.high:.2f}, 95 %"
        cards.append(card(f"Against {first[0].name}", found.ratio, "x", between, "low" if found.faster else ""))
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
    chart = _series_chart(timed)
    rows = [
        (
            series.name,
            t,
            [time for run in samples for time in run],
            over(samples, timed[0][1]) if k else None,
        )
        for k, (series, samples, t) in enumerate(timed)
    ]
    table = table_of(
        rows,
        ("series", "text", lambda row: row[0]),
        ("median", "ms", lambda row: ms(row[1].median_ns)),
        ("from", "ms", lambda row: ms(row[1].low_ns)),
        ("to", "ms", lambda row: ms(row[1].high_ns)),
        ("mean", "ms", lambda row: fmean(row[2])),
        ("std", "ms", lambda row: stdev(row[2]) if len(row[2]) > 1 else 0.0),
        ("min", "ms", lambda row: min(row[2])),
        ("max", "ms", lambda row: max(row[2])),
        ("time", "x", lambda row: row[3].ratio if row[3] else 1.0),
        ("low", "x", lambda row: row[3] and row[3].low),
        ("high", "x", lambda row: row[3] and row[3].high),
        ("steps", "count", lambda row: len(row[2])),
    )
    said = "Dots are steps, a colour per run; the mark is the median with its 95 % interval. Time is against the first."
    return Section("series", "Step times", (said,), chart, table)


def _series_chart(timed: Sequence[Timed]) -> Drawing:
    """Return one row per series: a dot per step, coloured by run, the median and its interval."""
    bars = []
    for series, samples, times in timed:
        median, low, high = (ms(t) for t in (times.median_ns, times.low_ns, times.high_ns))
        shown = [run[:: max(1, len(run) // _MAX_SAMPLES)] for run in samples]
        bars.append(Bar(series.name, [("text", "median", median)], low=low, high=high, samples=shown))
    label = "Median step time of each series with its 95 % interval; dots are steps"
    return bar_chart("Step times", bars, "ms", width=760, left=200, label=label)


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


def _scaling_points(timed: Sequence[Timed]) -> list[Values]:
    rows: list[dict[str, Any]] = [
        {"config": series.config, "samples_ms": samples}
        for series, samples, _ in timed
        if series.config.get("mode") in ("strong", "weak") and is_number(series.config.get("world_size"), low=1)
    ]
    return scaling(rows) if len(rows) == len(timed) else []


def _largest(points: Sequence[Values], mode: str) -> Values:
    last = [p for p in points if p["mode"] == mode][-1]
    between = f"efficiency, {100 * last['low']:.0f} to {100 * last['high']:.0f} %"
    return card(f"{mode} scaling to {last['world_size']} ranks", 100 * last["efficiency"], "pct", between)


def _scaling(timed: Sequence[Timed]) -> list[Section]:
    points = _scaling_points(timed)
    if not points:
        return []
    table = table_of(
        points,
        ("mode", "text", "mode"),
        ("ranks", "count", "world_size"),
        ("step", "ms", "median_ms"),
        ("speed-up", "x", "speedup"),
        *((name, "pct", lambda p, name=name: 100 * p[name]) for name in ("efficiency", "low", "high")),
    )
    said = "Efficiency against the smallest world size; the band is its 95 % interval."
    return [Section("scaling", "Scaling", (said,), _scaling_chart(points), table)]


def _scaling_chart(scaled: Sequence[Values]) -> Drawing:
    """Return the efficiency over the world size, a line per mode with its interval."""
    lines = []
    for k, mode in enumerate(dict.fromkeys(point["mode"] for point in scaled)):
        mine = [p for p in scaled if p["mode"] == mode]
        points = [(p["world_size"], *(100 * p[name] for name in ("efficiency", "low", "high"))) for p in mine]
        lines.append(Line(mode, points, COLOURS[k], "both"))
    label = "Scaling efficiency over world size; the band is its 95 % interval"
    return line_chart("Scaling efficiency", lines, Axis("ranks", "count"), Axis("efficiency", "pct"), label=label)


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
    chart = line_chart("Time of each collective over its size", lines, SIZE, TIME, width=760)
    return [Section("collectives", "Collectives", (), chart, table)]


def _notes(results: BenchResults, timed: Sequence[Timed]) -> list[str]:
    found: dict[str, list[str]] = {}
    if not _is_collectives(results):
        for series, _, times in timed:
            for doubt in times.doubts:
                found.setdefault(doubt.remedy, []).append(f"{series.name}: {doubt.evidence}")
    lines = [f"unsteady: {'; '.join(evidence[:3])}. What to do: {remedy}." for remedy, evidence in found.items()]
    return [*([f"not complete: {results.message}"] if results.message else []), *lines]


# What only a whole document shows.


def live_sheet(document: Document, *, name: str) -> Sheet:
    """Return the page of a results document."""
    sheet = bench_sheet(bench_results_of(dict(document), name=name, path=Path(RESULTS_JSON)))
    own = [*_sweep(document), *_straggler(document), *_search(document)]
    unknown = dict.fromkeys(row["summary"].get("overlap_reason") for row in document["series"])
    no_traces = [f"communication unknown: {reason}" for reason in unknown if reason]
    notes = (*sheet.notes, *_agreement(document), *_margin(document), *_shared_cores(document), *no_traces)
    return replace(sheet, sections=(*sheet.sections, *own), notes=notes)


def times_of(row: Row) -> BenchTimes | None:
    """Return the times of one series."""
    return bench_times(row["samples_ms"], warmup_steps=row["config"].get("warmup_steps") or 0)


def _margin(document: Document) -> Iterator[str]:
    found = document.get("recommendation")
    if not found or "sweep" in document:
        return
    if found.get("against"):
        between = f"[{found['time_over_low']:.2f}, {found['time_over_high']:.2f}]"
        yield f"{found['series']}: {found['time_over']:.2f} x {between} the time of {found['against']}"
    if found.get("least_memory") not in (None, found["series"]):
        yield f"where memory is short: {found['least_memory']} takes least"
    if found.get("saving_pct"):
        between = f"[{found['saving_low_pct']:.1f}, {found['saving_high_pct']:.1f}]"
        yield f"{found['series']} saves {found['saving_pct']:.1f} % {between}"


def _shared_cores(document: Document) -> Iterator[str]:
    where = document["environment"]
    most = max((row["config"].get("world_size") or 1 for row in document["series"]), default=1)
    if where.get("backend") == "gloo" and where.get("cpus") and most * where.get("threads", 1) > where["cpus"]:
        yield f"{most} ranks share {where['cpus']} cores, so they cannot all run at full speed"


def _agreement(document: Document) -> Iterator[str]:
    checked = [(row["name"], row["agreement"]) for row in document["series"] if row.get("agreement")]
    if len(checked) < 2:
        return
    apart = [(name, a) for name, a in checked if not a["agrees"]]
    for name, a in apart:
        yield f"{name} DIFFERS from {checked[0][0]}: {_errors(a)}"
    if not apart:
        worst = max((a for _, a in checked), key=lambda a: a["weight_error"])
        same = "all equal bit by bit" if all(a["equal"] for _, a in checked) else f"at most {_errors(worst)}"
        yield f"same results after {worst['steps']} steps: {same}"


def _errors(a: Row) -> str:
    gradient = "unknown" if a["gradient_error"] is None else f"{a['gradient_error']:.1e}"
    return f"gradient {gradient}, weights {a['weight_error']:.1e}, loss {a['loss_error']:.1e} (relative)"


def _straggler(document: Document) -> list[Section]:
    rows = [row for row in document["series"] if row.get("straggler")]

    def late(row: Row, key: str) -> float | None:
        planted = row["straggler"]["planted_rank"]
        values = [one[0][key] for one in row["straggler"]["found"] if one and one[0]["rank"] == planted]
        return sum(values) / len(values) if values else None

    def named(row: Row) -> str:
        found = [one[0]["rank"] for one in row["straggler"]["found"] if one]
        ranks = ", ".join(map(str, sorted(set(found))))
        return f"rank {ranks} in {len(found)} of {len(row['straggler']['found'])} runs" if found else "none"

    return section_of(
        "straggler",
        "A late rank",
        "Named by the step logs of light mode, from own times before the wait for gradients.",
        rows,
        ("delay of the rank", "ms", lambda row: row["straggler"]["planted_ms"]),
        ("throughput lost", "pct", lambda row: row["straggler"]["lost_throughput_pct"]),
        ("from", "pct", lambda row: row["straggler"]["lost_low_pct"]),
        ("to", "pct", lambda row: row["straggler"]["lost_high_pct"]),
        ("late by", "ms", lambda row: late(row, "late_ms")),
        ("score", "number", lambda row: late(row, "score")),
        ("named", "text", named),
    )


def _search(document: Document) -> list[Section]:
    search = document.get("search") or {}
    same = [
        f"{float(size):g} MB cuts this model into the same buckets as {other:g} MB"
        for size, other in (search.get("same_as") or {}).items()
    ]
    return section_of(
        "search",
        "Search for the bucket size",
        "; ".join(same),
        (search.get("ratios") or {}).items(),
        ("bucket", "bytes", lambda one: float(one[0]) * 1e6),
        ("time over the best", "x", lambda one: one[1]),
    )


# A sweep: each variant against the first, whether results agree, and how they were compared.


def _sweep(document: Document) -> list[Section]:
    sweep = document.get("sweep")
    if not sweep:
        return []
    verdict = sweep["verdict"]
    lines = [_method(sweep), *_judged_otherwise(sweep)]
    lines += [
        f"{v['name']}: {v['status']}: {printable(v['reason'] or '', width=300)}"
        for v in verdict["variants"]
        if v["status"] != "measured"
    ]
    if "fitting" in sweep:
        lines.append(_fitting(sweep["fitting"], document["environment"].get("device_memory_gb")))
    if verdict["mfu_reason"]:
        lines.append(verdict["mfu_reason"])
    agrees = {True: "yes", False: "NO", None: "?"}
    found = section_of(
        "variants",
        "Variants",
        "",
        [v for v in verdict["variants"] if v["step_ms"] is not None],
        ("variant", "text", "name"),
        ("step", "ms", "step_ms"),
        ("times as fast", "x", lambda v: v["gain"] and v["gain"]["speedup"]),
        ("from", "x", lambda v: v["gain"] and v["gain"]["low"]),
        ("to", "x", lambda v: v["gain"] and v["gain"]["high"]),
        ("agrees", "text", lambda v: agrees[v["agreement"] and v["agreement"]["agrees"]]),
        ("peak memory", "bytes", lambda v: v["peak_memory_gb"] and 1e9 * v["peak_memory_gb"]),
        ("reserved", "bytes", lambda v: v["reserved_memory_gb"] and 1e9 * v["reserved_memory_gb"]),
        ("first step", "ms", "first_step_ms"),
        ("gradient error", "text", lambda v: _error(v["agreement"] and v["agreement"]["gradient_error"])),
        ("loss error", "text", lambda v: _error(v["agreement"] and v["agreement"]["loss_error"])),
        ("MFU", "pct", lambda v: pct(v["mfu"])),
    )
    return [*found, Section("method", "How the variants were compared", tuple(lines))]


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _judged_otherwise(sweep: Mapping[str, Any]) -> list[str]:
    usual = {v["name"]: (v.get("tolerance") or sweep["tolerance"])["why"] for v in sweep["variants"]}
    found: dict[str, list[str]] = {}
    for v in sweep["verdict"]["variants"]:
        agreed = v["agreement"]
        if agreed and agreed["agrees"] is not None and agreed["why"] != usual[v["name"]]:
            found.setdefault(agreed["why"], []).append(v["name"])
    return [f"{', '.join(names)}: {why}" for why, names in found.items()]


def _method(sweep: Mapping[str, Any]) -> str:
    tolerance = sweep["tolerance"]
    other = "the same batch in two halves" if sweep["reference"] == "halves" else "the first variant"
    bounds = f"gradient {tolerance['gradient']:.1e}, loss {tolerance['loss']:.1e}: {tolerance['why']}"
    own: dict[str, list[str]] = {}
    for v in sweep["variants"]:
        if found := v.get("tolerance"):
            own.setdefault(f"{found['gradient']:.1e} and {found['loss']:.1e}", []).append(v["name"])
    more = "".join(f"; {', '.join(names)} {bound}" for bound, names in own.items())
    return f"speed is per sample; results agree with {other} within ({bounds}{more}), relative"


def _fitting(found: Mapping[str, Any], device_memory_gb: float | None) -> str:
    limit_gb = found["memory_limit_bytes"] / 1e9 if found["memory_limit_bytes"] else device_memory_gb
    where = f" in {limit_gb:.2f} GB" if limit_gb else ""
    reasons = {int(size): reason for size, reason in found["did_not_fit"].items()}
    largest = f"largest batch that fits{where}: {found['largest']}"
    if not reasons:
        return largest
    return f"{largest}; {min(reasons)} does not: {printable(reasons[min(reasons)], width=140)}"
