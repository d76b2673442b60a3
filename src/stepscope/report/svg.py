"""Pictures of benchmarks, calibrations, growing costs and scaling; the pages draw the same ones."""

from collections.abc import Sequence
from typing import Any

from stepscope.cost.calibration import Calibration
from stepscope.records import dataclass
from stepscope.report.charts import COLOURS, Axis, Bar, Line, bar_chart, line_chart
from stepscope.report.drawing import Drawing
from stepscope.report.pictures import calibration_lines
from stepscope.results.times import BenchTimes, ScalingPoint, bench_times
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
    return _svg(printable(document["command"], width=110), [series_chart(rows)] if rows else [])


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
    return _svg("Scaling efficiency", [scaling_chart(scaled)])


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
    return _svg("Collectives on this machine", [calibration_chart(calibration, op) for op in ops])


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
    return _svg("Growth", [_growth(panel) for panel in panels])


def _growth(panel: Growth) -> Drawing:
    lines = []
    for k, (name, costs) in enumerate(panel.costs.items()):
        first, last, cost = panel.sizes[0], panel.sizes[-1], costs[0]
        proportion = [(first, cost), (last, cost * last / first)]
        lines.append(Line("", proportion, COLOURS[k], dashed=True, width=1))
        lines.append(Line(name, list(zip(panel.sizes, costs, strict=True)), COLOURS[k], "both"))
    return line_chart(panel.of, lines, Axis(panel.of, "number", log=True), Axis(panel.unit, "number", log=True))


def _svg(title: str, panels: Sequence[Drawing]) -> str:
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
