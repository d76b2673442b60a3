"""On which track of its rank does an event lie, and what is the track called?"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.report.timeline.filter import step_rows
from stepscope.run.device_work import DEVICE_KINDS
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s


class _Role(IntEnum):
    """What a track holds, in the order in which they are shown."""

    STEPS = 0
    STREAM = 1
    RANGES = 2
    WAITS = 3
    THREAD = 4


def track_of_row(rank: Rank, rows: npt.NDArray[np.intp]) -> tuple[Int64s, list[str]]:
    """Return the number of each row's track, and the names of the tracks, in the order they are shown."""
    trace, kinds = rank.trace, rank.kinds[rows]
    role = np.full(len(rows), _Role.THREAD, np.int64)
    role[np.isin(kinds, DEVICE_KINDS)] = _Role.STREAM
    role[kinds == EventKind.DEVICE_ANNOTATION] = _Role.RANGES
    role[kinds == EventKind.DEVICE_SYNC] = _Role.WAITS
    role[np.isin(rows, step_rows(rank))] = _Role.STEPS
    of_rank = role == _Role.STEPS
    pid, tid = np.where(of_rank, 0, trace["pid"][rows]), np.where(of_rank, 0, trace["tid"][rows])
    keys, back, count = np.unique(np.stack((role, pid, tid)), axis=1, return_inverse=True, return_counts=True)
    busiest_thread_first = np.where(keys[0] == _Role.THREAD, -count, 0)
    shown = np.lexsort((keys[2], keys[1], busiest_thread_first, keys[0]))
    place = np.empty(len(shown), np.int64)
    place[shown] = np.arange(len(shown))
    labels = _thread_labels(rank)
    several = len(np.unique(keys[1][keys[0] == _Role.STREAM])) > 1
    names = [_track_name(rank, _Role(r), p, t, labels, several) for r, p, t in keys[:, shown].T.tolist()]
    return place[back.reshape(-1)], names


def _track_name(
    rank: Rank, role: _Role, pid: int, tid: int, labels: dict[tuple[int, int], str], several_devices: bool
) -> str:
    if role is _Role.STEPS:
        return "steps"
    if role is _Role.THREAD:
        own = rank.trace.id_text(tid)
        return labels.get((pid, tid)) or (f"thread {own}" if own.lstrip("-").isdigit() else own)
    stream = f"stream {rank.trace.id_text(tid)}"
    if several_devices:
        stream += f" of device {rank.trace.id_text(pid)}"
    return {_Role.RANGES: f"ranges on {stream}", _Role.WAITS: f"waits on {stream}"}.get(role, stream)


def _thread_labels(rank: Rank) -> dict[tuple[int, int], str]:
    """Return what the trace calls each thread; the last name counts."""
    trace = rank.trace
    rows = np.flatnonzero(rank.kinds == EventKind.META)
    label = trace.arg("label").at(rows, missing=-1)
    found = {}
    for row, text in zip(rows.tolist(), label.tolist(), strict=True):
        if text >= 0 and trace.text(int(trace["name"][row])) == "thread_name":
            found[int(trace["pid"][row]), int(trace["tid"][row])] = (trace.text(text) or "").strip()
    return found
