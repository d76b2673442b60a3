"""Every picture of a run, from its document; a picture that has nothing to show is None."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, groupby
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from stepscope.contract.names import LOSSES, PARTS, PATH, category_name, shown_parts
from stepscope.contract.operations import bus_factor
from stepscope.cost.calibration import Calibration
from stepscope.errors import UsageError
from stepscope.report.charts import (
    COLOURS,
    WIDE,
    Axis,
    Bar,
    Lane,
    Line,
    Span,
    Stack,
    bar_chart,
    column_chart,
    lane_chart,
    line_chart,
    share_text,
)
from stepscope.report.drawing import Drawing, Scale, Shape, dot, polyline, rect, unit_tick, words
from stepscope.report.sheet import Column, digits, table_of, unit_text
from stepscope.run.side_files import Telemetry
from stepscope.units import NS_PER_MS

Document = Mapping[str, Any]

# what each part of a step is coloured by
PART_COLOUR = {
    "other_compute": "other", "exposed_transfer": "transfer", "pipeline_bubble": "wait", "data_loading": "input",
    "launch_gap": "host", "host_sync": "host", "allocator": "host", "host_stall": "host",
}  # fmt: skip
_PATH_COLOUR = {
    "host": "host", "kernel": "compute", "collective": "transfer", "copy": "copy", "set": "other", "launch": "input",
}  # fmt: skip


# Where the step goes


def budget(document: Document) -> Drawing | None:
    """Return the step as one bar per part, the longest first."""
    parts = sorted(((p, t) for p, t in shown_parts(document["step"]).items() if t > 0), key=lambda one: -one[1])
    whole = "step" if document["run"]["num_steps"] else "window"
    all_ms = sum(time_ms for _, time_ms in parts)
    total = unit_text(all_ms, "ms")
    bars = [
        Bar(PARTS.get(part) or _words(part),
            [(PART_COLOUR.get(part, part), f"per {whole}", time_ms)],
            f"{unit_text(time_ms, 'ms')}, {100 * time_ms / all_ms:.0f} %")
        for part, time_ms in parts
    ]  # fmt: skip
    title = f"{whole.capitalize()} time by category{', average rank' * (document['run']['num_ranks'] > 1)}"
    return (bars and bar_chart(
        title, bars, "ms", axis=False, right=110, left=160, label=f"A {whole} of {total} by its parts",
        notes=[f"The parts sum to {total}."],
    )) or None  # fmt: skip


def waterfall(document: Document) -> Drawing | None:
    """Return what is lost between the chip's peak and the achieved FLOP rate; None where FLOPs are unknown."""
    rows = document["waterfall"]
    if not rows:
        return None
    bars, left = [Bar("peak", [("compute", "of peak", 100)])], 100.0
    for row in rows:
        share, last = row["pct_of_peak"] or 0.0, row["loss"] == "achieved"
        left -= 0 if last else share
        own = ("non_matmul_kernels", "matmul_below_peak", "precision", "recomputation")
        colour = "compute" if last else "unknown" if row["loss"] in own else "wait"
        error, unsure = row["plus_minus"] or 0.0, (row["plus_minus"] or 0.0) > share
        around = f" ± {error:.1f}" if error and not unsure else ""
        text = f"{'' if last else '−'}{share:.1f}{around} %{' (rough)' * unsure}"  # noqa: RUF001
        if share >= 0.05 or last:
            bars.append(
                Bar(
                    LOSSES.get(row["loss"], _words(row["loss"])),
                    [(colour, "of peak", share)],
                    text,
                    start=0 if last else max(0.0, left),
                )
            )
    source = document["efficiency"]["flops_source"]
    return bar_chart(
        "MFU: losses from peak", bars, "pct", axis=False, right=110, left=160,
        label="Waterfall from peak to achieved FLOP rate; the table below holds its numbers",
        notes=[f"FLOPs from {source}; causal attention counted without masking."] if source else [],
    )  # fmt: skip


def what_if(document: Document) -> Drawing | None:
    """Return the step as it is and with each fix alone, by what its critical path consists of."""
    made = document["details"]["what_if"]
    if not made:
        return None
    bars = []
    for state in made["states"]:
        name = document["findings"][state["fixes"][0]]["title"] if state["fixes"] else "now"
        parts = [(_PATH_COLOUR.get(k, "unknown"), PATH.get(k, k), v) for k, v in state["path"].items()]
        bars.append(Bar(name, parts, unit_text(made["step_ms"] - state["saving_ms"], "ms")))
    return bar_chart("The step with each fix alone", bars, "ms", width=760, left=230, axis=False)


# Steps over the run

_MARK_COLOURS = ("input", "copy", "optimizer", "transfer", "host")


