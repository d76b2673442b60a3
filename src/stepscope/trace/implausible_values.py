"""Plausibility checks: the one place where values of a file become columns that others compute with.

Arguments have a range in the schema. Times have none that holds for every file, but all events of one file were written
by one process within one window, so each file tells its own range:

- A window leaves no gap in its middle. Whatever the job waits for, a step's range, the call that blocks and the kernel
  it waits for go on meanwhile. So the starts and ends of events lie close together, or under two events at least.
- A gap that at most one event spans, that is longer than a minute and longer than all that lies on its larger side,
  separates what was recorded from what cannot belong to it: a start or a duration with a wrong digit, a clock of
  another unit.
- Few events behind such a gap are in quarantine: left out and counted. Many are a clock that was set while it recorded;
  those stay, and a note says how far it jumped.

Files are judged one by one: ranks whose clocks lie hours apart are as good as any.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.trace.table import ARGS, NONE_NS, ArgKind, Int64s, SparseColumn

# ends and differences of times within these stay within 64 bits; the last time is in the year 2116
MIN_TIME_NS, MAX_TIME_NS, MAX_DURATION_NS = -(1 << 60), 1 << 62, 1 << 61
_MIN_GAP_NS = 60_000_000_000
# stray in a file of any size
_MAX_STRAY_EVENTS = 3
# of so many events one is looked at first, which is enough in next to all files
_SAMPLE = 64
_TIMED, _METADATA = ord("X"), ord("M")

Columns = dict[str, npt.NDArray[Any]]
Bools = npt.NDArray[np.bool_]


class PlausibleColumns(NamedTuple):
    """The columns without what cannot be true, and how much that was."""

    columns: Columns
    args: dict[str, SparseColumn]
    far_times: int
    bad_args: int
    notes: tuple[str, ...]


def drop_implausible(columns: Columns, args: dict[str, SparseColumn], *, base_ns: int) -> PlausibleColumns:
    """Return the table with the file's base time added, without times and arguments that cannot be true."""
    before = len(columns["ph"])
    notes: tuple[str, ...] = ()
    if _is_one_short_window(columns, base_ns):
        _add_base(columns, base_ns)
    else:
        columns, args, notes = _without_far_times(columns, args, base_ns)
    args, bad_args, named = _in_range(args)
    return PlausibleColumns(columns, args, before - len(columns["ph"]), bad_args, (*notes, *named))


def _is_one_short_window(columns: Columns, base_ns: int) -> bool:
    ts, dur = columns["ts_ns"], columns["dur_ns"]
    if not len(ts):
        return False
    end = int(ts.max()) + max(int(dur.max()), 0)
    start = end - _MIN_GAP_NS
    if base_ns + start < MIN_TIME_NS or base_ns + end >= MAX_TIME_NS:
        return False
    return np.count_nonzero(ts < start) == np.count_nonzero(ts == NONE_NS)


def _add_base(columns: Columns, base_ns: int) -> None:
    if base_ns:
        untimed = np.flatnonzero(columns["ts_ns"] == NONE_NS)
        columns["ts_ns"] += base_ns
        columns["ts_ns"][untimed] = NONE_NS


def _without_far_times(
    columns: Columns, args: dict[str, SparseColumn], base_ns: int
) -> tuple[Columns, dict[str, SparseColumn], tuple[str, ...]]:
    within = _within_64_bits(columns, base_ns)
    timed = columns["ts_ns"] != NONE_NS
    fits = 2 * np.count_nonzero(within & timed) >= np.count_nonzero(timed)
    if not fits:  # the base time itself is what is wrong
        base_ns, within = 0, _within_64_bits(columns, 0)
    notes: tuple[str, ...] = () if fits else ("baseTimeNanoseconds does not fit the times; they are as in the file",)
    columns, args = _only(columns, args, within)
    _add_base(columns, base_ns)
    near, jump_ns = _near_the_rest(columns)
    columns, args = _only(columns, args, near)
    if jump_ns:
        notes += (f"times jump by {jump_ns / 1e9:,.0f} s within the trace: its clock was set",)
    return columns, args, notes


def _within_64_bits(columns: Columns, base_ns: int) -> Bools:
    ts, dur = columns["ts_ns"], columns["dur_ns"]
    timed = (ts >= MIN_TIME_NS - base_ns) & (ts < MAX_TIME_NS - base_ns) | (ts == NONE_NS)
    return timed & (dur < MAX_DURATION_NS)


