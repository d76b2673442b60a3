"""The limit that ends a hang, never a slow machine: jobs take minutes where eight others run beside them.

pytest ends a test after 900 s (`timeout` in pyproject.toml); a wait inside a test ends before and says which it was.
"""

import time
from collections.abc import Callable
from typing import Any

HANG_S = 600


def until(what: Callable[[], Any]) -> Any:
    """Return the first value that is true."""
    deadline = time.monotonic() + HANG_S
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
