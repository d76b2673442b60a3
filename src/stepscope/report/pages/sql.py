"""Answers to queries as JSON and as a page, and the list of tables."""

import math
from collections.abc import Iterable
from decimal import Decimal
from itertools import islice
from typing import Any

from stepscope.contract.run_folder import SCHEMA
from stepscope.document.rows import TABLES
from stepscope.report.sheet import Section, Sheet, section_of
from stepscope.tables.sql import Answer, held_rows

_MAX_ROWS = 100


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return an answer as a JSON object, one object per row."""
    rows = [dict(zip(answer.columns, map(_plain, row), strict=True)) for row in held_rows(answer.rows)]
    return {"schema": SCHEMA, "columns": list(answer.columns), "rows": rows}


def answer_sheet(answer: Answer, query: str, *, most: int | None = None) -> Sheet:
    """Return the first rows of an answer, and how to get all where there are more."""
    shown = most or _MAX_ROWS
    rows = [tuple(map(_plain, row)) for row in held_rows(islice(answer.rows, shown + 1))]
    columns = [{"title": name, "key": k, "unit": _unit(rows, k)} for k, name in enumerate(answer.columns)]
    notes = (f"the first {shown} rows; --limit, --csv - or --json - gives more",) if len(rows) > shown else ()
    section = Section("rows", "Rows", table={"columns": columns, "rows": rows[:shown]}, most=shown)
    return Sheet("Query", (query,), (), (section,), notes)


def _unit(rows: list[tuple[Any, ...]], column: int) -> str:
    return "text" if any(isinstance(row[column], str) for row in rows) else "number"


def tables_sheet(names: Iterable[str] = TABLES) -> Sheet:
    """Return every table with its columns."""
    sections = [
        section
        for name in names
        for section in section_of(
            name,
            name,
            TABLES[name].meaning,
            [vars(column) for column in TABLES[name].columns],
            ("column", "text", "name"),
            ("type", "text", "dtype"),
            ("unit", "text", "unit"),
            ("meaning", "text", "meaning"),
            most=1000,
        )
    ]
    return Sheet("Tables", (f"{len(sections)} tables",), (), tuple(sections))


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
