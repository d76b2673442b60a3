"""What ran on the device, which host call launched it, which operator caused it, and in which step."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.errors import TraceError
from stepscope.intervals import Intervals, covered_ns, union
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.steps import Steps
from stepscope.stats.robust import among, distinct, distinct_places, numbered
from stepscope.trace.scanner import call_stack_parents, stacked
from stepscope.trace.table import EventKind, Int64s, Kinds, SparseColumn, Trace, by_string, of_kinds

#     kernel --correlation--> runtime call --external id or enclosing range--> host operator
#                                 |--start--> step
#
# Work launched before the window has no launch event: it is in the window, but in no recorded step.

Rows = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]

# of one rank, over all its devices
MAX_STREAMS = 2_048

# Calls after which device work of their own is expected.
_LAUNCHES = re.compile(
    r"^(cuda|cu|hip)(Ext|Module|Graph)?Launch|^(cuda|cu|hip)(Memcpy|Memset)\w*|^hipExtModuleLaunch|Enqueue"
)


@dataclass(frozen=True, eq=False, repr=False)
class DeviceWork(ArrayRecord):
    """Kernels, copies and sets of one rank, by start. Rows are -1 where there is none."""

    #: in the event table
    row: Rows
    kind: Kinds
    start_ns: Int64s
    end_ns: Int64s
    name: npt.NDArray[np.int32]
    device: Int64s
    stream: Int64s
    #: runtime call that launched it
    launch_row: Rows
    #: innermost host operator around that call
    op_row: Rows
    #: index of the step that launched it, -1 for work from before the window
    step: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.row)

    def intervals(self, *kinds: EventKind) -> Intervals:
        keep = of_kinds(self.kind, kinds)
        return union(self.start_ns[keep], self.end_ns[keep])


DEVICE_KINDS = (EventKind.KERNEL, EventKind.COMM_KERNEL, EventKind.COPY, EventKind.SET)


def device_work(trace: Trace, kinds: Kinds, steps: Steps) -> tuple[DeviceWork, Row]:
    """Return the device's work joined to launches, operators and steps, with what stayed unjoined."""
    row = np.flatnonzero(of_kinds(kinds, DEVICE_KINDS))
    row = row[np.argsort(trace["ts_ns"][row], kind="stable")]
    start = trace["ts_ns"][row]
    launch_row, launches, reused = _launch_rows(trace, kinds, row)
    launched = np.flatnonzero(launch_row >= 0)
    step = np.full(len(row), -1, np.int32)
    step[launched] = steps.of(trace["ts_ns"][launch_row[launched]])
    op_row = np.full(len(row), -1, np.int64)
    op_row[launched] = operators_around(trace, kinds, launch_row[launched])
    work = DeviceWork(
        row=row,
        kind=kinds[row],
        start_ns=start,
        end_ns=start + trace["dur_ns"][row],
        name=trace["name"][row],
        device=_first_of(trace.arg("device").at(row, missing=-1), trace["pid"][row]),
        stream=_first_of(trace.arg("stream").at(row, missing=-1), trace["tid"][row]),
        launch_row=launch_row,
        op_row=op_row,
        step=step,
    )
    count = _num_streams(work)
    if count > MAX_STREAMS:
        raise TraceError(
            f"{trace.path}: work on {count:,} streams, where a rank has a few dozen; at most {MAX_STREAMS:,} are read: "
            "pass the trace of one rank, as the profiler wrote it"
        )
    lost_first, lost_first_ns = _lost_at_start(trace, launches, work)
    counts = Row(
        device_events=len(row),
        # launched before the window, or the launch was not recorded
        without_launch=int((launch_row < 0).sum()),
        # launched, but no host operator around the launch
        without_op=int((op_row[launched] < 0).sum()),
        launches_without_work=int((~among(launches, launch_row)).sum()),
        # launches that share their correlation id with another launch
        reused_correlation=reused,
        # launches before the first with device work: CUDA's driver drops the first records of a session; and the most
        # time that the device can have worked on them
        lost_first=lost_first,
        lost_first_ns=lost_first_ns,
    )
    return work, counts


