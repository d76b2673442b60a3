"""Perfetto traces (`.pftrace`): the scanner's rows of packets to the rows that a JSON trace has.

Tracks and processes are packets too (`scanner/packets.h`). torch writes no categories: calls, Python frames, operators
and ranges are known by their arguments, tracks and names.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.trace.scanner import MARK
from stepscope.trace.table import (
    DEVICE_CALL,
    DEVICE_PROCESS,
    NO_STRING,
    NONE_NS,
    OPERATOR,
    STRING_ID_BASE,
    Columns,
    Int64s,
    SparseColumn,
    only_rows,
)

_MAX_LEVELS = 16
# rows at a time, where new memory for all would take longer than the work
_FEW = 1 << 16
# kinds of marks, as in `scanner/slices.h`
_DURATION, _CLOCK, _COMPRESSED, _LOST_PACKETS = -1, -2, -3, -4
# `COMPUTE AGENT [2] STREAM [1] (GPU)`, `COPY to AGENT [2] THREAD [0] (GPU)`: device and stream or queue, of rocprofv3
_DEVICE_TRACK = re.compile(r"^(?:COMPUTE|COPY to) \w+ \[(\d{1,9})\] (?:STREAM|QUEUE|THREAD) \[(\d{1,18})\]")
_THREAD_TRACK = re.compile(r"^THREAD \d+ \((\d{1,18})\)")
_SYNC_PROCESS = re.compile(r"^GPU \d+$")
_OVERHEAD = "Overhead"
_DRIVER = re.compile(r"^cu[A-Z]")

_Rows = npt.NDArray[np.intp]


class Resolved(NamedTuple):
    """Rows as of a JSON trace, what is to be added to their times, and remarks for the reader."""

    columns: Columns
    args: dict[str, SparseColumn]
    base_ns: int
    notes: tuple[str, ...]


def resolve_packets(
    columns: Columns, args: dict[str, SparseColumn], strings: list[str], marks: list[npt.NDArray[np.void]]
) -> Resolved:
    """Complete the slices, place all rows on processes and threads, and give those without a category one."""
    ph, dur = columns["ph"], columns["dur_ns"]
    ids = {text: number for number, text in enumerate(strings)}

    def text_id(text: str) -> int:
        if text not in ids:
            ids[text] = len(strings)
            strings.append(text)
        return ids[text]

    is_slice = ph == ord("B")
    found = _set_durations(columns, is_slice, marks)
    is_open = is_slice & (dur == NONE_NS)
    tracks = _tracks(columns, strings)
    described = np.flatnonzero((ph == ord("P")) | (ph == ord("T")) | (ph == ord("N")))
    is_process = ph[described] == ord("P")
    _place(columns, np.flatnonzero(is_slice | (ph == ord("i")) | (ph == ord("C"))), tracks)
    uncategorised = np.flatnonzero(is_slice & ~is_open & (columns["cat"] == NO_STRING))
    columns["cat"][uncategorised] = _categories(columns, args, uncategorised, tracks, strings, text_id)
    _place(columns, described, tracks)
    columns["name"][described] = np.where(is_process, text_id("process_name"), text_id("thread_name"))
    columns["ts_ns"][described] = columns["dur_ns"][described] = NONE_NS
    columns["offset"].fill(-1)
    ph[is_slice] = ord("X")
    ph[described] = ord("M")
    columns, args = only_rows(columns, args, ~is_open)
    notes = {
        "slices without an end are left out": int(is_open.sum()),
        "compressed packets are not read": int((found["track"] == _COMPRESSED).sum()),
        "times the recorder reported lost packets": int((found["track"] == _LOST_PACKETS).sum()),
    }
    clock = found["ns"][found["track"] == _CLOCK]
    listed = tuple(f"{count:,} {what}" for what, count in notes.items() if count)
    return Resolved(columns, args, int(clock[0]) if len(clock) else 0, listed)


# The scanner pairs begins and ends of slices as they come (`scanner/slices.h`). What is left of a track whose times run
# backwards is sorted here.


def _set_durations(
    columns: Columns, is_slice: npt.NDArray[np.bool_], marks: list[npt.NDArray[np.void]]
) -> npt.NDArray[np.void]:
    """Set what durations the rows lack, and return the other marks."""
    duration = columns["dur_ns"]
    others = [np.empty(0, MARK)]
    for part in (m[at : at + _FEW] for m in marks for at in range(0, len(m), _FEW)):
        known = part["track"] == _DURATION
        others.append(part[~known])
        duration[part["row"][known]] = part["ns"][known]
    found = np.concatenate(others)
    ends = found[found["track"] >= 0]
    if not len(ends):
        return found
    begins = np.flatnonzero(is_slice & (duration == NONE_NS))
    order = np.argsort(np.append(2 * begins + 1, 2 * ends["row"].astype(np.int64)), kind="stable")
    track = np.append(columns["pid"][begins], ends["track"])[order]
    ts = np.append(columns["ts_ns"][begins], ends["ns"])[order]
    begin, end = _nested(order >= len(begins), track, ts)
    duration[begins[order[begin]]] = ts[end] - ts[begin]
    return found


def _nested(is_end: npt.NDArray[np.bool_], track: Int64s, ts: Int64s) -> tuple[_Rows, _Rows]:
    order = _sorted_places(track)
    if ((np.diff(ts[order]) < 0) & (np.diff(track[order]) == 0)).any():
        order = np.lexsort((ts, track))
    is_end, track = is_end[order], track[order]
    new_track = np.diff(track, prepend=-1) != 0
    number = np.cumsum(new_track) - 1
    open_after = np.cumsum(np.where(is_end, -1, 1))
    open_after -= np.append(0, open_after)[np.flatnonzero(new_track)][number]
    # an end without a begin is a new minimum; the number of a track separates its minima from those before
    step = 2 * len(order) + 2
    lowest = np.minimum(np.minimum.accumulate(open_after - number * step) + number * step, 0)
    level = open_after - lowest + is_end
    stray = is_end & (lowest < np.where(new_track, 0, np.append(0, lowest[:-1])))
    width = int(level.max(initial=0)) + 1
    place = np.where(stray, 0, number * width + level)  # 0 is no level of an open slice
    by_place = _sorted_places(place)
    closed = is_end[by_place[1:]] & ~is_end[by_place[:-1]] & (place[by_place[1:]] == place[by_place[:-1]])
    at = np.flatnonzero(closed)
    return order[by_place[at]], order[by_place[at + 1]]


def _sorted_places(values: Int64s) -> _Rows:
    small = len(values) > 0 and int(values.min()) >= 0 and int(values.max()) < 1 << 16  # numpy counts those
    return np.argsort(values.astype(np.uint16) if small else values, kind="stable")


class _Tracks(NamedTuple):
    """Process and thread of each track by its number, and the names of processes by theirs."""

    pid: Int64s
    tid: Int64s
    process_name: dict[int, str]


def _tracks(columns: Columns, strings: list[str]) -> _Tracks:
    ph, number, above = columns["ph"], columns["pid"], columns["tid"]
    described = np.flatnonzero((ph == ord("P")) | (ph == ord("T")) | (ph == ord("N")))
    size = 1 + max(int(number[ph != ord("X")].max(initial=0)), int(above[described].max(initial=0)))
    pid, tid = np.zeros(size, np.int64), np.zeros(size, np.int64)
    known, parent = np.zeros(size, bool), np.zeros(size, np.int64)
    parent[number[described]] = above[described]
    given = described[ph[described] != ord("N")]
    pid[number[given]], tid[number[given]] = columns["ts_ns"][given], columns["dur_ns"][given]
    known[number[given]] = True
    names: dict[int, str] = {}
    for row in given[ph[given] == ord("P")].tolist():
        if columns["name"][row] != NO_STRING:
            names[int(columns["ts_ns"][row])] = strings[columns["name"][row]]
    for row in described[ph[described] == ord("N")].tolist():
        of = int(number[row])
        up, levels = int(parent[of]), 0
        while up and not known[up] and levels < _MAX_LEVELS:
            up, levels = int(parent[up]), levels + 1
        name = int(columns["name"][row])
        text = strings[name] if name != NO_STRING else ""
        device, thread = _DEVICE_TRACK.match(text), _THREAD_TRACK.match(text)
        pid[of] = int(device.group(1)) if device else pid[up]
        tid[of] = STRING_ID_BASE + name if name != NO_STRING else tid[up]
        if device or thread:
            tid[of] = int(device.group(2) if device else thread.group(1) if thread else 0)
    return _Tracks(pid, tid, names)


def _place(columns: Columns, rows: _Rows, tracks: _Tracks) -> None:
    for part in (rows[at : at + _FEW] for at in range(0, len(rows), _FEW)):
        number = columns["pid"][part]
        columns["pid"][part], columns["tid"][part] = tracks.pid[number], tracks.tid[number]


def _categories(
    columns: Columns,
    args: dict[str, SparseColumn],
    rows: _Rows,
    tracks: _Tracks,
    strings: list[str],
    text_id: Callable[[str], int],
) -> npt.NDArray[np.int32]:
    """Return the categories that Kineto would have given to slices that have none."""
    names = columns["name"][rows]
    used = np.flatnonzero(np.bincount(names + 1)) - 1
    texts = [strings[i] if i != NO_STRING else "" for i in used.tolist()]
    calls, others = (np.zeros(len(strings) + 1, np.int32) for _ in range(2))  # by name; the last is no string
    calls[used] = [text_id("cuda_driver" if _DRIVER.match(text) else "cuda_runtime") for text in texts]
    others[used] = [text_id("cpu_op" if OPERATOR.match(text) else "user_annotation") for text in texts]
    others[used] = np.where([DEVICE_CALL.match(text) is not None for text in texts], calls[used], others[used])
    out = others[names]
    is_call = _has(args, "cbid", rows)
    out[is_call] = calls[names[is_call]]
    out[_has(args, "python_id", rows)] = text_id("python_function")
    for pid, name in tracks.process_name.items():
        if DEVICE_PROCESS.search(name):
            out[columns["pid"][rows] == pid] = NO_STRING
        elif _SYNC_PROCESS.match(name) or name == _OVERHEAD:
            out[columns["pid"][rows] == pid] = text_id("overhead" if name == _OVERHEAD else "cuda_sync")
    return out


def _has(args: dict[str, SparseColumn], name: str, rows: _Rows) -> npt.NDArray[np.bool_]:
    if name not in args or not len(rows):
        return np.zeros(len(rows), bool)
    has = np.zeros(1 + max(int(rows[-1]), int(args[name].rows[-1])), bool)
    has[args[name].rows] = True
    return has[rows]
