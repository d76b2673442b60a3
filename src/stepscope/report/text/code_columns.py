"""The numbers beside a source line: which columns a run needs, and how they are written."""

from collections.abc import Callable, Sequence

from stepscope.dataclass import dataclass
from stepscope.document.code import CodeRow
from stepscope.units import NS_PER_MS

_LINE_WIDTH = 5
_WIDTH = 7
_MIN_NS = 5_000
_LEFT_OUT_FIRST = ("bwd", "expos", "comm")

Value = Callable[[CodeRow], float | None]


@dataclass(frozen=True)
class Columns:
    """The columns of one listing."""

    shown: tuple[tuple[str, Value], ...]

    def within(self, width: int, *, needed: str | None = None) -> tuple["Columns", tuple[str, ...]]:
        """Return the columns that fit beside the source, and the titles of those that do not."""
        gone: list[str] = []
        for title in _LEFT_OUT_FIRST:
            if _LINE_WIDTH + _WIDTH * (len(self.shown) - len(gone)) <= width:
                break
            if title != needed and any(title == t for t, _ in self.shown):
                gone.append(title)
        return Columns(tuple((t, v) for t, v in self.shown if t not in gone)), tuple(gone)

    def head(self, first: str | None) -> str:
        """Return the titles, `first` above the line numbers where there are any."""
        return self._line(first, [title for title, _ in self.shown])

    def cells(self, row: CodeRow, first: str | None) -> str:
        """Return the numbers of one row."""
        return self._line(first, [_text(title, value(row)) for title, value in self.shown])

    def blank(self, first: str) -> str:
        """Return a row without numbers."""
        return self._line(first, [""] * len(self.shown))

    def _line(self, first: str | None, cells: Sequence[str]) -> str:
        start = "" if first is None else f"{first:>{_LINE_WIDTH}}"
        return start + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def columns_of(rows: Sequence[CodeRow]) -> Columns:
    """Return the columns in which any row has something; those of the host and of the step are always there.

    `bwd` is the part in backward passes: of device time where there is any, else of the host's.
    """
    on_device = any(row.device_ns for row in rows)
    backward: Value = (lambda row: row.backward_device_ns) if on_device else (lambda row: row.backward_host_ns)
    each: list[tuple[str, Value]] = [
        ("device", lambda row: row.device_ns),
        ("host", lambda row: row.host_ns),
        ("comm", lambda row: row.comm_ns),
        ("expos", lambda row: row.exposed_ns),
        ("step", lambda row: row.step_pct),
        ("saves", lambda row: row.saving_ns),
    ]
    each.insert(1 if on_device else 2, ("bwd", backward))
    always = ("host", "step")
    return Columns(tuple((t, v) for t, v in each if t in always or any(v(row) for row in rows)))


def _text(title: str, value: float | None) -> str:
    if value is None:
        return ""
    if title == "step":
        return f"{value:.1f}%"
    if title != "saves" and value < _MIN_NS:
        return ""
    in_ms = value / NS_PER_MS
    return f"{in_ms:.2f}" if in_ms < 100 else f"{in_ms:.1f}" if in_ms < 10_000 else f"{in_ms:.0f}"
