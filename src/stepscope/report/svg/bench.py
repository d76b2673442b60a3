"""The results of a benchmark as one SVG picture: every step as a dot, the median and its interval of each series."""

from html import escape
from typing import Any

from stepscope.results.times import bench_times
from stepscope.units import ms, printable

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
    """Return the name, the steps of each run, and the median with its interval."""
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