def run_steps(document: Document) -> Drawing | None:
    """Return the time of every step on every rank: the band of all ranks, single ranks, and special steps."""
    found = document["details"]["run_steps"]
    if not found or (found["source"] != "step logs" and (found["num_ranks"] == 1 or len(found["step"]) < 4)):
        return None  # the picture of the recorded steps shows as much
    steps, median, high = found["step"], found["median_ms"], found["max_ms"]
    usual = float(np.median([v for v in median if v is not None]))
    # a few outliers do not flatten the rest: they are drawn at the edge
    known = [v for v in high if v is not None]
    most = min(max(known), max(4 * usual, float(np.percentile(known, 95))))
    marks = {int(step): mark for step, mark in found["marks"].items()}
    colours = {mark: _MARK_COLOURS[k % 5] for k, mark in enumerate(dict.fromkeys(marks.values()))}
    special = dict.fromkeys(found["outliers"], ("high", "outlier")) | {s: (colours[m], m) for s, m in marks.items()}
    several = found["num_ranks"] > 1
    name = "median over ranks" if several else "step"
    points = list(zip(steps, median, found["min_ms"], high, strict=True))
    lines = [Line(name, [p if several else p[:2] for p in points if None not in p], "text")]
    for k, one in enumerate(found["ranks"]):
        own = [(s, v) for s, v in zip(steps, one["ms"], strict=True) if v is not None]
        lines.append(Line(f"rank {one['rank']}", own, COLOURS[k], width=1))
    legend = [(line.colour, line.name) for line in lines] + [("range", "profiled")] * (not all(found["profiled"]))
    legend += list(dict.fromkeys((colour, _words(what)) for colour, what in special.values()))
    notes = [f"From the {found['source']}{'' if found['source'] == 'step logs' else ', all of them profiled'}."]
    if len(steps) < found["num_steps"]:
        notes.append(f"Of {found['num_steps']:,} steps the longest of each of {len(steps)} stretches is drawn.")
    if found["num_ranks"] > len(found["ranks"]) > 1:
        notes.append(f"The {len(found['ranks'])} slowest ranks have their own line.")
    rows = list(zip(*(found[k] for k in ("step", "median_ms", "min_ms", "max_ms", "slowest_rank")), strict=True))

    def above(x: Scale, y: Scale) -> list[Shape]:
        at = {step: value for step, value in zip(steps, high, strict=True) if value is not None}
        return [
            dot(x(s), y(min(at[s], y.high)), 4, colour, tip=(f"step {s}: {unit_text(at[s], 'ms')}", _words(what)))
            for s, (colour, what) in special.items()
            if s in at
        ]

    return line_chart(
        f"Step time of the {'whole run' if found['source'] == 'step logs' else 'recorded steps'}", lines,
        Axis("step", "count", zero=False),
        Axis("step time", "ms", zero=min(v for v in found["min_ms"] if v is not None) < 0.7 * most), width=WIDE,
        label=f"Times of steps {steps[0]} to {steps[-1]} on {found['num_ranks']} ranks, "
        f"median {unit_text(usual, 'ms')}",
        most=most, legend=legend, notes=notes, below=lambda x, y: _profiled(found, x, y), above=above,
        table=table_of(rows, ("step", "number", 0), ("median", "ms", 1),
                       ("fastest", "ms", 2), ("slowest", "ms", 3),
                       ("slowest rank", "number", 4),
                       ("remark", "text", lambda r: _words(special[r[0]][1]) if r[0] in special else None), most=200),
    )  # fmt: skip


def _profiled(found: Document, x: Scale, y: Scale) -> list[Shape]:
    shapes = []
    for profiled, group in groupby(zip(found["profiled"], found["step"], strict=True), key=lambda pair: pair[0]):
        steps = [step for _, step in group]
        if profiled and not all(found["profiled"]):
            left, right = max(x(steps[0] - 0.5), x.start), min(x(steps[-1] + 0.5), x.end)
            tip = (f"profiled: steps {steps[0]} to {steps[-1]}",)
            shapes.append(rect(left, y.end, right - left, y.start - y.end, "range", opacity=0.55, tip=tip))
    return shapes


# Kernels

_BOUND_COLOUR = {"compute-bound": "forward", "memory-bound": "transfer", "latency": "wait"}
# as elsewhere on the page: communication is orange, copies are green
_FAMILY_COLOUR = {
    "communication": "transfer", "gemm": "forward", "attention": "input", "elementwise": "other",
    "normalisation": "host", "copy": "copy", "optimizer": "optimizer",
}  # fmt: skip


def roofline(document: Document) -> Drawing | None:
    """Return kernels by arithmetic intensity below the chip's roof."""
    chip = document["details"]["chip"]
    known = [k for k in document["kernels"] if k["tflops"] and k["gb_per_s"]]
    if not known or not chip or not chip["memory_gb_per_s"] or not chip["tflops"]:
        return None
    used = dict.fromkeys(k["precision"] for k in known)
    roofs = {p: chip["tflops"][p] for p in used if p in chip["tflops"]} or dict(list(chip["tflops"].items())[:1])
    rate = chip["memory_gb_per_s"]
    intensity = {k["name"]: 1e3 * k["tflops"] / k["gb_per_s"] for k in known}
    ridge, longest = max(roofs.values()) * 1e3 / rate, max(k["total_ms"] for k in known)
    lines = []
    for bound in dict.fromkeys(k["bound"] for k in known):
        mine = sorted((k for k in known if k["bound"] == bound), key=lambda k: -k["total_ms"])
        points = [(intensity[k["name"]], k["tflops"]) for k in mine]
        tips = [_roof_tip(k, intensity[k["name"]]) for k in mine]
        radii = [3 + 9 * (k["total_ms"] / longest) ** 0.5 for k in mine]
        name = bound or "unknown"
        lines.append(Line(name, points, _BOUND_COLOUR.get(name, "unknown"), "dots", tips=tips, radii=radii))

    def roof(x: Scale, y: Scale) -> list[Shape]:
        shapes = []
        for name, tflops in roofs.items():
            start = max(x.low, y.low * 1e3 / rate)
            line = [(start, start * rate / 1e3), (tflops * 1e3 / rate, tflops), (x.high, tflops)]
            shapes.append(polyline([(x(i), y(t)) for i, t in line if i <= x.high], "quiet"))
            shapes.append(words(x(x.high), y(tflops) - 5, f"{name} {tflops:,.0f} TFLOP/s", anchor="end"))
        return shapes

    measured = sum((k["measured_share"] or 0) > 0 for k in known)
    source = f"Bytes of {measured} of {len(known)} kernels measured by Nsight Compute; the rest modelled from shapes."
    modelled = "Modelled: FLOPs and minimum bytes from recorded shapes; the real traffic was not measured."
    return line_chart(
        "Roofline", lines, Axis("FLOP per byte of device memory", "number", log=True),
        Axis("TFLOP/s", "number", log=True),
        label=f"TFLOP/s of {len(known)} kernels by arithmetic intensity below the roof of {chip['name']}",
        height=300, above=roof, around=((ridge / 9, ridge * 4), tuple(roofs.values())),
        notes=["TFLOP/s over FLOP per byte; a dot is a kernel, its area the time in it.",
               source if measured else modelled,
               f"The roof is the dense peak of {chip['name']} and {rate:,.0f} GB/s."],
        table=table_of(known, ("kernel", "text", "name"), ("FLOP per byte", "number", lambda k: intensity[k["name"]]),
                       ("TFLOP/s", "number", "tflops"), ("total", "ms", "total_ms"), ("bound", "text", "bound")),
    )  # fmt: skip


