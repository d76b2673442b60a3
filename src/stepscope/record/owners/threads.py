"""Operators in columns, one table per thread, with the Python time between them.

    events of a thread    call f .. [ op a [ op b ] ] .. call g .. [ op c ] ..
    operators             a (depth 0), b (depth 1), c (depth 0)
    python                before a: f's lines; before c: f's and g's; after c: f's

Depth counts operators and annotations by time. Python time inside an annotation is Python time all the same: only
operators end it.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from stepscope.contract.owners import AUTOGRAD, OTHER, TRAINING, OwnersThread
from stepscope.contract.regions import EVALUATE
from stepscope.record.owners.event_tree import Event

_MIN_PYTHON_NS = 1_000


def threads_of(
    events: Iterable[Event],
    *,
    step: int,
    training_thread: int,
    stack_number: Callable[[int], int],
    module_number: Callable[[int | None], int],
    name_number: Callable[[str], int],
) -> list[OwnersThread]:
    """Return one table per thread, the training thread's first; threads without operators are left out."""
    by_thread: dict[int, list[Event]] = {training_thread: []}
    for event in events:
        by_thread.setdefault(event.thread, []).append(event)
    out: list[OwnersThread] = []
    for thread, own in by_thread.items():
        own.sort(key=lambda event: event.start_ns)  # stable: parents stay before children that start with them
        operators = [event for event in own if event.name is not None]
        if not operators:
            continue
        out.append(
            {
                "role": _role(thread == training_thread, operators),
                "name": [name_number(str(event.name)) for event in operators],
                "depth": depths(operators),
                "stack": [stack_number(event.stack) for event in operators],
                "module": [module_number(event.module) for event in operators],
                "sequence": [event.sequence for event in operators],
                "step": [step] * len(operators),
                "python": [[i, stack_number(stack), ns] for i, stack, ns in python_time(own) if stack],
            }
        )
    return out


def _role(is_training: bool, operators: list[Event]) -> Literal["training", "autograd", "other"]:
    if is_training:
        return TRAINING
    return AUTOGRAD if any(str(event.name).startswith(EVALUATE) for event in operators) else OTHER


def depths(operators: list[Event]) -> list[int]:
    """Return how many operators and annotations of the thread are open when each one starts."""
    out: list[int] = []
    ends: list[int] = []
    for event in operators:
        while ends and ends[-1] <= event.start_ns:
            ends.pop()
        out.append(len(ends))
        ends.append(min(event.end_ns, ends[-1]) if ends else event.end_ns)
    return out


def python_time(events: list[Event]) -> list[tuple[int, int, int]]:
    """Return `(i, stack, ns)`: Python time in no operator before operator i, by stack, ours left out."""
    return _Gaps().of(events)


class _Open:
    """What runs right now: an operator, or Python with the stack of the line it has reached."""

    __slots__ = ("end_ns", "is_operator", "is_ours", "own_stack", "stack")

    def __init__(self, event: Event) -> None:
        self.end_ns = event.end_ns
        self.is_operator = event.name is not None
        self.is_ours = event.is_ours
        self.own_stack = event.own_stack
        self.stack: int | None = None  # of the last call it made


class _Gaps:
    """Goes through the events of one thread in order of start."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._operators_open = 0
        self._seen = 0  # operators and annotations
        self._now_ns = 0
        self._gap: dict[int, int] = {}
        self._out: list[tuple[int, int, int]] = []

    def of(self, events: list[Event]) -> list[tuple[int, int, int]]:
        for event in events:
            self._close_until(event.start_ns)
            self._pass(event.start_ns, coming=event if event.name is None else None)
            if event.name is not None:
                self._end_gap()
                self._seen += 1
            if not event.is_annotation:
                self._open.append(_Open(event))
                self._operators_open += event.name is not None
        self._close_until(None)
        self._end_gap()
        return self._out

    def _close_until(self, at_ns: int | None) -> None:
        while self._open and (at_ns is None or self._open[-1].end_ns <= at_ns):
            self._pass(self._open[-1].end_ns, coming=None)
            self._operators_open -= self._open.pop().is_operator

    def _pass(self, until_ns: int, *, coming: Event | None) -> None:
        """Give the time until then to what runs; a coming call shows the line of its caller."""
        top = self._open[-1] if self._open else None
        if top is not None and not self._operators_open and not top.is_ours and until_ns > self._now_ns:
            before = top.stack if top.stack is not None else coming.stack if coming is not None else top.own_stack
            self._gap[before] = self._gap.get(before, 0) + until_ns - self._now_ns
        if top is not None and coming is not None:
            top.stack = coming.stack
        self._now_ns = max(self._now_ns, until_ns)

    def _end_gap(self) -> None:
        """Keep the gap before the next operator: what is worth a line, and always the largest."""
        if self._gap:
            largest = max(self._gap, key=lambda stack: self._gap[stack])
            kept = {s: ns for s, ns in self._gap.items() if ns >= _MIN_PYTHON_NS or s == largest}
            self._out += [(self._seen, stack, ns) for stack, ns in kept.items()]
            self._gap = {}
