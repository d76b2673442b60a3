"""Answers to queries on the terminal and as JSON, and which tables there are."""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.contract.run_folder import SCHEMA
from stepscope.report.terminal import fits, name_text, plain_table, print_fitting
from stepscope.tables.schema import TABLES
from stepscope.tables.sql import Answer

_MAX_ROWS = 100
_MAX_WIDTH = 60
_NARROW = 32


def print_answer(answer: Answer, out: Console, *, most: int = _MAX_ROWS) -> None:
    """Print the first rows of an answer, and how to get all where there are more."""
    rows = list(islice(answer.rows, most + 1))
    table = _table(answer, rows[:most], out, name_width=_MAX_WIDTH)
    if not fits(table, out):
        table = _table(answer, rows[:most], out, name_width=_NARROW)
    last_first = [name_text(name).plain for name in answer.columns[:0:-1]]
    print_fitting(table, out, least_needed=last_first, elsewhere="select fewer, or --csv - or --json - for all")
    if len(rows) > most:
        out.print(f"the first {most} rows; --csv - or --json - gives all")


def _table(answer: Answer, rows: Sequence[Sequence[Any]], out: Console, *, name_width: int) -> Table:
    table = plain_table(out, *(name_text(name).plain for name in answer.columns))
    table.columns[0].no_wrap = True
    for i, column in enumerate(table.columns):
        if any(isinstance(row[i], str) for row in rows):
            column.justify = "left"
    for row in rows:
        table.add_row(*(_cell(value, name_width) for value in row))
    return table


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return an answer as a JSON object, one object per row."""
    rows = [dict(zip(answer.columns, map(_json_value, row), strict=True)) for row in answer.rows]
    return {"schema": SCHEMA, "columns": list(answer.columns), "rows": rows}


def print_tables(out: Console, names: Iterable[str] = TABLES) -> None:
    """Print every table with its columns."""
    for name in names:
        schema = TABLES[name]
        out.print(Text(name, style="bold").append(f"  {schema.meaning}", style="not bold"))
        table = plain_table(out, "  column", "type", "unit", "meaning")
        for column in table.columns[1:]:
            column.justify, column.no_wrap = "left", False
        for c in schema.columns:
            table.add_row(f"  {c.name}", c.dtype, c.unit, c.meaning)
        out.print(table)


def _cell(value: Any, name_width: int) -> Text:
    if value is None:
        return Text("")
    if isinstance(value, float | Decimal):
        return Text(f"{value:,.3f}")
    return Text(str(value)) if isinstance(value, int) else name_text(str(value), width=name_width)


def _json_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
