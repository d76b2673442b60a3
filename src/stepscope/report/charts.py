"""The kinds of chart that pictures are made of: bars, lines, columns and lanes, each as a `Drawing`."""

from collections.abc import Callable, Iterable, Sequence
from math import ceil, floor
from typing import Any, NamedTuple

from stepscope.report.drawing import (
    Drawing,
    Point,
    Scale,
    Shape,
    dot,
    polygon,
    polyline,
    powers,
    rect,
    round_ticks,
    unit_tick,
    words,
)
from stepscope.report.sheet import digits, table_of, unit_text

# of charts, in units that are about pixels; bars fit a phone
BARS, WIDE = 460, 1180
COLOURS = ("compute", "transfer", "copy", "input", "optimizer", "host", "wait", "other", "unknown")

Legend = Sequence[tuple[str, str]]
Table = dict[str, Any]


class Bar(NamedTuple):
    """One row of a bar chart."""

    name: str
    #: colour, what it is, length
    parts: Sequence[tuple[str, str, float]]
    #: written behind it instead of its length
    remark: str | None = None
    start: float = 0.0
    #: the interval of the value
    low: float | None = None
    high: float | None = None
    #: a line across the bar
    mark: float | None = None
    #: single values by series, as dots
    samples: Sequence[Sequence[float]] = ()

    @property
    def end(self) -> float:
        """Return where the bar ends."""
        return self.start + sum(size for _, _, size in self.parts)


def bar_chart(
    title: str, bars: Sequence[Bar], unit: str, *, label: str = "", legend: Legend = (), notes: Sequence[str] = (),
    width: int = BARS, left: int = 140, right: int = 90, least: float = 0.0, limit: float | None = None,
    axis: bool = True,
) -> Drawing:  # fmt: skip
    """Return horizontal bars on one scale that begins at `least`; `limit` is a line across all of them.

    The legend names the parts, `legend` adds to it; the table has a column for each part.
    """
    line = 32 if any(bar.samples for bar in bars) else 24 if len(bars) <= 32 else 16
    # Single values far out would press all others together: they are drawn at the edge.
    far = [sorted(v for run in bar.samples for v in run) for bar in bars]
    reach = [values[floor(0.98 * (len(values) - 1))] for values in far if values]
    ends = [v for bar in bars for v in (bar.end, bar.high, bar.mark) if v is not None]
    most = max(*ends, *reach, limit or 0.0, least)
    ticks = [t for t in (round_ticks(most) if not least else _ticks_between(least, most)) if t <= most * 1.001]
    x = Scale(least, most if most > least else least + 1, left, width - right)
    bottom = len(bars) * line
    shapes = _down(ticks, x, bottom, lambda tick: unit_tick(tick, unit)) if axis else []
    for k, bar in enumerate(bars):
        y, at = k * line, bar.start
        remark = unit_text(bar.end, unit) if bar.remark is None else bar.remark
        shapes.append(words(left - 8, y + line / 2 + 4, _cut(bar.name, left / 6.6), anchor="end"))
        for i, run in enumerate(bar.samples):
            up = y + 3 + (line - 14) * (i + 0.5) / len(bar.samples)
            shapes += [dot(x(min(v, most)), up, 1.6, COLOURS[i % len(COLOURS)], opacity=0.5) for v in run]
        for colour, what, size in bar.parts:
            begin, end = x(max(at, least)), x(max(at + size, least))
            at += size
            tip = (bar.name, f"{what} {unit_text(size, unit)}", *((bar.remark,) if bar.remark else ()))
            if bar.samples:
                shapes.append(dot(end, y + line - 8, 3, "text", tip=tip))
            elif size > 0:
                shapes.append(rect(begin, y + 4, max(end - begin, 1.0), line - 8, colour, tip=tip))
        middle = y + line - 8 if bar.samples else y + line / 2
        if bar.low is not None and bar.high is not None:
            shapes.append(polyline([(x(max(bar.low, least)), middle), (x(bar.high), middle)], "text", width=1.2))
        if bar.mark is not None:
            shapes.append(rect(x(bar.mark) - 1.5, y + 1, 3, line - 2, "text", tip=(bar.name, remark)))
        reached = max(v for v in (bar.end, bar.high or 0, bar.mark or 0, least))
        begin = x(reached) + 7
        if limit is not None and begin <= x(limit) <= begin + 6.6 * len(remark):  # the line would cross the text
            begin = x(limit) + 7
        shapes.append(words(begin, middle + 4, remark))
    if limit is not None:
        shapes.append(polyline([(x(limit), 0), (x(limit), bottom)], "high"))
    height = bottom + (24 if axis else 4)
    named, table = _parts(bars, unit)
    if any(bar.remark for bar in bars):
        table["columns"].append({"title": "remark", "key": len(table["columns"]), "unit": "text"})
        table["rows"] = [[*row, bar.remark] for row, bar in zip(table["rows"], bars, strict=True)]
    return Drawing(title, width, height, label or title, tuple(shapes), (*named, *legend), tuple(notes), table)


