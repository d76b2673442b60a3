"""Numbers as text that is small: whole numbers to differences to varints, all columns gzipped, as base64.

    [1000, 1003, 1010]  ->  differences 1000 3 7  ->  zigzag 2000 6 14  ->  bytes d0 0f 06 0e

The page undoes it with `DecompressionStream` and a loop (`js/unpack.js`).
"""

import base64
import gzip
import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.report.html.data import Grid, ReportData, Slices

ROUNDED_NS = 100
"""times of slices are multiples of this"""
DELAY_NS = 1_000
"""delays of launches are multiples of this"""
_FINE_CELLS = 100_000
_FINE_LEVELS, _COARSE_LEVELS = 4000, 64
"""steps of a grid's colour between its 5th and 95th percentile, for small grids and for large ones"""
_MIN_QUANTUM_NS = 1_000

_Columns = dict[str, bytes]


def packed(data: ReportData) -> str:
    """Return the page's data as base64 text: a length, a JSON header with the offsets, the columns."""
    columns: _Columns = {}
    header: dict[str, Any] = {
        "report": data.report,
        "trust": list(data.trust),
        "calibration": data.calibration,
        "trees": data.code_trees,
        "pictures": data.pictures,
        "grid": None,
        "slices": None,
    }
    if data.grid is not None:
        header["grid"] = _grid(data.grid, columns)
    if data.slices is not None:
        header["slices"] = _slices(data.slices, columns)
    header["more"] = [_slices(s, columns, prefix=f"{k}.") for k, s in enumerate(data.more_slices)]
    header["columns"] = _offsets(columns)
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    body = struct.pack("<I", len(text)) + text + b"".join(columns.values())
    return base64.b64encode(gzip.compress(body, 6, mtime=0)).decode()


def varints(values: npt.ArrayLike) -> bytes:
    """Return whole numbers of at least 0 as little-endian base-128 varints.

    >>> varints([1, 127, 128, 300]).hex()
    '017f8001ac02'
    """
    left = np.asarray(values, np.uint64)
    if not len(left):
        return b""
    size = np.ones(len(left), np.int64)
    for k in range(1, 10):
        size += left >= np.uint64(1 << (7 * k))
    at = np.concatenate(([0], np.cumsum(size)))
    out = np.zeros(int(at[-1]), np.uint8)
    for k in range(int(size.max())):
        has = size > k
        more = np.where(size[has] > k + 1, 0x80, 0).astype(np.uint8)
        out[at[:-1][has] + k] = ((left[has] >> np.uint64(7 * k)) & np.uint64(0x7F)).astype(np.uint8) | more
    return out.tobytes()


def zigzag(values: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Return 0, -1, 1, -2, ... as 0, 1, 2, 3, ..."""
    v = np.asarray(values, np.int64)
    return ((v << 1) ^ (v >> 63)).astype(np.uint64)


def _deltas(values: npt.NDArray[Any]) -> bytes:
    return varints(zigzag(np.diff(values.astype(np.int64), prepend=0)))


def _grid(grid: Grid, columns: _Columns) -> dict[str, Any]:
    quanta = []
    for k, group in enumerate(grid.group_ns):
        quantum = _quantum_ns(group)
        quanta.append(quantum)
        missing = np.isnan(group)
        levels = np.where(missing, 0, np.rint(np.nan_to_num(group) / quantum) + 1)
        columns[f"grid{k}"] = varints(levels.reshape(-1))
    return {"ranks": list(grid.ranks), "steps": list(grid.steps), "quantum_ns": quanta}


def _quantum_ns(group: npt.NDArray[np.float64]) -> float:
    """Return the rounding of one group's times; extremes keep their size, so that one cannot flatten the rest."""
    known = group[~np.isnan(group)]
    if not len(known):
        return float(_MIN_QUANTUM_NS)
    low, high = np.percentile(known, [5, 95])
    levels = _FINE_LEVELS if group.size <= _FINE_CELLS else _COARSE_LEVELS
    return float(max(_MIN_QUANTUM_NS, round((high - low) / levels)))


def _slices(s: Slices, columns: _Columns, *, prefix: str = "") -> dict[str, Any]:
    start, end = s.start_ns // ROUNDED_NS, (s.start_ns + s.dur_ns + ROUNDED_NS - 1) // ROUNDED_NS
    what = list(dict.fromkeys(s.matched.what))
    index = {text: i for i, text in enumerate(what)}
    packed_columns = {
        "rank": _deltas(s.rank),
        "kind": varints(s.kind),
        "start": _deltas(start),
        "dur": varints(end - start),
        "wait": varints(s.wait_ns // ROUNDED_NS),
        "name": varints(s.name),
        "match": _deltas(s.match),
        "last": varints(s.matched.last_rank),
        "launch": varints(s.launch + 1),
        "delay": varints(np.where(s.delay_ns < 0, 0, s.delay_ns // DELAY_NS + 1)),
        "what": varints([index[text] for text in s.matched.what]),
    }
    columns |= {prefix + name: column for name, column in packed_columns.items()}
    return {
        "prefix": prefix,
        "step": s.step,
        "ranks": list(s.ranks),
        "span": s.span_ns // ROUNDED_NS,
        "unit_ns": ROUNDED_NS,
        "delay_ns": DELAY_NS,
        "names": list(s.names),
        "launches": [list(one) for one in s.launches],
        "what": what,
        "notes": list(s.notes),
    }


def _offsets(columns: _Columns) -> dict[str, list[int]]:
    out, at = {}, 0
    for name, column in columns.items():
        out[name] = [at, len(column)]
        at += len(column)
    return out
