"""What a page shows: a document, a grid of ranks and steps, and the slices of single steps, packed as text."""

import base64
import gzip
import json
import struct
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.budget import PARTS, RankBudget
from stepscope.analyze.phases import NO_STEP
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.rank import Rank
from stepscope.units import NS_PER_MS


class Launch(NamedTuple):
    """What is known of a kernel's launch besides its time; None is unknown."""

    operator: str | None
    shapes: str | None
    module: str | None
    line: str | None
    stream: int | None


Int64s = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]

# what a step's time is coloured by: the parts of the budget in seven groups
GROUPS = ("compute", "transfer", "wait", "copy", "input", "host", "unknown")

# what a slice is; the first part of a transfer is waiting, as long as `wait_ns` says
KINDS = ("forward", "backward", "optimizer", "other", "transfer", "unmatched", "copy", "range", "idle")
# compute, communication, copies, host: the lanes of a rank from top to bottom
LANE_OF_KIND = (0, 0, 0, 0, 1, 1, 2, 3, 0)

NO_MATCH = -1


@dataclass(frozen=True, eq=False, repr=False)
class Grid(ArrayRecord):
    """Where every step of every rank went."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    #: by group, rank and step; NaN where a rank lacks a step
    group_ns: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class MatchedCollectives(ArrayRecord):
    """Collectives that several ranks took part in. `last_rank` is the rank that started last."""

    #: operation, group and size in words
    what: tuple[str, ...]
    last_rank: Int64s


@dataclass(frozen=True, eq=False, repr=False)
class Slices(ArrayRecord):
    """What ran on the chosen ranks during one step, by rank, lane and start."""

    #: its number, None where no steps were recorded
    step: int | None
    #: the chosen ranks, in the order of the rows
    ranks: tuple[int, ...]
    span_ns: int
    #: index into `ranks`
    rank: Int64s
    #: index into `KINDS`
    kind: Codes
    #: since the earliest beginning of the step on any rank, on the shared clock; may be negative
    start_ns: Int64s
    dur_ns: Int64s
    #: of a transfer: its first part, until the last rank arrived; 0 elsewhere
    wait_ns: Int64s
    #: index into `names`
    name: Int64s
    #: index into `matched`, NO_MATCH where there is none
    match: Int64s
    #: index into `launches`, NO_MATCH where a slice has none
    launch: Int64s
    #: from the call that launched it to its start, -1 where that is unknown
    delay_ns: Int64s
    names: tuple[str, ...]
    launches: tuple[Launch, ...]
    matched: MatchedCollectives
    #: what was left out or rounded, in words
    notes: tuple[str, ...] = ()
    #: when the step began, on the clock of the first of `ranks`; orders several steps
    origin_ns: int = 0

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(ArrayRecord):
    """What ran when: every step in a grid, single steps in slices."""

    grid: Grid | None = None
    #: of the typical step
    slices: Slices | None = None
    #: of other steps, as far as they fit
    more: tuple[Slices, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class PageData(ArrayRecord):
    """Everything on a page."""

    #: the report's document less what pictures and the grid hold, or a sheet
    report: dict[str, Any]
    timeline: Timeline = Timeline()
    #: by name; a picture that has nothing to show is missing
    pictures: dict[str, Any] = field(default_factory=dict)
    #: what opens the page
    sentence: str = ""
    #: how far to trust the report, one line each
    trust: tuple[str, ...] = ()


# Numbers as text that is small: whole numbers to differences to varints, all columns gzipped, as base64.
#
#     [1000, 1003, 1010]  ->  differences 1000 3 7  ->  zigzag 2000 6 14  ->  bytes d0 0f 06 0e
#
# The page undoes it with `DecompressionStream` and a loop (`js/unpack.js`).

# times of slices are multiples of this
_ROUNDED_NS = 100
# delays of launches are multiples of this
_DELAY_NS = 1_000
# steps of a grid's colour between its 5th and 95th percentile, for small grids and for large ones
_FINE_LEVELS, _COARSE_LEVELS = 4000, 64
_MIN_QUANTUM_NS = 1_000

_Columns = dict[str, bytes]


def packed(data: PageData) -> str:
    """Return the page's data as base64 text: a length, a JSON header with the offsets, the columns."""
    columns: _Columns = {}
    grid, slices, more = data.timeline.grid, data.timeline.slices, data.timeline.more
    header: dict[str, Any] = {
        "report": data.report,
        "sentence": data.sentence,
        "trust": list(data.trust),
        "pictures": data.pictures,
        "grid": None if grid is None else _grid(grid, columns),
        "slices": None if slices is None else _slices(slices, columns),
        "more": [_slices(s, columns, prefix=f"{k}.") for k, s in enumerate(more)],
    }
    out, at = {}, 0
    for name, column in columns.items():
        out[name] = [at, len(column)]
        at += len(column)
    header["columns"] = out
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
        levels = np.where(np.isnan(group), 0, np.rint(np.nan_to_num(group) / quantum) + 1)
        columns[f"grid{k}"] = varints(levels.reshape(-1))
    return {"ranks": list(grid.ranks), "steps": list(grid.steps), "quantum_ns": quanta}


