"""The pictures of a page as one SVG."""

from collections.abc import Sequence

from stepscope.report.charts import Axis
from stepscope.report.drawing import Drawing
from stepscope.report.sheet import Sheet
from stepscope.units import printable

SIZE, TIME = Axis("size", "bytes", log=True), Axis("time", "ms", log=True)


def sheet_svg(sheet: Sheet) -> str:
    """Return all pictures of a page."""
    drawn = [section.chart for section in sheet.sections if isinstance(section.chart, Drawing)]
    return panels_svg(printable(sheet.title, width=110), drawn)


def panels_svg(title: str, panels: Sequence[Drawing]) -> str:
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
