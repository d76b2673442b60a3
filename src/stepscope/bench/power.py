"""What does this device take at lower clocks and power limits? Speed and watts of computing, copying and idling.

    python -m stepscope.bench.power --out RUN/power_model.jsonl

Locks the SM clock, then the power limit, at five values each for a few seconds, and resets both. That needs the right
to set them (root, on most machines); without it nothing is changed and the reason is given.
"""

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch

from stepscope.bench.rank import run_to_exit_code
from stepscope.contract.run_folder import SCHEMA, atomic_write
from stepscope.errors import UsageError
from stepscope.record.helper.telemetry import Nvml
from stepscope.side_file import refuse_output

_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)
_SETTLE_S = 0.5

#: runs for so many seconds and returns the number of iterations
Load = Callable[[float], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 once the model is written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", required=True, metavar="PATH", help="RUN/power_model.jsonl, for `stepscope whatif RUN`"
    )
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="for each load and setting (default 1)")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available() or not torch.version.cuda:
        raise UsageError("the sweep needs an NVIDIA device; there is none that torch can use")
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    device = Nvml({"uuid": f"GPU-{properties.uuid}", "index": index})
    refuse_output(args.out)
    points = power_sweep(device, _loads(), seconds=args.seconds)
    with atomic_write(args.out) as f:
        f.write(json.dumps({"schema": SCHEMA, "device": properties.name, "points": points}).encode() + b"\n")
    sys.stdout.write(f"written to {args.out}; use it with `stepscope whatif RUN --set clock_mhz=...`\n")
    return 0


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


if __name__ == "__main__":
    sys.exit(run_to_exit_code("stepscope.bench.power", main))
