"""torch's tree of profiler events -> operators and Python calls, each with the stack of lines that led to it.

A call event has the line that its caller was executing; that of an operator is the line of the call right above it.
Operator syntax raises no call event: such an operator is on the line that `line_times` saw begin before it, or, where
that is not known, between the calls before and after it in the same function. What another thread runs for a call, as
autograd's do, was called by the line that waits for it at that moment: torch puts all of it below the first such call.

The tree's parents are not always right: where a generator is closed early its return is never seen, and frames that
have returned stay open. So a call's real caller is the nearest open frame with the file and function that it names.

Private API of torch: whatever is missing raises, and the caller does without.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import HOOK
from stepscope.record.owners.line_times import Activation, LineTimes

# File of a function: torch shortens file names by the folders of `sys.path`; here they get their paths back.
#
#     "train.py"                     /home/u/project/train.py              the user's
#     "torch/nn/modules/linear.py"   .../site-packages/torch/nn/...        a library's
#     "<ipython-input-3-a1b2>"       as it is                              the user's
#
# A name that fits several files is that of the imported module; where several were imported, it is marked ambiguous.

USER, LIBRARY, OURS, PLUMBING = "user", "library", "ours", "plumbing"
# Frames between a line and what it calls that are irrelevant to the work.
_PLUMBING = (
    "torch/nn/modules/module.py",
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
    "torch/utils/_contextlib.py",
    "torch/autograd/grad_mode.py",
    "torch/optim/optimizer.py",
    "torch/autograd/profiler.py",
    "torch/_tensor.py",
    "torch/_ops.py",
    "contextlib.py",
    "functools.py",
)


_GENERATED = "torchinductor_"  # a folder of code that torch.compile wrote


class Places:
    """Answers by file name, each worked out once."""

    def __init__(self) -> None:
        self.ambiguous: list[str] = []
        try:
            from torch.profiler.python_tracer import _prefix_regex

            self._prefixes = list(_prefix_regex())
        except (ImportError, AssertionError, AttributeError, TypeError):
            self._prefixes = sorted({os.path.abspath(folder) + os.sep for folder in sys.path}, reverse=True)  # noqa: PTH100
        self._imported: set[str] | None = None
        folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        folders |= {*site.getsitepackages(), site.getusersitepackages(), str(Path(torch.__file__).parent)}
        self._installed = tuple(folder.rstrip(os.sep) + os.sep for folder in folders if folder)
        self._known: dict[str, tuple[str, str]] = {}

    def of(self, name: str) -> tuple[str, str]:
        """Return `(path, kind)` of a file name that torch gave."""
        found = self._known.get(name)
        if found is None:
            path = self._path_of(name)
            found = self._known[name] = (path, self._kind_of(path))
        return found

    def _path_of(self, name: str) -> str:
        if name.startswith("<") or Path(name).is_absolute():
            return name
        fitting = [path for prefix in self._prefixes if self._fits(path := prefix + name, name)]
        if len(fitting) > 1:
            fitting = [path for path in fitting if path in self._files_imported()] or fitting
        if len(fitting) > 1:
            self.ambiguous.append(name)
        return fitting[0] if fitting else str(Path(name).absolute()) if Path(name).exists() else name

    def _fits(self, path: str, name: str) -> bool:
        first = next(prefix for prefix in self._prefixes if path.startswith(prefix))
        return path == first + name and Path(path).is_file()

    def _files_imported(self) -> set[str]:
        if self._imported is None:
            named = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
            self._imported = {os.path.abspath(path) for path in named if isinstance(path, str)}  # noqa: PTH100
        return self._imported

    def _kind_of(self, path: str) -> str:
        if path.startswith(
            tuple(str(Path(__file__).parents[2] / room) + os.sep for room in ("record", "integrations"))
        ):
            return OURS
        if not Path(path).is_absolute():
            return USER if path.startswith(("<ipython-input", "<stdin>", "<cell")) else LIBRARY
        if path.startswith(self._installed) or any(
            folder in path for folder in (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
        ):
            return PLUMBING if path.endswith(_PLUMBING) else LIBRARY
        return LIBRARY if any(part.startswith(_GENERATED) for part in Path(path).parts) else USER


# Distinct stacks of the user's frames: a call adds a frame to the stack that it was made from.
#
#     calls     train.py:40 step -> torch/nn/.../module.py:1778 -> ... -> model.py:12 forward -> functional.py:88 gelu
#     stack     train.py:40 step, model.py:12 forward, functional.py:88 gelu
#
# Of libraries only the first frame below the user's innermost one is included; a module's call and decorators are
# skipped.

EMPTY = 0


@dataclass(frozen=True)
class StackTable:
    """Stacks by number of frame, frames by number of file."""

    root: str
    files: list[str]
    frames: list[list[int | str]]
    stacks: list[list[int]]
    user_files: list[str]


class Stacks:
    """Numbered stacks and the frames and files in them; stack 0 is empty."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._frames: dict[tuple[str, int, str, int, int], int] = {}
        self._stacks: dict[tuple[tuple[int, ...], int], int] = {((), -1): EMPTY}
        self._contents: list[tuple[tuple[int, ...], int]] = [((), -1)]
        self._pushed: dict[tuple[int, str, str, int, int], int] = {}

    def push(self, stack: int, file: str, function: str, line: int, line_to: int) -> int:
        """Return the stack that has one frame more, or the same one where that frame is skipped."""
        key = (stack, file, function, line, line_to)
        found = self._pushed.get(key)
        if found is None:
            found = self._pushed[key] = self._with_frame(stack, file, function, line, line_to)
        return found

    def _with_frame(self, stack: int, file: str, function: str, line: int, line_to: int) -> int:
        path, kind = self.places.of(file)
        users, library = self._contents[stack]
        if kind in (OURS, PLUMBING) or (kind == LIBRARY and (library != -1 or not users)):
            return stack
        exact = line if kind == LIBRARY else line_to
        frame = self._frames.setdefault((path, line, function, int(kind == USER), exact), len(self._frames))
        content = ((*users, frame), -1) if kind == USER else (users, frame)
        number = self._stacks.setdefault(content, len(self._contents))
        if number == len(self._contents):
            self._contents.append(content)
        return number

    def table(self, wanted: Sequence[int]) -> StackTable:
        """Return the wanted stacks, in that order, with their frames and files as the file has them."""
        kept = [self._contents[stack] for stack in wanted]
        contents = [[*users, *([library] if library != -1 else [])] for users, library in kept]
        keys = list(self._frames)
        used = list(dict.fromkeys(frame for stack in contents for frame in stack))
        number = {frame: i for i, frame in enumerate(used)}
        paths = list(dict.fromkeys(keys[frame][0] for frame in used))
        users = list(dict.fromkeys(keys[frame][0] for frame in used if keys[frame][3]))
        root = project_root(users, main_folder())
        file = {path: i for i, path in enumerate(paths)}
        rows = [keys[frame] for frame in used]
        return StackTable(
            root,
            [below(path, root) for path in paths],
            [[file[path], line, function, user, to] for path, line, function, user, to in rows],
            [[number[frame] for frame in stack] for stack in contents],
            [below(path, root) for path in users],
        )