def _roof_tip(kernel: Document, intensity: float) -> list[str]:
    source = "measured" if kernel["measured_share"] else "modelled from shapes"
    return [
        kernel["name"],
        f"{kernel['tflops']:,.1f} TFLOP/s, {intensity:,.1f} FLOP per byte ({source})",
        f"{unit_text(kernel['total_ms'], 'ms')} in {kernel['count']:,.0f} launches, "
        f"{kernel['bound'] or 'bound unknown'}",
    ]


def kernel_durations(document: Document) -> Drawing | None:
    """Return the time in kernels of each duration, by family."""
    found = document["details"]["kernels"]
    if not found:
        return None
    families = sorted(found["families"], key=lambda f: -sum(f["ms"]))
    spare = cycle(("backward", "unmatched", "wait", "idle", "range", "unknown"))
    colours = [_FAMILY_COLOUR.get(f["family"]) or next(spare) for f in families]
    used = [b for b in range(len(found["from_us"])) if any(f["count"][b] for f in families)]
    if not used:
        return None
    edges = ["< 2 µs", *(unit_tick(us / 1000, "ms") for us in found["from_us"][1:])]
    bins = range(used[0], used[-1] + 1)
    columns = [
        Stack(edges[b], [(c, f["family"], f["ms"][b]) for c, f in zip(colours, families, strict=True)]) for b in bins
    ]
    return column_chart(
        "Time in kernels of each duration", columns, "ms", x_title="duration of a kernel, at least",
        every=1 if len(bins) <= 8 else 3,
        notes=["Per rank over the window. Bins double; kernels below 10 µs are about as short as their launch."],
    )  # fmt: skip


def device_queue(document: Document) -> Drawing | None:
    """Return how long the device's queue was for how much of the time."""
    found = document["details"]["kernels"]
    if not found or not found["queue_pct"]:
        return None
    last = max((k for k, pct in enumerate(found["queue_pct"]) if pct > 0), default=0)
    kinds = [
        ("wait", "empty: the device waits"),
        *[("host", "nearly empty")] * 2,
        *[("forward", "the host is ahead")] * last,
    ]
    rows = list(zip(found["queue_at_least"], found["queue_pct"], kinds, strict=False))[: last + 1]
    return column_chart(
        "Work queued on the device", [Stack(str(least), [(*kind, pct)]) for least, pct, kind in rows], "pct",
        x_title="operations in the queue, at least",
        label="Share of time by length of the device's queue; the table below holds its numbers",
        notes=[f"Half of all launches find {found['queue_median']:,.0f} or more before them."],
    )  # fmt: skip


# Between ranks

_MATRIX_LEFT, _MATRIX_TOP, _MATRIX_PIXELS = 66, 34, 420


def waiting(document: Document) -> Drawing | None:
    """Return who waits for whom."""
    found = document["details"]["rank_matrix"]
    note = (
        "From a rank's arrival at a collective to the last one's; overlapping waits are added, waits below the clock "
        "uncertainty ignored."
    )
    return found and _matrix(
        document, found["waited_ms"], "ms", colour="wait", title="Who waits for whom", verb="waits for", note=note
    )


def sending(document: Document) -> Drawing | None:
    """Return who sends how much to whom."""
    found = document["details"]["rank_matrix"]
    if not found:
        return None
    messages, rings = (np.array(found[key]) for key in ("message_bytes", "ring_bytes"))
    how = ["Messages between ranks are as recorded."] * bool(messages.any())
    how += [
        "Collectives assume a ring: each rank sends to the next one of its group (all-to-all: to all, in equal shares)."
    ] * bool(rings.any())
    sent = (messages + rings).tolist()
    return _matrix(
        document, sent, "bytes", colour="transfer", title="Who sends to whom", verb="sends to", note=" ".join(how)
    )


