"""Source lines and modules with what they cost, on the terminal: numbers on the left, source text on the right.

line  device    bwd   host   step  saves
  33    3.59   2.60   8.49  2.7 %   7.25     x = x + self.o(...)

Zero is left blank. Lines of one function that lie near each other are printed with what is between them.
"""

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.text import Text

from stepscope.analyze.account import Account
from stepscope.document.report import CodeRow, CodeView
from stepscope.records import dataclass
from stepscope.report.terminal import ELSEWHERE, name_text, print_indented
from stepscope.run.side_files import SourceText
from stepscope.units import NS_PER_MS, printable

# The numbers next to a source line: which columns a run needs, and how they are written.

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
        """Return the columns that fit next to the source, and the titles of those that do not."""
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


def _columns_of(rows: Sequence[CodeRow]) -> Columns:
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


_MIN_PCT = 0.1
MIN_SOURCE_WIDTH = 40
_MAX_SHOWN = 60
_MAX_WIDTH = 400
_NO_SOURCE = "(source not recorded)"
_KEYS = {
    "device": lambda row: row.device_ns + row.comm_ns,
    "host": lambda row: row.host_ns,
    "exposed": lambda row: row.exposed_ns,
    "saving": lambda row: -1.0 if row.saving_ns is None else row.saving_ns,
}


def print_code(
    account: Account,
    view: CodeView,
    out: Console,
    *,
    modules: bool = False,
    sort: str | None = None,
    everything: bool = False,
) -> None:
    """Print lines in the order of the source, or sorted; or modules as a tree, or sorted."""
    rows = view.modules if modules else view.lines
    shown = [row for row in rows if everything or row.step_pct is None or row.step_pct >= _MIN_PCT]
    ranks = view.costs.ranks
    over = f"mean of {len(ranks)} ranks" if len(ranks) > 1 else f"rank {ranks[0]}"
    text = f"  ms per recorded step, {over}"
    if account.step:
        recorded_ns = max(account.step.profiled_ns, view.costs.total.largest_ns)  # what shares of the step are of
        text += f", {recorded_ns / NS_PER_MS:.2f} ms"
        if account.step.unprofiled_ns:
            slower = account.step.step_ns < recorded_ns
            unprofiled = f"without the profiler {account.step.step_ns / NS_PER_MS:.2f} ms"
            text += f"; {unprofiled if slower else 'no profiler overhead detected'}"
    out.print(name_text(account.run.name, style="bold").append(text, style="not bold"))
    columns, gone = _columns_of(rows), tuple[str, ...]()
    if not out.soft_wrap:
        columns, gone = columns.within(out.width - MIN_SOURCE_WIDTH, needed="expos" if sort == "exposed" else None)
    if not shown:
        out.print("no module took part" if modules else "no line took part")
    elif sort:
        _print_sorted(shown, sort, columns, out, most=None if everything else _MAX_SHOWN)
    elif modules:
        _tree(shown, columns, out)
    else:
        for file in dict.fromkeys(row.file for row in shown):
            own = sorted((row for row in shown if row.file == file), key=lambda row: row.line)
            for block in _blocks(own):
                _print_title(f"{file}  {block[0].function}", out)
                out.print(Text(columns.head("line"), style="dim"))
                _block(block, columns, account.run.source, out)
    _notes(view, rows, shown, out)
    if gone:
        out.print(Text(f"not shown for width: {', '.join(gone)}; {ELSEWHERE}", style="dim"))


def _block(block: Sequence[CodeRow], columns: Columns, source: SourceText, out: Console) -> None:
    kept = source.lines(block[0].file) or ()
    texts = [kept[row.line - 1] for row in block if row.source is not None]
    indent = min((len(text) - len(text.lstrip()) for text in texts), default=0)
    for i, row in enumerate(block):
        text = kept[row.line - 1][indent:].rstrip() if row.source is not None else _NO_SOURCE
        _print_row(columns.cells(row, str(row.line)), f"{text}{_inexact(row)}", out)
        if kept and i + 1 < len(block):
            _print_between(kept[row.line : block[i + 1].line - 1], row.line + 1, indent, columns, out)


