"""Source lines and modules with what they cost, on the terminal: numbers to the left, the source as it stands.

line  device    bwd   host   step  saves
  33    3.59   2.60   8.49  2.7 %   7.25     x = x + self.o(...)

Zero is left blank. Lines of one function that lie near each other are printed with what is between them.
"""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from stepscope.analyze.account import Account
from stepscope.document.code import CodeRow, CodeView
from stepscope.report.fit import ELSEWHERE
from stepscope.report.text.code_columns import Columns, columns_of
from stepscope.report.text.terminal import name_text, print_indented
from stepscope.run.source_text import SourceText
from stepscope.units import NS_PER_MS, printable

MIN_PCT = 0.1
MIN_SOURCE_WIDTH = 40
_MAX_BETWEEN = 3
_MAX_SHOWN = 60
_MAX_WIDTH = 400
_NO_SOURCE = "(source not kept)"
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
    shown = [row for row in rows if everything or row.step_pct is None or row.step_pct >= MIN_PCT]
    _heading(account, view, out)
    columns, gone = columns_of(rows), tuple[str, ...]()
    if not out.soft_wrap:
        columns, gone = columns.within(out.width - MIN_SOURCE_WIDTH, needed="expos" if sort == "exposed" else None)
    if not shown:
        out.print("no module took part" if modules else "no line took part")
    elif sort:
        _print_sorted(shown, sort, columns, out, most=None if everything else _MAX_SHOWN)
    elif modules:
        _tree(shown, columns, out)
    else:
        _print_annotated(shown, columns, account.run.source, out)
    _notes(view, rows, shown, out)
    if gone:
        out.print(Text(f"not shown for width: {', '.join(gone)}; {ELSEWHERE}", style="dim"))


def _heading(account: Account, view: CodeView, out: Console) -> None:
    ranks = view.costs.ranks
    over = f"mean of {len(ranks)} ranks" if len(ranks) > 1 else f"rank {ranks[0]}"
    text = f"  ms per recorded step, {over}"
    if account.step:
        recorded_ns = max(account.step.profiled_ns, view.costs.total.largest_ns)  # what shares of the step are of
        text += f", {recorded_ns / NS_PER_MS:.2f} ms"
        text += (
            f"; without the profiler {account.step.step_ns / NS_PER_MS:.2f} ms" if account.step.unprofiled_ns else ""
        )
    out.print(name_text(account.run.name, style="bold").append(text, style="not bold"))


def _print_annotated(rows: Sequence[CodeRow], columns: Columns, source: SourceText, out: Console) -> None:
    """Print each file's lines in order, the file that takes most first."""
    for file in dict.fromkeys(row.file for row in rows):
        own = sorted((row for row in rows if row.file == file), key=lambda row: row.line)
        for block in _blocks(own):
            _print_title(f"{file}  {block[0].function}", out)
            out.print(Text(columns.head("line"), style="dim"))
            _block(block, columns, source, out)


def _block(block: Sequence[CodeRow], columns: Columns, source: SourceText, out: Console) -> None:
    """Print lines of one function, less what all of them are indented by."""
    kept = source.lines(block[0].file) or ()
    texts = [kept[row.line - 1] for row in block if row.source is not None]
    indent = min((len(text) - len(text.lstrip()) for text in texts), default=0)
    for i, row in enumerate(block):
        text = kept[row.line - 1][indent:].rstrip() if row.source is not None else _NO_SOURCE
        _print_row(columns.cells(row, str(row.line)), f"{text}{_inexact(row)}", out)
        if kept and i + 1 < len(block):
            _print_between(kept[row.line : block[i + 1].line - 1], row.line + 1, indent, columns, out)


def _blocks(rows: Sequence[CodeRow]) -> Iterable[list[CodeRow]]:
    """Yield lines of one function that follow each other."""
    block: list[CodeRow] = []
    for row in rows:
        if block and row.function != block[-1].function:
            yield block
            block = []
        block.append(row)
    if block:
        yield block


def _print_between(texts: Sequence[str], first: int, indent: int, columns: Columns, out: Console) -> None:
    """Print the source between two lines where it is short, else that something is left out."""
    if len(texts) > _MAX_BETWEEN:
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
    """Print modules as a tree: children below their parent, those that take most first."""
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
    """Print what has no owner, what was left out, and what the numbers mean."""
    out.print()
    host, device = view.costs.unowned_host_share, view.costs.unowned_device_share
    shares = [(host, "the host's time"), (device, "device time")]
    said = " and ".join(f"{100 * share:.1f} % of {what}" for share, what in shares if share is not None)
    lines = [f"{said or 'nothing'} has no line; a line's times include what it called, so they do not add up"]
    if any(row.saving_ns is not None for row in rows):
        lines.append("saves: the step without it, by replay (stepscope whatif RUN --without OWNER)")
    if not view.costs.exact_lines:
        lines.append("lines are those where functions begin: this recording does not tell the executing line")
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} with less than {MIN_PCT} % of the step are left out; --all shows them")
    for line in lines:
        print_indented(out, Text(line, style="dim"), first="", indent="  ")
