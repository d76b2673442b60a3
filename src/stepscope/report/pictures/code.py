"""Lines or modules as an icicle: what each takes, with what it calls below it."""

from stepscope.analyze.owners.trees import CodeNode
from stepscope.report.pictures.axes import time_text
from stepscope.report.pictures.drawing import Drawing, Shape, rect, words
from stepscope.units import NS_PER_MS

WIDTH, LINE = 1180, 20
MAX_DEPTH = 14
_MIN_PX = 2.0
_COLOURS = ("other", "forward", "copy", "transfer", "input", "optimizer", "host")


def icicle_drawing(root: CodeNode, *, over: str) -> Drawing | None:
    """Return the icicle by host time (`lines`) or by device time (`modules`), None where there is none of it."""
    by = "device_ns" if over == "modules" and root.device_ns else "host_ns"
    whole = getattr(root, by)
    if not whole:
        return None
    shapes: list[Shape] = []
    rows: list[tuple[str, str, str]] = []
    deepest = 0

    def draw(node: CodeNode, left: float, depth: int) -> None:
        nonlocal deepest
        value = getattr(node, by)
        wide = WIDTH * value / whole
        if wide < _MIN_PX or depth >= MAX_DEPTH:
            return
        deepest = max(deepest, depth)
        name = f"{node.name} {node.label}".strip() or "whole step"
        said = (name, f"{time_text(value / NS_PER_MS)}, {100 * value / whole:.1f} %")
        shapes.append(rect(left, depth * LINE, max(wide - 1, 1), LINE - 1, _COLOURS[depth % 7], opacity=0.4, tip=said))
        if wide > 40:
            shapes.append(words(left + 4, depth * LINE + 14, name[: int((wide - 6) / 6.2)], fill="text", small=True))
        rows.append((name, time_text(value / NS_PER_MS), f"{100 * value / whole:.1f} %"))
        for child in sorted(node.children, key=lambda c: -getattr(c, by)):
            draw(child, left, depth + 1)
            left += WIDTH * getattr(child, by) / whole

    draw(root, 0.0, 0)
    what = "device" if by == "device_ns" else "host"
    return Drawing(
        title=f"{what.capitalize()} time by {over}", width=WIDTH, height=(deepest + 1) * LINE, shapes=tuple(shapes),
        label=f"{time_text(whole / NS_PER_MS)} of {what} time by {over}, callers above what they call",
        head=(over, "per step", "share"), rows=tuple(rows),
    )  # fmt: skip
