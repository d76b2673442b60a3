"""Whatever is printed, nothing in it is markup and nothing in it steers the terminal; and there is no other way out."""

import io

import pytest
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stepscope.report.terminal import PlainConsole, console, plain_table

HOSTILE = "[red]x[/red] [/foo] \x1b[31m \x1b]52;c;AAAA\x07 \x9b2J \u202e\u2066 :smile:"


def printed(what: object, *, terminal: bool = False) -> str:
    file = io.StringIO()
    out = PlainConsole(file=file, force_terminal=terminal, color_system=None, width=400, highlight=False)
    out.print(what)
    return file.getvalue()


def table_of(cell: object) -> Table:
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(cell)  # type: ignore[arg-type]
    return table


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "what",
    [HOSTILE, Text(HOSTILE), table_of(HOSTILE), table_of(Text(HOSTILE)), Panel(HOSTILE), Group(HOSTILE, Text(HOSTILE))],
    ids=["str", "text", "cell", "text cell", "panel", "group"],
)
def test_names_neither_steer_the_terminal_nor_are_markup(what: object, terminal: bool) -> None:
    shown = printed(what, terminal=terminal)
    assert all(c.isprintable() or c == "\n" for c in shown), shown
    assert "[red]x[/red] [/foo] \\x1b[31m" in shown
    assert "\\u202e" in shown and ":smile:" in shown


def test_console_and_its_tables_are_plain() -> None:
    file = io.StringIO()
    out = console(file)
    table = plain_table(out, "a")
    table.add_row("[bold]b[/bold]")
    out.print(table)
    assert isinstance(out, PlainConsole)
    assert "[bold]b[/bold]" in file.getvalue()
