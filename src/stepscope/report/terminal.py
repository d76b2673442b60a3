"""A console that suits where it prints: colours and boxes on a terminal, plain text in a pipe, ASCII where needed.

Names come from traces and traces are untrusted, so this is the one place where text becomes output: whatever a caller
prints, nothing in it is read as markup, and what steers a terminal is shown as an escape.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper
from typing import IO, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from stepscope.units import ASCII_SIGNS, escaped, printable


class PlainConsole(Console):
    """A console for untrusted text. Colours come from `Text` objects and styles, never from the text."""

    def on_broken_pipe(self) -> None:
        """Raise the error that rich would turn into exit code 1: the command line knows that `head` is no error."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """Return literal text on one line: no markup, no emoji, no highlighting."""
        return super().render_str(escaped(text), **{**options, "markup": False, "emoji": False, "highlight": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is printed, with everything that would steer the terminal as escapes."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
                continue
            text = segment.text if speaks_unicode(self) else segment.text.translate(ASCII_SIGNS)
            if text.isprintable():
                yield Segment(text, segment.style)
            else:
                yield Segment(escaped(text, keep="\n"), segment.style)


def console(file: IO[str] | None = None) -> Console:
    """Return a console for `file` (standard output by default).

    rich looks after NO_COLOR and the terminal's width; a pipe gets a width that no table is cut at. Letters that the
    output cannot hold are replaced: an old code page is no reason to fail.
    """
    out = file or sys.stdout
    if isinstance(out, TextIOWrapper):
        out.reconfigure(errors="replace")
    tty = out.isatty()
    return PlainConsole(file=out, highlight=False, soft_wrap=not tty, width=None if tty else 120, safe_box=True)


def speaks_unicode(c: Console) -> bool:
    """Return whether the output can hold more than ASCII."""
    return c.encoding.lower().replace("-", "").startswith("utf")


def plain_table(c: Console, *columns: str) -> Table:
    """Return an empty table, first column left, the others right; ASCII rules where the output needs them."""
    table = Table(box=box.SIMPLE_HEAD if speaks_unicode(c) else box.ASCII2, pad_edge=False, show_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0)
    return table


def name_text(name: str, *, width: int = 80, style: str = "") -> Text:
    """Return a name from a trace as text that is never read as markup or as an escape sequence."""
    return Text(printable(name, width=width), style=style)


def print_indented(out: Console, text: Text, *, first: str = "", indent: str = "") -> None:
    """Print a paragraph whose lines after the first begin with `indent`; a pipe gets it as one line."""
    if out.soft_wrap:
        out.print(Text(first).append_text(text))
        return
    for i, line in enumerate(text.wrap(out, max(10, out.width - len(indent)))):
        line.rstrip()
        out.print(Text(indent if i else first).append_text(line))


# Does a table fit the terminal? Titles are broken first, then the columns that are needed least are left out.

ELSEWHERE = "a wider terminal or --json shows all"


def print_fitting(table: Table, out: Console, *, least_needed: Iterable[str] = (), elsewhere: str = ELSEWHERE) -> None:
    """Print a table as wide as the terminal at most, and which columns of `least_needed` it left out for that.

    They go in their order. What is in no such list is never left out: where that is too wide, rich wraps it. A pipe
    has no width and gets the whole table.
    """
    if fits(table, out):
        out.print(table)
        return
    kept = [(column, _broken_title(column)) for column in table.columns]
    titles = [_title(column) for column in table.columns]
    gone: list[str] = []
    for title in least_needed:
        if fits(_rebuilt(table, kept, out), out):
            break
        if title in titles:
            last = len(titles) - 1 - titles[::-1].index(title)
            del kept[last], titles[last]
            gone.append(title)
    out.print(_rebuilt(table, kept, out))
    if gone:
        out.print(Text(f"not shown for width: {', '.join(gone)}; {elsewhere}", style="dim"))


def print_table(
    out: Console,
    items: Iterable[Any],
    *columns: tuple[str, Callable[[Any], str | Text]],
    least_needed: Iterable[str] = (),
) -> None:
    """Print a fitting table with a row per item; a column is its title and what makes a cell of an item."""
    table = plain_table(out, *(title for title, _ in columns))
    for item in items:
        table.add_row(*(cell(item) for _, cell in columns))
    print_fitting(table, out, least_needed=least_needed)


def number_text(value: float | None, form: str) -> str:
    """Return a number in this format, a question mark where it is unknown."""
    return "?" if value is None else f"{value:{form}}"


def fits(table: Table, out: Console) -> bool:
    """Return whether a table is no wider than the terminal; a pipe is as wide as it has to be."""
    return out.soft_wrap or Measurement.get(out, out.options.update(width=10_000), table).maximum <= out.width


def _title(column: Column) -> str:
    return column.header.plain if isinstance(column.header, Text) else str(column.header)


def _broken_title(column: Column) -> Text:
    title = _title(column)
    widest = max((len(str(cell)) for cell in column.cells), default=0)
    middle = [i for i, letter in enumerate(title) if letter in " _" and 0 < i < len(title) - 1]
    if len(title) <= widest or not middle:
        return Text(title)
    at = min(middle, key=lambda i: abs(i - len(title) / 2))
    first = title[:at] if title[at] == " " else title[: at + 1]
    return Text(f"{first}\n{title[at + 1 :]}")


def _rebuilt(table: Table, kept: Sequence[tuple[Column, Text]], out: Console) -> Table:
    rebuilt = plain_table(out)
    for column, title in kept:
        rebuilt.add_column(title, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow)
    cells = [list(column.cells) for column, _ in kept]
    for i, row in enumerate(table.rows):
        rebuilt.add_row(*(column[i] for column in cells), style=row.style)
    return rebuilt
