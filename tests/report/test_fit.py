"""Tables on a terminal of 80 columns: the key column and every name stay whole, and what is left out is said."""

import io

from rich.console import Console
from rich.table import Table

from stepscope.report.terminal import PlainConsole, plain_table, print_fitting

WIDTH = 80


def terminal(width: int = WIDTH, *, pipe: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return PlainConsole(file=file, width=width, highlight=False, soft_wrap=pipe, safe_box=True), file


def table_of(out: Console, *titles: str) -> Table:
    table = plain_table(out, *titles)
    table.add_row("the_name_of_the_row", *("123456.78" for _ in titles[1:]))
    return table


def test_titles_are_broken_before_a_column_is_left_out() -> None:
    out, file = terminal(62)
    print_fitting(table_of(out, "name", "forward_pass", "backward_pass", "x"), out, least_needed=("x",))
    assert "forward_" in file.getvalue() and "backward_" in file.getvalue()
    assert "not shown" not in file.getvalue()


def test_least_needed_columns_go_first_and_are_named() -> None:
    out, file = terminal(48)
    print_fitting(table_of(out, "name", "a", "b", "c"), out, least_needed=("b", "a", "c"))
    said = file.getvalue()
    assert "not shown for width: b; a wider terminal or --json shows all" in " ".join(said.split())
    assert "the_name_of_the_row" in said and said.count("123456.78") == 2


def test_pipe_gets_all_columns() -> None:
    out, file = terminal(20, pipe=True)
    print_fitting(table_of(out, "name", "a", "b", "c"), out, least_needed=("b", "a", "c"))
    assert "not shown" not in file.getvalue()
