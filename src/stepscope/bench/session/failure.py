"""One rank fails: those that a launcher started hear of it through the store, and do not wait in a collective.

Ranks that we start ourselves need none of this: `launch` ends the others.
"""

import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

_KEY = "failure"
_POLL_S = 0.5
# for this rank to end by itself once the store is gone
_GRACE_S = 5.0
_STORE_GONE = {"what": "failed", "reason": "the rank that holds the store is gone"}

Record = dict[str, Any]


def tell(store: Any, record: Record) -> None:
    """Let the other ranks know; nothing where there is no store to tell it."""
    if store is None:
        return
    try:
        store.set(_KEY, json.dumps(record))
    except RuntimeError:  # the rank that holds it has ended before
        return


def first_told(store: Any, record: Record) -> Record:
    """Return what another rank told before, else the record: a lost connection is only what its end looks like here."""
    if store is None or record["what"] != "failed":
        return record
    time.sleep(2 * _POLL_S)
    try:
        return {**record, **json.loads(store.get(_KEY))} if store.check([_KEY]) else record
    except RuntimeError:
        return record


class Listener:
    """While the block runs, calls `on_failure` once another rank has told of its failure."""

    def __init__(self, store: Any, *, on_failure: Callable[[Record], None]) -> None:
        self._store, self._on_failure = store, on_failure
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _listen(self) -> None:
        while not self._over.wait(_POLL_S):
            try:
                told = json.loads(self._store.get(_KEY)) if self._store.check([_KEY]) else None
            except RuntimeError:
                told = None if self._over.wait(_GRACE_S) else _STORE_GONE
            if told is not None and not self._over.is_set():
                self._on_failure(told)
                return
