"""The errors a user can meet, each with the exit code the contract gives it.

A message is one plain sentence: what is wrong, where, and what to do.
"""

import os
from collections.abc import Iterable

DEBUG = "STEPSCOPE_DEBUG"


def debugging() -> bool:
    """Return whether tracebacks are enabled."""
    return os.environ.get(DEBUG, "") not in ("", "0")


class StepscopeError(Exception):
    """Anything stepscope refuses to do, said in one line."""

    exit_code = 2


class UsageError(StepscopeError):
    """The command or call itself is wrong: a missing argument, a value out of range, an output that exists."""


class InputError(StepscopeError):
    """A file or folder that cannot be used as given: missing, empty, not a trace, refused as too large."""


class TraceError(InputError):
    """One trace file that cannot be read at all. A damaged but readable one is a warning instead."""


class MissingFileError(InputError, FileNotFoundError):
    """A file or folder that does not exist."""


class UnknownNameError(UsageError, KeyError):
    """A table, column, setting or metric that does not exist."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class InvalidValueError(UsageError, ValueError):
    """A value that the setting or argument does not take."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, or all of them."""
    import difflib  # only for names that are wrong

    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(names)}"
