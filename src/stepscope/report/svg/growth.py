"""How a cost grows as one SVG picture: a panel per thing that grows, measured points joined, and the line of growth in
proportion.
"""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from stepscope.dataclass import dataclass

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 300, 240, 52, 46, 34, 14
_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626")


@dataclass(frozen=True)
class Growth:
    """What was measured while one thing grew."""

    of: str
    """what grows, as the axis says it"""
    sizes: Sequence[float]
    costs: dict[str, Sequence[float]]
    """by what is measured, one value above 0 per size"""
    unit: str


def growth_svg(panels: Sequence[Growth]) -> str:
    """Return the picture; both axes are logarithmic, so that growth in proportion is a line of slope one."""
    drawn = [f'<g transform="translate({i * _WIDTH},0)">{_panel(panel)}</g>' for i, panel in enumerate(panels)]
    size = f'width="{len(panels) * _WIDTH}" height="{_HEIGHT}" viewBox="0 0 {len(panels) * _WIDTH} {_HEIGHT}"'
    style = 'font-family="sans-serif" font-size="10" fill="#334155"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(drawn) + "\n</svg>\n"


class _Axes:
    """Logarithmic axes of one panel."""

    def __init__(self, panel: Growth) -> None:
        costs = [cost for series in panel.costs.values() for cost in series]
        self.x = (log10(min(panel.sizes)), max(log10(max(panel.sizes)), log10(min(panel.sizes)) + 0.3))
        self.y = (floor(log10(min(costs))), max(ceil(log10(max(costs))), floor(log10(min(costs))) + 1))

    def at(self, size: float, cost: float) -> tuple[float, float]:
        across = (log10(size) - self.x[0]) / (self.x[1] - self.x[0])
        up = (log10(cost) - self.y[0]) / (self.y[1] - self.y[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _BOTTOM - _TOP)


def _panel(panel: Growth) -> str:
    axes = _Axes(panel)
    parts = [_grid(panel, axes)]
    for i, (name, costs) in enumerate(panel.costs.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        points = [axes.at(size, cost) for size, cost in zip(panel.sizes, costs, strict=True)]
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(_in_proportion(panel, costs[0], axes, colour))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in points]
        parts.append(f'<text x="{_LEFT + 4}" y="{14 + 12 * i}" fill="{colour}">{escape(name)}</text>')
    return "".join(parts)


def _in_proportion(panel: Growth, first_cost: float, axes: _Axes, colour: str) -> str:
    """Return the line that a cost in proportion to the size would follow, as far as the panel goes."""
    first = panel.sizes[0]
    end = min(max(panel.sizes), first * 10 ** axes.y[1] / first_cost)
    (x1, y1), (x2, y2) = axes.at(first, first_cost), axes.at(end, first_cost * end / first)
    where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {where} stroke="{colour}" stroke-opacity="0.4" stroke-dasharray="3 3"/>'


def _grid(panel: Growth, axes: _Axes) -> str:
    parts = []
    for power in range(axes.y[0], axes.y[1] + 1):
        x, y = axes.at(panel.sizes[0], 10.0**power)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e2e8f0"/>')
        label = f"{10.0**power:g} {escape(panel.unit)}"
        parts.append(f'<text x="{x - 4:.1f}" y="{y + 3:.1f}" text-anchor="end">{label}</text>')
    for size in panel.sizes:
        x, y = axes.at(size, 10.0 ** axes.y[0])
        parts.append(f'<text x="{x:.1f}" y="{y + 14:.1f}" text-anchor="middle">{_short(size)}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(panel.of)}</text>'
    )
    return "".join(parts)


def _short(size: float) -> str:
    """Return `300k` style text."""
    return f"{size / 1000:g}k" if size >= 1000 else f"{size:g}"
