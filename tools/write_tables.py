"""Write docs/tables.md from the schema, or with --check tell whether it is current."""

import sys

from schema_page import write_or_check

from stepscope.document.rows import SCHEMAS, Column, TableSchema

HEAD = """\
# Tables of a run

Made from `src/stepscope/document/rows.py` by `tools/write_tables.py`; do not edit.

The same tables everywhere: [`stepscope sql`](commands/sql.md), `--csv` and `--parquet` of
[`stepscope export`](commands/export.md), and Python:

    import stepscope

    run = stepscope.load("run/")
    waits = run.table("collectives")
    waits["wait_ns"]           # a NumPy array, masked where a value is unknown; texts are objects, None where unknown
    waits.arrow()              # a pyarrow.Table, its fields with unit and meaning (needs the extra `sql`)
    waits.arrow().to_pandas()  # where pandas is installed

Times are whole nanoseconds; starts are on the clock that all ranks share. A column that may be empty is marked *may be
empty*: there the value is unknown or not of that row, never 0.

The rows of `--json` are the same; the column *JSON* has their keys, with times in milliseconds (`_us`: microseconds)
for nanoseconds. Columns of type json, and the tables at the end, are in JSON only.
"""

COLUMNS = "| column | JSON | dtype | unit | meaning |\n|---|---|---|---|---|\n"


def page() -> str:
    """Return the text of the page."""
    return HEAD + "".join(map(_section, sorted(SCHEMAS.values(), key=lambda table: not table.queried)))


def _section(table: TableSchema) -> str:
    lines = "".join(map(_line, table.columns))
    meaning = table.meaning[0].upper() + table.meaning[1:]
    return (
        f"\n## {table.name}\n{meaning}.\n\n| column | JSON | dtype | unit | meaning |\n|---|---|---|---|---|\n{lines}"
    )


def _line(column: Column) -> str:
    empty = "; may be empty" if column.null else ""
    key = f"`{column.json_key}`" if column.json_key else ""
    return f"| `{column.name}` | {key} | {column.dtype} | {column.unit} | {column.meaning}{empty} |\n"


if __name__ == "__main__":
    sys.exit(write_or_check("docs/tables.md", page(), description=__doc__))