def _matrix(
    document: Document, values: Sequence[Sequence[float]], unit: str, *, colour: str, title: str, verb: str, note: str
) -> Drawing | None:
    blocks = document["details"]["rank_matrix"]["blocks"]
    most = max(max(row) for row in values)
    if not most:
        return None
    num, single = len(blocks), all(first == last for first, last in blocks)
    names = [str(first) if first == last else f"{first}-{last}" for first, last in blocks]
    side = min(44.0, _MATRIX_PIXELS / num)
    size = side * num
    shapes = [words(_MATRIX_LEFT, 12, f"row {verb} column")]
    across, down = ceil((9 * max(map(len, names)) + 8) / side), ceil(18 / side)
    for k, name in enumerate(names):
        if k % down == 0:
            shapes.append(words(_MATRIX_LEFT - 8, _MATRIX_TOP + (k + 0.5) * side + 4, name, anchor="end"))
        if k % across == 0:
            shapes.append(words(_MATRIX_LEFT + (k + 0.5) * side, _MATRIX_TOP - 5, name, anchor="middle"))
    gap = 1.0 if side > 10 else 0.3
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if (i == j and single) or (value <= 0 and num > 16):
                continue
            tip = (f"rank {names[i]} {verb} rank {names[j]}", f"{unit_text(value, unit)} per step")
            strength = 0.12 + 0.88 * value / most if value > 0 else 0.35
            x, y = _MATRIX_LEFT + j * side, _MATRIX_TOP + i * side
            shapes.append(rect(x + gap / 2, y + gap / 2, side - gap, side - gap, colour if value > 0 else "line",
                               opacity=strength, tip=tip))  # fmt: skip
    edges = node_edges(document, [first for first, _ in blocks])
    for k in edges:
        at = k * side
        left, top = _MATRIX_LEFT, _MATRIX_TOP
        shapes.append(polyline([(left + at, top), (left + at, top + size)], "text", width=1))
        shapes.append(polyline([(left, top + at), (left + size, top + at)], "text", width=1))
    cells = [(value, names[i], names[j]) for i, row in enumerate(values) for j, value in enumerate(row) if value > 0]
    legend = [(colour, f"stronger is more, up to {unit_text(most, unit)} per step")]
    return Drawing(
        title, max(int(_MATRIX_LEFT + size) + 10, 300), int(_MATRIX_TOP + size) + 8,
        f"{title}: a matrix of {num} by {num}; the darkest is {unit_text(most, unit)} per step",
        tuple(shapes), (*legend, *([("text", "between nodes")] if edges else [])), (f"Per step. {note}",),
        table_of(sorted(cells, reverse=True), ("rank", "text", 1), (verb, "text", 2),
                 ("per step", unit, 0), most=40),
    )  # fmt: skip


def node_edges(document: Document, ranks: Sequence[int]) -> list[int]:
    """Return the places in a list of ranks at which another node begins."""
    host = {r["rank"]: r["host"] for r in document["ranks"]}
    return [k for k in range(1, len(ranks)) if host.get(ranks[k]) != host.get(ranks[k - 1])]


def bandwidth(document: Document, calibration: Calibration | None = None) -> Drawing | None:
    """Return the bus bandwidth by operation and group, with what the machine's calibration measured."""
    known = [c for c in document["collectives"] if c["busbw_gb_per_s"] and c["bytes"] and c["count"]]
    if not known:
        return None
    bars = []
    for c in sorted(known, key=lambda c: -c["bytes"])[:14]:
        limit, bus = _calibrated(calibration, c), c["busbw_gb_per_s"]
        of = f", {share_text(bus, limit)} of the calibrated {digits(limit)}" if limit else ""
        text = f"{digits(bus)} GB/s{of}, {c['count']:,.0f} of {unit_text(c['bytes'] / c['count'], 'bytes')} each"
        bars.append(
            Bar(f"{c['op']} · {c['group']}", [("transfer", "in this run, without waiting", bus)], text, mark=limit)
        )
    calibrated = any(bar.mark for bar in bars)
    reference = "Lines are what this machine's calibration measured for the mean size."
    return bar_chart(
        "Bandwidth of each group's collectives", bars, "gb_per_s", width=760, right=280,
        label=f"Bus bandwidth of {len(bars)} operations", legend=[("text", "calibrated")] if calibrated else [],
        notes=[reference if calibrated else "Run `stepscope calibrate` to add a reference."],
    )  # fmt: skip


def _calibrated(calibration: Calibration | None, row: Document) -> float | None:
    ranks = row["group_size"]
    if calibration is None or not ranks or ranks < 2:
        return None
    size = row["bytes"] / row["count"]
    try:
        took_ns = calibration.predict(row["op"], size_bytes=size, world_size=ranks).time_ns
    except UsageError:
        return None
    return size * bus_factor(row["op"], ranks) / took_ns if took_ns else None


def calibrated_collectives(document: Document, calibration: Calibration | None) -> Drawing | None:
    """Return time over size of the machine's collectives as calibrated, and of this run's."""
    if calibration is None:
        return None
    timed = [c for c in document["collectives"] if c["bytes"] and c["transfer_ms"] and c["count"]]
    used = {c["op"] for c in timed}
    curves = [c for c in calibration.curves if c.op in used] or list(calibration.curves)
    lines, rows = [], []
    for k, curve in enumerate(curves[: len(COLOURS)]):
        name = f"{_words(curve.op)}, {curve.world_size} ranks"
        lines += calibration_lines(calibration, curve, COLOURS[k], name)
        for c in (c for c in timed if (c["op"], c["group_size"]) == (curve.op, curve.world_size)):
            size, took = c["bytes"] / c["count"], c["transfer_ms"] / c["count"]
            could = float(curve.pieces.time_ns(size)) / NS_PER_MS
            lines.append(Line(f"{name}, this run", [(size, took)], COLOURS[k], "dots", radius=6))
            rows.append({"name": name, "size": size, "took": took, "could": could, "ratio": took / could})
    return line_chart(
        "Collectives against this machine's calibration", lines, Axis("size", "bytes", log=True),
        Axis("time", "ms", log=True),
        notes=["Small dots were measured, lines are fitted (90 % of measurements lie in the band), large dots are this "
               "run without waiting."],
        table=table_of(rows, ("collective", "text", "name"), ("size", "bytes", "size"), ("transfer", "ms", "took"),
                       ("calibrated", "ms", "could"), ("ratio", "x", "ratio")),
        legend=[(line.colour, line.name) for line in lines if line.look == "line"],
    )  # fmt: skip


