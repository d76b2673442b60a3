"""Write docs/trace-columns.md from the schema, or with --check tell whether it is current."""

import sys

from schema_page import write_or_check

from stepscope.trace.table import ARGS, DENSE, ArgColumn, DenseColumn

HEAD = """\
# Columns of a trace

Made from `src/stepscope/trace/table.py` by `tools/write_trace_columns.py`; do not edit.

A trace is a table with one row per event of `traceEvents` that could be read, in the order of the file. Strings are
numbers into one list of distinct strings. Times are whole nanoseconds, exact: the file's decimal microseconds are
never floats on the way.
"""

DENSE_HEAD = """
## In every row

| column | dtype | unit | meaning |
|---|---|---|---|
"""

ARGS_HEAD = """
## Arguments

Kept as pairs of arrays, event row and value, for the events that have them. A key that comes twice counts with its
last value; `null` counts as absent. `INT` is an integer, also one written in a string (decimal, or hexadecimal after
`0x`) or as a decimal without a remainder. `TEXT` is a string by its content, anything else by its JSON text. `FLOAT` is
a finite number. Values that do not fit are left out and counted.

| column | keys in `args` | kind | unit | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    dense = "".join(map(_dense_line, DENSE))
    args = "".join(map(_arg_line, ARGS))
    return f"{HEAD}{DENSE_HEAD}{dense}{ARGS_HEAD}{args}"


def _dense_line(column: DenseColumn) -> str:
    return f"| `{column.name}` | {column.dtype} | {column.unit} | {column.meaning} |\n"


def _arg_line(column: ArgColumn) -> str:
    keys = ", ".join(f"`{key}`" for key in column.keys)
    return f"| `{column.name}` | {keys} | {column.kind.name} | {column.unit} | {column.meaning} |\n"


if __name__ == "__main__":
    sys.exit(write_or_check("docs/trace-columns.md", page(), description=__doc__))
