"""Collectives as they happen: count, bytes, time, algorithm and bus bandwidth per operation and process group.

Three sources, each with facts that the others lack:

    the tap              every collective that Python issues: exact count and bytes, and its time
    sequence numbers     how many collectives a group issued, C++ included: one call per group and step
    the flight recorder  what the C++ ones were (DDP's reducer, functional collectives), and NCCL's own times of all;
                         expensive to read, so it is read early in the run and then rarely, off the training thread

Times include the wait for later ranks; `best` is the fastest one seen. Nothing here waits for a device or a rank.
"""

import contextlib
import json
import math
import threading
import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch

from stepscope.contract import operations as ops
from stepscope.contract.operations import element_bytes, op_name
from stepscope.contract.run_folder import SCHEMA, atomic_write, rank_file
from stepscope.record.config import initialized_distributed
from stepscope.record.failsafe import explain, leave_out, say
from stepscope.record.groups import newest_collectives, process_groups

# Every collective that Python issues, seen where it enters C++: methods of `ProcessGroup`, and `Work.wait`.
#
# The functions of `torch.distributed` stay as they are: torch.compile and the coalescing manager know them by identity.
# One layer below, each call passes a method of `ProcessGroup`; there its operation, group and bytes are noted, and its
# time where that costs nothing:
#
#     gloo   from the call to the end of `Work.wait`, when the wait was what ended it
#     CUDA   between two events on the current stream, for calls that run on it; never waited for, read steps later
#
# A time includes the wait for later ranks.

# method: (operation, which argument holds the full buffer, whether that is one rank's part of it)
_METHODS = {
    "allreduce": (ops.ALL_REDUCE, 0, False),
    "allreduce_coalesced": (ops.ALL_REDUCE, 0, False),
    "broadcast": (ops.BROADCAST, 0, False),
    "reduce": (ops.REDUCE, 0, False),
    "allgather": (ops.ALL_GATHER, 0, False),
    "allgather_coalesced": (ops.ALL_GATHER, 0, False),
    "_allgather_base": (ops.ALL_GATHER, 0, False),
    "all_gather_single": (ops.ALL_GATHER, 0, False),
    "allgather_into_tensor_coalesced": (ops.ALL_GATHER, 0, False),
    "all_gather_single_coalesced": (ops.ALL_GATHER, 0, False),
    "reduce_scatter": (ops.REDUCE_SCATTER, 1, False),
    "_reduce_scatter_base": (ops.REDUCE_SCATTER, 1, False),
    "reduce_scatter_single": (ops.REDUCE_SCATTER, 1, False),
    "reduce_scatter_tensor_coalesced": (ops.REDUCE_SCATTER, 1, False),
    "reduce_scatter_single_coalesced": (ops.REDUCE_SCATTER, 1, False),
    "alltoall": (ops.ALL_TO_ALL, 1, False),
    "alltoall_base": (ops.ALL_TO_ALL, 1, False),
    "all_to_all_single": (ops.ALL_TO_ALL, 1, False),
    "gather": (ops.GATHER, 1, True),
    "scatter": (ops.SCATTER, 0, True),
    "send": (ops.SEND, 0, False),
    "recv": (ops.RECV, 0, False),
    "recv_anysource": (ops.RECV, 0, False),
    "barrier": (ops.BARRIER, None, False),
}
_MAX_WAITING = 1024


@dataclass(slots=True)
class Call:
    """One collective in flight."""

    operation: str
    group: str
    group_size: int
    bytes: int = 0
    on_device: bool = False
    #: of the group, before this call
    sequence: int = 0
    #: since the epoch
    since_ns: int = 0
    begin: Any = None
    end: Any = None
    issued_ns: int = 0


