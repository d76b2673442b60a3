"""Cached tables of an unchanged run, for queries.

    .stepscope/rank00000.pt.trace.json.gz.tables                    JSON: key, warnings, and the tables that exist
    .stepscope/rank00000.pt.trace.json.gz.tables.events.parquet     one of them

The JSON lists each file by size, times and sampled content. Needs nothing heavy: DuckDB reads Parquet without help.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cache_files import content_key, is_trusted_file, write_trusted_file
from stepscope.document.cache import KeptPlace, is_worth_keeping
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.tables.table import Table

# A longer table is made from the traces' own cache about as fast as it is read again.
MAX_ROWS = 4_000_000


@dataclass(frozen=True)
class KeptTables:
    """Cached tables of a run."""

    #: a rank could not be read
    is_partial: bool
    #: what of the run was not read
    warnings: tuple[str, ...]
    #: Parquet, by the name of the table
    files: Mapping[str, Path]


def found_tables(place: KeptPlace, names: Iterable[str]) -> KeptTables | None:
    """Return the named tables, None unless all are cached."""
    kept = place.found()
    if kept is None:
        return None
    files = {name: _file(place, name) for name in names}
    if not all(is_trusted_file(f) and kept["tables"].get(name) == content_key(f) for name, f in files.items()):
        return None
    return KeptTables(kept["is_partial"], tuple(kept["warnings"]), files)


def keep_tables(
    place: KeptPlace,
    tables: "Mapping[str, Table]",
    *,
    is_partial: bool,
    warnings: list[str],
    key: dict[str, Any] | None,
    raw_bytes: int,
) -> None:
    """Add the tables to those that are cached of the same run."""
    if not is_worth_keeping(key, raw_bytes=raw_bytes):
        return
    from stepscope.tables.table import table_parquet

    listed = dict((place.found(key) or {"tables": {}})["tables"])
    for name, table in tables.items():
        path = _file(place, name)
        if len(table) <= MAX_ROWS:
            write_trusted_file(path, table_parquet(table))
            listed[name] = content_key(path)
    parts = {"is_partial": is_partial, "warnings": warnings, "tables": listed}
    place.keep(parts, key=key, raw_bytes=raw_bytes)


def _file(place: KeptPlace, name: str) -> Path:
    return place.path.with_name(f"{place.path.name}.{name}.parquet")
