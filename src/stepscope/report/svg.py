"""The results of a benchmark as one SVG picture: every step as a dot, the median and its interval of each series."""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log2, log10
from typing import Any

import numpy as np

from stepscope.cost.alpha_beta import Curve
from stepscope.cost.calibration import Calibration
from stepscope.dataclass import dataclass
from stepscope.results.scaling import ScalingPoint
from stepscope.results.times import bench_times
from stepscope.units import NS_PER_US, ms, printable, readable_bytes

_WIDTH, _LEFT, _ROW, _TOP = 760, 190, 34, 40
_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#475569")


def bench_svg(document: dict[str, Any]) -> str:
    """Return the picture: one row per series, time to the right, from zero; colours tell runs apart."""
    rows = [row for row in document["series"] if row["samples_ms"]]
    # Single very slow steps would press all others together: they are drawn at the edge.
    shown_ms = 1.05 * max(max(_inner_max(row), _median(row)) for row in rows) if rows else 1.0
    height = _TOP + _ROW * len(rows) + 40
    parts = [
        f'<text x="10" y="18" font-weight="bold">{escape(printable(document["command"], width=110))}</text>',
        _grid(shown_ms, _TOP + _ROW * len(rows)),
        *(_series(row, y=_TOP + _ROW * i, shown_ms=shown_ms) for i, row in enumerate(rows)),
    ]
    style = 'font-family="sans-serif" font-size="11" fill="#334155"'
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _inner_max(row: dict[str, Any]) -> float:
    times = sorted(t for run in row["samples_ms"] for t in run)
    return float(times[int(0.98 * (len(times) - 1))])


def _median(row: dict[str, Any]) -> float:
    found = bench_times(row["samples_ms"])
    return ms(found.high_ns) if found else 0.0


def _x(time_ms: float, shown_ms: float) -> float:
    return _LEFT + min(time_ms / shown_ms, 1.0) * (_WIDTH - _LEFT - 20)


def _grid(shown_ms: float, bottom: int) -> str:
    parts = []
    for i in range(5):
        time_ms = shown_ms * i / 4
        x = _x(time_ms, shown_ms)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{bottom}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{time_ms:.3g} ms</text>')
    return "".join(parts)