class CollectiveTap:
    """Wraps the methods while it is on.

    Calls `seen(call)` for each collective, `timed(call, dur_ns)` for its time, and `in_python(group, ...)` for every
    call that may issue one, with its time and the increase of the group's sequence number.
    """

    def __init__(
        self,
        *,
        seen: Callable[[Call], None],
        timed: Callable[[Call, int], None],
        in_python: Callable[..., None],
    ) -> None:
        self.on = False
        self.device_events = True
        self._seen, self._timed, self._in_python = seen, timed, in_python
        self._replaced: list[tuple[type, str, Any, Any]] = []
        self._waiting: dict[int, Call] = {}
        self._passing: deque[Call] = deque(maxlen=_MAX_WAITING)
        self._coalescing = 0
        self._calls = 0  # that events could time, since the last step's end
        self._until_next = 0
        self._stride = 1

    def install(self) -> None:
        from torch._C._distributed_c10d import ProcessGroup, Work

        self.on = True
        for name, about in _METHODS.items():
            self._replace(ProcessGroup, name, partial(self._tapped, about=about))
        self._replace(ProcessGroup, "_start_coalescing", partial(self._tapped_edge, depth=+1))
        self._replace(ProcessGroup, "_end_coalescing", partial(self._tapped_edge, depth=-1))
        self._replace(Work, "wait", self._tapped_wait)

    def remove(self) -> None:
        """Restore the original methods, unless they were replaced again on top of ours."""
        self.on = False
        for owner, name, original, ours in self._replaced:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        self._replaced.clear()

    def read_events(self) -> None:
        """Hand on the times of the calls with completed events, at the end of a step, without waiting.

        Does nothing during a graph capture: a query would end the capture.
        """
        if self._passing and torch.cuda.is_current_stream_capturing():
            return
        while self._passing and self._passing[0].end.query():
            call = self._passing.popleft()
            self._timed(call, round(call.begin.elapsed_time(call.end) * 1e6))
        if self._calls:
            self._stride = stride_for(self._calls)
            self._calls = 0

    def _replace(self, owner: type, name: str, wrapped: Callable[[Any], Any]) -> None:
        original = vars(owner).get(name)  # as the class holds it: what getattr returns would no longer bind
        if original is not None:
            ours = wrapped(getattr(owner, name))
            self._replaced.append((owner, name, original, ours))
            setattr(owner, name, ours)

    def _tapped(self, method: Any, about: tuple[str, int | None, bool]) -> Any:
        def tapped(group: Any, *args: Any, **kwargs: Any) -> Any:
            call = self._begin(group, about, args) if self.on else None
            try:
                work = method(group, *args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise
            if call is not None:
                self._note_issue(call, group, work)
            return work

        return tapped

    def _begin(self, group: Any, about: tuple[str, int | None, bool], args: Any) -> Call | None:
        operation, position, is_part = about
        try:
            call = Call(operation, group.group_name, group.size())
            if position is not None and len(args) > position:
                call.bytes = _bytes_in(args[position]) * (call.group_size if is_part else 1)
                call.on_device = _is_on_device(args[position])
            call.sequence = _sequence_number(group)
            call.since_ns = time.time_ns()
            if call.on_device and self.device_events and self._is_due(args):
                call.begin = _event()
            call.issued_ns = time.perf_counter_ns()
            return call
        except Exception as e:  # noqa: BLE001 - training comes first
            self._give_up(e)
            return None

    def _note_issue(self, call: Call, group: Any, work: Any) -> None:
        try:
            if call.begin is not None:
                call.end = _event()
                self._passing.append(call)
            elif work is not None and not call.on_device and not self._coalescing:
                if len(self._waiting) >= _MAX_WAITING:
                    self._waiting.clear()
                self._waiting[id(work)] = call
            self._note(group, call.sequence, call.since_ns)
            self._seen(call)
        except Exception as e:  # noqa: BLE001 - training comes first
            self._give_up(e)

    def _tapped_wait(self, wait: Any) -> Any:
        def tapped(work: Any, *args: Any, **kwargs: Any) -> Any:
            call = self._waiting.pop(id(work), None) if self._waiting else None
            was_over = call is not None and work.is_completed()
            try:
                result = wait(work, *args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise
            if call is not None:
                dur_ns = time.perf_counter_ns() - call.issued_ns
                if self.on and (not was_over or dur_ns < 200_000):
                    self._timed(call, dur_ns)
            return result

        return tapped

    def _is_due(self, args: Any) -> bool:
        if self._coalescing or not _runs_on_current_stream(args):
            return False
        self._calls += 1
        self._until_next -= 1
        if self._until_next > 0:
            return False
        self._until_next = self._stride
        return True

    def _tapped_edge(self, method: Any, depth: int) -> Any:

        def tapped(group: Any, *args: Any, **kwargs: Any) -> Any:
            before, since_ns = _sequence_number(group), time.time_ns()
            try:
                result = method(group, *args, **kwargs)
            except BaseException as e:
                leave_out(e)
                raise
            self._coalescing = max(0, self._coalescing + depth)
            if self.on:
                self._note(group, before, since_ns)
            return result

        return tapped

    def _note(self, group: Any, before: int, since_ns: int) -> None:
        numbers = _sequence_number(group) - before
        self._in_python(group.group_name, numbers=numbers, since_ns=since_ns, until_ns=time.time_ns())

    def _give_up(self, error: Exception) -> None:
        self.on = False
        say(f"live collective statistics are off; training continues: {explain(error)}")


def _sequence_number(group: Any) -> int:
    try:
        return group._get_sequence_number_for_group()
    except RuntimeError:
        return 0


def stride_for(calls: int) -> int:
    """Return the distance between timed calls, so that each of a step's `calls` has its turn over the steps."""
    stride = max(1, -(-calls // 8))
    while calls and math.gcd(stride, calls) > 1:
        stride += 1
    return stride


def _is_on_device(tensors: Any) -> bool:
    while isinstance(tensors, list | tuple):
        if not tensors:
            return False
        tensors = tensors[0]
    return tensors.is_cuda


def _bytes_in(tensors: Any) -> int:
    if isinstance(tensors, list | tuple):
        return sum([_bytes_in(t) for t in tensors])
    return tensors.nbytes


def _runs_on_current_stream(args: Any) -> bool:
    options = args[-1] if args else None
    return getattr(options, "asyncOp", True) is False and not torch.cuda.is_current_stream_capturing()


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


# Name and bytes of a collective, by torch's flight recorder.


def operation_of(profiling_name: str) -> str:
    """Return the operation behind a backend's name.

    `nccl:_all_gather_base` is an `all_gather`, `nccl:send 0->1` a `send`. A name that says none of them
    (`nccl:coalesced`) comes back as it is, without the backend.
    """
    name = profiling_name.rsplit(":", 1)[-1].split(" ", 1)[0]
    operation = op_name(name)
    return name if operation == ops.UNKNOWN_OP else operation


def entry_bytes(entry: Mapping[str, Any], *, group_size: int) -> int | None:
    """Return the full buffer of a flight recorder's entry, None where a type in it is unknown."""
    operation = operation_of(entry["profiling_name"])
    side = "output" if operation in (ops.ALL_GATHER, ops.BROADCAST, ops.SCATTER, ops.RECV) else "input"
    sizes, dtypes = entry[f"{side}_sizes"], entry[f"{side}_dtypes"]
    each = [element_bytes(dtype) for dtype in (dtypes * len(sizes) if len(dtypes) == 1 else dtypes)]
    if None in each:
        return None
    total = sum(prod(shape) * size for shape, size in zip(sizes, each, strict=False) if size is not None)
    return total * (group_size if operation in (ops.GATHER, ops.SCATTER) else 1)


# The account of live collectives: totals per operation and group, and the bandwidths that follow from them.


@dataclass(frozen=True)
class Row:
    """One operation of one process group. Bandwidths in GB/s (10^9), None where nothing was timed.

    `time_ms` is the time of the `timed_count` collectives that were timed, the wait for later ranks included, so the
    mean bandwidths are lower bounds of what the link did; `best_busbw_gb_per_s` is the fastest single collective.
    """

    operation: str
    group: str
    group_size: int | None
    count: int
    bytes: int | None
    timed_count: int
    timed_bytes: int
    time_ms: float | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    best_busbw_gb_per_s: float | None


_MAX_RECENT = 1_024
_MIN_STEPS = 20  # between two readings of the flight recorder, to know how long collectives take per step


class _Totals:
    __slots__ = ("best_bytes_per_ns", "bytes", "bytes_known", "count", "time_ns", "timed_bytes", "timed_count")

    def __init__(self) -> None:
        self.count = self.bytes = self.timed_count = self.timed_bytes = self.time_ns = 0
        self.bytes_known = True
        self.best_bytes_per_ns = 0.0


class Ledger:
    """Totals that only grow. Entries of the flight recorder may come again; each is counted once."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._totals: dict[tuple[str, str], _Totals] = {}
        self._counted_to: dict[tuple[str, str], int] = {}  # per backend and group: the newest entry counted
        self._timed: set[tuple[str, int]] = set()  # entries whose time was taken
        self._recent: dict[str, deque[tuple[int, int]]] = {}  # by group: number in the group, time in us

    def count(self, operation: str, group: str, *, size_bytes: int | None) -> None:
        totals = self._of(operation, group)
        totals.count += 1
        if size_bytes is None:
            totals.bytes_known = False
        else:
            totals.bytes += size_bytes

    def time(self, operation: str, group: str, *, size_bytes: int, dur_ns: int) -> None:
        totals = self._of(operation, group)
        totals.timed_count += 1
        totals.timed_bytes += size_bytes
        totals.time_ns += dur_ns
        if dur_ns > 0:
            totals.best_bytes_per_ns = max(totals.best_bytes_per_ns, size_bytes / dur_ns)

    def add(self, in_cpp: Iterable[Mapping[str, Any]], *, group_sizes: Mapping[str, int]) -> None:
        """Count the flight recorder's entries that are new; they come in order."""
        for entry in in_cpp:
            backend, group = entry["profiling_name"].split(":")[0], entry["process_group"][0]
            if entry["record_id"] > self._counted_to.get((backend, group), -1):
                self._counted_to[backend, group] = entry["record_id"]
                size = entry_bytes(entry, group_size=group_sizes.get(group, 1))
                self.count(operation_of(entry["profiling_name"]), group, size_bytes=size)

    def add_times(
        self, entries: Iterable[Mapping[str, Any]], *, group_sizes: Mapping[str, int]
    ) -> dict[str, list[int]]:
        """Take the backend's own times from entries that have one and were not seen before; return them by group."""
        new: dict[str, list[int]] = {}
        present = {(e["profiling_name"].split(":")[0], e["record_id"]): e for e in entries}
        for key, entry in present.items():
            group = entry["process_group"][0]
            size = entry_bytes(entry, group_size=group_sizes.get(group, 1))
            if key not in self._timed and size is not None:
                operation = operation_of(entry["profiling_name"])
                self.time(operation, group, size_bytes=size, dur_ns=round(entry["duration_ms"] * 1e6))
                if not entry["is_p2p"] and (number := entry.get("collective_seq_id")):
                    recent = self._recent.setdefault(group, deque(maxlen=_MAX_RECENT))
                    recent.append((number, round(entry["duration_ms"] * 1e3)))
                    new.setdefault(group, []).append(round(entry["duration_ms"] * 1e6))
        self._timed = set(present)  # what the recorder has dropped will not come again
        return new

    def recent(self, groups: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
        """Return the newest times of some groups: `(number of the collective in its group, us)`."""
        return {group: list(self._recent[group]) for group in groups if group in self._recent}

    def forget_times(self, groups: Collection[str]) -> None:
        """Drop the times of some groups, because a better source has come up."""
        for (_, group), totals in list(self._totals.items()):
            if group in groups:
                totals.timed_count = totals.timed_bytes = totals.time_ns = 0
                totals.best_bytes_per_ns = 0.0

    def note(self, text: str) -> None:
        """Keep a remark for the reader, once."""
        if text not in self.notes:
            self.notes.append(text)

    def rows(self, group_sizes: Mapping[str, int]) -> list[Row]:
        """Return one row per operation and group, most bytes first."""
        rows = [_row(*key, totals, group_sizes.get(key[1])) for key, totals in list(self._totals.items())]
        return sorted(rows, key=lambda row: (-(row.bytes or 0), row.operation, row.group))

    def _of(self, operation: str, group: str) -> _Totals:
        return self._totals.setdefault((operation, group), _Totals())


def _row(operation: str, group: str, totals: _Totals, group_size: int | None) -> Row:
    algbw = totals.timed_bytes / totals.time_ns if totals.time_ns and totals.timed_bytes else None
    factor = ops.bus_factor(operation, group_size) if group_size else None
    return Row(
        operation=operation,
        group=group,
        group_size=group_size,
        count=totals.count,
        bytes=totals.bytes if totals.bytes_known else None,
        timed_count=totals.timed_count,
        timed_bytes=totals.timed_bytes,
        time_ms=totals.time_ns / 1e6 if totals.timed_count else None,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * factor if algbw is not None and factor is not None else None,
        best_busbw_gb_per_s=totals.best_bytes_per_ns * factor if algbw is not None and factor is not None else None,
    )


# How many collectives and bytes each step had, those that C++ issued included.
#
# A group's sequence number is the number of collectives it has issued. Calls from Python are known one by one; the
# difference came from C++ (DDP's reducer, functional collectives), where only the flight recorder saw the bytes:
#
#     the group's number rose by 7 in a step, 2 of them in calls from Python      =>  5 came from C++
#     the recorder shows 5 in that step outside these calls, 4 MB each            =>  5 from C++ are 20 MB in this
#     group
#
# So once a step was there whole, the bytes of every step like it are known without reading the recorder again. The two
# are joined by time, because backends number differently (gloo's sequence numbers count sends, its recorder does not).

Entry = Mapping[str, Any]


class StepVolume:
    """The account of the step under way, and what was learnt from earlier ones."""

    def __init__(self) -> None:
        self.group_sizes: dict[str, int] = {}
        self.issued: dict[str, int] = {}  # sequence numbers at the last step's end
        self._step_start_ns = 0
        self._steps_shared = 1
        self._count = self._bytes = self._p2p = self._p2p_bytes = 0
        self._from_python: dict[str, int] = {}
        self._calls: deque[tuple[str, int, int]] = deque(maxlen=1 << 15)
        self._steps: deque[tuple[str, int, int, int]] = deque(maxlen=256)
        self._learnt: dict[tuple[str, int], int] = {}  # (group, number from C++) -> bytes

    def call(self, operation: str, size_bytes: int) -> None:
        if operation in (ops.SEND, ops.RECV):
            self._p2p += 1
            self._p2p_bytes += size_bytes
        else:
            self._count += 1
            self._bytes += size_bytes

    def in_python(self, group: str, *, numbers: int, since_ns: int, until_ns: int) -> None:
        """Note a call from Python: by how much the group's sequence number rose, and when (since the epoch)."""
        self._from_python[group] = self._from_python.get(group, 0) + numbers
        self._calls.append((group, since_ns, until_ns))

    def share_a_look(self, steps: int = 1) -> None:
        """Add ended steps to the next line."""
        self._steps_shared += steps

    def end_of_step(self, groups: Iterable[tuple[str, int, int]], *, now_ns: int) -> dict[str, Any] | None:
        """Return `{"count", "bytes"}` of the step; None for the first one, whose beginning was not seen.

        `groups` are `(name, size, sequence number)`; bytes are None while those that C++ moved are not known. Where
        steps share a line they are sums, and `"steps"` is the number of steps.
        """
        is_first = self._step_start_ns == 0
        count, total = self._count, self._bytes
        known = True
        for group, size, number in groups:
            self.group_sizes[group] = size
            went_on = number - self.issued.get(group, number)
            self.issued[group] = number
            from_cpp = went_on - self._from_python.get(group, 0)
            if from_cpp > 0:
                self._steps.append((group, self._step_start_ns, now_ns, from_cpp))
                moved = self._bytes_from_cpp(group, from_cpp)
                count += from_cpp
                total += moved or 0
                known = known and moved is not None
        line: dict[str, Any] = {"count": count, "bytes": total if known else None}
        if self._steps_shared > 1:
            line["steps"] = self._steps_shared
            self._steps_shared = 1
        if self._p2p:
            line |= {"p2p_count": self._p2p, "p2p_bytes": self._p2p_bytes}
        self._count = self._bytes = self._p2p = self._p2p_bytes = 0
        self._from_python = {}
        self._step_start_ns = now_ns
        return None if is_first else line

    def from_cpp(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the recorder's entries of complete steps that were made outside any call from Python."""
        calls: dict[str, list[tuple[int, int]]] = {}
        for group, since_ns, until_ns in list(self._calls):
            calls.setdefault(group, []).append((since_ns, until_ns))
        settled_ns = self._step_start_ns
        return [
            e
            for e in entries
            if not e["is_p2p"]
            and e["time_created_ns"] <= settled_ns
            and not _inside(calls.get(_group_of(e), []), e["time_created_ns"])
        ]

    def learn(self, in_cpp: Iterable[Entry]) -> None:
        """Take in what C++ issued: completely recorded steps give the bytes of similar ones."""
        entries = list(in_cpp)
        for group, since_ns, until_ns, expected in list(self._steps):
            found = [e for e in entries if _group_of(e) == group and since_ns < e["time_created_ns"] <= until_ns]
            sizes = [entry_bytes(e, group_size=self.group_sizes[group]) for e in found]
            if len(found) == expected and None not in sizes:
                self._learnt[group, expected] = sum(size for size in sizes if size is not None)

    def _bytes_from_cpp(self, group: str, number: int) -> int | None:
        known = self._learnt.get((group, number))
        each, left = divmod(number, self._steps_shared)
        if known is None and left == 0:
            of_one = self._learnt.get((group, each))
            known = None if of_one is None else of_one * self._steps_shared
        return known


def _group_of(entry: Entry) -> str:
    return str(entry["process_group"][0])


def _inside(calls: list[tuple[int, int]], time_ns: int) -> bool:
    at = bisect_right(calls, (time_ns, 1 << 63)) - 1
    return at >= 0 and time_ns <= calls[at][1]


class LiveCollectives:
    """A sampler for the step log. `entries` is how the flight recorder is read."""

    def __init__(self, *, entries: Callable[[], list[dict[str, Any]]] = newest_collectives) -> None:
        self.ledger = Ledger()
        self.volume = StepVolume()
        self._entries = entries
        self._tap = CollectiveTap(seen=self._note_call, timed=self._note_time, in_python=self.volume.in_python)
        self._process_groups: list[dict[str, Any]] | None = None  # stored, because torch may delete them before the end
        self._groups: list[tuple[Any, str, int]] = []  # (weak reference, name, size)
        self._named: Any = {}  # torch's own table of groups
        self._reader: threading.Thread | None = None
        self._wake = threading.Event()
        self._over = False
        self._next_read_ns = 0
        self._looked_ns = 0
        self._num_steps = self._steps_at_look = 0
        self._read_at: tuple[int, dict[str, int]] = (0, {})  # steps and collectives when `_new_times` began
        self._new_times: list[int] = []
        self._device_ns: int | None = None  # of a step in collectives of the largest group, by the last reading

    def install(self) -> None:
        """Begin to listen where torch.distributed is up; `on_step_end` does so too."""
        dist = initialized_distributed()
        if self._reader is None and not self._over and dist is not None:
            self._named = dist.distributed_c10d._world.pg_names
            self._tap.install()
            self._reader = threading.Thread(target=self._read_now_and_then, name="stepscope-collectives", daemon=True)
            self._reader.start()

    def table(self) -> list[Row]:
        """Return what is known so far, one row per operation and group, most bytes first."""
        return self.ledger.rows(self.volume.group_sizes)

    def on_begin(self) -> None:
        """Begin to listen with the first step, where the process group is up by then."""
        self.install()
        if self._reader is not None:
            self.volume.end_of_step(self._numbers(), now_ns=time.time_ns())

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Return the step's count and bytes; bytes None while those of C++ are not known.

        Short steps share a reading, which costs 30 us with cold caches: every tenth of a second a line has the sums of
        the `steps` steps that end with it.
        """
        if self._reader is None:
            self.install()
            if self._reader is None:
                return {}
        self._num_steps += 1
        now_ns = time.time_ns()
        if step >= 50 and 0 <= now_ns - self._looked_ns < 100_000_000:
            self.volume.share_a_look()
            return {}
        self._looked_ns = now_ns
        self._tap.read_events()
        line = self.volume.end_of_step(self._numbers(), now_ns=now_ns)
        self._steps_at_look = self._num_steps
        if step in (2, 4, 8, 16) or now_ns >= self._next_read_ns:
            self._next_read_ns = now_ns + 10**10  # until the reader knows better
            self._wake.set()
        if line is not None and self._device_ns is not None:
            line["device_ns"] = self._device_ns
        return {} if line is None else {"collectives": line}

    def on_steps_passed(self, count: int) -> None:
        """Let steps without a reading share the next one."""
        self._num_steps += count
        self.volume.share_a_look(count)

    def on_window_end(self) -> None:
        """Read the flight recorder: after the window the step is disturbed anyway."""
        self._wake.set()

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Write the current `rank00000.collectives.jsonl`: a header, then a line per operation and group."""
        with atomic_write(Path(folder) / rank_file(rank, "collectives.jsonl")) as f:
            f.writelines(json.dumps(line).encode() + b"\n" for line in self._lines(rank))

    def on_close(self, folder: str | Path, rank: int) -> None:
        """Restore the original methods, read the flight recorder once more and write the file again."""
        self._tap.remove()
        self._over = True
        self._wake.set()
        if self._reader is None:
            return
        self._reader.join(timeout=5.0)
        self._read()
        self.after_window(folder, rank)

    def _numbers(self) -> list[tuple[str, int, int]]:
        if len(self._named) != len(self._groups):
            self._groups = [(weakref.ref(group), name, group.size()) for group, name in self._named.items()]
            if self._groups:
                self._process_groups = process_groups()
            for group in list(self._named):
                with contextlib.suppress(RuntimeError, AttributeError, ValueError):
                    if "nccl" in str(torch.distributed.get_backend(group)):
                        group._enable_collectives_timing()
        return [
            (name, size, _sequence_number(group))
            for reference, name, size in self._groups
            if (group := reference()) is not None
        ]

    def _note_call(self, call: Call) -> None:
        self.ledger.count(call.operation, call.group, size_bytes=call.bytes)
        self.volume.group_sizes.setdefault(call.group, call.group_size)
        self.volume.call(call.operation, call.bytes)

    def _note_time(self, call: Call, dur_ns: int) -> None:
        self.ledger.time(call.operation, call.group, size_bytes=call.bytes, dur_ns=dur_ns)

    def _read_now_and_then(self) -> None:
        while not self._over:
            self._wake.wait()
            self._wake.clear()
            if not self._over:
                self._read()

    def _read(self) -> None:
        try:
            since_ns = time.time_ns()
            entries = self._entries()
            in_cpp = self.volume.from_cpp(entries)
            self.volume.learn(in_cpp)
            self.ledger.add(in_cpp, group_sizes=self.volume.group_sizes)
            timed = [e for e in entries if e.get("duration_ms") is not None]
            if timed and self._tap.device_events:
                self._tap.device_events = False
                self.ledger.forget_times({e["process_group"][0] for e in timed})
            self._learn_times(self.ledger.add_times(timed, group_sizes=self.volume.group_sizes))
            if not entries:
                self.ledger.note(
                    "collectives issued in C++ (DDP's reducer, functional collectives) are counted but their bytes are "
                    "unknown: torch's flight recorder holds nothing; set TORCH_FR_BUFFER_SIZE=2000"
                )
            now_ns = time.time_ns()
            self._next_read_ns = now_ns + 2_000 * (now_ns - since_ns)
        except Exception as e:  # noqa: BLE001 - a private interface, and training comes first
            self._next_read_ns = 1 << 62
            self.ledger.note(f"the flight recorder cannot be read: {explain(e)}")

    def _learn_times(self, new: Mapping[str, list[int]]) -> None:
        """Take in new times; those of the first steps are not typical."""
        sizes, (since, before), now = self.volume.group_sizes, self._read_at, self._steps_at_look
        issued = dict(self.volume.issued)
        group = max(new, key=lambda name: (sizes.get(name, 0), issued.get(name, 0)), default=None)
        if group is None:
            return
        self._new_times += new[group]
        if group in before and now - since >= _MIN_STEPS:
            each = (issued.get(group, 0) - before[group]) / (now - since)  # the recorder is a ring, and has fewer
            self._device_ns = round(sum(self._new_times) / len(self._new_times) * each)
        elif group in before:
            return
        self._read_at, self._new_times = (now, issued), []

    def _lines(self, rank: int) -> list[dict[str, Any]]:
        rows, sizes = self.table(), self.volume.group_sizes
        if any(row.timed_count == 0 and row.bytes for row in rows):
            self.ledger.note(
                "operations without a time were issued in C++ on a backend that keeps no times (gloo), or waited for "
                "late by the job; their times are in the trace"
            )
        header = {
            "schema": SCHEMA,
            "rank": rank,
            "groups": self._process_groups,
            "issued": {name: number for name, number in self.volume.issued.items() if number},
            # the same collective takes the last rank to arrive the least time
            "recent_us": self.ledger.recent(name for name, size in sizes.items() if size == max(sizes.values())),
            "notes": self.ledger.notes,
        }
        return [header, *(asdict(row) for row in rows)]
