"""Records that hold arrays: compared by identity, shown in one line.

Two arrays compared give an array, so the equality that a dataclass writes for itself raises; and a notebook that prints
a million numbers is of no use to anybody.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

MAX_REPR = 240
_MAX_TEXT = 40


_Record = TypeVar("_Record", bound="ArrayRecord")
_Answer = TypeVar("_Answer")


def once_per_record(question: Callable[[_Record], _Answer]) -> Callable[[_Record], _Answer]:
    """Return the question with its answer remembered for as long as the record it was asked of is there.

    For small answers that several analyses ask for: records never change, so neither do answers.
    """
    answers: WeakKeyDictionary[_Record, _Answer] = WeakKeyDictionary()

    @wraps(question)
    def asked(record: _Record) -> _Answer:
        if record not in answers:
            answers[record] = question(record)
        return answers[record]

    return asked


class ArrayRecord:
    """The base of frozen dataclasses that hold arrays, themselves or in their fields (`eq=False, repr=False`)."""

    def __repr__(self) -> str:
        shown = [f"{f.name}={_short(getattr(self, f.name))}" for f in fields(self) if f.repr]  # type: ignore[arg-type]
        text = f"{type(self).__name__}({', '.join(shown)})"
        return text if len(text) <= MAX_REPR else text[: MAX_REPR - 4] + "...)"


def _short(value: Any) -> str:
    if isinstance(value, ArrayRecord):
        return f"{type(value).__name__}(...)"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, tuple | list | dict | set | frozenset):
        return f"<{len(value)} in a {type(value).__name__}>" if value else repr(value)
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
