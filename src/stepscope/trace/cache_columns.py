"""Could a parser have made these columns? A cache file is input like any other: what indexes an array is checked."""

from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.implausible_values import MAX_DURATION_NS, MAX_TIME_NS, MIN_TIME_NS
from stepscope.trace.schema import ARGS, DENSE, NO_STRING, NONE_NS, STRING_ID_BASE, ArgKind, DenseColumn
from stepscope.trace.table import Quality, SparseColumn

_MAX_COUNT = 1 << 53
_DTYPES = {ArgKind.TEXT: (np.int32,), ArgKind.INT: (np.int32, np.int64), ArgKind.FLOAT: (np.int64,)}


def is_sound(strings: object, columns: dict[str, npt.NDArray[Any]], args: dict[str, SparseColumn]) -> bool:
    """Return whether all columns have their dtypes and lengths, and every id, row and time is within its range."""
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        return False
    count = len(columns["ts_ns"])
    if any(columns[c.name].dtype not in _dtypes(c) or len(columns[c.name]) != count for c in DENSE):
        return False
    texts = all(_within(columns[name], NO_STRING, len(strings) - 1) for name in ("cat", "name"))
    ids = all(_are_ids(columns[name], len(strings)) for name in ("pid", "tid"))
    start, lasts, untimed = columns["ts_ns"], columns["dur_ns"], columns["ph"] != ord("X")
    timed = _within_or_none(start, MIN_TIME_NS, MAX_TIME_NS - 1) and bool((untimed | (start != NONE_NS)).all())
    lasting = _within_or_none(lasts, 0, MAX_DURATION_NS - 1) and bool((untimed | (lasts != NONE_NS)).all())
    return texts and ids and timed and lasting and _args_are_sound(args, count, len(strings))


def _dtypes(column: DenseColumn) -> tuple[np.dtype[Any], ...]:
    dtype = np.dtype(column.dtype)
    return (dtype, np.dtype(np.int32)) if column.name == "offset" else (dtype,)


def sound_quality(found: dict[str, Any]) -> Quality | None:
    """Return the account of damage in a description, None where it is none."""
    said = Quality(**(found | {"notes": tuple(found["notes"])}))
    offset = said.first_bad_offset
    counts = [getattr(said, f.name) for f in fields(Quality) if f.type is int] + ([] if offset is None else [offset])
    sound = all(type(n) is int and 0 <= n <= _MAX_COUNT for n in counts) and type(said.truncated) is bool
    return said if sound and all(isinstance(note, str) for note in said.notes) else None


def _args_are_sound(args: dict[str, SparseColumn], count: int, num_strings: int) -> bool:
    rows = {id(arg.rows): arg.rows for arg in args.values()}  # of which many arguments have the same
    if not all(_are_rows(array, count) for array in rows.values()):
        return False
    for column in ARGS:
        arg = args.get(column.name)
        if arg is None:
            continue
        if arg.values.dtype not in _DTYPES[column.kind] or len(arg.rows) != len(arg.values):
            return False
        low, high = (0, num_strings - 1) if column.kind is ArgKind.TEXT else (column.low, column.high)
        if not _within(arg.values, low, high):
            return False
        if column.kind is ArgKind.FLOAT and not np.isfinite(arg.values.view(np.float64)).all():
            return False
    return True


def _are_rows(rows: npt.NDArray[Any], count: int) -> bool:
    """Return whether they are rows of the table and ascend."""
    return rows.dtype.kind in "iu" and bool((rows[1:] > rows[:-1]).all()) and _within(rows, 0, count - 1)


def _are_ids(column: npt.NDArray[np.int64], num_strings: int) -> bool:
    texts = column[column < STRING_ID_BASE // 2]
    return _within(texts, STRING_ID_BASE, STRING_ID_BASE + num_strings - 1)


def _within_or_none(values: npt.NDArray[np.int64], low: int, high: int) -> bool:
    return bool((((values >= low) & (values <= high)) | (values == NONE_NS)).all())


def _within(values: npt.NDArray[Any], low: int, high: int) -> bool:
    return not len(values) or (low <= int(values.min()) and int(values.max()) <= high)