def _parts(rows: "Sequence[Bar] | Sequence[Stack]", unit: str) -> tuple[list[tuple[str, str]], Table]:
    """Return a legend of the parts that have one colour each, and a table with a column for each part."""
    pairs = list(dict.fromkeys((colour, what) for row in rows for colour, what, _ in row.parts))
    names = [what for _, what in pairs]
    columns = [(what, unit, lambda row, what=what: _size(row, what)) for what in dict.fromkeys(names)]
    return [p for p in pairs if names.count(p[1]) == 1], table_of(
        rows, ("name", "text", lambda row: row.name), *columns
    )


def _size(row: "Bar | Stack", what: str) -> float | None:
    found = [size for _, name, size in row.parts if name == what]
    return sum(found) if found else None


class Axis(NamedTuple):
    """What an axis shows."""

    title: str
    unit: str
    log: bool = False
    #: a linear axis begins at 0
    zero: bool = True


class Line(NamedTuple):
    """Points of x and y, and of low and high where a band is drawn."""

    name: str
    points: Sequence[Sequence[float]]
    colour: str
    #: `line`, `dots`, `both` or `steps`
    look: str = "line"
    dashed: bool = False
    width: float = 1.5
    tips: Sequence[Sequence[str]] = ()
    radius: float = 3.0
    radii: Sequence[float] = ()


Plane = Callable[[Scale, Scale], list[Shape]]


