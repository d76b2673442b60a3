"""The one place that prints plain lines, with every name escaped for the terminal.

Tables and colours go through `report.terminal`, which escapes as well. Lines about an answer wait for the answer: a
command that fails halfway prints one line and exits with 2, with nothing before it.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from stepscope.units import escaped, printable

_T = TypeVar("_T")
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
# lines about the answer of the running command; None outside a command, where they are printed at once
_held: ContextVar[list[str] | None] = ContextVar("held", default=None)


def print_line(line: str = "") -> None:
    """Print one line on standard output, unbuffered."""
    print(escaped(line), flush=True)


def print_stderr(line: str) -> None:
    """Print one line on standard error, unbuffered."""
    print(escaped(line), file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Print a warning about the answer on standard error, after the answer."""
    say_with_answer(f"warning: {printable(line, width=400)}")


def say_with_answer(line: str) -> None:
    """Print one line on standard error once the command has succeeded; nothing with --quiet."""
    if is_quiet():
        return
    held = _held.get()
    if held is None:
        print_stderr(line)
    else:
        held.append(line)


def is_quiet() -> bool:
    """Return whether only the answer and errors are printed."""
    return _quiet.get()


def quiet() -> AbstractContextManager[bool]:
    """Print only the answer and errors."""
    return _set(_quiet, True)


def lines_held() -> AbstractContextManager[list[str] | None]:
    """Collect lines about the answer in the list that this yields."""
    return _set(_held, [])


@contextmanager
def _set(variable: ContextVar[_T], value: _T) -> Iterator[_T]:
    before = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(before)
