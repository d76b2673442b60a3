"""Write docs/trace-columns.md from the schema, or with --check tell whether it is current."""

import sys

from schema_page import write_or_check

from stepscope.trace.table import ARGS, DENSE, ArgColumn

HEAD = """\
# Columns of a trace

After this page you know which fields of a trace's events are read, and under which name the source code has them. Made
from `src/stepscope/trace/table.py` by `tools/write_trace_columns.py`; do not edit.

One row per event of `traceEvents`, in the order of the file. Strings are numbers into one list of distinct strings.
Times are whole nanoseconds, exact.

## In every row

"""

ARGS_HEAD = """
## Arguments

Pairs of event row and value, for the events that have them. The last of duplicate keys counts; `null` counts as absent.
Values of another kind (INT, TEXT, FLOAT) are left out and counted.

"""


def page() -> str:
    """Return the text of the page."""
    dense = "".join(f"- `{one.name}` {_kind(one.dtype, one.unit)}: {one.meaning}\n" for one in DENSE)
    return HEAD + dense + ARGS_HEAD + "".join(map(_arg_line, ARGS))


def _arg_line(column: ArgColumn) -> str:
    keys = ", ".join(f"`{key}`" for key in column.keys if key != column.name)
    kind = _kind(column.kind.name, column.unit)
    return f"- `{column.name}`{f' ({keys})' if keys else ''} {kind}: {column.meaning}\n"


def _kind(dtype: str, unit: str) -> str:
    return dtype if unit in ("string id", "id", "number") else f"{dtype} {unit}"


if __name__ == "__main__":
    sys.exit(write_or_check("docs/trace-columns.md", page(), description=__doc__))
