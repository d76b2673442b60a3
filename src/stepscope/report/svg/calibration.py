"""A calibration as one SVG picture: measured points, predicted curve and interval, a panel per operation."""

from html import escape
from math import ceil, floor, log10

import numpy as np

from stepscope.cost.collectives.calibration import Calibration
from stepscope.cost.collectives.curve import Curve
from stepscope.units import NS_PER_US, readable_bytes

_WIDTH, _HEIGHT, _MARGIN = 320, 240, 46
_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#475569")


def calibration_svg(calibration: Calibration) -> str:
    """Return the picture; both axes are logarithmic."""
    ops = list(dict.fromkeys(c.op for c in calibration.curves))
    columns = min(3, len(ops))
    rows = ceil(len(ops) / columns)
    panels = []
    for i, op in enumerate(ops):
        x, y = (i % columns) * _WIDTH, (i // columns) * _HEIGHT
        panels.append(f'<g transform="translate({x},{y})">{_panel(calibration, op)}</g>')
    size = f'width="{columns * _WIDTH}" height="{rows * _HEIGHT}"'
    style = 'font-family="sans-serif" font-size="10" fill="#334155"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(panels) + "\n</svg>\n"


class _Axes:
    """Logarithmic axes of one panel."""

    def __init__(self, curves: list[Curve]) -> None:
        sizes = [b for c in curves for b, _ in c.points]
        times = [t / NS_PER_US for c in curves for _, t in c.points]
        self.x = (log10(min(sizes)), max(log10(max(sizes)), log10(min(sizes)) + 1))
        self.y = (floor(log10(min(times))), max(ceil(log10(max(times))), floor(log10(min(times))) + 1))

    def at(self, size_bytes: float, time_us: float) -> tuple[float, float]:
        across = (log10(size_bytes) - self.x[0]) / (self.x[1] - self.x[0])
        up = (log10(max(time_us, 1e-6)) - self.y[0]) / (self.y[1] - self.y[0])
        return _MARGIN + across * (_WIDTH - _MARGIN - 12), _HEIGHT - 30 - up * (_HEIGHT - 56)


def _panel(calibration: Calibration, op: str) -> str:
    curves = [c for c in calibration.curves if c.op == op]
    axes = _Axes(curves)
    parts = [f'<text x="{_MARGIN}" y="16" font-weight="bold">{escape(op)}</text>', _grid(axes)]
    for i, curve in enumerate(curves):
        colour = _COLOURS[i % len(_COLOURS)]
        parts += [_band(calibration, curve, axes, colour), _points(curve, axes, colour)]
        place = f'x="{_WIDTH - 14}" y="{16 + 12 * i}" text-anchor="end"'
        parts.append(f'<text {place} fill="{colour}">{curve.world_size} ranks</text>')
    return "".join(parts)


def _grid(axes: _Axes) -> str:
    parts = []
    for power in range(axes.y[0], axes.y[1] + 1):
        x, y = axes.at(10 ** axes.x[0], 10.0**power)
        parts.append(f'<line x1="{x:.1f}" x2="{_WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{x - 4:.1f}" y="{y + 3:.1f}" text-anchor="end">{_time_label(power)}</text>')
    for power in np.linspace(*axes.x, 4):
        x, _ = axes.at(10**power, 10.0 ** axes.y[0])
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{readable_bytes(10**power)}</text>')
    return "".join(parts)


def _time_label(power: int) -> str:
    return (
        f"{10**power:g} us" if power < 3 else f"{10 ** (power - 3):g} ms" if power < 6 else f"{10 ** (power - 6):g} s"
    )


def _band(calibration: Calibration, curve: Curve, axes: _Axes, colour: str) -> str:
    """Return the predicted line and the area that holds 90 % of measurements."""
    sizes = np.geomspace(curve.points[0][0], max(curve.points[-1][0], curve.points[0][0] + 1), 60)
    found = [calibration.predict(curve.op, size_bytes=s, world_size=curve.world_size) for s in sizes]
    line = _path(axes, [(s, e.time_ns) for s, e in zip(sizes, found, strict=True)])
    edge = [(s, e.high_ns) for s, e in zip(sizes, found, strict=True)]
    edge += [(s, e.low_ns) for s, e in reversed(list(zip(sizes, found, strict=True)))]
    area = f'<path d="{_path(axes, edge)}Z" fill="{colour}" fill-opacity="0.12"/>'
    return f'{area}<path d="{line}" fill="none" stroke="{colour}" stroke-width="1.4"/>'


def _path(axes: _Axes, points: list[tuple[float, float]]) -> str:
    placed = [axes.at(size, time_ns / NS_PER_US) for size, time_ns in points]
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in placed)


def _points(curve: Curve, axes: _Axes, colour: str) -> str:
    placed = [axes.at(b, t / NS_PER_US) for b, t in curve.points]
    return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>' for x, y in placed)
