"""A console that suits where it prints: colours and boxes on a terminal, plain text in a pipe, ASCII where needed."""

import sys
from io import TextIOWrapper
from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.units import printable


class _Pipe(Console):
    """Leaves a closed pipe to the command line, which knows that `head` is no error."""

    def on_broken_pipe(self) -> None:
        """Raise the error that rich would turn into exit code 1."""
        raise BrokenPipeError


def console(file: IO[str] | None = None) -> Console:
    """Return a console for `file` (standard output by default).

    rich looks after NO_COLOR and the terminal's width; a pipe gets a width that no table is cut at. Letters that the
    output cannot hold are replaced: an old code page is no reason to fail.
    """
    out = file or sys.stdout
    if isinstance(out, TextIOWrapper):
        out.reconfigure(errors="replace")
    tty = out.isatty()
    return _Pipe(file=out, highlight=False, soft_wrap=not tty, width=None if tty else 120, safe_box=True)


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
    lines = text.wrap(out, max(10, out.width - len(indent)))
    for i, line in enumerate(lines):
        line.rstrip()
        out.print(Text(indent if i else first).append_text(line))
