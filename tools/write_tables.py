"""Write docs/tables.md from the schema, or with --check tell whether it is current."""

import sys

from schema_page import write_or_check

from stepscope.tables.schema import TABLES, Column, TableSchema

HEAD = """\
# Tables of a run

Made from `src/stepscope/tables/schema.py` by `tools/write_tables.py`; do not edit.

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
"""


def page() -> str:
    """Return the text of the page."""
    return HEAD + "".join(map(_section, TABLES.values()))


def _section(table: TableSchema) -> str:
    lines = "".join(map(_line, table.columns))
    meaning = table.meaning[0].upper() + table.meaning[1:]
    return f"\n## {table.name}\n{meaning}.\n\n| column | dtype | unit | meaning |\n|---|---|---|---|\n{lines}"


def _line(column: Column) -> str:
    empty = "; may be empty" if column.null else ""
    return f"| `{column.name}` | {column.dtype} | {column.unit} | {column.meaning}{empty} |\n"


if __name__ == "__main__":
    sys.exit(write_or_check("docs/tables.md", page(), description=__doc__))