def _lost_at_start(trace: Trace, launches: Rows, work: DeviceWork) -> tuple[int, int]:
    """Return the launches before the first with device work, and a bound on the time of what they launched.

    What they launched ran between the first of them and the first recorded work that was launched after them, while no
    recorded work ran: their stream had to be done with them.
    """
    launches = launches[np.argsort(trace["ts_ns"][launches], kind="stable")]
    answered = among(launches, work.launch_row)
    lost = int(answered.argmax()) if answered.any() else 0
    # where later launches are without work as well, it is not the start of the session; captured ones have none
    captures = any("BeginCapture" in text for text in trace.strings)
    if not lost or captures or np.count_nonzero(~answered[lost:]) >= lost:
        return 0, 0
    begin = int(trace["ts_ns"][launches[0]])
    end = int(work.start_ns[among(work.launch_row, launches[lost:])].min())
    recorded = covered_ns(union(work.start_ns, work.end_ns), np.array([begin]), np.array([max(begin, end)]))
    return lost, max(end - begin, 0) - int(recorded[0])


# A stream runs one operation after another, and nothing runs before it is launched. Times that contradict this are
# damaged where few do; where many do, the device works differently or has another clock. Healthy traces overlap by
# microseconds.
_MAX_DAMAGED = 0.02
_IMPOSSIBLE_NS = 50_000
# times as long as three quarters of at least three equal operations
_IMPOSSIBLE_TIMES, _MIN_EQUAL = 20, 3
# from the end of an operation to the start of one that waits for it
_HANDOVER_NS = 20_000