def _quantum_ns(group: npt.NDArray[np.float64]) -> float:
    known = group[~np.isnan(group)]
    if not len(known):
        return float(_MIN_QUANTUM_NS)
    low, high = np.percentile(known, [5, 95])
    levels = _FINE_LEVELS if group.size <= 100_000 else _COARSE_LEVELS
    return float(max(_MIN_QUANTUM_NS, round((high - low) / levels)))


def _slices(s: Slices, columns: _Columns, *, prefix: str = "") -> dict[str, Any]:
    start, end = s.start_ns // _ROUNDED_NS, (s.start_ns + s.dur_ns + _ROUNDED_NS - 1) // _ROUNDED_NS
    what = list(dict.fromkeys(s.matched.what))
    index = {text: i for i, text in enumerate(what)}
    packed_columns = {
        "rank": _deltas(s.rank),
        "kind": varints(s.kind),
        "start": _deltas(start),
        "dur": varints(end - start),
        "wait": varints(s.wait_ns // _ROUNDED_NS),
        "name": varints(s.name),
        "match": _deltas(s.match),
        "last": varints(s.matched.last_rank),
        "launch": varints(s.launch + 1),
        "delay": varints(np.where(s.delay_ns < 0, 0, s.delay_ns // _DELAY_NS + 1)),
        "what": varints([index[text] for text in s.matched.what]),
    }
    columns |= {prefix + name: column for name, column in packed_columns.items()}
    return {
        "prefix": prefix,
        "step": s.step,
        "ranks": list(s.ranks),
        "span": s.span_ns // _ROUNDED_NS,
        "origin_ms": s.origin_ns / NS_PER_MS,
        "unit_ns": _ROUNDED_NS,
        "delay_ns": _DELAY_NS,
        "names": list(s.names),
        "launches": [list(one) for one in s.launches],
        "what": what,
        "notes": list(s.notes),
    }


# Where did every step of every rank go, in seven groups?

_GROUP_OF_PART = {
    "forward": "compute", "backward": "compute", "optimizer": "compute", "other_compute": "compute",
    "exposed_transfer": "transfer", "wait": "wait", "pipeline_bubble": "wait", "copy": "copy",
    "data_loading": "input", "launch_gap": "host", "host_sync": "host", "allocator": "host", "host_stall": "host",
    "unknown": "unknown",
}  # fmt: skip


def grid_of(account: Account) -> Grid | None:
    """Return the grid of a run, None where no rank has steps."""
    numbers = [_numbers(view.rank, view.budget) for view in account.ranks]
    steps = sorted({int(n) for mine in numbers for n in mine})
    if not steps:
        return None
    column = {number: i for i, number in enumerate(steps)}
    group_ns = np.full((len(GROUPS), len(numbers), len(steps)), np.nan)
    for row, (mine, view) in enumerate(zip(numbers, account.ranks, strict=True)):
        if view.budget is not None and len(mine):
            out = np.zeros((len(view.budget.part_ns), len(GROUPS)), np.int64)
            for code, part in enumerate(PARTS):
                out[:, GROUPS.index(_GROUP_OF_PART[part])] += view.budget.part_ns[:, code]
            group_ns[:, row, [column[int(n)] for n in mine]] = out.T
    return Grid(tuple(view.rank.rank for view in account.ranks), tuple(steps), group_ns)


def _numbers(rank: Rank, budget: RankBudget | None) -> Int64s:
    if budget is None or not rank.steps.known or (budget.periods.step == NO_STEP).any():
        return np.empty(0, np.int64)
    return rank.steps.number[budget.periods.step]
