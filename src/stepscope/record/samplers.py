"""Which samplers a recording has, by its settings. Each is made on its own: one that cannot be is said and left out."""

import ctypes
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import atomic_write, rank_file
from stepscope.record.collectives import LiveCollectives
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.memory import MemoryHistory, MemorySampler, MemoryTimeline
from stepscope.record.nccl_log import NcclLog
from stepscope.record.thread_samples import ThreadSamples
from stepscope.record.window.schedule import close_look_at_memory


class Samplers:
    """The samplers of this process, called in the order in which they came."""

    def __init__(self) -> None:
        self._samplers: list[Any] = []
        self._at_step_end: list[Any] = []  # found once: this is the way that every step takes

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samplers)

    def add(self, sampler: Any) -> None:
        self._samplers.append(sampler)
        if hasattr(sampler, "on_step_end"):
            self._at_step_end.append(sampler.on_step_end)

    def has(self, moment: str) -> bool:
        return any(hasattr(sampler, moment) for sampler in self._samplers)

    def tell(self, moment: str, *args: Any) -> None:
        for sampler in list(self._samplers):
            method = getattr(sampler, moment, None)
            try:
                if method is not None:
                    method(*args)
            except Exception as e:  # noqa: BLE001 - training comes first
                self._leave_out(sampler, e)

    def of_step(self, step: int) -> dict[str, Any]:
        """Return what the samplers have to say about a step that ended."""
        out: dict[str, Any] = {}
        for at_step_end in self._at_step_end:
            try:
                said = at_step_end(step)
            except Exception as e:  # noqa: BLE001 - training comes first
                self._leave_out(at_step_end.__self__, e)
                continue
            if said:
                out.update(said)
        return out

    def _leave_out(self, sampler: Any, error: Exception) -> None:
        self._samplers.remove(sampler)
        self._at_step_end = [s.on_step_end for s in self._samplers if hasattr(s, "on_step_end")]
        say(f"{type(sampler).__name__} is off from here on: {explain(error)}")


def standard_samplers(config: RecordConfig) -> list[Any]:
    """Return the samplers of this process, ready to be added to its recorder."""
    wanted: list[tuple[bool, str, Callable[[], Any]]] = [
        (True, "memory", MemorySampler),
        (config.collectives, "live collectives", LiveCollectives),
        (config.telemetry, "device telemetry", Telemetry),
        (config.memory, "memory through the step", lambda: MemoryTimeline(first_step=close_look_at_memory(config))),
        (config.memory or config.memory_history, "memory history", MemoryHistory),
        (config.nccl_log, "NCCL's log", NcclLog),
        (
            config.samples and hasattr(time, "pthread_getcpuclockid"),
            "samples of threads",
            lambda: ThreadSamples(with_text=config.source),
        ),
    ]
    made = []
    for is_wanted, what, make in wanted:
        try:
            if is_wanted:
                made.append(make())
        except Exception as e:  # noqa: BLE001 - training comes first
            say(f"{what} will not be recorded: {explain(e)}")
    return made


# One device's state from NVIDIA's management library, through ctypes: nothing to install, nothing to wait for.
#
# Every number is None where the driver or the chip does not offer it.

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
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
            "temperature_c": self._uint("nvmlDeviceGetTemperature", handle, ctypes.c_uint(0)),
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


class Telemetry:
    """A sampler with a thread, which starts at the first step that finds CUDA in use."""

    def __init__(
        self,
        *,
        nvml: Callable[[], Any] = Nvml,
        period_s: float = 1.0,
        window_period_s: float = 0.1,
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
        self._states: deque[dict[str, Any]] = deque(maxlen=100_000)
        self.why_not: str | None = None

    def on_window_start(self) -> None:
        self._in_window = True
        self._wake.set()

    def on_window_end(self) -> None:
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
        if self._states:
            rows = [{"kind": "device", **self._device}, *list(self._states)]
            with atomic_write(Path(folder) / rank_file(rank, "telemetry.jsonl")) as f:
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
