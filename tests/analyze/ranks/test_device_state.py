"""Ranks that share a device are told apart from ranks that have one each."""

from collections.abc import Sequence

import numpy as np

from stepscope.analyze.device_state import device_states, device_warnings
from stepscope.run.side_files import Telemetry

COLUMNS = ("sm_clock_mhz", "power_w", "temperature_c", "utilization_pct", "memory_used_bytes")


def telemetry(uuids: Sequence[str | None]) -> list[Telemetry]:
    return [
        Telemetry(rank, {"name": "H200", "uuid": uuid}, {c: np.ones(3) for c in COLUMNS}, (frozenset(),) * 3)
        for rank, uuid in enumerate(uuids)
    ]


def test_ranks_on_one_device_are_warned_of_once() -> None:
    states = device_states(telemetry(["GPU-a", "GPU-a", "GPU-a", "GPU-b"]), [])
    assert [s.shared_with for s in states] == [(1, 2), (0, 2), (0, 1), ()]
    (line,) = device_warnings(states)
    assert line.startswith("ranks 0-2 share one device")


def test_devices_of_their_own_or_without_a_name_are_not_shared() -> None:
    assert device_warnings(device_states(telemetry(["GPU-a", "GPU-b"]), [])) == []
    assert device_warnings(device_states(telemetry([None, None]), [])) == []
