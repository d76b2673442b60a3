"""Write docs/trace-columns.md from the schema, or with --check tell whether it is current."""

import argparse
import sys
from pathlib import Path

from stepscope.trace.schema import ARGS, DENSE, ArgColumn, DenseColumn

PAGE = Path(__file__).resolve().parent.parent / "docs" / "trace-columns.md"

HEAD = """\
# Columns of a trace

Made from `src/stepscope/trace/schema.py` by `tools/write_trace_columns.py`; do not edit.

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


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print(f"{PAGE} is not what the schema says: run tools/write_trace_columns.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
