"""Which samplers a recording has, by its settings. Each is made on its own: one that cannot be is said and left out."""

import ctypes
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.window.schedule import close_look_at_memory


def standard_samplers(config: RecordConfig) -> list[Any]:
    """Return the samplers of this process, ready to be added to its recorder."""
    wanted: list[tuple[bool, str, Callable[[], Any]]] = [
        (True, "memory", _memory),
        (config.collectives, "live collectives", _collectives),
        (config.telemetry, "device telemetry", _telemetry),
        (config.memory, "memory through the step", lambda: _timeline(config)),
        (config.memory or config.memory_history, "memory history", _history),
        (config.nccl_log, "NCCL's log", _nccl_log),
    ]
    made = [_make_sampler(what, make) for is_wanted, what, make in wanted if is_wanted]
    return [sampler for sampler in made if sampler is not None]


def _make_sampler(what: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as e:  # noqa: BLE001 - training comes first
        say(f"{what} will not be recorded: {explain(e)}")
        return None


def _memory() -> Any:
    from stepscope.record.memory import MemorySampler

    return MemorySampler()


def _collectives() -> Any:
    from stepscope.record.collectives import LiveCollectives

    return LiveCollectives()


def _telemetry() -> Any:

    return Telemetry()


def _timeline(config: RecordConfig) -> Any:
    from stepscope.record.memory import MemoryTimeline

    return MemoryTimeline(first_step=close_look_at_memory(config))


def _history() -> Any:
    from stepscope.record.memory import MemoryHistory

    return MemoryHistory()


def _nccl_log() -> Any:
    from stepscope.record.nccl_log import NcclLog

    return NcclLog()


# One device's state from NVIDIA's management library, through ctypes: nothing to install, nothing to wait for.
#
# Every number is None where the driver or the chip does not offer it.

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_TEMPERATURE_GPU = 0
_CLOCK_SM, _CLOCK_MEMORY = 1, 2

# Why the clocks are below what was asked for: nvmlClocksEventReason* in nvml.h. Idle and settings by the user are
# reasons of the same field but no loss.
_THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application_clocks_setting",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal_software",
    0x40: "thermal_hardware",
    0x80: "power_brake",
    0x100: "display_clock_setting",
}


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvml:
    """The library, opened and initialised. Raises OSError where there is none or it does not start."""

    def __init__(self, library: Any = None) -> None:
        self._library = ctypes.CDLL(_LIBRARY) if library is None else library
        code = self._library.nvmlInit_v2()
        if code != _SUCCESS:
            raise OSError(f"{_LIBRARY}: nvmlInit_v2 failed with error {code}")

    def device(self, *, uuid: str | None, index: int) -> ctypes.c_void_p:
        """Return the handle of one device: by uuid where it is known, because torch numbers devices otherwise."""
        handle = ctypes.c_void_p()
        code = -1
        if uuid is not None:
            code = self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        if code != _SUCCESS:
            code = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        if code != _SUCCESS:
            raise OSError(f"NVML: no handle for device {uuid or index}: error {code}")
        return handle

    def state(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        """Return utilisation, clocks, power, temperature, throttle reasons and memory of a device now."""
        utilization = self._struct("nvmlDeviceGetUtilizationRates", handle, _Utilization())
        memory = self._struct("nvmlDeviceGetMemoryInfo", handle, _Memory())
        power = self._uint("nvmlDeviceGetPowerUsage", handle)
        return {
            "utilization_pct": utilization.gpu if utilization else None,
            "memory_utilization_pct": utilization.memory if utilization else None,
            "sm_clock_mhz": self._uint("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(_CLOCK_SM)),
            "memory_clock_mhz": self._uint("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(_CLOCK_MEMORY)),
            "power_w": None if power is None else power / 1000,
            "temperature_c": self._uint("nvmlDeviceGetTemperature", handle, ctypes.c_uint(_TEMPERATURE_GPU)),
            "throttle_reasons": self._throttle_reasons(handle),
            "memory_used_bytes": memory.used if memory else None,
        }

    def limits(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        """Return what does not change: highest clocks and the power limit."""
        power = self._uint("nvmlDeviceGetEnforcedPowerLimit", handle)
        return {
            "max_sm_clock_mhz": self._uint("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_uint(_CLOCK_SM)),
            "max_memory_clock_mhz": self._uint("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_uint(_CLOCK_MEMORY)),
            "power_limit_w": None if power is None else power / 1000,
        }

    def close(self) -> None:
        """Let go of the library."""
        self._library.nvmlShutdown()

    def _uint(self, function: str, handle: ctypes.c_void_p, *which: Any) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._call(function, handle, *which, ctypes.byref(value)) else None

    def _struct(self, function: str, handle: ctypes.c_void_p, into: Any) -> Any:
        return into if self._call(function, handle, ctypes.byref(into)) else None

    def _throttle_reasons(self, handle: ctypes.c_void_p) -> list[str] | None:
        bits = ctypes.c_ulonglong()
        if not self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(bits)):
            return None
        return [name for bit, name in _THROTTLE_REASONS.items() if bits.value & bit]

    def _call(self, function: str, *arguments: Any) -> bool:
        called = getattr(self._library, function, None)
        return called is not None and called(*arguments) == _SUCCESS


# What the device was doing beside the steps, so that a slow one has a reason: `rank00000.telemetry.jsonl`.
#
# A thread of its own asks NVML once a second, and ten times a second inside the window; the training thread only tells
# it when. Without NVML there is one note and nothing else.
#
#     {"kind": "device", "name": "...", "max_sm_clock_mhz": 1980, "power_limit_w": 700.0}
#     {"kind": "state", "time_ns": ..., "step": 12, "utilization_pct": 97, "sm_clock_mhz": 1755, "power_w": 640.2,
#      "temperature_c": 61, "throttle_reasons": ["power_cap"]}

_PERIOD_S = 1.0
_WINDOW_PERIOD_S = 0.1
_MAX_SAMPLES = 100_000  # over a day at one a second; the oldest go first


class Telemetry:
    """A sampler with a thread, which starts at the first step that finds CUDA in use."""

    def __init__(
        self,
        *,
        nvml: Callable[[], Any] = Nvml,
        period_s: float = _PERIOD_S,
        window_period_s: float = _WINDOW_PERIOD_S,
        cuda_in_use: Callable[[], bool] = torch.cuda.is_initialized,
    ) -> None:
        self._nvml, self._cuda_in_use = nvml, cuda_in_use
        self._periods_s = (period_s, window_period_s)
        self._in_window = False
        self._step = 0
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._over = False
        self._device: dict[str, Any] = {}
        self._states: deque[dict[str, Any]] = deque(maxlen=_MAX_SAMPLES)
        self.why_not: str | None = None

    def on_window_start(self) -> None:
        """Look ten times as often from here on."""
        self._in_window = True
        self._wake.set()

    def on_window_end(self) -> None:
        """Return to one look a second."""
        self._in_window = False

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Note the step, for the thread to write beside its samples."""
        self._step = step + 1
        if self._thread is None and self._cuda_in_use():
            device = _torch_device()
            self._thread = threading.Thread(target=self._watch, args=(device,), name="stepscope-telemetry", daemon=True)
            self._thread.start()
        return {}

    def on_close(self, folder: str | Path, rank: int) -> None:
        """End the thread and write all that it saw."""
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        self.after_window(folder, rank)

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Write what was seen so far."""
        if self._states:
            rows = [{"kind": "device", **self._device}, *list(self._states)]
            path = Path(folder) / rank_file(rank, "telemetry.jsonl")
            with atomic_write(path) as f:
                f.writelines(json.dumps(row).encode() + b"\n" for row in rows)

    def _watch(self, device: dict[str, Any]) -> None:
        try:
            nvml = self._nvml()
            handle = nvml.device(uuid=device["uuid"], index=device["index"])
            self._device = {**device, **nvml.limits(handle)}
            while not self._over:
                self._states.append(
                    {"kind": "state", "time_ns": time.time_ns(), "step": self._step, **nvml.state(handle)}
                )
                self._wake.wait(self._periods_s[self._in_window])
                self._wake.clear()
            nvml.close()
        except Exception as e:  # noqa: BLE001 - a thread of ours must not end in a traceback
            self.why_not = f"no device telemetry: {explain(e)}"
            say(self.why_not)


def _torch_device() -> dict[str, Any]:
    if not torch.cuda.is_initialized():
        return {"index": 0, "name": None, "uuid": None}
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return {"index": index, "name": properties.name, "uuid": None if uuid is None else f"GPU-{uuid}"}
