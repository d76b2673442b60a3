"""A connection of our own to the job's key-value store: how ranks exchange a word without a collective.

The process group's own client is never used: a blocking call would hold its lock against the training thread. All
use is from our background thread, every wait has a limit, and a job without a reachable store does without.
"""

import datetime
import os
import time
from typing import Any, Protocol

from stepscope.record.rank import initialized_distributed

_CONNECT_S = 10.0
_POLL_S = 0.05


class Store(Protocol):
    """What we need of a c10d store."""

    def set(self, key: str, value: str) -> Any:
        """Store a value."""

    def get(self, key: str) -> bytes:
        """Return a value, waiting until there is one or the store's timeout passes."""

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set how long `get` waits."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there, at once."""

    def add(self, key: str, amount: int) -> int:
        """Return a counter after adding to it."""


class SideChannel:
    """Keys of ours in the job's store, kept apart by restart."""

    def __init__(self, store: Store, *, attempt: str = "0") -> None:
        self._store = store
        self._prefix = f"stepscope/{attempt}/"

    def put(self, key: str, text: str) -> None:
        """Publish a value."""
        self._store.set(self._prefix + key, text)

    def count(self, key: str) -> int:
        """Return how often this key was counted, this time included."""
        return int(self._store.add(self._prefix + key, 1))

    def counted(self, key: str) -> int:
        """Return how often this key was counted."""
        return int(self._store.add(self._prefix + key, 0))

    def wait_for(self, key: str, timeout_s: float) -> str | None:
        """Return a value once it is there, looking a few times a second; None after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not self._store.check([self._prefix + key]):
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        return self._store.get(self._prefix + key).decode()

    def next_word(self, key: str, timeout_s: float) -> str | None:
        """Return a value the moment it is there (the store wakes us up); None after `timeout_s`."""
        self._store.set_timeout(datetime.timedelta(seconds=timeout_s))
        try:
            return self._store.get(self._prefix + key).decode()
        except RuntimeError:  # the store's timeout, or its end
            return None


def open_side_channel() -> SideChannel | None:
    """Return a channel to the other ranks, None where the job has no store that can be reached."""
    dist = initialized_distributed()
    if dist is None:
        return None
    try:
        store = _own_client(dist)
    except (RuntimeError, OSError, AttributeError, TypeError):
        return None
    return SideChannel(store, attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if store else None


def _own_client(dist: Any) -> Any:
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    timeout = datetime.timedelta(seconds=_CONNECT_S)
    if isinstance(store, dist.TCPStore):
        return dist.TCPStore(store.host, store.port, None, False, timeout, wait_for_workers=False)
    if isinstance(store, dist.FileStore):
        return dist.FileStore(store.path, -1)
    return None
