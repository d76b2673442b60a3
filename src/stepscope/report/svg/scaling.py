"""Scaling as one SVG picture: efficiency over world size, a line per mode with its interval, and the ideal."""

from collections.abc import Sequence
from math import log2

from stepscope.results.scaling import ScalingPoint

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 520, 320, 60, 50, 40
_COLOURS = {"strong": "#2563eb", "weak": "#d97706"}


def scaling_svg(scaled: Sequence[ScalingPoint]) -> str:
    """Return the picture; world sizes on a logarithmic axis, efficiency from 0 to 120 %."""
    sizes = sorted({s.world_size for s in scaled})
    parts = [
        '<text x="12" y="20" font-weight="bold">scaling efficiency</text>',
        _grid(sizes),
        *(_line([s for s in scaled if s.mode == mode], mode, sizes, i) for i, mode in enumerate(_COLOURS)),
    ]
    style = 'font-family="sans-serif" font-size="11" fill="#334155"'
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _at(world_size: int, efficiency: float, sizes: Sequence[int]) -> tuple[float, float]:
    span = log2(sizes[-1] / sizes[0]) or 1.0
    across = log2(world_size / sizes[0]) / span
    up = min(max(efficiency, 0.0), 1.2) / 1.2
    return _LEFT + across * (_WIDTH - _LEFT - 30), _HEIGHT - _BOTTOM - up * (_HEIGHT - _BOTTOM - _TOP)


def _grid(sizes: Sequence[int]) -> str:
    parts = []
    for pct in (0, 25, 50, 75, 100):
        _, y = _at(sizes[0], pct / 100, sizes)
        colour = "#94a3b8" if pct == 100 else "#e2e8f0"
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{pct} %</text>')
    for size in sizes:
        x, y = _at(size, 0, sizes)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{size}</text>')
    parts.append(f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">ranks</text>')
    return "".join(parts)


def _line(scaled: Sequence[ScalingPoint], mode: str, sizes: Sequence[int], place: int) -> str:
    if not scaled:
        return ""
    colour = _COLOURS[mode]
    points = [_at(s.world_size, s.efficiency, sizes) for s in scaled]
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>']
    for s, (x, y) in zip(scaled, points, strict=True):
        low, high = (_at(s.world_size, e, sizes)[1] for e in (s.low, s.high))
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    parts.append(f'<text x="{_WIDTH - 30}" y="{20 + 14 * place}" text-anchor="end" fill="{colour}">{mode}</text>')
    return "".join(parts)
