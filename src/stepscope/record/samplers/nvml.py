"""One device's state from NVIDIA's management library, through ctypes: nothing to install, nothing to wait for.

Every number is None where the driver or the chip does not offer it.
"""

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_TEMPERATURE_GPU = 0
_CLOCK_SM, _CLOCK_MEMORY = 1, 2

# Why the clocks are below what was asked for: nvmlClocksEventReason* in nvml.h. Idle and settings by the user are
# reasons of the same field but no loss.
THROTTLE_REASONS = {
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
        self._library = ctypes.CDLL(LIBRARY) if library is None else library
        code = self._library.nvmlInit_v2()
        if code != _SUCCESS:
            raise OSError(f"{LIBRARY}: nvmlInit_v2 failed with error {code}")

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
        return [name for bit, name in THROTTLE_REASONS.items() if bits.value & bit]

    def _call(self, function: str, *arguments: Any) -> bool:
        """Call and return whether it worked; a driver without the function is like one that cannot answer."""
        called = getattr(self._library, function, None)
        return called is not None and called(*arguments) == _SUCCESS
