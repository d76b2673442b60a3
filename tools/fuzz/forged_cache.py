"""A cache that fits its trace in every way, key and checksums, but for one value that no parser would have stored."""

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from stepscope.trace import cache, schema
from stepscope.trace.read import read
from stepscope.trace.table import SparseColumn

_HONEST = Path(__file__).parents[2] / "tests" / "data" / "gloo-linear" / "rank00000.pt.trace.json.gz"
_VALUES = (-1, -2, 0, 1, 2**31 - 1, -(2**31), 2**62, -(2**62), 2**63 - 1, -(2**63))


def any_forgery(rng: Random) -> list[Any]:
    """Return which value of which column is forged, and how."""
    dense = [f"dense/{column.name}" for column in schema.DENSE]
    sparse = [f"{part}/{column.name}" for column in schema.ARGS for part in ("rows", "values")]
    return [rng.choice(rng.choice((dense, sparse))), rng.randrange(10_000), rng.choice(_VALUES)]


def forge_cache(target: Path, forgery: list[Any]) -> None:
    """Write the cache `.stepscope/NAME.columns` of the trace NAME; one of an honest trace where NAME is not there."""
    path = target.parent.parent / target.name.removesuffix(".columns")
    gone = not path.exists()
    if gone:
        shutil.copyfile(_HONEST, path)
    trace = read(path)
    part, _, name = forgery[0].partition("/")
    if part == "dense":
        trace = replace(trace, columns={**trace.columns, name: _changed(trace.columns[name], *forgery[1:])})
    elif name in trace.args:
        kept = trace.args[name]
        rows = _changed(kept.rows, *forgery[1:]) if part == "rows" else kept.rows
        values = _changed(kept.values, *forgery[1:]) if part == "values" else kept.values
        trace = replace(trace, args={**trace.args, name: SparseColumn(rows, values)})
    key = cache._key(path)
    assert key is not None
    cache._store(target, trace, key)
    if gone:
        path.unlink()


def _changed(column: Any, row: int, value: int) -> Any:
    changed = column.copy()
    limits = np.iinfo(column.dtype)
    if len(changed):
        changed[row % len(changed)] = min(max(value, limits.min), limits.max)
    return changed