def calibration_lines(calibration: Calibration, curve: Any, colour: str, name: str) -> list[Line]:
    """Return a curve's fitted line with its interval, and its measured points."""
    first, last = curve.points[0][0], curve.points[-1][0]
    sizes = np.geomspace(first, max(last, first + 1), 40).tolist()
    found = [calibration.predict(curve.op, size_bytes=s, world_size=curve.world_size) for s in sizes]
    fitted = [
        [s, *(t / NS_PER_MS for t in (e.time_ns, e.low_ns, e.high_ns))] for s, e in zip(sizes, found, strict=True)
    ]
    measured = [(size, time_ns / NS_PER_MS) for size, time_ns in curve.points]
    return [Line(name, fitted, colour), Line(f"{name}, measured", measured, colour, "dots", radius=2.2)]


# Memory

_CATEGORY_COLOURS = ("forward", "input", "copy", "transfer", "optimizer", "host", "wait")
_MAX_POINTS = 150


def memory_of_fullest(document: Document) -> Drawing | None:
    """Return the memory of the fullest rank over the window, by category."""
    rank = _fullest(document)
    line = rank and rank["timeline"]
    if not rank or not line or not line["time_ms"]:
        return None
    categories = dict(reversed((line["by_category"] or {"allocated": line["allocated_bytes"]}).items()))
    used = max(*line["allocated_bytes"], *(line["reserved_bytes"] or [0]))
    device = rank["device_total_bytes"] or 0
    return _stacked_memory(
        f"Memory of rank {rank['rank']}, the highest peak", line, line["time_ms"], categories, "time in the window",
        # far above the memory, the size of the device would only flatten the rest
        limit=device if device < 2 * used else 0,
        label=f"Memory of rank {rank['rank']} over the window, at most {unit_text(used, 'bytes')}",
    )  # fmt: skip


def snapshot_memory(snapshot: Document, by: str) -> Drawing | None:
    """Return the memory of a snapshot over its history, `by` owner (the line that allocated it) or purpose."""
    line = snapshot["timeline"]
    curves = {name: values for name, values in snapshot[f"by_{by}"].items() if values and any(values)}
    if len(line["time_us"]) < 2 or not curves:
        return None
    steady_first = sorted(curves, key=lambda name: (name == "other", -min(curves[name]), -max(curves[name])))
    of = "" if snapshot["rank"] is None else f" of rank {snapshot['rank']}"
    what = "the line that allocated it" if by == "owner" else "purpose"
    return _stacked_memory(
        f"Memory snapshot{of} by {what}", line, [t / 1000 for t in line["time_us"]],
        {name: curves[name] for name in steady_first}, "time in the history",
        width=WIDE, notes=["Allocated memory, stacked; what is alive longest is at the bottom."],
        label=f"Memory{of} over the snapshot's history, at most "
        f"{unit_text(max(line['allocated_bytes']), 'bytes')}, by {what}",
    )  # fmt: skip


def _stacked_memory(
    title: str, line: Document, times: Sequence[float], curves: Mapping[str, Sequence[float]], x_title: str,
    *, limit: float = 0, **more: Any,
) -> Drawing:  # fmt: skip
    kept, below = _largest(line["allocated_bytes"], 2 * _MAX_POINTS), np.zeros(len(times))
    lines = []
    for k, (name, values) in enumerate((n, v) for n, v in curves.items() if any(v)):
        top = below + np.array(values, float)
        colour = "unknown" if name == "other" else _CATEGORY_COLOURS[k % len(_CATEGORY_COLOURS)]
        lines.append(Line(category_name(name), [(times[i], top[i], below[i], top[i]) for i in kept], colour, "steps"))
        below = top
    if reserved := line.get("reserved_bytes"):
        points = [(times[i], reserved[i]) for i in kept]
        lines.append(Line("reserved (dashed)", points, "quiet", "steps", dashed=True))
    if limit:
        lines.append(Line("size of the device", [(times[0], limit), (times[-1], limit)], "high"))
    return line_chart(title, lines, Axis(x_title, "ms", zero=False), Axis("memory", "bytes"), **more)


_DEVICE_SERIES = (
    ("clock", "SM clock", "sm_clock_mhz", "MHz"),
    ("power", "Power", "power_w", "W"),
    ("utilisation", "Utilisation", "utilization_pct", "%"),
    ("temperature", "Temperature", "temperature_c", "°C"),
)


