"""Pictures of benchmarks, calibrations, growing costs and scaling; the pages draw the same ones."""

from collections.abc import Sequence
from typing import Any

from stepscope.cost.calibration import Calibration
from stepscope.lab.results.times import BenchTimes, ScalingPoint, bench_times
from stepscope.report.charts import COLOURS, Axis, Bar, Line, bar_chart, line_chart
from stepscope.report.drawing import Drawing
from stepscope.report.pictures import calibration_lines
from stepscope.units import ms, printable

# of one run that are drawn
_MAX_SAMPLES = 400


def series_chart(rows: Sequence[tuple[str, Sequence[Sequence[float]], BenchTimes]]) -> Drawing:
    """Return one row per series: a dot per step, coloured by run, the median and its interval."""
    bars = []
    for name, samples, times in rows:
        median, low, high = (ms(t) for t in (times.median_ns, times.low_ns, times.high_ns))
        shown = [run[:: max(1, len(run) // _MAX_SAMPLES)] for run in samples]
        bars.append(Bar(name, [("text", "median", median)], low=low, high=high, samples=shown))
    label = "Median step time of each series with its 95 % interval; dots are steps"
    return bar_chart("Step times", bars, "ms", width=760, left=200, label=label)


def bench_svg(document: dict[str, Any]) -> str:
    """Return the step times of a benchmark's results."""
    timed = [(row["name"], row["samples_ms"], bench_times(row["samples_ms"])) for row in document["series"]]
    rows = [(name, samples, times) for name, samples, times in timed if times is not None]
    return panels_svg(printable(document["command"], width=110), [series_chart(rows)] if rows else [])


def scaling_chart(scaled: Sequence[ScalingPoint]) -> Drawing:
    """Return the efficiency over the world size, a line per mode with its interval."""
    lines = []
    for k, mode in enumerate(dict.fromkeys(point.mode for point in scaled)):
        mine = [p for p in scaled if p.mode == mode]
        points = [(p.world_size, 100 * p.efficiency, 100 * p.low, 100 * p.high) for p in mine]
        lines.append(Line(mode, points, COLOURS[k], "both"))
    label = "Scaling efficiency over world size; the band is its 95 % interval"
    return line_chart("Scaling efficiency", lines, Axis("ranks", "count"), Axis("efficiency", "pct"), label=label)


def scaling_svg(scaled: Sequence[ScalingPoint]) -> str:
    """Return the same as SVG text."""
    return panels_svg("Scaling efficiency", [scaling_chart(scaled)])


def calibration_chart(calibration: Calibration, op: str) -> Drawing:
    """Return the measured points, the fitted curves and their intervals of one operation."""
    curves = [curve for curve in calibration.curves if curve.op == op]
    lines = [
        line
        for k, curve in enumerate(curves)
        for line in calibration_lines(calibration, curve, COLOURS[k % len(COLOURS)], f"{curve.world_size} ranks")
    ]
    return line_chart(
        op.replace("_", " "), lines, Axis("size", "bytes", log=True), Axis("time", "ms", log=True),
        label=f"Time of {op} over its size", legend=[(line.colour, line.name) for line in lines[::2]],
    )  # fmt: skip


def calibration_svg(calibration: Calibration) -> str:
    """Return a panel per operation."""
    ops = dict.fromkeys(curve.op for curve in calibration.curves)
    return panels_svg("Collectives on this machine", [calibration_chart(calibration, op) for op in ops])


def panels_svg(title: str, panels: Sequence[Drawing]) -> str:
    """Return panels, three to a row, as one picture."""
    drawn = [panel.svg() for panel in panels]
    wide = max((panel.width for panel in panels), default=300)
    high = max((panel.svg_height for panel in panels), default=20)
    placed = "".join(
        text.replace("<svg ", f'<svg x="{(k % 3) * wide}" y="{24 + (k // 3) * high}" ', 1)
        for k, text in enumerate(drawn)
    )
    columns, rows = min(3, max(1, len(panels))), -(-len(panels) // 3)
    return Drawing(title, columns * wide, rows * high, title, ()).svg().replace("</svg>", f"{placed}</svg>") + "\n"
