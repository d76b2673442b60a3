"""At most one profiler in the process; the user's has priority.

A second profiler cancels the first, and stopping or exporting the cancelled one crashes the process. So the three
functions that every torch profiler calls (`_prepare_profiler`, `_enable_profiler`, `_disable_profiler` in
`torch.autograd.profiler`) are wrapped: ours does not start while another one is active, and when another one starts
while ours runs, ours is stopped first and its results are dropped.

A profiler with stacks records all Python threads. Those of ours wait most of the time, which would be most of the time
in the user's tables, so they are left out of what a profiler returns (`_parse_kineto_results`).
"""

import contextlib
import ctypes
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
import torch.autograd.profiler as doors


class ProfilerGuard:
    """Detects whether a profiler that is not ours is prepared or running, and calls `give_way` before one starts."""

    def __init__(self) -> None:
        self.foreign = False
        self.left_behind = False  # one of ours runs on a thread that alone can stop it
        self.give_way: Callable[[], None] | None = None
        self._ours = threading.local()
        self._originals: dict[str, Any] = {}

    def install(self) -> None:
        for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
            self._originals[name] = getattr(doors, name)
            setattr(doors, name, self._watched(name, self._originals[name]))
        parse = self._originals[_PARSE] = getattr(doors.profile, _PARSE, None)
        if parse is not None:
            setattr(doors.profile, _PARSE, _without_our_threads(parse))

    def remove(self) -> None:
        """Restore the original functions, unless they were wrapped again after us."""
        parse = self._originals.pop(_PARSE, None)
        if parse is not None and getattr(getattr(doors.profile, _PARSE), "__wrapped__", None) is parse:
            setattr(doors.profile, _PARSE, parse)
        for name, original in self._originals.items():
            if getattr(getattr(doors, name), "stepscope_guard", None) is self:
                setattr(doors, name, original)
        self._originals = {}

    def is_free(self) -> bool:
        """Return whether no other profiler is prepared or running, nor one of ours on another thread."""
        return not self.foreign and not self.left_behind and not torch.autograd._profiler_enabled()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Mark calls made inside as our own."""
        _let_children_exit()
        self._ours.inside = True
        try:
            yield
        finally:
            self._ours.inside = False

    def _watched(self, name: str, original: Any) -> Any:
        def door(*args: Any, **kwargs: Any) -> Any:
            if not getattr(self._ours, "inside", False):
                starts = name != "_disable_profiler"
                self.foreign = starts
                if starts and self.give_way is not None:
                    give_way, self.give_way = self.give_way, None
                    give_way()
            return original(*args, **kwargs)

        door.stepscope_guard = self  # type: ignore[attr-defined]
        return door


_PARSE = "_parse_kineto_results"
_OURS = re.compile(r"(^|/)stepscope/record/")
_THREAD_BEGINS = re.compile(r"(^|/)threading\.py\(\d+\): _bootstrap$")
_THREAD_RUNS = re.compile(r"(^|/)threading\.py\(\d+\): run$")


def _without_our_threads(parse: Any) -> Any:
    @functools.wraps(parse)
    def parsed(profiler: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # a torch whose events are different: its tables stay as they are
            result = _OthersResult(result, without_our_threads(result.events()))
        return parse(profiler, result, *args, **kwargs)

    return parsed


class _OthersResult:
    """A profiler's result with some of its events."""

    def __init__(self, result: Any, events: Any) -> None:
        self._result, self.events = result, lambda: events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)


def without_our_threads(events: Any) -> Any:
    """Return a profiler's events without the Python calls of threads whose `run` is a function of the recorder's."""
    calls = {event.python_id(): event for event in events if event.is_python_function()}
    root: dict[int, int] = {}

    def root_of(call: int) -> int:
        path = []
        while call not in root:
            path.append(call)
            above = calls[call].python_parent_id()
            # threads that do nothing meanwhile are chained to each other: each begins with the same function
            if above not in calls or above == call or _THREAD_BEGINS.search(calls[call].name()):
                root[call] = call
            else:
                call = above
        root.update(dict.fromkeys(path, root[call]))
        return root[call]

    ours = set()
    for number, event in calls.items():
        above = calls.get(event.python_parent_id())
        if above is not None and _OURS.search(event.name()) and _THREAD_RUNS.search(above.name()):
            ours.add(root_of(number))
    if not ours:
        return events
    return [event for event in events if not event.is_python_function() or root_of(event.python_id()) not in ours]


