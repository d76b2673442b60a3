"""When each line of the user's functions begins in the step with frames, on the thread that is watched.

torch's tree has calls only: what operator syntax, item assignment, `float(x)` and plain Python do between two calls has
a line, but raises no event there. A trace function sees the lines of the user's functions, and of no others.

    activation     one run of a function, or of a generator until it yields: its lines with the times they began

Any trace function of the user's, such as a debugger or a coverage tool, has priority.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import time_ns
from types import CodeType, FrameType, FunctionType
from typing import Any


@dataclass(slots=True, eq=False)
class Activation:
    """One run of a function: the lines that began in it, and when, by the profiler's clock."""

    path: str
    code: CodeType
    begin_ns: int
    caller: "Activation | None"
    at_ns: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def line_at(self, at_ns: int) -> int | None:
        """Return the line that runs at a time."""
        i = bisect_right(self.at_ns, at_ns) - 1
        return self.numbers[i] if i >= 0 else None

    def began(self) -> Iterator[tuple[int, int]]:
        """Return when lines began, and which."""
        return zip(self.at_ns, self.numbers, strict=True)


class LineTimes:
    """Watches the thread that begins it until `end()`; knows nothing where that is over `limit` lines and calls."""

    def __init__(self, limit: int, user_path: Callable[[str], str | None]) -> None:
        self._left = limit
        self._user_path = user_path  # of a file's name; None where it is not the user's
        self._paths: dict[str, str | None] = {}
        self._is_long: dict[CodeType, bool] = {}
        self._short: dict[tuple[str, str, int], Activation] = {}  # functions of one line, by file, name and line
        self._outer: list[tuple[FrameType, Any]] = []
        self._top: Activation | None = None
        self._changes_ns: list[int] = []
        self._open: list[Activation | None] = []  # the innermost one after each change
        self._trace = self._called  # one object, to be recognised
        self._is_on = False

    def begin(self) -> None:
        """Watch from now on, unless another trace function is set."""
        if sys.gettrace() is not None:
            return
        running: list[FrameType] = []
        frame: FrameType | None = sys._getframe().f_back
        while frame is not None:
            if frame.f_trace is None and self._path_of(frame.f_code.co_filename) is not None:
                running.append(frame)
            frame = frame.f_back
        for one in reversed(running):
            one.f_trace = self._enter(one)
            self._outer.append((one, one.f_trace))
        self._is_on = True
        self._hide_from_the_compiler()
        sys.settrace(self._trace)

    def _hide_from_the_compiler(self) -> None:
        """Keep torch.compile from compiling what runs here inside a compiled function."""
        disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
        skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
        if disable is not None and skip is not None:
            self._user_path = disable(self._user_path)
            own = [f.__code__ for f in vars(LineTimes).values() if isinstance(f, FunctionType)]
            for code in [*own, *(c for one in own for c in one.co_consts if isinstance(c, CodeType))]:
                skip(code)

    def end(self) -> None:
        """Stop watching."""
        self._is_on = False
        if is_ours(sys.gettrace()):
            sys.settrace(None)
        for frame, trace in self._outer:
            if frame.f_trace is trace:
                frame.f_trace = None
        self._outer = []

    def of_call(self, path: str, function: str, line: int, start_ns: int, end_ns: int) -> Activation | None:
        """Return the run of a function that a call event from `start_ns` to `end_ns` was."""
        i = bisect_right(self._changes_ns, (start_ns + end_ns) // 2) - 1
        at = self._open[i] if i >= 0 else None
        found: Activation | None = None
        while at is not None:
            if (
                at.code.co_name == function
                and at.path == path
                and _contains(at.code, line)
                and (found is None or abs(at.begin_ns - start_ns) < abs(found.begin_ns - start_ns))
            ):
                found = at
            at = at.caller
        return found or self._short.get((path, function, line))

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        if not self._is_on:  # ended on another thread
            sys.settrace(None)
        elif (path := self._path_of(frame.f_code.co_filename)) is not None:
            if (code := frame.f_code) not in self._is_long:
                numbers = {number for _, _, number in code.co_lines() if number is not None}
                self._is_long[code] = len(numbers) > 1
                if len(numbers) == 1:  # a lambda, a generator: nothing begins in it
                    line = numbers.pop()
                    self._short[path, code.co_name, line] = Activation(path, code, 0, None, [0], [line])
            if self._is_long[code]:
                return self._enter(frame)
        return None

    def _path_of(self, name: str) -> str | None:
        if name not in self._paths:
            try:
                self._paths[name] = self._user_path(name)
            except Exception:  # noqa: BLE001 - it would arrive in the user's function
                self._paths[name] = None
        return self._paths[name]

    def _enter(self, frame: FrameType) -> Callable[[FrameType, str, Any], Any]:
        now_ns = time_ns()
        code = frame.f_code
        run = Activation(str(self._path_of(code.co_filename)), code, now_ns, self._top, [now_ns], [frame.f_lineno])
        self._change(now_ns, run)

        def within(frame: FrameType, event: str, _arg: Any) -> Any:
            if not self._is_on:
                return None
            if event == "line":
                run.at_ns.append(time_ns())
                run.numbers.append(frame.f_lineno)
                self._count()
            elif event == "return":
                self._change(time_ns(), run.caller)
            return within

        return within

    def _change(self, now_ns: int, top: Activation | None) -> None:
        self._top = top
        self._changes_ns.append(now_ns)
        self._open.append(top)
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.end()
            self._changes_ns, self._open = [], []


def is_ours(trace: Any) -> bool:
    """Return whether a trace function is one of these."""
    return isinstance(getattr(trace, "__self__", None), LineTimes)


def _contains(code: CodeType, line: int) -> bool:
    numbers = [number for _, _, number in code.co_lines() if number is not None]
    return code.co_firstlineno <= line <= max(numbers, default=code.co_firstlineno)
