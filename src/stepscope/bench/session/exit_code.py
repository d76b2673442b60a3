"""How a program of the job side ends: what it refuses is one line and the exit code of the contract."""

import sys
from collections.abc import Callable

from stepscope.errors import StepscopeError, debugging
from stepscope.units import printable

_MAX_SENTENCE = 2000


def run_to_exit_code(name: str, program: Callable[[], int]) -> int:
    """Return the program's exit code; what it refuses, and what the system refuses it, is said in one line.

    Anything else keeps its traceback: it comes from the user's own model or from torch, and they need to see where.
    """
    try:
        return program()
    except (StepscopeError, OSError) as error:
        if debugging():
            raise
        sys.stderr.write(f"{name}: {printable(str(error), width=_MAX_SENTENCE)}\n")
        return error.exit_code if isinstance(error, StepscopeError) else 2