def _series(row: dict[str, Any], *, y: int, shown_ms: float) -> str:
    name = escape(printable(row["name"], width=28))
    parts = [f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{name}</text>']
    for i, run in enumerate(row["samples_ms"]):
        colour = _COLOURS[i % len(_COLOURS)]
        at = y + 4 + 14 * (i + 0.5) / len(row["samples_ms"])
        dots = "".join(f'<circle cx="{_x(t, shown_ms):.1f}" cy="{at:.1f}" r="1.6"/>' for t in run)
        parts.append(f'<g fill="{colour}" fill-opacity="0.55">{dots}</g>')
    found = bench_times(row["samples_ms"])
    if found:
        low, high, middle = (_x(ms(t), shown_ms) for t in (found.low_ns, found.high_ns, found.median_ns))
        parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 22}" y2="{y + 22}" stroke="#0f172a"/>')
        parts.append(f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{y + 18}" y2="{y + 26}" stroke="#0f172a"/>')
        text = f"{ms(found.median_ns):.4g} ms"
        parts.append(f'<text x="{high + 5:.1f}" y="{y + 27}" font-size="9">{text}</text>')
    return "".join(parts)


# A calibration as one SVG picture: measured points, predicted curve and interval, a panel per operation.

_CALIBRATION_WIDTH, _HEIGHT, _MARGIN = 320, 240, 46


def calibration_svg(calibration: Calibration) -> str:
    """Return the picture; both axes are logarithmic."""
    ops = list(dict.fromkeys(c.op for c in calibration.curves))
    columns = min(3, len(ops))
    rows = ceil(len(ops) / columns)
    panels = []
    for i, op in enumerate(ops):
        x, y = (i % columns) * _CALIBRATION_WIDTH, (i // columns) * _HEIGHT
        panels.append(f'<g transform="translate({x},{y})">{_panel(calibration, op)}</g>')
    size = f'width="{columns * _CALIBRATION_WIDTH}" height="{rows * _HEIGHT}"'
    style = 'font-family="sans-serif" font-size="10" fill="#334155"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(panels) + "\n</svg>\n"


class _Axes:
    def __init__(self, curves: list[Curve]) -> None:
        sizes = [b for c in curves for b, _ in c.points]
        times = [t / NS_PER_US for c in curves for _, t in c.points]
        self.x = (log10(min(sizes)), max(log10(max(sizes)), log10(min(sizes)) + 1))
        self.y = (floor(log10(min(times))), max(ceil(log10(max(times))), floor(log10(min(times))) + 1))

    def at(self, size_bytes: float, time_us: float) -> tuple[float, float]:
        across = (log10(size_bytes) - self.x[0]) / (self.x[1] - self.x[0])
        up = (log10(max(time_us, 1e-6)) - self.y[0]) / (self.y[1] - self.y[0])
        return _MARGIN + across * (_CALIBRATION_WIDTH - _MARGIN - 12), _HEIGHT - 30 - up * (_HEIGHT - 56)


def _panel(calibration: Calibration, op: str) -> str:
    curves = [c for c in calibration.curves if c.op == op]
    axes = _Axes(curves)
    parts = [f'<text x="{_MARGIN}" y="16" font-weight="bold">{escape(op)}</text>', _calibration_grid(axes)]
    for i, curve in enumerate(curves):
        colour = _COLOURS[i % len(_COLOURS)]
        sizes = np.geomspace(curve.points[0][0], max(curve.points[-1][0], curve.points[0][0] + 1), 60)
        found = [calibration.predict(curve.op, size_bytes=s, world_size=curve.world_size) for s in sizes]
        line = _path(axes, [(s, e.time_ns) for s, e in zip(sizes, found, strict=True)])
        edge = [(s, e.high_ns) for s, e in zip(sizes, found, strict=True)]
        edge += [(s, e.low_ns) for s, e in reversed(list(zip(sizes, found, strict=True)))]
        area = f'<path d="{_path(axes, edge)}Z" fill="{colour}" fill-opacity="0.12"/>'
        placed = [axes.at(b, t / NS_PER_US) for b, t in curve.points]
        parts += [
            f'{area}<path d="{line}" fill="none" stroke="{colour}" stroke-width="1.4"/>',
            "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>' for x, y in placed),
        ]
        place = f'x="{_CALIBRATION_WIDTH - 14}" y="{16 + 12 * i}" text-anchor="end"'
        parts.append(f'<text {place} fill="{colour}">{curve.world_size} ranks</text>')
    return "".join(parts)


def _calibration_grid(axes: _Axes) -> str:
    parts = []
    for power in range(axes.y[0], axes.y[1] + 1):
        x, y = axes.at(10 ** axes.x[0], 10.0**power)
        parts.append(f'<line x1="{x:.1f}" x2="{_CALIBRATION_WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{x - 4:.1f}" y="{y + 3:.1f}" text-anchor="end">{_time_label(power)}</text>')
    for power in np.linspace(*axes.x, 4):
        x, _ = axes.at(10**power, 10.0 ** axes.y[0])
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{readable_bytes(10**power)}</text>')
    return "".join(parts)


def _time_label(power: int) -> str:
    return (
        f"{10**power:g} us" if power < 3 else f"{10 ** (power - 3):g} ms" if power < 6 else f"{10 ** (power - 6):g} s"
    )


def _path(axes: _Axes, points: list[tuple[float, float]]) -> str:
    placed = [axes.at(size, time_ns / NS_PER_US) for size, time_ns in points]
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in placed)


# How a cost grows as one SVG picture: a panel per thing that grows, measured points joined, and the line of growth in
# proportion.

_GROWTH_WIDTH, _GROWTH_HEIGHT, _GROWTH_LEFT, _BOTTOM, _GROWTH_TOP, _RIGHT = 300, 240, 52, 46, 34, 14
_GROWTH_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626")


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
    """Return the picture; both axes are logarithmic, so that growth in proportion is a line of slope one."""
    drawn = [
        f'<g transform="translate({i * _GROWTH_WIDTH},0)">{_growth_panel(panel)}</g>' for i, panel in enumerate(panels)
    ]
    width = len(panels) * _GROWTH_WIDTH
    size = f'width="{width}" height="{_GROWTH_HEIGHT}" viewBox="0 0 {width} {_GROWTH_HEIGHT}"'
    style = 'font-family="sans-serif" font-size="10" fill="#334155"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(drawn) + "\n</svg>\n"


class _growth_Axes:
    def __init__(self, panel: Growth) -> None:
        costs = [cost for series in panel.costs.values() for cost in series]
        self.x = (log10(min(panel.sizes)), max(log10(max(panel.sizes)), log10(min(panel.sizes)) + 0.3))
        self.y = (floor(log10(min(costs))), max(ceil(log10(max(costs))), floor(log10(min(costs))) + 1))

    def at(self, size: float, cost: float) -> tuple[float, float]:
        across = (log10(size) - self.x[0]) / (self.x[1] - self.x[0])
        up = (log10(cost) - self.y[0]) / (self.y[1] - self.y[0])
        return _GROWTH_LEFT + across * (_GROWTH_WIDTH - _GROWTH_LEFT - _RIGHT), _GROWTH_HEIGHT - _BOTTOM - up * (
            _GROWTH_HEIGHT - _BOTTOM - _GROWTH_TOP
        )


def _growth_panel(panel: Growth) -> str:
    axes = _growth_Axes(panel)
    parts = [_growth_grid(panel, axes)]
    for i, (name, costs) in enumerate(panel.costs.items()):
        colour = _GROWTH_COLOURS[i % len(_GROWTH_COLOURS)]
        points = [axes.at(size, cost) for size, cost in zip(panel.sizes, costs, strict=True)]
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        first_cost = costs[0]
        first = panel.sizes[0]
        end = min(max(panel.sizes), first * 10 ** axes.y[1] / first_cost)
        (x1, y1), (x2, y2) = axes.at(first, first_cost), axes.at(end, first_cost * end / first)
        where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        parts.append(f'<line {where} stroke="{colour}" stroke-opacity="0.4" stroke-dasharray="3 3"/>')
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in points]
        parts.append(f'<text x="{_GROWTH_LEFT + 4}" y="{14 + 12 * i}" fill="{colour}">{escape(name)}</text>')
    return "".join(parts)


