"""Perfetto traces (`.pftrace`): the scanner's rows of packets to the rows that a JSON trace has.

Begin and end of a slice are two packets, and tracks, processes and clocks are packets too (`scanner/packets.h`). torch
writes no categories: calls, Python frames, operators and ranges are known by their arguments, tracks and names.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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


def resolve_packets(columns: Columns, args: dict[str, SparseColumn], strings: list[str]) -> Resolved:
    """Pair the slices, place all rows on processes and threads, and give those without a category one."""
    ph = columns["ph"]
    ids = {text: number for number, text in enumerate(strings)}

    def text_id(text: str) -> int:
        if text not in ids:
            ids[text] = len(strings)
            strings.append(text)
        return ids[text]

    clock = columns["ts_ns"][ph == ord("K")]
    slices = np.flatnonzero((ph == ord("B")) | (ph == ord("E")))
    begins, ends = _paired(ph[slices] == ord("E"), columns["pid"][slices], columns["ts_ns"][slices])
    columns["dur_ns"][slices[begins]] = columns["ts_ns"][slices[ends]] - columns["ts_ns"][slices[begins]]
    paired = np.zeros(len(ph), bool)
    paired[slices[begins]] = True
    notes = _notes(ph, num_open=int((ph == ord("B")).sum()) - len(begins))
    tracks = _tracks(columns, strings)
    on_track = paired | (ph == ord("i")) | (ph == ord("C"))
    described = np.flatnonzero((ph == ord("P")) | (ph == ord("T")) | (ph == ord("N")))
    _place(columns, np.flatnonzero(on_track), tracks)
    uncategorised = np.flatnonzero(paired & (columns["cat"] == NO_STRING))
    columns["cat"][uncategorised] = _categories(columns, args, uncategorised, tracks, strings, text_id)
    is_process = ph[described] == ord("P")
    _place(columns, described, tracks)
    columns["name"][described] = np.where(is_process, text_id("process_name"), text_id("thread_name"))
    columns["ts_ns"][described] = columns["dur_ns"][described] = NONE_NS
    columns["offset"] = np.full(len(ph), -1, np.int32)
    keep = on_track | (ph == ord("X"))
    ph[paired] = ord("X")
    ph[described] = ord("M")
    keep[described] = True
    columns, args = only_rows(columns, args, keep)
    return Resolved(columns, args, int(clock[0]) if len(clock) else 0, notes)


def _notes(ph: npt.NDArray[np.uint8], *, num_open: int) -> tuple[str, ...]:
    counts = {
        "slices without an end are left out": num_open,
        "compressed packets are not read": int((ph == ord("Z")).sum()),
        "times the recorder reported lost packets": int((ph == ord("L")).sum()),
    }
    return tuple(f"{count:,} {what}" for what, count in counts.items() if count)


# Begins and ends. Most writers put them in the order of time: an end belongs to the last open begin of its track. torch
# writes all begins of a kind and then their ends in the same order, where slices that touch would be paired wrongly.


def _paired(is_end: npt.NDArray[np.bool_], track: Int64s, ts: Int64s) -> tuple[_Rows, _Rows]:
    """Return the places of the begins that have an end, and of their ends."""
    begins = _in_blocks(is_end, track, ts)
    ends = begins + _run_lengths(is_end)[begins]
    left = np.ones(len(is_end), bool)
    left[begins] = left[ends] = False
    rest = np.flatnonzero(left)
    nested = _nested(is_end[rest], track[rest], ts[rest])
    return np.append(begins, rest[nested[0]]), np.append(ends, rest[nested[1]])


def _run_lengths(is_end: npt.NDArray[np.bool_]) -> Int64s:
    edges = np.flatnonzero(np.diff(is_end, prepend=~is_end[:1], append=~is_end[-1:]))
    return np.repeat(np.diff(edges), np.diff(edges))


def _in_blocks(is_end: npt.NDArray[np.bool_], track: Int64s, ts: Int64s) -> _Rows:
    """Return the begins whose ends follow in a block, in the same order: one and its end, or blocks against time."""
    length = _run_lengths(is_end)
    candidates = np.flatnonzero(~is_end)
    partner = candidates + length[candidates]
    there = partner < len(is_end)
    candidates, partner = candidates[there], partner[there]
    fits = length[partner] == length[candidates]
    fits &= (track[partner] == track[candidates]) & (ts[partner] >= ts[candidates])
    first = np.flatnonzero(np.diff(candidates, prepend=-2) > 1)  # of each block
    if not len(first):
        return candidates
    whole = np.logical_and.reduceat(fits, first)
    # a single one needs no order
    backwards = np.append(0, np.cumsum(np.diff(ts) < 0))
    begin, size = candidates[first], length[candidates[first]]
    last = np.minimum(begin + 2 * size - 1, len(ts) - 1)
    whole &= (size == 1) | (backwards[last] > backwards[begin])
    return candidates[np.repeat(whole, np.diff(first, append=len(candidates)))]


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
    number = columns["pid"][rows]
    columns["pid"][rows], columns["tid"][rows] = tracks.pid[number], tracks.tid[number]


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
    used, back = np.unique(names, return_inverse=True)
    texts = [strings[i] if i != NO_STRING else "" for i in used.tolist()]
    calls = [text_id("cuda_driver" if _DRIVER.match(text) else "cuda_runtime") for text in texts]
    others = [text_id("cpu_op" if OPERATOR.match(text) else "user_annotation") for text in texts]
    out = np.array(others, np.int32)[back]
    is_call = np.array([DEVICE_CALL.match(text) is not None for text in texts], bool)[back] | _has(args, "cbid", rows)
    out[is_call] = np.array(calls, np.int32)[back][is_call]
    out[_has(args, "python_id", rows)] = text_id("python_function")
    for pid, name in tracks.process_name.items():
        if DEVICE_PROCESS.search(name):
            out[columns["pid"][rows] == pid] = NO_STRING
        elif _SYNC_PROCESS.match(name) or name == _OVERHEAD:
            out[columns["pid"][rows] == pid] = text_id("overhead" if name == _OVERHEAD else "cuda_sync")
    return out


def _has(args: dict[str, SparseColumn], name: str, rows: _Rows) -> npt.NDArray[np.bool_]:
    return np.isin(rows, args[name].rows) if name in args else np.zeros(len(rows), bool)
