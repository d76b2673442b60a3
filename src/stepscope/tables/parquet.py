"""Tables as Parquet, by pyarrow: types, units and meanings go along."""

import io
from collections.abc import Iterator

from stepscope.tables.table import Table


def table_parquet(table: Table) -> Iterator[bytes]:
    """Yield a table as the bytes of a Parquet file."""
    found = table.arrow()  # says so where pyarrow is missing
    from pyarrow import parquet

    out = io.BytesIO()
    texts = [column.name for column in table.schema.columns if column.dtype == "text"]
    parquet.write_table(found, out, compression="zstd", use_dictionary=texts)  # numbers seldom repeat
    yield out.getvalue()
