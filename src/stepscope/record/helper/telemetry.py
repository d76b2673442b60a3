"""What the device and the host do next to the steps: state, power and energy counters, as `rank00000.telemetry.jsonl`.

A thread of the helper process reads them, so training has no part in it. Counters and power are read up to ten times
a second in the first one or two minutes, then once a second and ever less often; the full state once a second, in the
profiled window each time. A `fresh` reading was taken as the counter changed: its time is exact.

    {"kind": "device", "name": "...", "uuid": "GPU-...", "max_sm_clock_mhz": 1980, "power_limit_w": 700.0}
    {"kind": "counters", "device": "nvml", "host": "rapl", "host_name": "node1"}
    {"kind": "state", "time_ns": ..., "step": 12, "utilization_pct": 97, "sm_clock_mhz": 1755, "power_w": 640.2,
     "temperature_c": 61, "throttle_reasons": ["power_cap"]}
    {"kind": "energy", "time_ns": ..., "energy_j": 81234.567, "fresh": 1, "power_w": 612.0, "host_energy_j": 1234.5}

Standard library only, no torch. A number is None where the driver or the chip does not offer it.
"""

import contextlib
import ctypes
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.contract.step_line import WARMUP, WINDOW
from stepscope.record.failsafe import explain
from stepscope.record.window.trace_file import place_whole

_SUCCESS = 0

# NVIDIA's management library

_NVML = "libnvidia-ml.so.1"
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT; nvmlDeviceGetPowerUsage is a mean over a second since Ampere
_ERRORS = {2: "invalid argument", 3: "not supported by this device", 4: "no permission", 9: "driver not loaded"}

# Why the clocks are below the requested ones: nvmlClocksEventReason* in nvml.h. Idle and settings by the user are
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


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    )


