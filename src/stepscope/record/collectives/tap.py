"""Every collective that Python issues, seen where it enters C++: methods of `ProcessGroup`, and `Work.wait`.

The functions of `torch.distributed` stay as they are: torch.compile and the coalescing manager know them by identity.
One layer below, each call passes a method of `ProcessGroup`; there its operation, group and bytes are noted, and its
time where that costs nothing:

    gloo   from the call to the end of `Work.wait`, when the wait was what ended it
    CUDA   between two events on the current stream, for calls that run on it; never waited for, read steps later

A time includes the wait for later ranks.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from stepscope.contract import collectives as ops
from stepscope.record.failsafe import explain, say
from stepscope.record.own_frame import leave_out

# method: (operation, which argument holds the full buffer, whether that is one rank's part of it)
METHODS = {
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
_AT_ONCE_NS = 200_000  # a wait this soon after the call belongs to it, even if it found nothing left to wait for
_MAX_WAITING = 1024
_EVENTS_PER_STEP = 8  # calls timed by events; a pair of events costs the host several microseconds


class Call:
    """One collective on its way."""

    __slots__ = (
        "begin",
        "bytes",
        "end",
        "group",
        "group_size",
        "issued_ns",
        "on_device",
        "operation",
        "sequence",
        "since_ns",
    )

    def __init__(self, operation: str, group: Any) -> None:
        self.operation = operation
        self.group: str = group.group_name
        self.group_size: int = group.size()
        self.bytes = 0
        self.on_device = False
        self.sequence = 0  # the group's number before it
        self.since_ns = 0  # since the epoch
        self.begin: Any = None
        self.end: Any = None
        self.issued_ns = 0


class CollectiveTap:
    """Wraps the methods while it is on.

    `seen(call)` hears of each collective, `timed(call, dur_ns)` of its time, and `in_python(group, ...)` of every
    call that may issue one: when it was, and by how much the group's sequence number went on.
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
        """Put the wrappers in place."""
        from torch._C._distributed_c10d import ProcessGroup, Work

        self.on = True
        for name, about in METHODS.items():
            self._replace(ProcessGroup, name, partial(self._tapped, about=about))
        self._replace(ProcessGroup, "_start_coalescing", partial(self._tapped_edge, depth=+1))
        self._replace(ProcessGroup, "_end_coalescing", partial(self._tapped_edge, depth=-1))
        self._replace(Work, "wait", self._tapped_wait)

    def remove(self) -> None:
        """Put the original methods back, where nobody has put theirs on top of ours."""
        self.on = False
        for owner, name, original, ours in self._replaced:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        self._replaced.clear()

    @property
    def is_timing(self) -> bool:
        """Whether there is anything for `read_events` to do."""
        return bool(self._passing or self._calls)

    def read_events(self) -> None:
        """Hand on the times of the calls whose events have passed, at the end of a step; asks, never waits.

        Nothing is asked while a graph is captured: the question would end the capture.
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
            call = Call(operation, group)
            if position is not None and len(args) > position:
                call.bytes = _bytes_in(args[position]) * (call.group_size if is_part else 1)
                call.on_device = _is_on_device(args[position])
            call.sequence = sequence_number(group)
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
                self._note_wait(call, was_over)
            return result

        return tapped

    def _note_wait(self, call: Call, was_over: bool) -> None:
        """Take the time of a call whose wait ended now; one that was over earlier ended at an unknown moment."""
        dur_ns = time.perf_counter_ns() - call.issued_ns
        if self.on and (not was_over or dur_ns < _AT_ONCE_NS):
            self._timed(call, dur_ns)

    def _is_due(self, args: Any) -> bool:
        """Return whether events shall time this call: one in every stride of those that run on the current stream."""
        if self._coalescing or not _runs_on_current_stream(args):
            return False
        self._calls += 1
        self._until_next -= 1
        if self._until_next > 0:
            return False
        self._until_next = self._stride
        return True

    def _tapped_edge(self, method: Any, depth: int) -> Any:
        """Wrap the beginning or the end of a coalesced group of calls, which has one time and one number in all."""

        def tapped(group: Any, *args: Any, **kwargs: Any) -> Any:
            before, since_ns = sequence_number(group), time.time_ns()
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
        numbers = sequence_number(group) - before
        self._in_python(group.group_name, numbers=numbers, since_ns=since_ns, until_ns=time.time_ns())

    def _give_up(self, error: Exception) -> None:
        self.on = False
        say(f"live collective statistics are off, training goes on: {explain(error)}")


def sequence_number(group: Any) -> int:
    """Return how many collectives the group issued, from Python and from C++; 0 where its backend does not count."""
    try:
        return group._get_sequence_number_for_group()
    except RuntimeError:
        return 0


def stride_for(calls: int) -> int:
    """Return how many calls apart timed ones lie, so that each of a step's `calls` has its turn over the steps."""
    stride = max(1, -(-calls // _EVENTS_PER_STEP))
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
    """Return whether a call is one that the current stream runs or waits for: not asynchronous, not being captured."""
    options = args[-1] if args else None
    return getattr(options, "asyncOp", True) is False and not torch.cuda.is_current_stream_capturing()


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
