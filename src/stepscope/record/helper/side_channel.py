"""A connection of our own to the job's key-value store: how ranks exchange a word without a collective.

The process group's own client is never used: a blocking call would hold its lock against the training thread. All
use is from our background thread, every wait has a limit, and a job without a reachable store does without. Every
call is short, and none may be under way when the interpreter ends (that would abort the process): `close()` sees to
it.
"""

import datetime
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from stepscope.record.config import initialized_distributed


class Store(Protocol):
    """What we need of a c10d store; `get` waits for the key, `check` does not."""

    def set(self, key: str, value: str) -> Any: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def add(self, key: str, amount: int) -> int: ...


class ChannelClosed(Exception):
    """The channel was closed: there is nothing more to say."""


class SideChannel:
    """Our keys in the job's store, separate for each restart."""

    def __init__(self, store: Store, *, attempt: str = "0") -> None:
        self._store = store
        self._prefix = f"stepscope/{attempt}/"
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Wait for the call under way, if any, and allow no other."""
        with self._lock:
            self._closed = True

    def put(self, key: str, text: str) -> None:
        with self._open() as store:
            store.set(self._prefix + key, text)

    def count(self, key: str, amount: int = 1) -> int:
        with self._open() as store:
            return int(store.add(self._prefix + key, amount))

    def look(self, key: str) -> str | None:
        with self._open() as store:
            return store.get(self._prefix + key).decode() if store.check([self._prefix + key]) else None

    def wait_for(self, key: str, timeout_s: float, *, every_s: float = 0.05) -> str | None:
        """Return a value once it is there, looking `every_s`; None after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (found := self.look(key)) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(every_s)
        return found

    @contextmanager
    def _open(self) -> Iterator[Store]:
        with self._lock:
            if self._closed:
                raise ChannelClosed
            yield self._store


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
    timeout = datetime.timedelta(seconds=3.0)
    if isinstance(store, dist.TCPStore):
        return dist.TCPStore(store.host, store.port, None, False, timeout, wait_for_workers=False)
    if isinstance(store, dist.FileStore):
        return dist.FileStore(store.path, -1)
    return None


# Offset of this host's clock from rank 0's: a few requests and replies over the side channel.
#
#     t1 here --request--> t0 there --reply--> t4 here     offset = t0 - (t1 + t4) / 2, within (t4 - t1) / 2
#
# Of several rounds the shortest one counts. Only the first rank of every other host sends requests; ranks of one host
# share its clock, which the boot id shows. Repeated after the window, so that drift is bounded too.

_FIRST_S = 10.0
_ROUNDS = 8


def boot_id() -> str | None:
    """Return an id of this boot of this machine, hence of its clock; None where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def register(channel: SideChannel, *, rank: int) -> int:
    """Return the number of this rank's requests; rank 0 serves all numbers."""
    number = channel.count("clock/askers")
    channel.put(f"clock/asker/{number}", str(rank))
    return number


def ask(
    channel: SideChannel, *, number: int, when: str, clock: Callable[[], int] = time.time_ns
) -> dict[str, Any] | None:
    """Return `{"when", "at_ns", "offset_ns", "uncertainty_ns"}`: rank 0's clock minus ours; None if unanswered."""
    best: tuple[int, int, int] | None = None
    for k in range(_ROUNDS):
        t1 = clock()
        channel.put(f"clock/{when}/{number}/ask/{k}", "")
        answer = _word(channel, f"clock/{when}/{number}/answer/{k}", first=k == 0)
        t4 = clock()
        if answer is None:
            break
        if best is None or t4 - t1 < best[0]:
            best = (t4 - t1, int(answer) - (t1 + t4) // 2, t4)
    if best is None:
        return None
    return {"when": when, "at_ns": best[2], "offset_ns": best[1], "uncertainty_ns": (best[0] + 1) // 2}


def serve(
    channel: SideChannel,
    *,
    when: str,
    clock: Callable[[], int] = time.time_ns,
    wait_for_more: Callable[[], bool] = bool,
) -> int:
    """Answer every registered client in turn, giving up on silent ones; return the number of clients.

    Others may register later, in short jobs after the first window began: `wait_for_more()` returns whether to repeat.
    """
    served = 0
    while True:
        askers = channel.count("clock/askers", 0)
        for number in range(served + 1, askers + 1):
            for k in range(_ROUNDS):
                if _word(channel, f"clock/{when}/{number}/ask/{k}", first=k == 0) is None:
                    break
                channel.put(f"clock/{when}/{number}/answer/{k}", str(clock()))
        served = askers
        if not wait_for_more():
            return served


def _word(channel: SideChannel, key: str, *, first: bool) -> str | None:
    return channel.wait_for(key, _FIRST_S if first else 2.0, every_s=0.0002)
