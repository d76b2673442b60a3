"""One table of a run: columns as NumPy arrays, and the same as Arrow where pyarrow is installed."""

import csv
import io
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.document.rows import Column, TableSchema
from stepscope.errors import UnknownNameError, UsageError, did_you_mean
from stepscope.records import ArrayRecord, dataclass
from stepscope.units import printable

_MAX_HTML_ROWS = 20
_MAX_NAMED = 8
_NUMPY = {"int64": np.int64, "float64": np.float64, "bool": np.bool_, "text": np.int32}


@dataclass(frozen=True, eq=False, repr=False)
class Cells(ArrayRecord):
    """The values of one column."""

    #: numbers; for a text its place in `texts`
    values: npt.NDArray[Any]
    #: the distinct texts; None for a column of numbers
    texts: tuple[str, ...] | None = None
    #: where nothing is known; None where every row has a value
    missing: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Table(ArrayRecord):
    """A table of a run. `table["dur_ns"]` is a NumPy array; `table.arrow()` the whole as Arrow."""

    schema: TableSchema
    cells: Mapping[str, Cells]

    def __len__(self) -> int:
        return len(self.cells[self.schema.columns[0].name].values)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(column.name for column in self.schema.columns)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self.cells:
            raise UnknownNameError(f"{self.schema.name} has no column {name!r}; {did_you_mean(name, self.columns)}")
        cells = self.cells[name]
        if cells.texts is not None:
            place = cells.values if cells.missing is None else np.where(cells.missing, len(cells.texts), cells.values)
            return np.array([*cells.texts, None], object)[place]
        return cells.values if cells.missing is None else np.ma.MaskedArray(cells.values, cells.missing)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, each as a dictionary by column; an unknown value is None."""
        columns = [self[name].tolist() for name in self.columns]
        return (dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True))

    def head(self, count: int = 5) -> "Table":
        """Return the first rows as a table."""
        return Table(
            self.schema,
            {
                name: Cells(c.values[:count], c.texts, None if c.missing is None else c.missing[:count])
                for name, c in self.cells.items()
            },
        )

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame."""
        _needed("pandas")
        return self.arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the table as a polars DataFrame."""
        return _needed("polars").from_arrow(self.arrow())

    def __repr__(self) -> str:
        more = f", ... ({len(self.columns)} columns)" if len(self.columns) > _MAX_NAMED else ""
        return f"<Table {self.schema.name}: {len(self):,} rows of {', '.join(self.columns[:_MAX_NAMED])}{more}>"

    def _repr_html_(self) -> str:
        from html import escape  # only in a notebook

        head = "".join(f'<th title="{escape(c.meaning)}">{escape(c.name)}</th>' for c in self.schema.columns)
        shown = [self[name][:_MAX_HTML_ROWS] for name in self.columns]
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(_shown(v))}</td>" for v in row) + "</tr>" for row in zip(*shown, strict=True)
        )
        more = len(self) - _MAX_HTML_ROWS
        rest = f"<p>and {more:,} rows more</p>" if more > 0 else ""
        return f"<table><tr>{head}</tr>{rows}</table>{rest}"

    def arrow(self) -> Any:
        """Return the table as a `pyarrow.Table`; texts are dictionary-encoded, fields carry unit and meaning."""
        pa = pyarrow_module()
        fields, arrays = [], []
        for column in self.schema.columns:
            array = _arrow_array(pa, self.cells[column.name])
            about = {"unit": column.unit, "meaning": column.meaning}
            fields.append(pa.field(column.name, array.type, nullable=column.null, metadata=about))
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={"meaning": self.schema.meaning}))


def table_of(schema: TableSchema, columns: Mapping[str, Cells | npt.NDArray[Any]]) -> Table:
    """Return a table of whole columns, in the order and with the types of its schema."""
    if set(columns) != {c.name for c in schema.columns}:
        raise ValueError(f"{schema.name}: the columns are not those of the schema: {sorted(columns)}")
    return Table(schema, {c.name: _typed(c, columns[c.name]) for c in schema.columns})


def table_of_rows(schema: TableSchema, rows: Iterable[Any]) -> Table:
    """Return a table of few rows, each with its values as attributes; None is unknown."""
    listed = list(rows)
    return table_of(schema, {c.name: _of_values(c, [getattr(row, c.name) for row in listed]) for c in schema.columns})


def known(values: npt.NDArray[Any], where: npt.NDArray[np.bool_], *, texts: Sequence[str] | None = None) -> Cells:
    """Return a column that has a value only `where` it is known."""
    return Cells(values, None if texts is None else tuple(texts), None if where.all() else ~where)


def _of_values(column: Column, values: Sequence[Any]) -> Cells:
    where = np.array([v is not None and v == v for v in values], bool)  # a NaN is unknown too
    if column.dtype == "text":
        codes: dict[str, int] = {}
        texts = [",".join(map(str, v)) if isinstance(v, tuple | list) else str(v) for v in values]
        places = [codes.setdefault(text, len(codes)) if ok else 0 for text, ok in zip(texts, where, strict=True)]
        return known(np.array(places, np.int32), where, texts=tuple(codes))
    numbers = [v if ok else 0 for v, ok in zip(values, where, strict=True)]
    return known(np.array(numbers, _NUMPY[column.dtype]), where)


def _typed(column: Column, given: Cells | npt.NDArray[Any]) -> Cells:
    cells = given if isinstance(given, Cells) else Cells(given)
    if (cells.texts is not None) != (column.dtype == "text"):
        raise ValueError(f"{column.name}: the cells have to be {column.dtype}")
    if cells.missing is not None and not column.null:
        raise ValueError(f"{column.name}: must not be empty")
    return Cells(cells.values.astype(_NUMPY[column.dtype], copy=False), cells.texts, cells.missing)


def _arrow_array(pa: Any, cells: Cells) -> Any:
    kind = pa.from_numpy_dtype(cells.values.dtype)
    values = _bits(cells.values) if cells.values.dtype == np.bool_ else np.ascontiguousarray(cells.values)
    there = None if cells.missing is None else pa.py_buffer(_bits(~cells.missing))
    array = pa.Array.from_buffers(kind, len(cells.values), [there, pa.py_buffer(values)])
    return array if cells.texts is None else pa.DictionaryArray.from_arrays(array, _arrow_texts(pa, cells.texts))


def _arrow_texts(pa: Any, texts: Sequence[str]) -> Any:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)])
    if ends[-1] >= 1 << 31:
        return pa.array(texts, pa.string())
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def _bits(values: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(values, bitorder="little")


def _shown(value: Any) -> str:
    return "" if value is None or value is np.ma.masked else printable(str(value))


def pyarrow_module() -> Any:
    """Return pyarrow; a `UsageError` where it is not installed."""
    return _needed("pyarrow", install="'stepscope[sql]'")


def _needed(name: str, *, install: str | None = None) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} is not installed: pip install {install or name}") from error


# Tables as CSV that no spreadsheet takes for formulas: names come from traces, and traces are untrusted.

_ROWS_AT_ONCE = 50_000
_ROWS_OF_ANSWER = 100  # whose values may be large


def _safe_text(text: str) -> str:
    """Return a text that a spreadsheet shows as it is; what would begin a formula gets a quote before it.

    >>> safe_text("=cmd()"), safe_text("aten::mm")
    ("'=cmd()", 'aten::mm')
    """
    if text[:1].isalnum():
        return text
    # spreadsheets skip spaces and invisible letters before a formula, and take its wide signs too
    first = next((c for c in text if c.isprintable() and not c.isspace()), "")
    is_formula = text.startswith(("\t", "\r", "\n")) or unicodedata.normalize("NFKC", first) in tuple("=+-@")
    return "'" + text if is_formula else text


def table_csv(table: Table) -> Iterator[bytes]:
    """Yield a table as CSV, piece by piece; an unknown value is an empty cell."""
    yield _lines([table.columns]).encode()
    columns = [_cells(table.cells[name]) for name in table.columns]
    for first in range(0, len(table), _ROWS_AT_ONCE):
        rows = zip(*(column[first : first + _ROWS_AT_ONCE] for column in columns), strict=True)
        yield _lines(rows).encode(errors="replace")


def answer_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[bytes]:
    """Yield the answer to a query as CSV, piece by piece."""
    lines = chain([[_safe_text(name) for name in columns]], ([_cell(value) for value in row] for row in rows))
    while piece := list(islice(lines, _ROWS_OF_ANSWER)):
        yield _lines(piece).encode(errors="replace")


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows(rows)  # lines end in CR LF, so that a CR in a name is quoted
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return _safe_text(str(value).lower() if isinstance(value, bool) else str(value))


def _cells(cells: Cells) -> list[Any]:
    listed = cells.values.tolist()
    if cells.texts is not None:
        safe = [_safe_text(text) for text in cells.texts]
        listed = [safe[i] for i in listed] if safe else [""] * len(listed)
    elif cells.values.dtype == bool:
        listed = [("false", "true")[value] for value in listed]
    if cells.missing is None:
        return listed
    return ["" if missing else value for value, missing in zip(listed, cells.missing.tolist(), strict=True)]


# Tables as Parquet, by pyarrow: types, units and meanings go along.


def table_parquet(table: Table) -> Iterator[bytes]:
    """Yield a table as the bytes of a Parquet file."""
    found = table.arrow()  # says so where pyarrow is missing
    from pyarrow import parquet

    out = io.BytesIO()
    texts = [column.name for column in table.schema.columns if column.dtype == "text"]
    parquet.write_table(found, out, compression="zstd", use_dictionary=texts)  # numbers seldom repeat
    yield out.getvalue()