def _blocks(rows: Sequence[CodeRow]) -> Iterable[list[CodeRow]]:
    block: list[CodeRow] = []
    for row in rows:
        if block and row.function != block[-1].function:
            yield block
            block = []
        block.append(row)
    if block:
        yield block


def _print_between(texts: Sequence[str], first: int, indent: int, columns: Columns, out: Console) -> None:
    if len(texts) > 3:
        out.print(Text(columns.blank("...").rstrip(), style="dim"))
        return
    for number, text in enumerate(texts, start=first):
        _print_row(columns.blank(str(number)), text[indent:].rstrip(), out, style="dim")


def _print_sorted(rows: Sequence[CodeRow], sort: str, columns: Columns, out: Console, *, most: int | None) -> None:
    ordered = sorted(rows, key=_KEYS[sort], reverse=True)
    _print_title(f"by {sort}", out)
    out.print(Text(columns.head(None), style="dim"))
    for row in ordered[:most]:
        where = f"{row.owner}  {row.source or _NO_SOURCE}{_inexact(row)}" if row.file else str(row.module)
        _print_row(columns.cells(row, None), where, out)
    if most is not None and len(ordered) > most:
        out.print(f"and {len(ordered) - most} more with --all")


def _tree(rows: Sequence[CodeRow], columns: Columns, out: Console) -> None:
    order = {row.module: i for i, row in enumerate(rows)}
    by_path = {row.module: row for row in rows}

    def place(path: str) -> tuple[int, ...]:
        parts = path.split(".")
        return tuple(order.get(".".join(parts[: i + 1]), len(order)) for i in range(len(parts)))

    out.print(Text(columns.head(None), style="dim"))
    for path in sorted((p for p in by_path if p), key=place):
        parts = path.split(".")
        around = sum(".".join(parts[:i]) in by_path for i in range(1, len(parts)))
        name = parts[-1] if around else path
        _print_row(columns.cells(by_path[path], None), "  " * around + name, out)


def _inexact(row: CodeRow) -> str:
    if row.line_to == row.line:
        return ""
    return f"  [after line {row.line}]" if not row.line_to else f"  [between lines {row.line} and {row.line_to}]"


def _print_title(text: str, out: Console) -> None:
    out.print()
    out.print(_cut(printable(text, width=_MAX_WIDTH), out.width, out), style="bold")


def _print_row(cells: str, text: str, out: Console, *, style: str = "") -> None:
    line = Text(cells, style=style)
    line.append("  ").append_text(_cut(printable(text, width=_MAX_WIDTH), max(10, out.width - len(cells) - 2), out))
    line.rstrip()
    out.print(line, soft_wrap=True)


def _cut(text: str, width: int, out: Console) -> Text:
    made = Text(text)
    made.truncate(width, overflow="ellipsis" if out.encoding.lower().startswith("utf") else "crop")
    return made


def _notes(view: CodeView, rows: Sequence[CodeRow], shown: Sequence[CodeRow], out: Console) -> None:
    out.print()
    host, device = view.costs.unowned_host_share, view.costs.unowned_device_share
    shares = [(host, "host"), (device, "device")]
    said = " and ".join(f"{100 * share:.1f} % of {what}" for share, what in shares if share is not None)
    lines = [f"Unattributed: {said} time"] if said else []
    lines.append("a line's times include what it called, so they do not add up")
    if any(row.saving_ns is not None for row in rows):
        lines.append("saves: by replay of the step with the line removed (stepscope whatif RUN --without OWNER)")
    if not view.costs.exact_lines:
        lines.append("lines are those where functions begin: this recording lacks the executing lines")
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} with less than {_MIN_PCT} % of the step are left out; --all shows them")
    for line in lines:
        print_indented(out, Text(line, style="dim"), first="", indent="  ")