def with_possible_times(trace: Trace, work: DeviceWork) -> tuple[Trace, Rows, Rows]:
    """Return the trace with impossible times of device operations corrected, and the rows cut and moved.

    Impossible are a start before the launch or before those launched earlier on the stream, and a duration that the
    stream has no time for; next to these also one many times that of equal operations, which alone may be another
    process on the device. A queued operation that begins when no other ends has
    waited for the damaged one, whose end is then known; else it takes as long as its equals, as soon as its stream is
    free.
    """
    launched = np.flatnonzero(work.launch_row >= 0)
    launch = np.full(len(work), np.iinfo(np.int64).min)
    launch[launched] = trace["ts_ns"][work.launch_row[launched]]
    start, took = work.start_ns.copy(), work.end_ns - work.start_ns
    early = _if_few(np.flatnonzero((launch > start + _IMPOSSIBLE_NS) | _out_of_order(work, launch)), work)
    in_time = np.delete(np.arange(len(work)), early)
    order = in_time[np.lexsort((start[in_time], work.stream[in_time], work.device[in_time]))]
    room = np.full(len(work), np.iinfo(np.int64).max)
    same = (np.diff(work.stream[order]) == 0) & (np.diff(work.device[order]) == 0)
    room[order[:-1][same]] = np.diff(start[order])[same]
    overlong = in_time[(took - room > np.maximum(_IMPOSSIBLE_NS, took // 2))[in_time]]
    overlong = _if_few(overlong, work)
    if not len(early) and not len(overlong):
        return trace, early, overlong
    equal = _equal_operations(trace, work)
    long = np.union1d(overlong, _if_few(np.intersect1d(in_time, _outlasting(work, equal)), work))
    sound = np.setdiff1d(in_time, long)
    waited = _unexplained_starts(trace, work, sound)
    for place in long.tolist():
        usual = np.sort(took[sound[equal[sound] == equal[place]]])
        ends = waited[work.device[waited] == work.device[place]]
        known = start[ends] - start[place]
        known = known[(known > 0) & (known <= room[place])]
        expected = int(usual[len(usual) // 2]) if len(usual) else took[place]
        if len(usual) and work.kind[place] != EventKind.COMM_KERNEL:  # one that waits for other ranks takes any time
            known = known[(known >= usual[0] // 2) & (known <= 2 * usual[-1])]
        took[place] = known[np.abs(known - expected).argmin()] if len(known) else min(room[place], expected)
    for place in early.tolist():
        stream = in_time[_same_stream(work, place)[in_time]]
        before, after = stream[launch[stream] < launch[place]], stream[launch[stream] > launch[place]]
        first = max(launch[place], int((start + took)[before].max(initial=0)))
        last = int(start[after].min(initial=np.iinfo(np.int64).max))
        ends = start[waited[work.device[waited] == work.device[place]]]
        ends = ends[(ends >= first + took[place] - _IMPOSSIBLE_NS) & (ends <= last)]
        start[place] = max(first, int(ends.min()) - took[place]) if len(ends) else first
        took[place] = min(took[place], max(last - start[place], 0))
    counts = ((len(long), "were too long"), (len(early), "began too early"))
    said = " and ".join(f"{n:,} {what}" for n, what in counts if n)
    note = f"device operations with impossible times, corrected: {said}"
    return with_times(trace, work.row, start, took, note), work.row[long], work.row[early]


def with_times(trace: Trace, rows: Rows, start_ns: Int64s, took_ns: Int64s, note: str) -> Trace:
    """Return the trace with other times of some of its rows, and the reason."""
    columns = {**trace.columns, "ts_ns": trace["ts_ns"].copy(), "dur_ns": trace["dur_ns"].copy()}
    columns["ts_ns"][rows], columns["dur_ns"][rows] = start_ns, took_ns
    return replace(trace, columns=columns, quality=replace(trace.quality, notes=(*trace.quality.notes, note)))


def _equal_operations(trace: Trace, work: DeviceWork) -> Int64s:
    """Return a number for each operation, the same for those of one name that do as much."""
    number = work.name.astype(np.int64)
    for column in ("grid", "bytes"):
        own = numbered(trace.arg(column).at(work.row, missing=-1).astype(np.int64))[1]
        number = numbered((number << 32) + own)[1]
    return number


def _outlasting(work: DeviceWork, equal: Int64s) -> Rows:
    """Return operations many times as long as their equals; those that wait for other ranks take any time."""
    took = work.end_ns - work.start_ns
    own = np.flatnonzero((took > _IMPOSSIBLE_NS) & ~of_kinds(work.kind, (EventKind.COMM_KERNEL,)))
    order = np.lexsort((took, equal))
    first = np.searchsorted(equal[order], equal[own])
    count = np.searchsorted(equal[order], equal[own], side="right") - first
    usual = took[order[first + 3 * (count - 1) // 4]]
    return own[(count >= _MIN_EQUAL) & (took[own] > np.maximum(_IMPOSSIBLE_TIMES * usual, usual + _IMPOSSIBLE_NS))]


def _unexplained_starts(trace: Trace, work: DeviceWork, sound: Rows) -> Rows:
    """Return queued operations that begin when none of the sound ones ends: they waited for one that is not sound."""
    call = work.launch_row[sound]  # without one it was launched before the recording began
    returned = np.where(call < 0, np.iinfo(np.int64).min, trace["ts_ns"][call] + trace["dur_ns"][call])
    queued = sound[work.start_ns[sound] - _IMPOSSIBLE_NS > returned]
    ends = np.sort(work.end_ns[sound])
    before = np.searchsorted(ends, work.start_ns[queued], side="right")
    latest = ends[np.maximum(before - 1, 0)]
    return queued[(before == 0) | (work.start_ns[queued] - latest > _HANDOVER_NS)]


def _out_of_order(work: DeviceWork, launch: Int64s) -> npt.NDArray[np.bool_]:
    order = np.lexsort((work.start_ns, launch, work.stream, work.device))
    change = (np.diff(work.stream[order]) != 0) | (np.diff(work.device[order]) != 0)
    place, start = np.cumsum(np.append(0, change)), work.start_ns[order] - work.start_ns.min(initial=0)
    latest = np.maximum.accumulate(start + place * (1 << 50)) - place * (1 << 50)  # per stream: no window is that long
    found = np.zeros(len(work), bool)
    found[order] = (latest - start > _IMPOSSIBLE_NS) & (launch[order] > np.iinfo(np.int64).min)
    return found


def _if_few(places: Rows, work: DeviceWork) -> Rows:
    return places if len(places) <= _MAX_DAMAGED * len(work) else places[:0]


def _same_stream(work: DeviceWork, place: int) -> npt.NDArray[np.bool_]:
    return (work.stream == work.stream[place]) & (work.device == work.device[place])


def _num_streams(work: DeviceWork) -> int:
    if len(distinct(work.device)) <= 1:
        return len(distinct(work.stream))
    return len(np.unique(np.stack((work.device, work.stream)), axis=1).T)


def lookup(keys: Numbers, values: Numbers, wanted: Int64s) -> Rows:
    """Return for each wanted key the value of its last occurrence in `keys`, -1 where there is none.

    Dense where the keys span a moderate range (correlation ids do), because sorting permuted ids is slow.
    """
    if not len(keys) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    low, high = int(keys.min()), int(keys.max())
    if high - low <= 8 * (len(keys) + len(wanted)) + 1_000_000:
        table = np.full(high - low + 2, -1, np.int32)  # of rows; in the last place that of no key
        table[np.subtract(keys, low, dtype=np.intp)] = values
        inside = (wanted >= low) & (wanted <= high)
        return table[np.where(inside, wanted - low, -1)].astype(np.int64)
    order = np.argsort(keys, kind="stable")
    i = np.searchsorted(keys[order], wanted, side="right") - 1
    at = order[np.maximum(i, 0)]
    return np.where((i >= 0) & (keys[at] == wanted), values[at], np.int64(-1))


def _launch_rows(trace: Trace, kinds: Kinds, device_rows: Rows) -> tuple[Rows, Rows, int]:
    found, launches, reused = _calls_by(trace, kinds, "correlation", device_rows)
    if len(found) and (found < 0).all():  # old ROCm profilers number the calls by external ids
        by_id, calls, shared = _calls_by(trace, kinds, "external_id", device_rows)
        if not shared:  # else they are ids of operators, each around several calls
            return by_id, calls, shared
    return found, launches, reused


def _calls_by(trace: Trace, kinds: Kinds, column: str, device_rows: Rows) -> tuple[Rows, Rows, int]:
    """Return the call whose number each device operation has, all launching calls, and how many share a number."""
    numbers = trace.arg(column)
    [calls] = _of_each_kind(numbers, kinds, EventKind.RUNTIME)
    has = np.flatnonzero(calls.values > 0)
    runtime, key = calls.rows[has].astype(np.int64), calls.values[has]
    found = lookup(key, runtime, numbers.at(device_rows, missing=-1))
    launching = np.flatnonzero(by_string(trace, trace["name"][runtime], lambda s: bool(_LAUNCHES.search(s))))
    reused = len(launching) - len(distinct(key[launching]))
    return found, runtime[launching], reused


def operators_around(trace: Trace, kinds: Kinds, launch_rows: Rows) -> Rows:
    """Return the innermost host operator around each launch: by external id where it names one on the same
    thread around the launch, else by the call stack.
    """
    ops, calls = _of_each_kind(trace.arg("external_id"), kinds, EventKind.HOST_OP, EventKind.RUNTIME)
    found = lookup(ops.values, ops.rows, calls.at(launch_rows, missing=-1))
    found[~_encloses(trace, found, launch_rows)] = -1
    missing = np.flatnonzero(found < 0)
    if len(missing):
        all_ops = np.flatnonzero(of_kinds(kinds, (EventKind.HOST_OP,)))
        found[missing] = enclosing(trace, all_ops, launch_rows[missing])
    return found


def _of_each_kind(arg: SparseColumn, kinds: Kinds, *wanted: EventKind) -> list[SparseColumn]:
    found = kinds.take(arg.rows)
    places = [np.flatnonzero(found == int(kind)) for kind in wanted]
    return [SparseColumn(arg.rows.take(of_kind), arg.values.take(of_kind)) for of_kind in places]


def _encloses(trace: Trace, outer: Rows, inner: Rows) -> npt.NDArray[np.bool_]:
    ts, dur, tid = trace["ts_ns"], trace["dur_ns"], trace["tid"]
    same = (outer >= 0) & (tid[outer] == tid[inner])
    outer_start, inner_start = ts[outer], ts[inner]
    return same & (outer_start <= inner_start) & (outer_start + dur[outer] >= inner_start + dur[inner])


def enclosing(trace: Trace, outer: Rows, inner: Rows) -> Rows:
    """Return for each inner row the innermost outer row of its thread around it, -1 where there is none."""
    if not len(outer) or not len(inner):
        return np.full(len(inner), -1, np.int64)
    if not (inner[1:] > inner[:-1]).all():
        once, place = distinct_places(inner)
        return enclosing(trace, outer, once)[place]
    rows = np.concatenate((outer, inner))
    start, thread = trace["ts_ns"].take(rows), trace["tid"].take(rows)
    is_inner = np.arange(len(rows)) >= len(outer)
    order, *columns = stacked(thread, start, start + trace["dur_ns"].take(rows), is_inner)
    parent, is_inner = call_stack_parents(*columns), is_inner.take(order)
    places = np.flatnonzero(is_inner)
    around = parent.take(places)
    # An inner row's parent may be another inner row (a launch within a launch): climb to an outer one.
    while (climb := (around >= 0) & is_inner[around]).any():
        around = np.where(climb, parent[around], around)
    found = np.empty(len(inner), np.int64)
    found[order[places] - len(outer)] = np.where(around >= 0, rows[order[around]], -1)
    return found


def _first_of(value: Int64s, fallback: Int64s) -> Int64s:
    return np.where(value >= 0, value, fallback)
