"""Which steps did a rank's log grow by? Read as it grows, by whoever follows the job."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.contract.step_line import GRADIENT_SYNC

_MAX_READ = 4 << 20  # of a log at a time


class LogTail:
    """One rank's log from its beginning; `read` goes on where it ended."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Return the steps that are new; a last line that is still being written waits for the next time."""
        try:
            with self._path.open("rb") as f:
                f.seek(self._at)
                data = f.read(_MAX_READ)
        except OSError:  # not there yet, or on storage that fails for a while
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [step for line in whole.splitlines() if (step := _step(line)) is not None]


def waited_ns(step: Mapping[str, Any]) -> int | None:
    """Return how long a step waited for the other ranks' gradients; None where that was not measured.

    Where steps are short their regions are timed in a few of them only.
    """
    regions = step.get("regions")
    sync = regions.get(GRADIENT_SYNC) if isinstance(regions, Mapping) else None
    ns = sync.get("ns") if isinstance(sync, Mapping) else None
    return ns if isinstance(ns, int) and not isinstance(ns, bool) else None


def _step(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        return None
    return found if isinstance(found.get("dur_ns"), int) else None