def _near_the_rest(columns: Columns) -> tuple[Bools, int]:
    ts, dur, ph = columns["ts_ns"], columns["dur_ns"], columns["ph"]
    all_near = np.ones(len(ts), bool)
    timed = np.flatnonzero(ph == _TIMED)
    if not len(timed):
        return all_near, 0
    start = ts[timed]
    end = start + dur[timed]
    low, high, jump_ns = int(start.min()), int(end.max()), 0
    if _may_have_gap(start, end):
        stray, low, high, jump_ns = _stray(start, end)
        all_near[timed[stray]] = False
    far = _MIN_GAP_NS + high - low
    # What has no duration (memory, flows) is judged by the window that the others span.
    other = (ph != _TIMED) & (ph != _METADATA) & (ts != NONE_NS)
    all_near[other & ((ts < low - far) | (ts > high + far))] = False
    return all_near, jump_ns


def _may_have_gap(start: Int64s, end: Int64s) -> bool:
    """Return whether there can be a gap in which nothing begins or ends; without sorting, which takes much memory.

    A gap longer than two cells of the time axis leaves one of them empty.
    """
    low, high = int(start.min()), int(end.max())
    cells = 2 * (high - low) // _MIN_GAP_NS + 1
    if high - low <= _MIN_GAP_NS:
        return False
    if cells > 1 << 20:
        return True
    is_used = np.zeros(cells, bool)
    for moments in (start[::_SAMPLE], end[::_SAMPLE], start, end):
        is_used[(moments - low) // (_MIN_GAP_NS // 2)] = True
        if is_used.all():
            return False
    return True


def _stray(start: Int64s, end: Int64s) -> tuple[Bools, int, int, int]:
    """Return which intervals lie behind a gap with few others, the range of those that do not, and the longest gap
    behind which there are many.
    """
    moment = np.concatenate((start, end))
    event = np.concatenate((np.arange(len(start)), np.arange(len(end))))
    change = np.repeat([1, -1], len(start))
    order = np.lexsort((-change, moment))
    moment, event, open_after = moment[order], event[order], np.cumsum(change[order])
    gap = np.diff(moment)
    cuts = np.flatnonzero((gap > _MIN_GAP_NS) & (open_after[:-1] < 2))
    cluster = np.searchsorted(cuts, np.arange(len(moment)), side="left")
    members = np.bincount(cluster)
    main = int(members.argmax())
    first, last = np.searchsorted(cluster, main, side="left"), np.searchsorted(cluster, main, side="right") - 1
    low, high = int(moment[first]), int(moment[last])
    few = members <= max(2 * _MAX_STRAY_EVENTS, 0.02 * len(moment))
    few &= bool(not few[main] and 2 * members[main] > len(moment))  # a handful of events tells no window
    begins, ends = moment[np.append(0, cuts + 1)], moment[np.append(cuts, len(moment) - 1)]
    away = np.maximum(begins - high, low - ends)
    far = away > max(_MIN_GAP_NS, high - low)
    # A clock that was set leaves whole stretches on either side, none of them few.
    jump_ns = int(away[far & ~few].max(initial=0))
    stray = np.zeros(len(start), bool)
    stray[event[(few & far)[cluster]]] = True
    kept = ~stray
    return stray, int(start[kept].min()), int(end[kept].max()), jump_ns


def _only(columns: Columns, args: dict[str, SparseColumn], keep: Bools) -> tuple[Columns, dict[str, SparseColumn]]:
    if keep.all():
        return columns, args
    number = np.cumsum(keep) - 1
    kept = {name: column[keep] for name, column in columns.items()}
    sparse = {}
    for name, arg in args.items():
        there = keep[arg.rows]
        if there.any():
            sparse[name] = SparseColumn(number[arg.rows[there]].astype(arg.rows.dtype), arg.values[there])
    return kept, sparse


def _in_range(args: dict[str, SparseColumn]) -> tuple[dict[str, SparseColumn], int, list[str]]:
    out, bad, named = dict(args), 0, []
    for column in ARGS:
        arg = args.get(column.name)
        if arg is None or column.kind is not ArgKind.INT or not len(arg.values):
            continue
        low, high = int(arg.values.min()), int(arg.values.max())
        if column.low <= low and high <= column.high:
            if low >= -(1 << 31) and high < 1 << 31:
                out[column.name] = SparseColumn(arg.rows, arg.values.astype(np.int32, copy=False))
            continue
        sound = (arg.values >= column.low) & (arg.values <= column.high)
        count = int((~sound).sum())
        bad += count
        named.append(f"{column.keys[0]}: {count:,} values outside {column.low:,} to {column.high:,}, taken as unknown")
        if sound.any():
            out[column.name] = SparseColumn(arg.rows[sound], arg.values[sound])
        else:
            del out[column.name]
    return out, bad, named