class Nvml:
    """One device through NVML. Raises OSError where the library or the device cannot be opened."""

    name = "nvml"

    def __init__(self, device: Mapping[str, Any], library: Any = None) -> None:
        self._library = ctypes.CDLL(_NVML) if library is None else library
        if code := self._library.nvmlInit_v2():
            raise OSError(f"{_NVML}: nvmlInit_v2 failed: {_ERRORS.get(code, f'error {code}')}")
        self._handle = self._open(device.get("uuid"), device.get("index") or 0)

    def state(self) -> dict[str, Any]:
        """Return utilisation, clocks, power, temperature, throttle reasons and memory now."""
        utilization = self._struct("nvmlDeviceGetUtilizationRates", _Utilization())
        memory = self._struct("nvmlDeviceGetMemoryInfo", _Memory())
        return {
            "utilization_pct": utilization.gpu if utilization else None,
            "memory_utilization_pct": utilization.memory if utilization else None,
            "sm_clock_mhz": self._uint("nvmlDeviceGetClockInfo", ctypes.c_uint(_CLOCK_SM)),
            "memory_clock_mhz": self._uint("nvmlDeviceGetClockInfo", ctypes.c_uint(_CLOCK_MEMORY)),
            "power_w": _thousandth(self._uint("nvmlDeviceGetPowerUsage")),
            "temperature_c": self._uint("nvmlDeviceGetTemperature", ctypes.c_uint(0)),
            "throttle_reasons": self._throttle_reasons(),
            "memory_used_bytes": memory.used if memory else None,
        }

    def limits(self) -> dict[str, Any]:
        """Return what does not change: the uuid, highest clocks and the power limit."""
        uuid = ctypes.create_string_buffer(96)
        known = self._works("nvmlDeviceGetUUID", uuid, ctypes.c_uint(96))
        return {
            **({"uuid": uuid.value.decode(errors="replace")} if known else {}),
            "max_sm_clock_mhz": self._uint("nvmlDeviceGetMaxClockInfo", ctypes.c_uint(_CLOCK_SM)),
            "max_memory_clock_mhz": self._uint("nvmlDeviceGetMaxClockInfo", ctypes.c_uint(_CLOCK_MEMORY)),
            "power_limit_w": _thousandth(self._uint("nvmlDeviceGetEnforcedPowerLimit")),
        }

    def energy_j(self) -> float:
        """Return the energy since the driver was loaded; OSError with the reason where there is no counter."""
        value = ctypes.c_ulonglong()
        self.call("nvmlDeviceGetTotalEnergyConsumption", ctypes.byref(value))
        return value.value / 1000

    def power_w(self) -> float | None:
        """Return the power now, or the mean of the last second where the driver has no other."""
        field = _FieldValue(field=_POWER_INSTANT)
        if self._works("nvmlDeviceGetFieldValues", 1, ctypes.byref(field)) and field.code == _SUCCESS:
            return (field.value & 0xFFFFFFFF) / 1000  # an unsigned int in milliwatts
        return _thousandth(self._uint("nvmlDeviceGetPowerUsage"))

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the library for this device; OSError with the reason where it fails."""
        called = getattr(self._library, function, None)
        code = 3 if called is None else called(self._handle, *arguments)
        if code != _SUCCESS:
            raise OSError(f"{function}: {_ERRORS.get(code, f'error {code}')}")

    def close(self) -> None:
        self._library.nvmlShutdown()

    def _open(self, uuid: str | None, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        code = -1
        if uuid is not None:  # torch numbers devices otherwise
            code = self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        if code != _SUCCESS:
            code = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        if code != _SUCCESS:
            raise OSError(f"NVML: no handle for device {uuid or index}: {_ERRORS.get(code, f'error {code}')}")
        return handle

    def _uint(self, function: str, *which: Any) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._works(function, *which, ctypes.byref(value)) else None

    def _struct(self, function: str, into: Any) -> Any:
        return into if self._works(function, ctypes.byref(into)) else None

    def _throttle_reasons(self) -> list[str] | None:
        bits = ctypes.c_ulonglong()
        if not self._works("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.byref(bits)):
            return None
        return [name for bit, name in _THROTTLE_REASONS.items() if bits.value & bit]

    def _works(self, function: str, *arguments: Any) -> bool:
        try:
            self.call(function, *arguments)
        except OSError:
            return False
        return True


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


# AMD's: found by the device's address on the PCI bus, because torch numbers devices otherwise.

_ROCM_SMI = ("librocm_smi64.so", "librocm_smi64.so.7", "librocm_smi64.so.6", "/opt/rocm/lib/librocm_smi64.so")


class RocmSmi:
    """One device through ROCm SMI: its energy counter and power. Raises OSError as `Nvml` does."""

    name = "rocm_smi"

    def __init__(self, device: Mapping[str, Any], library: Any = None) -> None:
        self._library = _first_library(_ROCM_SMI) if library is None else library
        if code := self._library.rsmi_init(ctypes.c_uint64(0)):
            raise OSError(f"{_ROCM_SMI[0]}: rsmi_init failed with error {code}")
        self._index = self._find(device.get("pci"))

    def state(self) -> dict[str, Any]:
        return {"power_w": self.power_w()}

    def limits(self) -> dict[str, Any]:
        """Return an identifier: versions of torch differ in whether they have the uuid."""
        return {"uuid": f"{self.name} {self._index.value}"}

    def energy_j(self) -> float:
        """Return the accumulated energy; OSError where there is no counter."""
        count, resolution, at = ctypes.c_uint64(), ctypes.c_float(), ctypes.c_uint64()
        function = getattr(self._library, "rsmi_dev_energy_count_get", None)
        out = (ctypes.byref(count), ctypes.byref(resolution), ctypes.byref(at))
        code = None if function is None else function(self._index, *out)
        if code != _SUCCESS:
            raise OSError(f"rsmi_dev_energy_count_get: {'missing' if code is None else f'error {code}'}")
        return count.value * resolution.value / 1e6

    def power_w(self) -> float | None:
        value = ctypes.c_uint64()
        works = self._library.rsmi_dev_power_ave_get(self._index, ctypes.c_uint32(0), ctypes.byref(value)) == _SUCCESS
        return value.value / 1e6 if works else None

    def close(self) -> None:
        self._library.rsmi_shut_down()

    def _find(self, pci: Any) -> ctypes.c_uint32:
        count = ctypes.c_uint32()
        self._library.rsmi_num_monitor_devices(ctypes.byref(count))
        for index in range(count.value):
            found = ctypes.c_uint64()
            self._library.rsmi_dev_pci_id_get(ctypes.c_uint32(index), ctypes.byref(found))
            domain, rest = found.value >> 32, found.value & 0xFFFF
            if pci is not None and tuple(pci) == (domain, rest >> 8, (rest >> 3) & 0x1F):
                return ctypes.c_uint32(index)
        if pci is None and count.value == 1:
            return ctypes.c_uint32(0)
        raise OSError(f"ROCm SMI: none of its {count.value} devices has the PCI address {pci}")


def _first_library(names: tuple[str, ...]) -> Any:
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise OSError(f"{names[0]}: cannot open shared object file")


def network_speeds(root: str | Path = "/sys/class") -> dict[str, float]:
    """Return the GB/s per direction of each network port of this host that is up: of InfiniBand, else of Ethernet."""
    ports = {f"{path.parts[-4]}:{path.parts[-2]}": path for path in Path(root).glob("infiniband/*/ports/*/rate")}
    is_up = {name for name, path in ports.items() if "ACTIVE" in _text(path.with_name("state"))}
    cards = {path.parent.name: path for path in Path(root).glob("net/*/speed") if (path.parent / "device").exists()}
    chosen, bits = ({name: ports[name] for name in is_up}, 1e9) if is_up else (cards, 1e6)
    found = {name: re.match(r"[1-9]\d{0,7}(\.\d+)?", _text(path)) for name, path in sorted(chosen.items())[:64]}
    return {name: float(speed[0]) * bits / 8e9 for name, speed in found.items() if speed}


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):  # the file of an interface that is down cannot be read
        return path.read_text()
    return ""


class Rapl:
    """The processor packages of this host. Raises OSError where they cannot be read."""

    name = "rapl"

    def __init__(self, root: str | Path = "/sys/class/powercap") -> None:
        # intel-rapl:0 is a package (AMD's too); intel-rapl:0:0 is a part of it, psys the whole board with them
        zones = [zone for zone in sorted(Path(root).glob("intel-rapl:*")) if zone.name.count(":") == 1]
        zones = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
        if not zones:
            raise OSError(f"no processor energy counters in {root}")
        self._largest = {zone / "energy_uj": int((zone / "max_energy_range_uj").read_text()) for zone in zones}
        self._last = dict.fromkeys(self._largest, 0)
        self._turns = 0
        self.energy_j()

    def energy_j(self) -> float:
        """Return the energy of all packages; counters that started again from 0 go on."""
        for path, largest in self._largest.items():
            try:
                now = int(path.read_text())
            except PermissionError:
                raise OSError(f"{path}: no permission; it is readable by root only") from None
            self._turns += largest + 1 if now < self._last[path] else 0
            self._last[path] = now
        return (sum(self._last.values()) + self._turns) / 1e6


_READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {"cuda": Nvml, "rocm": RocmSmi}
_DENSE = 600  # readings, of the first one or two minutes
_MORE = 8_000
# A counter shows a new value every 10 to 100 ms; to know when, it is read until it changes, at first. Each
# reading may take milliseconds of CPU time (5 on an H200), so this begins shortly before the next change is due.
_LOOK_S, _MOST_LOOKS = 0.005, 25
_STATE_S = 1.0


class _Rows:
    """Rows by time: the first are all stored, later ones at growing intervals."""

    def __init__(self, dense: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.every_s = 0.0  # for the rows to come
        self._dense = dense

    def add(self, row: dict[str, Any]) -> None:
        if len(self.rows) >= self._dense + _MORE:
            self.rows[self._dense :] = self.rows[self._dense :: 2]
            self.every_s *= 2
        self.rows.append(row)
        if len(self.rows) >= self._dense:
            self.every_s = max(self.every_s, _STATE_S)


class Telemetry:
    """The readings of one rank's device, and of its host on the first rank there."""

    def __init__(
        self,
        device: Mapping[str, Any],
        *,
        reads_host: bool,
        readers: Mapping[str, Callable[[Mapping[str, Any]], Any]] = _READERS,
        rapl: Callable[[], Any] = Rapl,
        period_s: float = 0.1,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        #: why there is no energy of the device or the host, by which of them
        self.reasons: dict[str, str] = {}
        self._device = dict(device)
        self._about: dict[str, Any] = {"kind": "counters", "host_name": socket.gethostname()}
        reader = readers.get(str(device.get("kind")))
        self._open = {
            "device": partial(reader, self._device) if reader else None,
            "host": rapl if reads_host else None,
        }
        self._period_s, self._clock = period_s, clock
        self._step, self._in_window = 0, False
        self._states, self._energy = _Rows(0), _Rows(_DENSE)
        self._due_ns = {"state": 0, "energy": 0}
        self._changed_ns = self._every_ns = 0  # when the counter changed last, and how often it does
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._thread.start()

    def step(self, line: Mapping[str, Any]) -> None:
        """Take in a line of the step log."""
        if "step" in line:
            self._step = line["step"] + 1
            self._in_window = line.get("phase") in (WARMUP, WINDOW)

    def reading(self) -> dict[str, Any]:
        """Return the energy since the first reading and the last power, of what is measured."""
        rows = self._energy.rows
        found = {
            name: rows[-1][name] - rows[0][name]
            for name in ("energy_j", "host_energy_j")
            if rows and rows[0].get(name) is not None and rows[-1].get(name) is not None
        }
        power = rows[-1].get("power_w") if rows else None
        return {**found, **({} if power is None else {"power_w": power}), "device": self._device.get("uuid") or ""}

    def end(self) -> None:
        """Read once more and stop."""
        self._over.set()
        self._thread.join(timeout=2.0)

    def write(self, path: Path) -> None:
        """Write all readings so far; nothing where there are none."""
        energy, states = list(self._energy.rows), list(self._states.rows)
        if energy or states:
            device = [{**self._device, "kind": "device"}] if self._open["device"] else []
            rows = [*device, self._about, *states, *energy]
            place_whole("".join(f"{json.dumps(row)}\n" for row in rows).encode(), path)

    def _watch(self) -> None:
        device, host = self._opened("device"), self._opened("host")
        if device is None and host is None:
            return
        try:
            if device is not None:
                self._device |= device.limits()
            while not self._over.is_set():
                self._read(device, host)
                learns = self._changed_ns and not self._every_ns and len(self._energy.rows) < _DENSE
                if not learns:  # else the next change shows how often there is one
                    self._over.wait(self._period_s * random.uniform(0.7, 1.3))  # never in step with the steps
            self._due_ns = dict.fromkeys(self._due_ns, 0)
            self._read(device, host)
            if device is not None:
                device.close()
        except Exception as e:  # noqa: BLE001 - the run comes first
            self.reasons["device" if device is not None else "host"] = _reason(e)

    def _opened(self, what: str) -> Any:
        make = self._open[what]
        reader = None
        try:
            if make is not None:
                reader = make()
                reader.energy_j()
                self._about[what] = reader.name
        except Exception as e:  # noqa: BLE001 - a driver may fail in any way
            self.reasons[what] = _reason(e)
        return reader

    def _read(self, device: Any, host: Any) -> None:
        now_ns = self._clock()
        if device is not None and (now_ns >= self._due_ns["state"] or self._in_window):
            state = {"kind": "state", "time_ns": now_ns, "step": self._step, **device.state()}
            self._states.add(state)
            self._due_ns["state"] = now_ns + int(1e9 * max(_STATE_S, self._states.every_s))
        if now_ns < self._due_ns["energy"] and not self._in_window:
            return
        row: dict[str, Any] = {"kind": "energy", "time_ns": self._clock()}
        if "device" in self._about:
            at_ns, joules, is_fresh = self._counter(device)
            row |= {"time_ns": at_ns, "energy_j": round(joules, 6), "fresh": int(is_fresh)}
            row["power_w"] = device.power_w()
        if "host" in self._about:
            row["host_energy_j"] = round(host.energy_j(), 6)
        if len(row) > 2:
            self._energy.add(row)
            self._due_ns["energy"] = now_ns + int(1e9 * self._energy.every_s)

    def _counter(self, device: Any) -> tuple[int, float, bool]:
        """Return when, the counter, and whether it changed then, which is waited for in the first readings."""
        if len(self._energy.rows) >= _DENSE:
            return self._clock(), device.energy_j(), False
        early_ns = int(4e9 * _LOOK_S)  # a change is seen up to two looks late, and the looks are to begin before it
        if self._every_ns:  # the changes known so far are so far apart, or a multiple of it
            since_ns = self._clock() + early_ns - self._changed_ns
            self._over.wait((-since_ns % self._every_ns) / 1e9)
        first = now = device.energy_j()
        for _ in range(_MOST_LOOKS):
            if now != first or self._over.wait(_LOOK_S):
                break
            now = device.energy_j()
        at_ns = self._clock()
        if now != first:
            gap_ns, is_first = at_ns - self._changed_ns, not self._changed_ns
            self._changed_ns = at_ns
            if not is_first:
                each_ns = gap_ns // max(1, round(gap_ns / (self._every_ns or gap_ns)))
                self._every_ns = (3 * (self._every_ns or each_ns) + each_ns) // 4
        return at_ns, now, now != first


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] if isinstance(error, OSError) else explain(error)
