"""Clock offsets over the side channel, with clocks of known difference."""

import threading
import time
from typing import Any

import pytest
from tests.record.memory_store import MemoryStore

from stepscope.record.helper.side_channel import SideChannel, ask, register, serve

AHEAD_NS = 37_123_000


def probed(store: Any, *, ahead_ns: int) -> list[dict[str, Any] | None]:
    """Return what two ranks on other hosts find, rank 0's clock being ahead."""
    here, there = SideChannel(store), SideChannel(store)
    numbers = [register(there, rank=r) for r in (8, 16)]
    server = threading.Thread(
        target=serve, args=(here,), kwargs={"when": "before", "clock": lambda: time.time_ns() + ahead_ns}
    )
    server.start()
    found = [ask(there, number=n, when="before") for n in numbers]
    server.join()
    return found


def test_known_offset_lies_within_the_bounds() -> None:
    for probe in probed(MemoryStore(), ahead_ns=AHEAD_NS):
        assert probe is not None
        assert abs(probe["offset_ns"] - AHEAD_NS) <= probe["uncertainty_ns"]
        assert probe["uncertainty_ns"] < AHEAD_NS


def test_works_over_the_store_that_jobs_have() -> None:
    dist = pytest.importorskip("torch.distributed")
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", store.port, None, False, wait_for_workers=False)
    for probe in probed(client, ahead_ns=AHEAD_NS):
        assert probe is not None and abs(probe["offset_ns"] - AHEAD_NS) <= probe["uncertainty_ns"]