def line_chart(
    title: str, lines: Sequence[Line], x: Axis, y: Axis, *, label: str = "", legend: Legend | None = None,
    notes: Sequence[str] = (), table: Table | None = None, width: int = BARS, height: int = 260,
    below: Plane = lambda x, y: [], above: Plane = lambda x, y: [], most: float | None = None,
    around: tuple[Sequence[float], Sequence[float]] = ((), ()),
) -> Drawing:  # fmt: skip
    """Return lines over two axes; `below` and `above` add shapes, `around` values that the axes reach too."""
    points = [p for line in lines for p in line.points if (not x.log or p[0] > 0) and (not y.log or p[1] > 0)]
    across = _axis([*(p[0] for p in points), *around[0]], x, 74, width - 16, about=width // 130)
    highs = [v for p in points for v in (p[1], *p[3:4])]
    up = _axis([min(v, most) for v in highs] if most else [*highs, *around[1]], y, height - 42, 14, about=4)
    (sx, xticks), (sy, yticks) = across, up
    shapes: list[Shape] = below(sx, sy)
    for tick in yticks:
        shapes.append(polyline([(74, sy(tick)), (width - 12, sy(tick))], "line", width=1))
        shapes.append(words(66, sy(tick) + 4, unit_tick(tick, y.unit), anchor="end"))
    for tick in xticks:
        edge = "end" if sx(tick) > width - 36 else "start" if sx(tick) < 76 and len(xticks) > 1 else "middle"
        shapes.append(words(sx(tick), height - 24, unit_tick(tick, x.unit) if tick else "0", anchor=edge))
    shapes.append(words((74 + width) / 2, height - 6, x.title, anchor="middle"))
    for line in lines:
        shapes += _line(line, x, y, sx, sy)
    shapes += above(sx, sy)
    named = tuple((line.colour, line.name) for line in lines if line.name) if legend is None else tuple(legend)
    rows = [(line.name, [p[1] for p in line.points]) for line in lines if line.name and line.points]
    found = table or table_of(
        rows, ("name", "text", lambda r: r[0]), (f"smallest {y.title}", y.unit, lambda r: min(r[1])),
        (f"largest {y.title}", y.unit, lambda r: max(r[1])),
    )  # fmt: skip
    return Drawing(title, width, height, label or title, tuple(shapes), named, tuple(notes), found)


def _line(line: Line, x: Axis, y: Axis, sx: Scale, sy: Scale) -> list[Shape]:
    def place(px: float, py: float) -> Point:
        return sx(px), sy(min(max(py, sy.low), sy.high))

    shapes: list[Shape] = []
    band = [p for p in line.points if len(p) > 3]
    if len(band) > 1:
        outline = [place(p[0], p[3]) for p in band] + [place(p[0], p[2]) for p in reversed(band)]
        shapes.append(polygon(outline, line.colour, opacity=0.15))
    spots = [place(p[0], p[1]) for p in line.points]
    if line.look == "steps":
        spots = [q for i, p in enumerate(spots) for q in ([(p[0], spots[i - 1][1]), p] if i else [p])]
    if line.look != "dots" and len(spots) > 1:
        tip = (line.name,) if line.name else ()
        shapes.append(polyline(spots, line.colour, width=line.width, dashed=line.dashed, tip=tip))
    if line.look in ("dots", "both"):
        many = len(spots) > 400
        for i, (p, spot) in enumerate(zip(line.points, spots, strict=True)):
            told = (line.name, f"{x.title}: {unit_text(p[0], x.unit)}", f"{y.title}: {unit_text(p[1], y.unit)}")
            said: Sequence[str] = line.tips[i] if line.tips else () if many else told
            radius = line.radii[i] if line.radii else 1.3 if many else line.radius
            shapes.append(dot(*spot, radius, line.colour, tip=said, opacity=0.8 if line.radii or many else 1.0))
    return shapes


def _axis(values: Sequence[float], axis: Axis, start: float, end: float, *, about: int) -> tuple[Scale, list[float]]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if axis.log:
        ticks = powers(low, high)
        scale = Scale(ticks[0], ticks[-1], start, end, log=True)
        return scale, ticks[:: max(1, ceil(len(ticks) / about))]
    if axis.zero:
        ticks = round_ticks(high, about=about)
        return Scale(0, ticks[-1], start, end), ticks
    if axis.unit == "count":
        ticks = [t for t in _ticks_between(low, high, about) if t == int(t)] or [low]
    else:
        pad = 0.05 * (high - low or abs(high) or 1)
        low, high = low - pad, high + pad
        ticks = _ticks_between(low, high, about)
    return Scale(low, high if high > low else low + 1, start, end), ticks


def _ticks_between(low: float, high: float, about: int = 4) -> list[float]:
    step = round_ticks(max(high - low, 1e-9), about=about)[1]
    return [k * step for k in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


class Stack(NamedTuple):
    """One column: its name below, and its parts from the bottom up."""

    name: str
    #: colour, what it is, height
    parts: Sequence[tuple[str, str, float]]


def column_chart(
    title: str, columns: Sequence[Stack], unit: str, *, x_title: str = "", label: str = "", notes: Sequence[str] = (),
    width: int = BARS, height: int = 250, every: int = 1,
) -> Drawing:  # fmt: skip
    """Return stacked columns with their legend and table; each `every`-th has its name below."""
    base, left = height - 44, 66
    ticks = round_ticks(max(sum(size for _, _, size in column.parts) for column in columns))
    scale, wide = Scale(0, ticks[-1], base, 10), (width - left - 8) / len(columns)
    shapes: list[Shape] = []
    for tick in ticks:
        shapes.append(polyline([(left, scale(tick)), (width - 4, scale(tick))], "line", width=1))
        shapes.append(words(left - 8, scale(tick) + 4, unit_tick(tick, unit), anchor="end"))
    bar = min(wide - min(4.0, wide / 4), 60)
    for k, column in enumerate(columns):
        below, at = 0.0, left + (k + 0.5) * wide
        for colour, what, size in column.parts:
            if size > 0:
                top, tip = scale(below + size), (column.name, f"{what} {unit_text(size, unit)}")
                shapes.append(rect(at - bar / 2, top, bar, scale(below) - top, colour, tip=tip))
            below += size
        if k % every == 0:
            shapes.append(words(at, base + 16, column.name, anchor="middle"))
    shapes.append(words((left + width) / 2, height - 8, x_title, anchor="middle"))
    legend, table = _parts(columns, unit)
    return Drawing(title, width, height, label or title, tuple(shapes), tuple(legend), tuple(notes), table)


class Span(NamedTuple):
    """A stretch of time in a lane."""

    start: float
    end: float
    colour: str
    tip: Sequence[str]
    #: written into it where there is room
    text: str = ""
    pale: bool = False


class Lane(NamedTuple):
    """A row of stretches of time, or a heading where it has no spans."""

    name: str
    spans: Sequence[Span] = ()
    height: float = 24.0


def lane_chart(
    title: str, lanes: Iterable[Lane], end_ms: float, *, label: str = "", legend: Legend = (),
    notes: Sequence[str] = (), table: Table | None = None, left: int = 120,
) -> Drawing:  # fmt: skip
    """Return lanes below each other on one scale of time."""
    x, y = Scale(0, end_ms, left, WIDE - 8), 0.0
    shapes: list[Shape] = []
    for lane in lanes:
        if not lane.spans:
            shapes.append(words(left, y + 14, lane.name, fill="text"))
            y += 20
            continue
        shapes.append(words(left - 8, y + lane.height / 2 + 4, lane.name, anchor="end", small=lane.height < 16))
        for span in lane.spans:
            begin, wide = x(span.start), x(span.end) - x(span.start)
            pale = 0.45 if span.pale else 1.0
            shapes.append(rect(begin, y + 1, wide - 0.6, lane.height - 3, span.colour, tip=span.tip, opacity=pale))
            room = int((wide - 5) / 6)
            if span.text and (room >= len(span.text) or (span.pale and room > 14)):
                ink = "text" if span.pale else "bright"
                shapes.append(words(begin + 3, y + lane.height / 2 + 3, span.text[:room], fill=ink, small=True))
        y += lane.height
    ticks = [t for t in round_ticks(end_ms, about=8) if t <= end_ms]
    shapes += [words(x(t), y + 14, unit_tick(t, "ms"), anchor="middle" if t else "start") for t in ticks]
    return Drawing(title, WIDE, int(y) + 20, label or title, tuple(shapes), tuple(legend), tuple(notes), table)


def _down(ticks: Sequence[float], x: Scale, bottom: float, text: Callable[[float], str]) -> list[Shape]:
    shapes: list[Shape] = []
    for tick in ticks:
        shapes.append(polyline([(x(tick), 0), (x(tick), bottom)], "line", width=1))
        shapes.append(words(x(tick), bottom + 16, text(tick), anchor="middle"))
    return shapes


def _cut(text: str, most: float) -> str:
    return text if len(text) <= most else "…" + text[-(int(most) - 1) :] if "/" in text else text[: int(most) - 1] + "…"


def share_text(value: float, whole: float) -> str:
    """Return a share in words."""
    return f"{digits(100 * value / whole)} %" if whole else "unknown"


# Bars by name and parts, and the axis of a step.

STEP = Axis("step", "ms")
_PART_COLOURS = {
    "data_loading": "input", "forward_pass": "forward", "backward_pass": "backward", "optimizer_step": "optimizer",
    "optimizer": "optimizer", "gradient_sync": "wait", "parameters": "forward", "gradients": "backward",
    "activations": "transfer", "temporary": "host", "other": "unknown",
}  # fmt: skip


def stacks(
    title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], unit: str, limit: float | None = None
) -> Drawing:
    """Return bars by name and parts; `limit` is drawn as a line."""
    names = list(dict.fromkeys(part for _, parts in rows for part, _ in parts))
    colours = {part: _PART_COLOURS.get(part, COLOURS[k % len(COLOURS)]) for k, part in enumerate(names)}
    bars = [Bar(name, [(colours[part], part.replace("_", " "), size) for part, size in parts]) for name, parts in rows]
    return bar_chart(title, bars, unit, width=760, left=160, limit=limit)