def main_folder() -> str:
    """Return the folder of the script, the current one where there is none; not known any more as Python ends."""
    import __main__

    script = getattr(__main__, "__file__", None)
    return str(Path(script).absolute().parent if script else Path.cwd())


def project_root(paths: list[str], main: str) -> str:
    """Return the folder that contains the user's files."""
    folders = [str(Path(path).parent) for path in paths if Path(path).is_absolute()]
    if not folders:
        return main
    shared = os.path.commonpath(
        [*folders, main] if any(folder.startswith(main) or main.startswith(folder) for folder in folders) else folders
    )
    return shared if (len(Path(shared).parts) > 2 and not str(Path.home()).startswith(shared)) else main


def below(path: str, root: str) -> str:
    """Return a path relative to the root where it is below it."""
    return path[len(root) :].lstrip(os.sep) if path.startswith(root.rstrip(os.sep) + os.sep) else path


_OPERATOR, _CALL, _C_CALL = "TorchOp", "PyCall", "PyCCall"
_MODULE_FILE, _MODULE_CALLS = "torch/nn/modules/module.py", ("_call_impl", "inner")


class TooManyEvents(Exception):
    """The tree is larger than the limit."""


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
    lines: Activation | None


@dataclass(frozen=True, slots=True)
class Event:
    """An operator, an annotation, or a Python call or line, which has no name."""

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
    event: Any
    frame: Frame | None
    stack: int | None
    line_to: int


@dataclass(frozen=True, slots=True)
class _Called:
    event: Event
    frame: Frame | None


def walked(roots: Iterable[Any], stacks: Stacks, *, max_events: int, lines: LineTimes | None = None) -> list[Event]:
    """Return operators and calls of the tree, parents before their children, siblings in order of start."""
    out: list[Event] = []
    calls: list[_Called] = []
    elsewhere: list[tuple[Any, _Called]] = []  # what runs on another thread than the call above it
    todo = [_Visit(root, None, None, 0) for root in reversed(list(roots))]
    while todo or elsewhere:
        if not todo:
            todo, elsewhere = _below_waiting(elsewhere, calls), []
        visit = todo.pop()
        event = visit.event
        kind = event.tag.name
        if kind == _OPERATOR:
            out.append(_operator(visit, stacks))
            todo += _inherited(event.children, visit.frame, out[-1].stack)
        elif kind in (_CALL, _C_CALL):
            found, frame = _c_call(visit, stacks) if kind == _C_CALL else _call(visit, stacks, lines)
            out.append(found)
            calls.append(_Called(found, frame))
            elsewhere += [(child, calls[-1]) for child in event.children if child.start_tid != found.thread]
            children = [child for child in event.children if child.start_tid == found.thread]
            inside = frame if kind == _CALL else None
            todo += _inside(children, inside) if inside else _inherited(children, frame, found.stack)
            if inside is not None and inside.lines is not None:
                out += _begun(found, inside, children, stacks)
        else:
            todo += _inherited(event.children, visit.frame, visit.stack)
        if len(out) > max_events:
            raise TooManyEvents(f"the step with frames has over {max_events} events")
    return out


