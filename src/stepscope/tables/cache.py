"""The tables that queries of an unchanged run asked for, kept beside its traces: the next query reads nothing else.

    .stepscope/rank00000.pt.trace.json.gz.tables                    JSON: key, what was said, which tables there are
    .stepscope/rank00000.pt.trace.json.gz.tables.events.parquet     one of them

Each file is named in the JSON by size, times and sampled content; one that differs is as good as nothing. What is
found needs nothing heavy: DuckDB reads Parquet by itself.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.dataclass import dataclass
from stepscope.document.cache import KeptPlace, is_worth_keeping
from stepscope.trace.cache_place import content_key
from stepscope.trusted_file import is_trusted_file, write_trusted_file

if TYPE_CHECKING:
    from stepscope.tables.table import Table

# A longer table is made from the traces' own cache about as fast as it is read again.
MAX_ROWS = 4_000_000


@dataclass(frozen=True)
class KeptTables:
    """What was kept of a run for queries."""

    #: a rank could not be read
    is_partial: bool
    #: what of the run was not read
    warnings: tuple[str, ...]
    #: Parquet, by the name of the table
    files: Mapping[str, Path]


def found_tables(place: KeptPlace, names: Iterable[str]) -> KeptTables | None:
    """Return the named tables, None where not all were kept of exactly this run."""
    kept = place.found()
    if kept is None:
        return None
    is_partial, warnings, tables = kept.get("is_partial"), kept.get("warnings"), kept.get("tables")
    if not isinstance(is_partial, bool) or not isinstance(warnings, list) or not isinstance(tables, dict):
        return None
    files = {name: _file(place, name) for name in names}
    if not all(isinstance(line, str) for line in warnings) or not all(map(is_trusted_file, files.values())):
        return None
    if not all(name in tables and tables[name] == content_key(path) for name, path in files.items()):
        return None
    return KeptTables(is_partial, tuple(warnings), files)


def keep_tables(
    place: KeptPlace,
    tables: "Mapping[str, Table]",
    *,
    is_partial: bool,
    warnings: list[str],
    key: dict[str, Any] | None,
    raw_bytes: int,
) -> None:
    """Write the tables beside those that are there of the same run."""
    if not is_worth_keeping(key, raw_bytes=raw_bytes):
        return
    from stepscope.tables.table import table_parquet

    before = (place.found(key) or {}).get("tables")
    listed = dict(before) if isinstance(before, dict) else {}
    for name, table in tables.items():
        path = _file(place, name)
        if len(table) <= MAX_ROWS:
            write_trusted_file(path, table_parquet(table))
            listed[name] = content_key(path)
    parts = {"is_partial": is_partial, "warnings": warnings, "tables": listed}
    place.keep(parts, key=key, raw_bytes=raw_bytes)


def _file(place: KeptPlace, name: str) -> Path:
    return place.path.with_name(f"{place.path.name}.{name}.parquet")
