"""The errors a user can meet, each with the exit code the contract gives it.

A message is one plain sentence: what is wrong, where, and what to do.
"""

import os

DEBUG = "STEPSCOPE_DEBUG"


def debugging() -> bool:
    """Return whether tracebacks were asked for."""
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
