"""What a command says in plain lines: the one place that prints, so that no name in a line steers the terminal.

Tables and colours go through `report.terminal`, which does the same for what it prints. What a command says about its
answer waits for the answer: an input that is refused in the middle is one line and exit code 2, with nothing before it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from stepscope.units import escaped, printable

_MAX_WARNING = 400

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)

# lines about the answer of the command that runs; None where none does, and they are printed at once
_held: ContextVar[list[str] | None] = ContextVar("held", default=None)


def print_line(line: str = "") -> None:
    """Print one line on standard output, and let it be seen at once."""
    print(escaped(line), flush=True)


def print_stderr(line: str) -> None:
    """Print one line on standard error, at once."""
    print(escaped(line), file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Say on standard error what the answer lacks, once there is an answer."""
    say_with_answer(f"warning: {printable(line, width=_MAX_WARNING)}")


def say_with_answer(line: str) -> None:
    """Print one line on standard error once the command has done all it was asked for; none where it is to be quiet."""
    if is_quiet():
        return
    held = _held.get()
    if held is None:
        print_stderr(line)
    else:
        held.append(line)


def is_quiet() -> bool:
    """Return whether nothing but the answer and errors is asked for."""
    return _quiet.get()


@contextmanager
def quiet() -> Iterator[None]:
    """Say nothing but the answer, and errors."""
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)


@contextmanager
def lines_held() -> Iterator[list[str]]:
    """Keep what is said about the answer in the list that this gives, for whoever ends the command to print."""
    held: list[str] = []
    before = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(before)
