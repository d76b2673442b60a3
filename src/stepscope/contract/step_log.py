"""Step logs while they grow: the reader of `watch`, of alarms and of trackers, on both sides."""

import contextlib
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import json_object
from stepscope.side_file import appended

_MAX_READ_BYTES = 4 << 20


def is_count(value: object) -> bool:
    """Return whether a value is a whole number that a time or a count can have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def steps_of(lines: list[bytes], *, needs: tuple[str, ...] = ("step", "dur_ns")) -> list[dict[str, Any]]:
    """Return the steps among some lines; a header, or a line that is damaged, is none."""
    found = (json_object(line) for line in lines if line)
    return [line for line in found if line is not None and all(is_count(line.get(name)) for name in needs)]


class GrowingLog:
    """One rank's log; `read` continues where it ended. A line that is still being written waits for the next time.

    `near_end_bytes` begins with the first whole line of so much at its end.
    """

    def __init__(
        self, path: Path, *, near_end_bytes: int | None = None, needs: tuple[str, ...] = ("step", "dur_ns")
    ) -> None:
        self._path, self._needs = path, needs
        self._limit = near_end_bytes or _MAX_READ_BYTES
        self._at = 0 if near_end_bytes is None else None
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the steps that are new; none from storage that fails for a while."""
        lines: list[bytes] = []
        with contextlib.suppress(OSError):
            data, self._at = appended(self._path, self._at, max_bytes=self._limit)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest, self._limit = self._rest[:_MAX_READ_BYTES], _MAX_READ_BYTES
        return steps_of(lines, needs=self._needs)