@functools.cache
def _let_children_exit() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):  # no glibc
        return
    on_exit, leave, at_exit, flush = libc.on_exit, libc._exit, libc["__cxa_atexit"], libc.fflush

    def in_child() -> None:
        on_exit(leave, None)  # called with the exit code, after Python's own end
        at_exit(flush, None, None)  # the last one registered is the first one called

    os.register_at_fork(after_in_child=in_child)


# What interrupts the training thread at any moment, also inside our own code: garbage collection, compilation, and
# stacks that anomaly detection records.
#
# Their callbacks run in the middle of something else, so they are only noted here. The step's region accounting moves
# their time from the region that was innermost at that moment to a separate one.


@dataclass(frozen=True, slots=True)
class Interruption:
    """One of them; `own_ns` is its time without those inside it."""

    name: str
    begin_ns: int
    end_ns: int
    own_ns: int


class Interruptions:
    """Noted interruptions that were not yet taken. Empty is False, the only check at most edges of regions."""

    def __init__(self) -> None:
        self._noted: list[Interruption] = []
        self._open: dict[tuple[int, str], int] = {}

    def __len__(self) -> int:
        return len(self._noted)

    def begins(self, name: str) -> None:
        """Note the begin of one on this thread; inside one of the same name it counts as part of that."""
        self._open.setdefault((get_ident(), name), perf_counter_ns())

    def ends(self, name: str) -> None:
        begin_ns = self._open.pop((get_ident(), name), None)
        if begin_ns is None:
            return
        end_ns = perf_counter_ns()
        inside_ns = sum(i.own_ns for i in self._noted if i.begin_ns >= begin_ns)
        self._noted.append(Interruption(name, begin_ns, end_ns, max(0, end_ns - begin_ns - inside_ns)))

    def add(self, name: str, begin_ns: int, end_ns: int) -> None:
        """Note a short, frequent one; consecutive ones are merged."""
        own_ns = end_ns - begin_ns
        if self._noted and (last := self._noted[-1]).name == name and begin_ns - last.end_ns < 500_000:
            self._noted[-1] = Interruption(name, last.begin_ns, end_ns, last.own_ns + own_ns)
        else:
            self._noted.append(Interruption(name, begin_ns, end_ns, own_ns))

    def taken(self, *, before_ns: int) -> list[Interruption]:
        """Return those that began before a moment, oldest first; they are no longer here."""
        noted, self._noted = self._noted, []
        self._noted += [i for i in noted if i.begin_ns >= before_ns]
        return sorted((i for i in noted if i.begin_ns < before_ns), key=lambda i: i.begin_ns)


# Do something on a thread as it ends: torch's profiler belongs to the thread that started it.
#
# A thread that ends with its profiler running takes the process down when that exits (SIGSEGV), and no other thread can
# stop it. Threads of Python's `threading` call their own `_delete` last; any other thread gives no sign of its end.

NO_SIGN = (
    "the steps run in a thread that Python's threading did not start: its end, and the profiler's, would be unseen"
)


def this_thread() -> tuple[int, int]:
    """Return the process and the thread: a forked child has the profiler of neither."""
    return os.getpid(), threading.get_ident()


def at_thread_end(act: Callable[[], None]) -> bool:
    """Return whether `act` will be called on this thread as it ends; the main thread's end is `atexit`'s."""
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return True
    last = getattr(thread, "_delete", None)
    if last is None or isinstance(thread, threading._DummyThread):
        return False

    def ended() -> None:
        try:
            act()
        finally:
            last()

    thread._delete = ended  # type: ignore[attr-defined]
    return True
