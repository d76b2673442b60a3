"""torch's tree of profiler events -> operators and Python calls, each with the stack of lines that led to it.

A call event has the line that its caller was executing; that of an operator is the line of the call right above it.
Operator syntax raises no call event: such an operator lies between the calls before and after it in the same function.

The tree's parents are not always right: where a generator is closed early its return is never seen, and frames that
have returned stay open. So a call's real caller is the nearest open frame with the file and function that it names.

Private API of torch: whatever is missing raises, and the caller does without.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.contract.owners import HOOK
from stepscope.record.owners.places import OURS, USER
from stepscope.record.owners.stacks import EMPTY, Stacks

_OPERATOR, _CALL, _C_CALL = "TorchOp", "PyCall", "PyCCall"
_ANNOTATION = "USER_SCOPE"
_MODULE_FILE, _MODULE_CALLS, _FORWARD = "torch/nn/modules/module.py", ("_call_impl", "inner"), "forward"


class TooManyEvents(Exception):
    """The tree is larger than asked for."""


@dataclass(slots=True)
class Frame:
    """A Python function that runs: the stack that called it, and the line it has reached."""

    file: str
    function: str
    line: int
    caller: "Frame | None"
    stack: int
    module: int | None  # `id` of the innermost module
    is_ours: bool
    shown: str  # the function's name in stacks


@dataclass(frozen=True, slots=True)
class Event:
    """An operator, an annotation, or a Python call, which has no name."""

    name: str | None
    thread: int
    start_ns: int
    end_ns: int
    stack: int  # of an operator: where it was called; of a call: the caller's line
    own_stack: int  # of a Python function: its first line, for what it does before any call
    module: int | None
    sequence: int
    is_annotation: bool
    is_ours: bool


@dataclass(frozen=True, slots=True)
class _Visit:
    """A node to come: the frame around it, and its stack where a call or an operator above it settles that."""

    event: Any
    frame: Frame | None
    stack: int | None
    line_to: int


def walked(roots: Iterable[Any], stacks: Stacks, *, max_events: int) -> list[Event]:
    """Return operators and calls of the tree, parents before their children, siblings in order of start."""
    out: list[Event] = []
    todo = [_Visit(root, None, None, 0) for root in reversed(list(roots))]
    while todo:
        visit = todo.pop()
        kind = visit.event.tag.name
        if kind == _OPERATOR:
            found = _operator(visit, stacks)
            todo += _inherited(visit.event.children, visit.frame, found.stack)
        elif kind == _C_CALL:
            found, frame = _c_call(visit, stacks)
            todo += _inherited(visit.event.children, frame, found.stack)
        elif kind == _CALL:
            found, frame = _call(visit, stacks)
            todo += _inside(visit.event.children, frame)
        else:
            todo += _inherited(visit.event.children, visit.frame, visit.stack)
            continue
        out.append(found)
        if len(out) > max_events:
            raise TooManyEvents(f"the step with frames has over {max_events} events")
    return out


def _operator(visit: _Visit, stacks: Stacks) -> Event:
    event, fields = visit.event, visit.event.extra_fields
    stack = _stack_of(visit, stacks)
    module = visit.frame.module if visit.frame is not None else None
    scope = fields.scope.name
    return _event(
        event, event.name, stack, stack, module, int(fields.sequence_number), is_annotation=scope == _ANNOTATION
    )


def _c_call(visit: _Visit, stacks: Stacks) -> tuple[Event, Frame | None]:
    """Return the call of a built-in, and the frame that made it."""
    at = visit.event.extra_fields.caller
    frame = _caller(visit.frame, at)
    if frame is None:
        stack = _stack_of(visit, stacks)
        return _event(visit.event, None, stack, stack, None), visit.frame
    frame.line = at.line_number
    stack = stacks.push(frame.stack, frame.file, frame.shown, frame.line, frame.line)
    return _event(visit.event, None, stack, stack, frame.module, is_ours=frame.is_ours), frame


def _call(visit: _Visit, stacks: Stacks) -> tuple[Event, Frame]:
    """Return the call of a Python function, and its frame."""
    fields = visit.event.extra_fields
    at, site, module = fields.caller, fields.callsite, fields.module
    caller = _caller(visit.frame, at)
    if caller is None:
        stack = _stack_of(visit, stacks)
        caller = visit.frame
    else:
        caller.line = at.line_number
        stack = stacks.push(caller.stack, caller.file, caller.shown, caller.line, caller.line)
    file, function, line = site.file_name, site.function_name, site.line_number
    kind = stacks.places.of(file)[1]
    is_ours = kind == OURS
    shown = f"{function}{HOOK}" if kind == USER and _calls_hooks(caller) and function != _FORWARD else function
    inside = module.self_ptr if module is not None else caller.module if caller is not None else None
    own_stack = stacks.push(stack, file, shown, line, 0)
    event = _event(visit.event, None, stack, own_stack, inside, is_ours=is_ours)
    return event, Frame(file, function, line, caller, stack, inside, is_ours, shown)


def _calls_hooks(frame: Frame | None) -> bool:
    """Return whether a frame is a module's call, which runs its `forward` and its hooks."""
    return frame is not None and frame.function in _MODULE_CALLS and frame.file.endswith(_MODULE_FILE)


def _event(
    event: Any,
    name: str | None,
    stack: int,
    own_stack: int,
    module: int | None,
    sequence: int = -1,
    *,
    is_annotation: bool = False,
    is_ours: bool = False,
) -> Event:
    start_ns, end_ns = event.start_time_ns, event.end_time_ns
    return Event(name, event.start_tid, start_ns, end_ns, stack, own_stack, module, sequence, is_annotation, is_ours)


def _stack_of(visit: _Visit, stacks: Stacks) -> int:
    """Return where a node lies that has no call event of its own."""
    if visit.stack is not None:
        return visit.stack
    frame = visit.frame
    if frame is None:
        return EMPTY
    return stacks.push(frame.stack, frame.file, frame.shown, frame.line, visit.line_to)


def _caller(frame: Frame | None, at: Any) -> Frame | None:
    """Return the nearest open frame that a call names as its caller."""
    file, function = at.file_name, at.function_name
    while frame is not None and (frame.function != function or frame.file != file):
        frame = frame.caller
    return frame


def _inherited(children: Sequence[Any], frame: Frame | None, stack: int | None) -> list[_Visit]:
    return [_Visit(child, frame, stack, 0) for child in reversed(children)]


def _inside(children: Sequence[Any], frame: Frame) -> list[_Visit]:
    """Return the children of a Python function, last first; each knows the next call, which shows where it lies."""
    out: list[_Visit] = []
    around, line_to = frame, 0
    for child in reversed(children):
        if child.tag.name in (_CALL, _C_CALL):
            at = child.extra_fields.caller
            around = _caller(frame, at) or frame
            line_to = at.line_number
            out.append(_Visit(child, frame, None, 0))
        else:
            out.append(_Visit(child, around, None, line_to))
    return out
