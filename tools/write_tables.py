"""Write docs/tables.md from the schema, or with --check tell whether it is current."""

import sys
from collections import Counter

from schema_page import write_or_check

from stepscope.document.rows import SCHEMAS, Column, TableSchema, name_in_ms

HEAD = """\
# Tables of a run

After this page you can query any number of a run with [`stepscope sql`](commands/sql.md), export it with
[`stepscope export`](commands/export.md) (`--csv`, `--parquet`), or use it in Python:

    waits = stepscope.load("run/").table("collectives")
    waits["wait_ns"]           # a NumPy array, masked where a value is unknown
    waits.arrow().to_pandas()  # where pandas is installed

Made from `src/stepscope/document/rows.py` by `tools/write_tables.py`; do not edit.

Times are whole nanoseconds; starts are on the clock that all ranks share. `?`: empty where the value is unknown or not
of that row, never 0. The rows of `--json` are the same with times in milliseconds: `wait_ms` for `wait_ns`. Where a key
differs from that, it is in parentheses; `-`: not in JSON. Columns of type json, and tables marked so, are in JSON only.
"""
#: columns of at least so many tables are described once
COMMON = 4


def page() -> str:
    """Return the text of the page."""
    tables = sorted(SCHEMAS.values(), key=lambda table: not table.queried)
    counts = Counter(column for table in tables for column in table.columns)
    common = [column for column, count in counts.items() if count >= COMMON]
    described: dict[Column, str] = dict.fromkeys(common, "")
    text = HEAD + "\n## Columns of many tables\n" + _rows(common)
    for table in tables:
        text += _section(table, described)
        described |= {column: table.name for column in table.columns if column not in described}
    return text


def _section(table: TableSchema, described: dict[Column, str]) -> str:
    meaning = table.meaning[0].upper() + table.meaning[1:]
    text = f"\n## {table.name}\n{meaning}.{'' if table.queried else ' JSON only.'}\n"
    own = [column for column in table.columns if column not in described]
    for where in dict.fromkeys(described[column] for column in table.columns if column in described):
        names = ", ".join(f"`{column.name}`" for column in table.columns if described.get(column) == where)
        text += f"Also, as in [{where}](#{where}): {names}.\n" if where else f"Also {names}.\n"
    return text + _rows(own) if own else text


def _rows(columns: list[Column]) -> str:
    return "\n" + "".join(map(_line, columns))


def _line(column: Column) -> str:
    key = "" if column.json_key == name_in_ms(column.name) else f" ({column.json_key or '-'})"
    kind = (column.dtype if column.unit in ("", "1") else column.unit) + ("?" if column.null else "")
    return f"- `{column.name}`{key}, {kind}: {column.meaning}\n"


if __name__ == "__main__":
    sys.exit(write_or_check("docs/tables.md", page(), description=__doc__))