def _below_waiting(events: list[tuple[Any, _Called]], calls: list[_Called]) -> list[_Visit]:
    """Return them below the innermost call that was open when each began, on the thread of the call above it."""
    out: list[_Visit] = []
    events.sort(key=lambda pair: pair[0].start_time_ns)
    for thread in {above.event.thread for _, above in events}:
        coming = [called for called in calls if called.event.thread == thread]
        coming.sort(key=lambda called: -called.event.start_ns)
        open_: list[_Called] = []
        for event, above in events:
            if above.event.thread != thread:
                continue
            while coming and coming[-1].event.start_ns <= event.start_time_ns:
                _close(open_, coming[-1].event.start_ns)
                open_.append(coming.pop())
            _close(open_, event.start_time_ns)
            called = open_[-1] if open_ else above
            out.append(_Visit(event, called.frame, called.event.own_stack, 0))
    out.sort(key=lambda visit: -visit.event.start_time_ns)
    return out


def _close(open_: list[_Called], at_ns: int) -> None:
    while open_ and open_[-1].event.end_ns <= at_ns:
        open_.pop()


def _begun(call: Event, frame: Frame, children: Sequence[Any], stacks: Stacks) -> list[Event]:
    """Return the lines of a function as they began, none inside a call: clocks differ by a microsecond."""
    out: list[Event] = []
    left = [(child.start_time_ns, child.end_time_ns) for child in reversed(children) if child.tag.name != _OPERATOR]
    for at_ns, number in frame.lines.began() if frame.lines is not None else ():
        at_ns = min(max(at_ns, call.start_ns), call.end_ns)
        while left and left[-1][1] <= at_ns:
            left.pop()
        if left and left[-1][0] < at_ns:
            start_ns, end_ns = left[-1]
            at_ns = end_ns if 2 * at_ns > start_ns + end_ns else start_ns
        stack = stacks.push(frame.stack, frame.file, frame.shown, number, number)
        out.append(Event(None, call.thread, at_ns, at_ns, stack, stack, call.module, -1, False, call.is_ours))
    return out


def _operator(visit: _Visit, stacks: Stacks) -> Event:
    event, fields = visit.event, visit.event.extra_fields
    stack = _stack_of(visit, stacks)
    module = visit.frame.module if visit.frame is not None else None
    is_annotation = fields.scope.name == "USER_SCOPE"
    return _event(event, event.name, stack, stack, module, int(fields.sequence_number), is_annotation=is_annotation)


def _c_call(visit: _Visit, stacks: Stacks) -> tuple[Event, Frame | None]:
    at = visit.event.extra_fields.caller
    frame = _caller(visit.frame, at)
    if frame is None:
        stack = _stack_of(visit, stacks)
        return _event(visit.event, None, stack, stack, None), visit.frame
    frame.line = at.line_number
    stack = stacks.push(frame.stack, frame.file, frame.shown, frame.line, frame.line)
    return _event(visit.event, None, stack, stack, frame.module, is_ours=frame.is_ours), frame


def _call(visit: _Visit, stacks: Stacks, lines: LineTimes | None) -> tuple[Event, Frame]:
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
    path, kind = stacks.places.of(file)
    is_ours = kind == OURS
    in_module_call = caller is not None and caller.function in _MODULE_CALLS and caller.file.endswith(_MODULE_FILE)
    shown = f"{function}{HOOK}" if kind == USER and in_module_call and function != "forward" else function
    inside = module.self_ptr if module is not None else caller.module if caller is not None else None
    own_stack = stacks.push(stack, file, shown, line, 0)
    event = _event(visit.event, None, stack, own_stack, inside, is_ours=is_ours)
    run = lines.of_call(path, function, line, event.start_ns, event.end_ns) if lines and kind == USER else None
    return event, Frame(file, function, line, caller, stack, inside, is_ours, shown, run)


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
    if visit.stack is not None:
        return visit.stack
    frame = visit.frame
    if frame is None:
        return EMPTY
    seen = frame.lines.line_at(visit.event.start_time_ns) if frame.lines is not None else None
    line, line_to = (seen, seen) if seen is not None else (frame.line, visit.line_to)
    return stacks.push(frame.stack, frame.file, frame.shown, line, line_to)


def _caller(frame: Frame | None, at: Any) -> Frame | None:
    file, function = at.file_name, at.function_name
    while frame is not None and (frame.function != function or frame.file != file):
        frame = frame.caller
    return frame


def _inherited(children: Sequence[Any], frame: Frame | None, stack: int | None) -> list[_Visit]:
    return [_Visit(child, frame, stack, 0) for child in reversed(children)]


def _inside(children: Sequence[Any], frame: Frame) -> list[_Visit]:
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
