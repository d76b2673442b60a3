"""Does a table fit the terminal? Titles are broken first, then the columns that are needed least are left out."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from stepscope.report.text.terminal import plain_table

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


def fits(table: Table, out: Console) -> bool:
    """Return whether a table is no wider than the terminal; a pipe is as wide as it has to be."""
    return out.soft_wrap or Measurement.get(out, out.options.update(width=10_000), table).maximum <= out.width


def _title(column: Column) -> str:
    return column.header.plain if isinstance(column.header, Text) else str(column.header)


def _broken_title(column: Column) -> Text:
    """Return a column's title, on two lines where that makes the column narrower."""
    title = _title(column)
    widest = max((len(str(cell)) for cell in column.cells), default=0)
    middle = [i for i, letter in enumerate(title) if letter in " _" and 0 < i < len(title) - 1]
    if len(title) <= widest or not middle:
        return Text(title)
    at = min(middle, key=lambda i: abs(i - len(title) / 2))
    first = title[:at] if title[at] == " " else title[: at + 1]
    return Text(f"{first}\n{title[at + 1 :]}")


def _rebuilt(table: Table, kept: Sequence[tuple[Column, Text]], out: Console) -> Table:
    """Return the table with some of its columns."""
    rebuilt = plain_table(out)
    for column, title in kept:
        rebuilt.add_column(title, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow)
    cells = [list(column.cells) for column, _ in kept]
    for i, row in enumerate(table.rows):
        rebuilt.add_row(*(column[i] for column in cells), style=row.style)
    return rebuilt
