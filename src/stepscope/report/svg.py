"""SVG pictures of benchmarks, calibrations, growing costs and scaling."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepscope.cost.calibration import Calibration
from stepscope.dataclass import dataclass
from stepscope.report.drawing import (
    Drawing,
    Scale,
    Shape,
    dot,
    left_axis,
    polygon,
    polyline,
    powers,
    time_tick,
    vertical_grid,
    words,
)
from stepscope.results.times import ScalingPoint, bench_times
from stepscope.units import NS_PER_MS, ms, printable, readable_bytes

_COLOURS = ("forward", "transfer", "copy", "high", "input", "optimizer")


def bench_svg(document: dict[str, Any]) -> str:
    """Return one row per series, time to the right: a dot per step, coloured by run, the median and its interval."""
    rows = [(row, bench_times(row["samples_ms"])) for row in document["series"] if row["samples_ms"]]
    # Single very slow steps would press all others together: they are drawn at the edge.
    longest = [np.percentile(np.concatenate(row["samples_ms"]), 98) for row, _ in rows]
    shown_ms = 1.05 * max([*longest, *(ms(times.high_ns) for _, times in rows if times)], default=1.0)
    x = Scale(0, shown_ms, 190, 690)
    bottom = 34 * len(rows)
    shapes = vertical_grid(np.linspace(0, shown_ms, 5).tolist(), x, bottom=bottom, text=lambda t: f"{t:.3g} ms")
    for y, (row, times) in zip(range(0, bottom, 34), rows, strict=True):
        shapes.append(words(182, y + 14, printable(row["name"], width=28), anchor="end"))
        for i, run in enumerate(row["samples_ms"]):
            at, colour = y + 4 + 14 * (i + 0.5) / len(row["samples_ms"]), _COLOURS[i % len(_COLOURS)]
            shapes += [dot(x(min(t, shown_ms)), at, 1.6, colour, opacity=0.55) for t in run]
        if times:
            low, high, middle = (x(ms(t)) for t in (times.low_ns, times.high_ns, times.median_ns))
            shapes.append(polyline([(low, y + 22), (high, y + 22)], "text", width=1))
            shapes.append(polyline([(middle, y + 18), (middle, y + 26)], "text", width=1))
            shapes.append(words(high + 5, y + 27, f"{ms(times.median_ns):.4g} ms", small=True))
    return _svg(printable(document["command"], width=110), 760, bottom + 30, shapes)


def calibration_svg(calibration: Calibration) -> str:
    """Return a panel per operation: measured points, fitted curve and its interval."""
    shapes: list[Shape] = []
    ops = list(dict.fromkeys(curve.op for curve in calibration.curves))
    for k, op in enumerate(ops):
        curves = [curve for curve in calibration.curves if curve.op == op]
        sizes, times_ns = zip(*(point for curve in curves for point in curve.points), strict=True)
        ticks = np.geomspace(min(sizes), max(*sizes, 10 * min(sizes)), 4).tolist()
        axes, x, y = _panel(k, op, ticks, times_ns, x_text=readable_bytes, y_text=lambda t: time_tick(t / NS_PER_MS))
        shapes += axes
        for i, curve in enumerate(curves):
            colour = _COLOURS[i % len(_COLOURS)]
            along = np.geomspace(curve.points[0][0], max(curve.points[-1][0], curve.points[0][0] + 1), 60).tolist()
            found = [calibration.predict(op, size_bytes=s, world_size=curve.world_size) for s in along]
            line, low, high = (
                [(x(s), y(max(t, y.low))) for s, t in zip(along, times, strict=True)]
                for times in zip(*((e.time_ns, e.low_ns, e.high_ns) for e in found), strict=True)
            )
            shapes += [polygon([*high, *reversed(low)], colour, opacity=0.12), polyline(line, colour)]
            shapes += [dot(x(size), y(time_ns), 2.2, colour) for size, time_ns in curve.points]
            shapes.append(words(x.start + 4, y.end + 12 * i, f"{curve.world_size} ranks", fill=colour, small=True))
    return _svg("Collectives on this machine", 320 * min(len(ops), 3), 240 * ((len(ops) + 2) // 3), shapes)


@dataclass(frozen=True)
class Growth:
    """What was measured while one thing grew."""

    #: what grows, as the axis says it
    of: str
    sizes: Sequence[float]
    #: by what is measured, one value above 0 per size
    costs: dict[str, Sequence[float]]
    unit: str


def growth_svg(panels: Sequence[Growth]) -> str:
    """Return a panel per thing that grows; growth in proportion is a dashed line of slope one."""
    shapes: list[Shape] = []
    for k, panel in enumerate(panels):
        costs = [cost for series in panel.costs.values() for cost in series]
        axes, x, y = _panel(
            k, panel.of, panel.sizes, costs, x_text=lambda size: f"{size / 1000:g}k" if size >= 1000 else f"{size:g}",
            y_text=lambda cost, unit=panel.unit: f"{cost:g} {unit}",  # type: ignore[misc]
        )  # fmt: skip
        shapes += axes
        for i, (name, series) in enumerate(panel.costs.items()):
            colour, first = _COLOURS[i], panel.sizes[0]
            end = min(x.high, first * y.high / series[0])
            proportion = [(x(first), y(series[0])), (x(end), y(series[0] * end / first))]
            points = [(x(size), y(cost)) for size, cost in zip(panel.sizes, series, strict=True)]
            shapes += [polyline(proportion, colour, width=1, dashed=True), polyline(points, colour)]
            shapes += [dot(*point, 2.4, colour) for point in points]
            shapes.append(words(x.start + 4, y.end + 12 * i, name, fill=colour, small=True))
    return _svg("Growth", 320 * len(panels), 240, shapes)


def _panel(
    k: int, title: str, sizes: Sequence[float], costs: Sequence[float], *, x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> tuple[list[Shape], Scale, Scale]:  # fmt: skip
    """Return the logarithmic axes of the k-th panel, three to a row."""
    left, top = 320 * (k % 3), 240 * (k // 3)
    ticks = powers(min(costs), max(costs))
    x = Scale(min(sizes), max(*sizes, 2 * min(sizes)), left + 62, left + 306, log=True)
    y = Scale(ticks[0], ticks[-1], top + 190, top + 16, log=True)
    shapes = left_axis(ticks, y, x0=x.start, x1=x.end, text=y_text)
    shapes += [words(x(size), y.start + 16, x_text(size), anchor="middle", small=True) for size in sizes]
    return [*shapes, words((x.start + x.end) / 2, y.start + 34, title, anchor="middle")], x, y


def scaling_svg(scaled: Sequence[ScalingPoint]) -> str:
    """Return the efficiency over the world size, a line per mode with its interval."""
    sizes = sorted({s.world_size for s in scaled})
    x = Scale(sizes[0], max(sizes[-1], 2 * sizes[0]), 60, 490, log=True)
    y = Scale(0, 1.2, 230, 10)
    shapes = left_axis([0, 0.25, 0.5, 0.75, 1], y, x0=60, x1=500, text=lambda share: f"{100 * share:.0f} %")
    shapes += [words(x(size), 248, str(size), anchor="middle") for size in sizes]
    shapes.append(words(275, 266, "ranks", anchor="middle"))
    colours = {"strong": "forward", "weak": "transfer"}
    for mode, colour in colours.items():
        mine = [s for s in scaled if s.mode == mode]
        points = [(x(s.world_size), y(min(max(s.efficiency, 0), 1.2))) for s in mine]
        shapes += [polyline(points, colour)] if points else []
        for s, (at, up) in zip(mine, points, strict=True):
            ends = [(at, y(min(max(share, 0), 1.2))) for share in (s.low, s.high)]
            shapes += [polyline(ends, colour, width=1), dot(at, up, 3, colour)]
    used = tuple((colour, mode) for mode, colour in colours.items() if any(s.mode == mode for s in scaled))
    return _svg("Scaling efficiency", 520, 272, shapes, legend=used)


def _svg(title: str, width: int, height: int, shapes: Sequence[Shape], legend: tuple[tuple[str, str], ...] = ()) -> str:
    return Drawing(title, width, height, title, tuple(shapes), legend).svg() + "\n"
