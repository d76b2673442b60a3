"""How many collectives and bytes each step had, those that C++ issued included.

A group's sequence number says how many collectives it has issued. What Python issued is known call by call; the
difference came from C++ (DDP's reducer, functional collectives), where only the flight recorder saw the bytes:

    the group's number went on by 7 in a step, 2 of them in calls from Python   =>  5 came from C++
    the recorder shows 5 in that step outside these calls, 4 MB each            =>  5 from C++ are 20 MB in this group

So once a step was there whole, the bytes of every step like it are known without reading the recorder again. The two
are joined by time, because backends number differently (gloo's sequence numbers count sends, its recorder does not).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.contract import collectives as ops
from stepscope.record.collectives import volume

_KEPT_STEPS = 256
_KEPT_CALLS = 1 << 15
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
        self._calls: deque[tuple[str, int, int]] = deque(maxlen=_KEPT_CALLS)
        self._steps: deque[tuple[str, int, int, int]] = deque(maxlen=_KEPT_STEPS)
        self._learnt: dict[tuple[str, int], int] = {}  # (group, number from C++) -> bytes

    def call(self, operation: str, size_bytes: int) -> None:
        """Count one collective that Python issued."""
        if operation in (ops.SEND, ops.RECV):
            self._p2p += 1
            self._p2p_bytes += size_bytes
        else:
            self._count += 1
            self._bytes += size_bytes

    def in_python(self, group: str, *, numbers: int, since_ns: int, until_ns: int) -> None:
        """Note a call from Python: by how much the group's sequence number went on, and when (since the epoch)."""
        self._from_python[group] = self._from_python.get(group, 0) + numbers
        self._calls.append((group, since_ns, until_ns))

    def share_a_look(self, steps: int = 1) -> None:
        """Say that steps ended whose numbers will be in the next line."""
        self._steps_shared += steps

    def end_of_step(self, groups: Iterable[tuple[str, int, int]], *, now_ns: int) -> dict[str, Any] | None:
        """Return `{"count", "bytes"}` of the step; None for the first one, whose beginning was not seen.

        `groups` are `(name, size, sequence number)`; bytes are None while those that C++ moved are not known. Where
        steps shared a look they are sums, and `"steps"` says of how many.
        """
        is_first = self._step_start_ns == 0
        count, total = self._count, self._bytes
        known = True
        for group in groups:
            key = self._from_cpp(*group, now_ns)
            if key[1]:
                size = self._bytes_from_cpp(*key)
                count += key[1]
                total += size or 0
                known = known and size is not None
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
            and not _inside(calls.get(group_of(e), []), e["time_created_ns"])
        ]

    def learn(self, in_cpp: Iterable[Entry]) -> None:
        """Take in what C++ issued: steps that are there whole tell the bytes of steps like them."""
        entries = list(in_cpp)
        for group, since_ns, until_ns, expected in list(self._steps):
            found = [e for e in entries if group_of(e) == group and since_ns < e["time_created_ns"] <= until_ns]
            sizes = [volume.entry_bytes(e, group_size=self.group_sizes[group]) for e in found]
            if len(found) == expected and None not in sizes:
                self._learnt[group, expected] = sum(size for size in sizes if size is not None)

    def _bytes_from_cpp(self, group: str, number: int) -> int | None:
        """Return the bytes of `number` collectives from C++: as seen before, or as so many equal steps."""
        known = self._learnt.get((group, number))
        each, left = divmod(number, self._steps_shared)
        if known is None and left == 0:
            of_one = self._learnt.get((group, each))
            known = None if of_one is None else of_one * self._steps_shared
        return known

    def _from_cpp(self, group: str, size: int, number: int, now_ns: int) -> tuple[str, int]:
        self.group_sizes[group] = size
        went_on = number - self.issued.get(group, number)
        self.issued[group] = number
        from_cpp = max(0, went_on - self._from_python.get(group, 0))
        if from_cpp:
            self._steps.append((group, self._step_start_ns, now_ns, from_cpp))
        return group, from_cpp


def group_of(entry: Entry) -> str:
    """Return the name of the group of a recorder's entry."""
    return str(entry["process_group"][0])


def _inside(calls: list[tuple[int, int]], time_ns: int) -> bool:
    """Return whether a moment lies in one of the calls, which are in order."""
    at = bisect_right(calls, (time_ns, 1 << 63)) - 1
    return at >= 0 and time_ns <= calls[at][1]
