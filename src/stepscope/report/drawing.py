"""A picture as shapes: rectangles, lines, dots and words with colours of the palette, a legend and a table.

    drawing.as_json()       what the page draws (`js/drawing.js`), with what a pointer over a shape says
    drawing.svg()           the same as SVG text; a notebook shows it

Words in it may come from a trace: the page shows them as text, and the SVG escapes them.
"""

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from stepscope.records import dataclass
from stepscope.report.sheet import unit_text
from stepscope.units import printable

# the page's colours of its light theme, which notebooks show
PALETTE = {
    "forward": "#0072b2", "backward": "#3f8fcb", "optimizer": "#5e6fc0", "other": "#8fb3cf", "compute": "#0072b2",
    "transfer": "#e69f00", "wait": "#d55e00", "copy": "#009e73", "input": "#c2619a", "host": "#9a8c00",
    "idle": "#8a7d00", "unknown": "#9aa4ae", "unmatched": "#b89b5e", "range": "#c9d0d6", "selected": "#d6006c",
    "quiet": "#6b7785", "text": "#4b5560", "line": "#cfd6dc", "high": "#c02617", "low": "#1a7f37", "medium": "#946200",
    "bright": "#ffffff",
}  # fmt: skip
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'

Shape = dict[str, Any]
Point = tuple[float, float]


@dataclass(frozen=True)
class Drawing:
    """A picture with its size, in units of about a pixel."""

    title: str
    width: int
    height: int
    #: the picture in one sentence, for who cannot see it
    label: str
    shapes: tuple[Shape, ...]
    #: colour and its meaning
    legend: tuple[tuple[str, str], ...] = ()
    #: what to know to read it
    notes: tuple[str, ...] = ()
    #: its numbers as a table, from `sheet.table_of`
    table: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Drawing {self.title!r}: {self.label}>"

    def as_json(self) -> dict[str, Any]:
        """Return the picture as plain values."""
        return {
            "title": self.title,
            "size": [self.width, self.height],
            "label": self.label,
            "shapes": list(self.shapes),
            "legend": [list(entry) for entry in self.legend],
            "notes": list(self.notes),
            "table": self.table,
        }

    @property
    def svg_height(self) -> int:
        """Return the height of the SVG, with title and legend."""
        return 28 + self.height + 18 * len(_legend_rows(self.legend, self.width))

    def svg(self) -> str:
        """Return the picture as SVG text."""
        below, height = _legend_rows(self.legend, self.width), self.svg_height
        parts = [f'<text x="0" y="14" font-weight="600" fill="{PALETTE["text"]}">{_safe(self.title)}</text>']
        parts.append(f'<g transform="translate(0,24)">{"".join(map(_svg, self.shapes))}</g>')
        for k, row in enumerate(below):
            y = 24 + self.height + 18 * k
            parts += [_legend_entry(x, y, *entry) for x, entry in row]
        size = f'width="{self.width}" height="{height}" viewBox="0 0 {self.width} {height}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_FONT} role="img" aria-label="{_safe(self.label)}">'
            f"{''.join(parts)}</svg>"
        )

    _repr_svg_ = svg


def rect(
    x: float, y: float, width: float, height: float, fill: str, *, tip: Sequence[str] = (), opacity: float = 1.0
) -> Shape:
    """Return a rectangle; `tip` is what a pointer over it says, line by line."""
    where = {"x": _num(x), "y": _num(y), "w": _num(max(width, 0.5)), "h": _num(max(height, 0.5))}
    return _with({"is": "rect", **where, "fill": fill}, tip, opacity)


def dot(x: float, y: float, radius: float, fill: str, *, tip: Sequence[str] = (), opacity: float = 1.0) -> Shape:
    """Return a filled circle."""
    return _with({"is": "dot", "x": _num(x), "y": _num(y), "r": _num(radius), "fill": fill}, tip, opacity)


def polyline(
    points: Iterable[Point], stroke: str, *, width: float = 1.5, dashed: bool = False, tip: Sequence[str] = ()
) -> Shape:
    """Return a line through points."""
    shape: Shape = {"is": "path", "points": _points(points), "stroke": stroke, "width": width}
    return _with(shape | ({"dashed": True} if dashed else {}), tip)


def polygon(points: Iterable[Point], fill: str, *, opacity: float = 1.0, tip: Sequence[str] = ()) -> Shape:
    """Return a filled outline."""
    return _with({"is": "area", "points": _points(points), "fill": fill}, tip, opacity)


def words(x: float, y: float, text: str, *, anchor: str = "start", fill: str = "quiet", small: bool = False) -> Shape:
    """Return a line of text."""
    shape: Shape = {"is": "text", "x": _num(x), "y": _num(y), "text": printable(text, width=160), "fill": fill}
    return shape | ({"anchor": anchor} if anchor != "start" else {}) | ({"small": True} if small else {})


