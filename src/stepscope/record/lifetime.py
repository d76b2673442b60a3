"""Milestones of this process around its steps, for the ledger of the job: epoch times, taken once each.

    process_ns        the process started, by the kernel
    torch_ns          `import torch` was done
    group_ns          when `init_process_group` began and ended
    work_ns           first forward with gradients, where no step was open yet
    checkpoints       files read before the first step, files written: [what, begin, end, path]

They leave with the step log's header; checkpoints that are written later leave one by one. Steps cost nothing here.
Standard library only: it is imported before torch.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOAD, SAVE = "load", "save"
_MAX_LOADS = 200
_MAX_PATH = 400


def process_start_ns() -> int | None:
    """Return when this process started, None where the kernel does not report it."""
    try:
        ticks = int(
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
        )
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.time_ns() - int(age_s * 1e9) if 0 <= age_s < 3e7 else None


class Lifetime:
    """The milestones of this process so far."""

    def __init__(self) -> None:
        self.marks: dict[str, Any] = {}
        self._checkpoints: list[list[Any]] = []
        self._open: list[Any] | None = None
        self._send: Callable[[dict[str, Any]], None] | None = None

    def mark(self, name: str, value: Any = None) -> None:
        """Note a milestone, now unless a value is given; the first one counts."""
        self.marks.setdefault(name, time.time_ns() if value is None else value)

    def file_begins(self, what: str, *paths: object) -> bool:
        """Return whether this file counts: the main thread's, in no other one; `file_ends` must follow then."""
        if self._open is not None or threading.current_thread() is not threading.main_thread():
            return False
        if what == LOAD and (self._send is not None or len(self._checkpoints) >= _MAX_LOADS):
            return False  # training has begun: a data set that reads its samples by `torch.load`
        self._open = [what, time.time_ns(), None, next(filter(None, map(_name, paths)), None)]
        self._tell(self._open)
        return True

    def file_ends(self) -> None:
        """End what counted."""
        entry, self._open = self._open, None
        if entry is not None:
            entry[2] = time.time_ns()
            self._tell(entry)

    def leave_to(self, send: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Return what is known for the header of the step log; `send` takes messages about later checkpoints."""
        self._send = send
        if (started_ns := process_start_ns()) is not None:
            self.mark("process_ns", started_ns)
        return {**self.marks, "checkpoints": self._checkpoints}

    def in_forked_child(self) -> None:
        """Forget the parent's way out."""
        self._send = None

    def _tell(self, entry: list[Any]) -> None:
        if self._send is not None:
            self._send({"do": "checkpoint", "entry": entry})
        elif entry[2] is not None:
            self._checkpoints.append(entry)


def _name(path: object) -> str | None:
    name = path if isinstance(path, str | os.PathLike) else getattr(path, "name", None) or getattr(path, "path", None)
    try:
        return os.path.abspath(os.fsdecode(name))[:_MAX_PATH] if isinstance(name, str | os.PathLike) else None  # noqa: PTH100
    except (ValueError, OSError):
        return None


LIFETIME = Lifetime()