def _growth_grid(panel: Growth, axes: _growth_Axes) -> str:
    parts = []
    for power in range(axes.y[0], axes.y[1] + 1):
        x, y = axes.at(panel.sizes[0], 10.0**power)
        parts.append(
            f'<line x1="{_GROWTH_LEFT}" x2="{_GROWTH_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>'
        )
        label = f"{10.0**power:g} {escape(panel.unit)}"
        parts.append(f'<text x="{x - 4:.1f}" y="{y + 3:.1f}" text-anchor="end">{label}</text>')
    for size in panel.sizes:
        x, y = axes.at(size, 10.0 ** axes.y[0])
        parts.append(f'<text x="{x:.1f}" y="{y + 14:.1f}" text-anchor="middle">{_short(size)}</text>')
    parts.append(
        f'<text x="{(_GROWTH_LEFT + _GROWTH_WIDTH) / 2:.0f}" y="{_GROWTH_HEIGHT - 12}" '
        f'text-anchor="middle">{escape(panel.of)}</text>'
    )
    return "".join(parts)


def _short(size: float) -> str:
    return f"{size / 1000:g}k" if size >= 1000 else f"{size:g}"


# Scaling as one SVG picture: efficiency over world size, a line per mode with its interval, and the ideal.

_SCALING_WIDTH, _SCALING_HEIGHT, _SCALING_LEFT, _SCALING_BOTTOM, _SCALING_TOP = 520, 320, 60, 50, 40
_SCALING_COLOURS = {"strong": "#2563eb", "weak": "#d97706"}


def scaling_svg(scaled: Sequence[ScalingPoint]) -> str:
    """Return the picture; world sizes on a logarithmic axis, efficiency from 0 to 120 %."""
    sizes = sorted({s.world_size for s in scaled})
    parts = [
        '<text x="12" y="20" font-weight="bold">scaling efficiency</text>',
        _scaling_grid(sizes),
        *(_line([s for s in scaled if s.mode == mode], mode, sizes, i) for i, mode in enumerate(_SCALING_COLOURS)),
    ]
    style = 'font-family="sans-serif" font-size="11" fill="#334155"'
    size = f'width="{_SCALING_WIDTH}" height="{_SCALING_HEIGHT}" viewBox="0 0 {_SCALING_WIDTH} {_SCALING_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _at(world_size: int, efficiency: float, sizes: Sequence[int]) -> tuple[float, float]:
    span = log2(sizes[-1] / sizes[0]) or 1.0
    across = log2(world_size / sizes[0]) / span
    up = min(max(efficiency, 0.0), 1.2) / 1.2
    return _SCALING_LEFT + across * (_SCALING_WIDTH - _SCALING_LEFT - 30), _SCALING_HEIGHT - _SCALING_BOTTOM - up * (
        _SCALING_HEIGHT - _SCALING_BOTTOM - _SCALING_TOP
    )


def _scaling_grid(sizes: Sequence[int]) -> str:
    parts = []
    for pct in (0, 25, 50, 75, 100):
        _, y = _at(sizes[0], pct / 100, sizes)
        colour = "#94a3b8" if pct == 100 else "#e2e8f0"
        parts.append(
            f'<line x1="{_SCALING_LEFT}" x2="{_SCALING_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
        )
        parts.append(f'<text x="{_SCALING_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{pct} %</text>')
    for size in sizes:
        x, y = _at(size, 0, sizes)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{size}</text>')
    parts.append(f'<text x="{_SCALING_WIDTH / 2:.0f}" y="{_SCALING_HEIGHT - 10}" text-anchor="middle">ranks</text>')
    return "".join(parts)


def _line(scaled: Sequence[ScalingPoint], mode: str, sizes: Sequence[int], place: int) -> str:
    if not scaled:
        return ""
    colour = _SCALING_COLOURS[mode]
    points = [_at(s.world_size, s.efficiency, sizes) for s in scaled]
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>']
    for s, (x, y) in zip(scaled, points, strict=True):
        low, high = (_at(s.world_size, e, sizes)[1] for e in (s.low, s.high))
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    parts.append(
        f'<text x="{_SCALING_WIDTH - 30}" y="{20 + 14 * place}" text-anchor="end" fill="{colour}">{mode}</text>'
    )
    return "".join(parts)
