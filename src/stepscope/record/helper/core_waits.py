"""When the training thread waited for a core while it was profiled: `rank00000.core_waits.jsonl`.

The kernel adds a wait to the thread's count as it ends, and has no list of them. A thread of the helper process reads
the count every millisecond from the steps before a window to its end, for a single process without a device.

    {"schema": 1, "since_ns": ..., "until_ns": ..., "waits": [[after_ns, seen_ns, waited_ns], ...]}    a line per window
"""

import json
import os
import threading
import time
from pathlib import Path

from stepscope.contract.run_folder import SCHEMA
from stepscope.record.window.trace_file import place_whole

_EVERY_S = 0.001
_MOST_S, _MOST_WAITS = 300.0, 50_000


class CoreWaits:
    """Watches one thread of another process at a time."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, process: int, native_id: int) -> None:
        """Watch a thread until `end()`."""
        self.end()
        self._over.clear()
        path = f"/proc/{process}/task/{native_id}/schedstat"
        self._thread = threading.Thread(target=self._watch, args=(path,), name="core waits", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching."""
        if self._thread is not None:
            self._over.set()
            self._thread.join(timeout=2.0)
            self._thread = None

    def write(self, path: Path) -> None:
        """Write all windows so far; nothing where there are none."""
        if self._lines:
            place_whole("".join(self._lines).encode(), path)

    def _watch(self, path: str) -> None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a kernel without these counts, or the thread has ended
            return
        waits: list[tuple[int, int, int]] = []
        try:
            since_ns = at_ns = time.time_ns()
            waited_ns = _waited_ns(file)
            while not self._over.wait(_EVERY_S) and at_ns - since_ns < _MOST_S * 1e9 and len(waits) < _MOST_WAITS:
                after_ns, before_ns = at_ns, waited_ns
                at_ns, waited_ns = time.time_ns(), _waited_ns(file)
                if waited_ns > before_ns:
                    waits.append((after_ns, at_ns, waited_ns - before_ns))
        except OSError:  # the thread has ended
            pass
        finally:
            os.close(file)
        found = {"schema": SCHEMA, "since_ns": since_ns, "until_ns": at_ns, "waits": waits}
        self._lines.append(json.dumps(found, separators=(",", ":")) + "\n")


def _waited_ns(file: int) -> int:
    return int(os.pread(file, 64, 0).split()[1])