def device_pictures(telemetry: Sequence[Telemetry]) -> dict[str, Drawing]:
    """Return clocks, power, utilisation and temperature of the ranks' devices over the job, those that were sampled."""
    sampled = [one for one in telemetry if len(one) > 1]
    first_ns = min((float(np.nanmin(one.columns["time_ns"])) for one in sampled), default=0.0)
    found = {}
    for name, title, column, unit in _DEVICE_SERIES:
        curves = []
        for one in sampled:
            values, times_ms = one.columns[column], (one.columns["time_ns"] - first_ns) / NS_PER_MS
            rows = np.flatnonzero(~np.isnan(values) & ~np.isnan(times_ms))
            if len(rows) > 1:
                curves.append((one.rank, times_ms[rows], values[rows]))
        if not curves:
            continue
        means = [float(values.mean()) for _, _, values in curves]
        by_difference = sorted(
            range(len(curves)), key=lambda i: -abs(means[i] - float(np.sort(means)[len(means) // 2]))
        )
        lines = []
        for k, i in enumerate(sorted(by_difference[: len(COLOURS) - 1])):
            rank, times_ms, values = curves[i]
            kept = sorted(
                {*_largest(values.tolist()), *_largest((-values).tolist())}
            )  # a short dip of the clock stays visible
            points = [(float(times_ms[j]), float(values[j])) for j in kept]
            lines.append(Line(f"rank {rank}", points, COLOURS[k], "steps", width=1))
        left_out = len(curves) - len(lines)
        found[name] = line_chart(
            f"{title}, {unit}", lines, Axis("time in the job", "ms", zero=False),
            Axis(unit, "number", zero=unit == "%"),
            notes=[f"The {len(lines)} of {len(curves)} ranks that differ most from the median."] if left_out else (),
            label=f"{title} of the devices of {len(lines)} ranks over the job",
        )  # fmt: skip
    return found


def memory_over_steps(document: Document) -> Drawing | None:
    """Return the allocated memory of every rank over the recorded steps."""
    curves = []
    for rank in (document["memory"] or {"ranks": []})["ranks"]:
        line = rank["timeline"]
        if line and line["time_ms"]:
            kept = _largest(line["allocated_bytes"])
            curves.append((rank["rank"], [(line["time_ms"][i], line["allocated_bytes"][i]) for i in kept]))
    note = "Allocated, since the first recorded step began."
    return _memory_lines(curves, "Memory over the recorded steps", Axis("time", "ms", zero=False), note)


def memory_over_run(document: Document) -> Drawing | None:
    """Return the memory of every rank over the whole run, from the step logs."""
    for name, what in (("allocated_bytes", "allocated on the device"), ("host_bytes", "resident in the process")):
        curves = []
        for log in document["memory_steps"]:
            known = [(s, v) for s, v in zip(log["step"], log[name], strict=True) if v is not None]
            if len(known) > 1 and any(v for _, v in known):
                curves.append((log["rank"], [known[i] for i in _largest([v for _, v in known])]))
        if curves:
            note = f"Memory {what}, sampled once per step."
            return _memory_lines(curves, "Memory over the run", Axis("step", "count", zero=False), note)
    return None


def memory_peak(document: Document) -> Drawing | None:
    """Return what is alive at the peak of the fullest rank."""
    rank = _fullest(document)
    peak = rank and rank["peak"]
    if not rank or not peak:
        return None
    by = {"forward": "by category", "copy": "by line, or operator, that allocated it"}
    categories = [(_words(n), s, "forward") for n, s in (peak["by_category"] or {}).items() if s]
    holders = [(h["name"], h["size_bytes"], "copy") for h in (peak["by_source_line"] or peak["by_operator"])[:10]]
    rows = [row for row in (*sorted(categories, key=lambda c: -c[1]), *holders) if row[1] > 0]
    where = f"in step {peak['step']}" if peak["step"] is not None else "outside of all steps"
    during = f", during {peak['operator']}" if peak["operator"] else ""
    bars = [Bar(name, [(colour, by[colour], size)]) for name, size, colour in rows]
    return (bars and bar_chart(
        f"Alive at the peak of rank {rank['rank']}", bars, "bytes", axis=False, left=190,
        notes=[f"{unit_text(peak['allocated_bytes'], 'bytes')} {where} ({peak['phase']} pass{during})."],
    )) or None  # fmt: skip


def _fullest(document: Document) -> Document | None:
    memory = document["memory"]
    found = [r for r in memory["ranks"] if r["rank"] == memory["fullest_rank"]] if memory else []
    return found[0] if found else None


def _largest(values: Sequence[float], most: int = _MAX_POINTS) -> list[int]:
    """Return the places of the largest value of each of `most` equal stretches."""
    stretches = np.array_split(np.arange(len(values)), min(len(values), most))
    sizes = np.asarray(values, float)
    return [int(s[np.argmax(sizes[s])]) for s in stretches if len(s)]


def _memory_lines(
    curves: Sequence[tuple[int, Sequence[tuple[float, float]]]], title: str, x: Axis, note: str
) -> Drawing | None:
    if not curves:
        return None
    most = {rank: max(v for _, v in points) for rank, points in curves}
    by_most = sorted(curves, key=lambda c: -most[c[0]])
    named = sorted(by_most[:6])
    lines = [Line("", points, "unknown", "steps", width=0.8) for _, points in by_most[6:]]
    lines += [Line(f"rank {rank}", points, COLOURS[k], "steps") for k, (rank, points) in enumerate(named)]
    others = [("unknown", f"{len(curves) - 6} other ranks")] if len(curves) > 6 else []
    return line_chart(
        title, lines, x, Axis("allocated" if x.unit == "ms" else "sampled", "bytes"), notes=[note],
        label=f"{title}: at most {unit_text(max(most.values()), 'bytes')} of {len(curves)} ranks",
        legend=[(line.colour, line.name) for line in lines if line.name] + others,
    )  # fmt: skip


# By strategy: a picture of each dimension of parallelism, with what to know in its notes

_ACTION_COLOUR = {"F": "forward", "B": "backward", "I": "backward", "W": "optimizer"}
_ACTION_NAME = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}
_MAX_BARS = 24


def pipeline(document: Document) -> Drawing | None:
    """Return a pipeline's micro-batches as they ran, with the ideal of the same order below them."""
    stages = document["details"]["pipeline_step"]
    if not stages:
        return None
    blocks = [("measured", "measured"), ("ideal", "ideal: the same order, no waiting")]
    blocks = [(key, title) for key, title in blocks if all(stage[key] for stage in stages)]
    ends = {key: max(action[3] for stage in stages for action in stage[key]) for key, _ in blocks}
    lanes = []
    for key, title in blocks:
        lanes.append(Lane(f"{title}, {unit_text(ends[key], 'ms')}"))
        for stage in stages:
            spans = [
                Span(start, end, _ACTION_COLOUR[kind],
                     (f"{_ACTION_NAME[kind]}, micro-batch {number}",
                      f"stage {stage['stage']}, {unit_text(end - start, 'ms')}"),
                     str(number))
                for kind, number, start, end in stage[key]
            ]  # fmt: skip
            lanes.append(Lane(f"stage {stage['stage']} · rank {stage['rank']}", spans))
    rows = [(stage["stage"], stage["rank"], *action) for stage in stages for action in stage["measured"]]
    used = dict.fromkeys(row[2] for row in rows)
    return lane_chart(
        "The pipeline's step", lanes, max(ends.values()),
        label=f"Micro-batches of {len(stages)} stages over {unit_text(ends['measured'], 'ms')}",
        legend=list(dict.fromkeys((_ACTION_COLOUR[kind], _ACTION_NAME[kind]) for kind in used)),
        notes=["Numbers are micro-batches. The ideal uses each stage's mean times and instant messages."],
        table=table_of(rows, ("stage", "number", 0), ("rank", "number", 1),
                       ("pass", "text", lambda r: _ACTION_NAME[r[2]]), ("micro-batch", "number", 3),
                       ("from", "ms", 4), ("took", "ms", lambda r: r[5] - r[4]), most=200),
    )  # fmt: skip


def experts(document: Document) -> Drawing | None:
    """Return the load of each rank of an expert-parallel job against an even load."""
    view = document["by_strategy"].get("experts")
    ranks = [r for r in view["ranks"] if r["load_bytes"] is not None] if view else []
    if not view or not any(r["load_bytes"] for r in ranks):
        return None
    mean = sum(r["load_bytes"] for r in ranks) / len(ranks)
    shown = sorted(ranks, key=lambda r: -r["load_bytes"])[:64] if len(ranks) > 64 else ranks
    what = f"{'embedding rows' if view['kind'] == 'embedding' else 'tokens'}, in bytes per step"
    bars = [Bar(f"rank {r['rank']}", [("compute", what, r["load_bytes"])], _load_text(r, mean)) for r in shown]
    fullest, imbalance = view["fullest_rank"], view["imbalance"]
    note = f"Rank {fullest} receives {imbalance or 1:.2f} times the mean."
    return bar_chart(
        "Load of each rank", bars, "bytes", width=760, left=80, right=280, axis=False, limit=mean,
        legend=[("high", "an even load")], notes=["All ranks receive the same load." if fullest is None else note],
    )  # fmt: skip


def _load_text(rank: Document, mean: float) -> str:
    waited = "" if rank["wait_ms"] is None else f", {unit_text(rank['wait_ms'], 'ms')} waiting"
    return f"{unit_text(rank['load_bytes'], 'bytes')}, {rank['load_bytes'] / mean:.2f} × the mean{waited}"  # noqa: RUF001


class _Stacked(NamedTuple):
    """Bars of one dimension of parallelism, in time per step."""

    #: of `by_strategy`
    view: str
    title: str
    rows: Callable[[Document], Sequence[Any]]
    name: Callable[[Any], str]
    #: colour, what it is, and its time
    parts: Sequence[Column]
    remark: Callable[[Any], str]
    note: Callable[[Document], str]


_STACKED = {
    "stages": _Stacked(
        "pipeline", "The step of each stage", lambda view: view["ranks"],
        lambda r: f"stage {r['stage']} · rank {r['rank']}",
        [("forward", "forward", "forward_ms"), ("backward", "backward", "backward_ms"),
         ("other", "other compute", "other_ms"), ("transfer", "send and receive", "transfer_ms"),
         ("wait", "waiting", "wait_ms"), ("host", "gaps", "gaps_ms"), ("unknown", "idle", "idle_ms")],
        lambda r: f"bubble {unit_text(r['bubble_pct'], 'pct')}",
        lambda view: f"{view['stages']} stages, {view['microbatches'] or 'unknown'} micro-batches"
        f"{', ' + view['schedule'] if view['schedule'] else ''}. The bubble (waiting for other stages, idle between "
        f"micro-batches) is {unit_text(view['bubble_pct'], 'pct')} of the step on average. Without transfers and gaps "
        f"it would be {unit_text(view['schedule_pct'], 'pct')} of a shorter step.",
    ),
    "buckets": _Stacked(
        "buckets", "Time of each bucket", lambda view: view["buckets"],
        lambda b: f"bucket {b['order']} · {unit_text(b['size_bytes'], 'bytes') if b['size_bytes'] else 'size unknown'}",
        [("wait", "waiting for other ranks", "wait_ms"),
         ("transfer", "transfer", lambda b: max(0.0, b["time_ms"] - (b["wait_ms"] or 0)))],
        lambda b: f"ready {unit_text(b['ready_ms'], 'ms')} into backward, {unit_text(b['exposed_ms'], 'ms')} exposed",
        lambda view: f"Buckets of gradients per backward pass: {len(view['buckets'])}, the first ready first.",
    ),
    "sharding": _Stacked(
        "sharding", "Gathers and scatters of each rank",
        lambda view: [(r, what) for r in view["ranks"] for what in ("gather", "scatter")],
        lambda row: f"rank {row[0]['rank']} · {row[1]}s",
        [("other", "hidden behind compute",
          lambda row: max(0.0, (row[0][f"{row[1]}_ms"] or 0) - (row[0][f"{row[1]}_exposed_ms"] or 0))),
         ("transfer", "exposed", lambda row: row[0][f"{row[1]}_exposed_ms"])],
        lambda row: f"{unit_text(row[0][f'{row[1]}ed_bytes'], 'bytes')}, "
        f"{unit_text(row[0][f'{row[1]}_wait_ms'], 'ms')} waiting",
        lambda view: f"Parameters sharded as {view['stage']}: each rank gathers them "
        f"{unit_text(view['ranks'][0]['gathers_of_parameters'], 'count')} times per step.",
    ),
    "layers": _Stacked(
        "tensor_parallel", "Compute and communication of each layer", lambda view: view["layers"],
        lambda r: f"{_words(r['part'])} {r['position']}",
        [("compute", "compute", "compute_ms"), ("transfer", "exposed communication", "exposed_ms")],
        lambda r: f"{unit_text(r['share_pct'], 'pct')} communication, {unit_text(r['size_bytes'], 'bytes')}",
        lambda view: "Each layer computes, then waits for its part of the others' results.",
    ),
}  # fmt: skip


def stacked(document: Document, name: str) -> Drawing | None:
    """Return the longest bars of one dimension of parallelism."""
    spec = _STACKED[name]
    view = document["by_strategy"].get(spec.view)
    rows = spec.rows(view) if view else []
    bars = [
        Bar(spec.name(row), [(c, what, (of(row) if callable(of) else row[of]) or 0.0) for c, what, of in spec.parts],
            spec.remark(row))
        for row in rows
    ]  # fmt: skip
    least = sorted((bar.end for bar in bars), reverse=True)[:_MAX_BARS][-1:]
    shown = [bar for bar in bars if bar.end >= least[0]][:_MAX_BARS]
    few = [f"The {len(shown)} longest of {len(bars)}."] if len(shown) < len(bars) else []
    if not view or not any(bar.end for bar in shown):
        return None
    notes = [spec.note(view), *few]
    return bar_chart(spec.title, shown, "ms", width=760, left=150, right=320, axis=False, notes=notes)


# The user's code

_MAX_DEPTH, _ICICLE_LINE = 14, 20


def icicle(document: Document, over: str) -> Drawing | None:
    """Return `lines` by host time or `modules` by device time, with what each calls below it."""
    trees = document["details"]["code_trees"]
    root = trees and trees[over]
    by = "device" if over == "modules" and root and root.get("device") else "host"
    if not root or not root.get(by):
        return None
    whole = root[by]
    shapes: list[Shape] = []
    rows: list[tuple[str, float]] = []

    def draw(node: Document, left: float, depth: int) -> None:
        value = node.get(by, 0.0)
        wide = WIDE * value / whole
        if wide < 2.0 or depth >= _MAX_DEPTH:
            return
        name = f"{node['name']} {node['label']}".strip() or "whole step"
        rows.append((name, value))
        tip = (name, f"{unit_text(value, 'ms')}, {share_text(value, whole)}")
        y = depth * _ICICLE_LINE
        shapes.append(rect(left, y, max(wide - 1, 1), _ICICLE_LINE - 1, COLOURS[depth % 7], opacity=0.4, tip=tip))
        if wide > 40:
            shapes.append(words(left + 4, y + 14, name[: int((wide - 6) / 6.2)], fill="text", small=True))
        for child in sorted(node.get("children", ()), key=lambda c: -c.get(by, 0.0)):
            draw(child, left, depth + 1)
            left += WIDE * child.get(by, 0.0) / whole

    draw(root, 0.0, 0)
    height = int(max(shape["y"] for shape in shapes if shape["is"] == "rect")) + _ICICLE_LINE
    return Drawing(
        f"{by.capitalize()} time by {over}", WIDE, height,
        f"{unit_text(whole, 'ms')} of {by} time by {over}, callers above what they call", tuple(shapes),
        table=table_of(rows, (over, "text", 0), ("per step", "ms", 1), most=200),
    )  # fmt: skip


PICTURES: Mapping[str, Callable[[Document], Drawing | None]] = {
    "budget": budget, "waterfall": waterfall, "run_steps": run_steps, "roofline": roofline,
    "kernel_durations": kernel_durations, "device_queue": device_queue, "waiting": waiting, "sending": sending,
    "memory_of_fullest": memory_of_fullest, "memory_over_steps": memory_over_steps, "memory_over_run": memory_over_run,
    "memory_peak": memory_peak, "pipeline": pipeline, "experts": experts,
    **{name: partial(stacked, name=name) for name in _STACKED},
}  # fmt: skip


def pictures_of(document: Document, calibration: Calibration | None = None) -> dict[str, Any]:
    """Return every picture that has something to show, as plain values by name."""
    drawn = {name: draw(document) for name, draw in PICTURES.items()}
    drawn["bandwidth"] = bandwidth(document, calibration)
    drawn["calibration"] = calibrated_collectives(document, calibration)
    return {name: drawing.as_json() for name, drawing in drawn.items() if drawing is not None}


def _words(name: str) -> str:
    return name.replace("_", " ")
