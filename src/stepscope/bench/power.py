"""What does this device take at lower clocks and power limits? Speed and watts of computing, copying and idling.

Locks the SM clock, then the power limit, at five values each for a few seconds, and resets both. That needs the right
to set them (root, on most machines); without it nothing is changed and the reason is given.
"""

import ctypes
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch

from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import UsageError
from stepscope.record.helper.telemetry import Nvml

_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)
_SETTLE_S = 0.5

#: runs for the given seconds and returns the number of iterations
Load = Callable[[float], int]


def power_model(*, seconds: float = 1.0) -> dict[str, Any]:
    """Return the power model of the current device; `seconds` for each load and setting."""
    if not torch.cuda.is_available() or not torch.version.cuda:
        raise UsageError("the sweep needs an NVIDIA device; there is none that torch can use")
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    try:
        device = Nvml({"uuid": f"GPU-{properties.uuid}", "index": index})
        points = power_sweep(device, _loads(), seconds=seconds)
    except OSError as e:
        raise UsageError(f"the sweep failed: {e}") from e
    return {"schema": SCHEMA, "device": properties.name, "points": points}


def power_sweep(device: Any, loads: Mapping[str, Load], *, seconds: float) -> list[dict[str, Any]]:
    """Return watts and iterations per second of each load at each clock and power limit; both are reset at the end."""
    limits = device.limits()
    clock, watts = limits["max_sm_clock_mhz"], limits["power_limit_w"]
    if not clock or not watts:
        raise UsageError("the device does not report its highest clock and power limit")
    settings: dict[str, tuple[float, Callable[[float], None], Callable[[], None]]] = {
        "clock_mhz": (
            clock,
            lambda mhz: device.call("nvmlDeviceSetGpuLockedClocks", ctypes.c_uint(int(mhz)), ctypes.c_uint(int(mhz))),
            lambda: device.call("nvmlDeviceResetGpuLockedClocks"),
        ),
        "power_limit_w": (
            watts,
            lambda w: device.call("nvmlDeviceSetPowerManagementLimit", ctypes.c_uint(int(1000 * w))),
            lambda: device.call("nvmlDeviceSetPowerManagementLimit", ctypes.c_uint(int(1000 * watts))),
        ),
    }
    points: list[dict[str, Any]] = []
    refused = []
    for name, (highest, apply, reset) in settings.items():
        try:
            apply(highest)
        except OSError as e:
            refused.append(str(e))
            continue
        try:
            for share in _SHARES:
                try:
                    apply(share * highest)
                except OSError:  # below what the device allows
                    break
                points.append({"setting": name, "value": share * highest, **_measured(device, loads, seconds)})
        finally:
            reset()
    if not points:
        raise UsageError(f"cannot set clocks or power limits ({'; '.join(refused)}); run the sweep as root")
    return points


def _measured(device: Any, loads: Mapping[str, Load], seconds: float) -> dict[str, Any]:
    found = {}
    for name, load in loads.items():
        load(_SETTLE_S)
        began_s, began_j = time.perf_counter(), device.energy_j()
        iterations = load(seconds)
        took_s = time.perf_counter() - began_s
        found[name] = {"watts": (device.energy_j() - began_j) / took_s, "per_s": iterations / took_s}
    return found


def _loads() -> dict[str, Load]:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    source = torch.empty(1 << 29, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return {
        "compute": lambda seconds: _repeated(lambda: torch.mm(a, a), seconds),
        "memory": lambda seconds: _repeated(lambda: target.copy_(source), seconds),
        "idle": _idle,
    }


def _idle(seconds: float) -> int:
    time.sleep(seconds)
    return 0


def _repeated(work: Callable[[], Any], seconds: float) -> int:
    until_s = time.perf_counter() + seconds
    for iterations in count(10, 10):
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        if time.perf_counter() >= until_s:
            return iterations
    raise AssertionError