def _with(shape: Shape, tip: Sequence[str] = (), opacity: float = 1.0) -> Shape:
    if tip:
        shape["tip"] = [printable(line, width=200) for line in tip]
    if opacity < 1:
        shape["opacity"] = round(opacity, 3)
    return shape


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{_num(x)},{_num(y)}" for x, y in points)


def _num(value: float) -> float | int:
    rounded = round(float(value), 1)
    return int(rounded) if rounded == int(rounded) else rounded


def _svg(shape: Shape) -> str:
    title = f"<title>{_safe(chr(10).join(shape['tip']))}</title>" if "tip" in shape else ""
    look = f' opacity="{shape["opacity"]}"' if "opacity" in shape else ""
    fill = PALETTE.get(shape.get("fill", ""), PALETTE["unknown"])
    match shape["is"]:
        case "rect":
            where = f'x="{shape["x"]}" y="{shape["y"]}" width="{shape["w"]}" height="{shape["h"]}"'
            return f'<rect {where} fill="{fill}"{look}>{title}</rect>'
        case "dot":
            where = f'cx="{shape["x"]}" cy="{shape["y"]}" r="{shape["r"]}"'
            return f'<circle {where} fill="{fill}"{look}>{title}</circle>'
        case "path":
            stroke = f'stroke="{PALETTE.get(shape["stroke"], PALETTE["unknown"])}" stroke-width="{shape["width"]}"'
            dashes = ' stroke-dasharray="4 3"' if shape.get("dashed") else ""
            return f'<polyline points="{shape["points"]}" fill="none" {stroke}{dashes}{look}>{title}</polyline>'
        case "area":
            return f'<polygon points="{shape["points"]}" fill="{fill}"{look}>{title}</polygon>'
    anchor = f' text-anchor="{shape["anchor"]}"' if "anchor" in shape else ""
    small = ' font-size="10"' if shape.get("small") else ""
    return f'<text x="{shape["x"]}" y="{shape["y"]}" fill="{fill}"{anchor}{small}>{_safe(shape["text"])}</text>'


def _legend_rows(legend: Sequence[tuple[str, str]], width: int) -> list[list[tuple[float, tuple[str, str]]]]:
    rows: list[list[tuple[float, tuple[str, str]]]] = []
    at = float(width)
    for entry in legend:
        wide = 30 + 6.6 * len(entry[1])
        if at + wide > width:
            rows.append([])
            at = 0.0
        rows[-1].append((at, entry))
        at += wide
    return rows


def _legend_entry(x: float, y: float, colour: str, text: str) -> str:
    fill = PALETTE.get(colour, PALETTE["unknown"])
    return (
        f'<rect x="{x:.1f}" y="{y + 6}" width="10" height="10" fill="{fill}"/>'
        f'<text x="{x + 15:.1f}" y="{y + 15}" fill="{PALETTE["quiet"]}">{_safe(text)}</text>'
    )


def _safe(text: str) -> str:
    return escape(printable(text, width=300))


# Scales with round ticks: times, bytes and plain numbers along a side of a picture.

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def round_ticks(most: float, *, about: int = 4) -> list[float]:
    """Return round numbers from 0 to `most` or just above it.

    >>> round_ticks(77.7)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    rough = max(most, 1e-12) / about
    power = 10.0 ** floor(log10(rough))
    step = next(s for s in _STEPS if s * power >= rough * 0.999) * power
    return [i * step for i in range(ceil(most / step - 1e-9) + 1)]


def unit_tick(value: float, unit: str) -> str:
    """Return a round value of an axis.

    >>> unit_tick(0, "ms"), unit_tick(20, "ms"), unit_tick(2_500, "bytes"), unit_tick(50, "pct")
    ('0', '20 ms', '2.5 kB', '50 %')
    """
    if not value:
        return "0"
    if unit in ("ms", "bytes"):
        number, name = unit_text(value, unit).split()
        return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {name}"
    if unit == "flops":
        return unit_text(value, unit).replace(".00", "")
    return f"{value:,g}" + {"pct": " %", "x": "×", "gb_per_s": " GB/s"}.get(unit, "")  # noqa: RUF001


@dataclass(frozen=True)
class Scale:
    """Numbers from `low` to `high` onto a picture from `start` to `end`; logarithmic on request."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / ((high - low) or 1)


def powers(low: float, high: float) -> list[float]:
    """Return the powers of ten from the one at or below `low` to the one at or above `high`."""
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    return [10.0**k for k in range(first, max(last, first + 1) + 1)]
