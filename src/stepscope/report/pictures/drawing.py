"""A picture as shapes: rectangles, lines, dots and words with colours of the palette, a legend and a table.

    drawing.as_json()       what the page draws (`js/drawing.js`), with what a pointer over a shape says
    drawing._repr_svg_()    the same as SVG text for a notebook

Words in it may come from a trace: the page shows them as text, and the SVG escapes them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from html import escape
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.units import printable

PALETTE = {
    "forward": "#0072b2", "backward": "#3f8fcb", "optimizer": "#5e6fc0", "other": "#8fb3cf", "compute": "#0072b2",
    "transfer": "#e69f00", "wait": "#d55e00", "copy": "#009e73", "input": "#c2619a", "host": "#9a8c00",
    "idle": "#8a7d00", "unknown": "#9aa4ae", "unmatched": "#b89b5e", "range": "#c9d0d6", "selected": "#d6006c",
    "quiet": "#6b7785", "text": "#4b5560", "line": "#cfd6dc", "high": "#c02617", "low": "#1a7f37", "medium": "#946200",
    "bright": "#ffffff",
}  # fmt: skip
"""the page's colours of its light theme, which notebooks show"""
MAX_TABLE_ROWS = 200
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'

Shape = dict[str, Any]
Point = tuple[float, float]


@dataclass(frozen=True)
class Drawing:
    """A picture of a given size, in units of its own that are about pixels."""

    title: str
    width: int
    height: int
    label: str
    """the picture in one sentence, for who cannot see it"""
    shapes: tuple[Shape, ...]
    legend: tuple[tuple[str, str], ...] = ()
    """colour and what it stands for"""
    notes: tuple[str, ...] = ()
    """what to know to read it"""
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = field(default=())
    """its numbers as a table"""

    def as_json(self) -> dict[str, Any]:
        """Return the picture as plain values."""
        return {
            "title": self.title,
            "size": [self.width, self.height],
            "label": self.label,
            "shapes": list(self.shapes),
            "legend": [list(entry) for entry in self.legend],
            "notes": list(self.notes),
            "head": list(self.head),
            "rows": [list(row) for row in self.rows[:MAX_TABLE_ROWS]],
        }

    def _repr_svg_(self) -> str:
        """Return the picture as SVG text, with its title above and its legend below."""
        below = _legend_rows(self.legend, self.width)
        height = 24 + self.height + 18 * len(below) + 4
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
    """Return one shape as SVG; its tip becomes a title, which browsers show."""
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


_CHAR = 6.6


def _legend_rows(legend: Sequence[tuple[str, str]], width: int) -> list[list[tuple[float, tuple[str, str]]]]:
    """Return the entries with their places, as many beside each other as fit."""
    rows: list[list[tuple[float, tuple[str, str]]]] = []
    at = float(width)
    for entry in legend:
        wide = 30 + _CHAR * len(entry[1])
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
