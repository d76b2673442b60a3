"""Readings of a device and its host in the helper process: planted counters come back as joules."""

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.limits import until
from tests.record.script_runs import json_lines

from stepscope.record.helper.scratch import make_scratch
from stepscope.record.helper.telemetry import Nvml, Rapl, RocmSmi, Telemetry
from stepscope.record.helper.writer import Writer


class FakeLibrary:
    """libnvidia-ml with one device, called as ctypes would call it."""

    def __init__(self, *, init=0, energy_code=0, milliwatts=lambda _: 640_200, clock=time.time_ns):
        self.init, self.energy_code = init, energy_code
        self.milliwatts, self.clock = milliwatts, clock
        self.began_ns = self.last_ns = clock()
        self.millijoules = 5e9  # since the driver was loaded
        self.asked_for = []
        self.shut_down = False

    def nvmlInit_v2(self):
        return self.init

    def nvmlShutdown(self):
        self.shut_down = True
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        self.asked_for.append(uuid)
        if uuid != b"GPU-right":
            return 6
        handle._obj.value = 42
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        self.asked_for.append(index.value)
        handle._obj.value = 42
        return 0 if index.value == 0 else 2

    def nvmlDeviceGetUUID(self, handle, into, size):
        into.value = b"GPU-right"
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle, into):
        into._obj.gpu, into._obj.memory = 97, 40
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, into):
        into._obj.used = 1 << 30
        return 0

    def nvmlDeviceGetPowerUsage(self, handle, into):
        into._obj.value = round(self.milliwatts(self.clock()))
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, into):
        now_ns = self.clock()
        self.millijoules += self.milliwatts(now_ns) * (now_ns - self.last_ns) / 1e9
        self.last_ns = now_ns
        into._obj.value = int(self.millijoules)
        return self.energy_code

    def __getattr__(self, function):
        """Functions that return a number, by what they are asked for."""
        numbers: Any = {
            "nvmlDeviceGetClockInfo": {1: 1755, 2: 3201},
            "nvmlDeviceGetMaxClockInfo": {1: 1980, 2: 3201},
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x20,
        }.get(function)

        def call(handle, *arguments):
            if numbers is None:
                return 3  # not supported: the temperature, and field values by an old driver
            arguments[-1]._obj.value = numbers if isinstance(numbers, int) else numbers[arguments[0].value]
            return 0

        return call


def no_rapl():
    raise OSError("no processor energy counters")


def a_clock(step_ns=10**8):
    ticks = itertools.count(10**18, step_ns)
    return lambda: next(ticks)


def test_the_device_is_found_by_uuid_and_otherwise_by_index():
    library = FakeLibrary()
    Nvml({"uuid": "GPU-right", "index": 3}, library)
    Nvml({"uuid": "GPU-other", "index": 0}, library)
    assert library.asked_for == [b"GPU-right", b"GPU-other", 0]
    with pytest.raises(OSError, match="no handle for device 5: invalid argument"):
        Nvml({"uuid": None, "index": 5}, library)


def test_readings_give_the_planted_joules(tmp_path):
    library = FakeLibrary(milliwatts=lambda now_ns: 300_000)
    telemetry = Telemetry(
        {"kind": "cuda", "name": "H200", "uuid": None, "index": 0},
        reads_host=False,
        readers={"cuda": lambda device: Nvml(device, library)},
        period_s=0.002,
    )
    until(lambda: len(telemetry._energy.rows) > 20)
    telemetry.end()
    telemetry.write(tmp_path / "t.jsonl")
    device, about, *found = json_lines(tmp_path / "t.jsonl")
    assert (device["uuid"], device["max_sm_clock_mhz"], about["device"]) == ("GPU-right", 1980, "nvml")
    energy = [row for row in found if row["kind"] == "energy"]
    spent_j = energy[-1]["energy_j"] - energy[0]["energy_j"]
    assert spent_j == pytest.approx(300 * (energy[-1]["time_ns"] - energy[0]["time_ns"]) / 1e9, rel=0.05)
    assert telemetry.reading() == {"energy_j": spent_j, "power_w": 300.0, "device": "GPU-right"}
    assert library.shut_down and not telemetry.reasons
    assert len([row for row in found if row["kind"] == "state"]) < len(energy)


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (FakeLibrary(init=9), "libnvidia-ml.so.1: nvmlInit_v2 failed: driver not loaded"),
        (FakeLibrary(energy_code=3), "nvmlDeviceGetTotalEnergyConsumption: not supported by this device"),
        (FakeLibrary(energy_code=4), "nvmlDeviceGetTotalEnergyConsumption: no permission"),
    ],
)
def test_a_device_without_a_counter_has_a_reason(library, why, tmp_path):
    readers = {"cuda": lambda device: Nvml(device, library)}
    telemetry = Telemetry({"kind": "cuda", "index": 0}, reads_host=True, readers=readers, rapl=no_rapl, period_s=0.002)
    until(lambda: "host" in telemetry.reasons)
    telemetry.end()
    assert telemetry.reasons == {"device": why, "host": "no processor energy counters"}
    assert "energy_j" not in telemetry.reading()
    telemetry.write(tmp_path / "t.jsonl")
    if not library.init:  # its state is known
        assert {row["kind"] for row in json_lines(tmp_path / "t.jsonl")} == {"device", "counters", "state"}


@pytest.mark.slow
def test_a_long_job_keeps_its_first_minutes_and_ever_fewer_later_readings(monkeypatch):
    monkeypatch.setattr("stepscope.record.helper.telemetry._DENSE", 50)
    monkeypatch.setattr("stepscope.record.helper.telemetry._MORE", 40)
    library = FakeLibrary(milliwatts=lambda _: 100_000, clock=a_clock())
    readers = {"cuda": lambda device: Nvml(device, library)}
    telemetry = Telemetry(
        {"kind": "cuda", "index": 0}, reads_host=False, readers=readers, period_s=0.0001, clock=library.clock
    )
    until(lambda: library.last_ns > 10**18 + 600 * 10**9)  # ten minutes of the planted clock
    telemetry.end()
    times = [row["time_ns"] for row in telemetry._energy.rows]
    assert len(times) <= 90 and times == sorted(times)
    assert max(b - a for a, b in itertools.pairwise(times[:50])) < 2e9
    assert min(b - a for a, b in itertools.pairwise(times[50:-1])) > 5e9
    assert telemetry.reading()["energy_j"] == pytest.approx(100 * (times[-1] - times[0]) / 1e9, rel=0.01)


def plant_package(root: Path, number: int, energy_uj: int, largest: int = 262_143_328_850) -> Path:
    zone = root / f"intel-rapl:{number}"
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "name").write_text(f"package-{number}\n")
    (zone / "max_energy_range_uj").write_text(f"{largest}\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    return zone / "energy_uj"


def test_packages_of_the_host_are_summed_and_go_on_after_their_largest_value(tmp_path):
    first = plant_package(tmp_path, 0, 900, largest=999)
    second = plant_package(tmp_path, 1, 2_000_000)
    plant_package(tmp_path, 2, 7).parent.joinpath("name").write_text("psys\n")  # the board, packages included
    (tmp_path / "intel-rapl:0:0").mkdir()  # cores of package 0
    rapl = Rapl(tmp_path)
    before = rapl.energy_j()
    first.write_text("150\n")  # 250 more
    second.write_text("2500000\n")
    assert rapl.energy_j() - before == pytest.approx(0.500250)


class FakeRocm:
    """librocm_smi64 with two devices."""

    def rsmi_init(self, flags):
        return 0

    def rsmi_shut_down(self):
        return 0

    def rsmi_num_monitor_devices(self, count):
        count._obj.value = 2
        return 0

    def rsmi_dev_pci_id_get(self, index, into):
        into._obj.value = (1 << 32) | ((0x10 + index.value) << 8) | (3 << 3)
        return 0

    def rsmi_dev_energy_count_get(self, index, count, resolution, at):
        count._obj.value, resolution._obj.value = 2_000_000 * (1 + index.value), 15.25
        return 0

    def rsmi_dev_power_ave_get(self, index, sensor, into):
        into._obj.value = 450_000_000
        return 0


def test_a_device_of_amd_is_found_by_its_pci_address():
    device = RocmSmi({"pci": [1, 0x11, 3]}, FakeRocm())
    assert device.energy_j() == pytest.approx(61.0)
    assert device.power_w() == 450
    assert device.limits() == {"uuid": "rocm_smi 1"}  # ranks that share it have the same
    with pytest.raises(OSError, match="none of its 2 devices"):
        RocmSmi({"pci": [0, 1, 1]}, FakeRocm())


def a_writer(tmp_path: Path) -> Writer:
    scratch = make_scratch(str(tmp_path))
    settings: dict[str, Any] = {"rank": 0, "world_size": 1, "scratch": str(scratch), "telemetry": True}
    return Writer({**settings, "other_ranks_wait_s": 1, "write_timeout_s": 60})


def test_the_helper_begins_with_the_device_and_says_in_run_json_why_there_is_no_energy(tmp_path, monkeypatch):
    monkeypatch.setattr("stepscope.record.helper.telemetry.Rapl.__init__", lambda *_: no_rapl())
    helper = a_writer(tmp_path)
    messages = [
        {"do": "claim", "out": str(tmp_path / "run"), "run_id": "a"},
        {"do": "facts", "device": {"kind": "cpu"}, "local_rank": 0},
    ]
    step = {"step": 0, "dur_ns": 5, "phase": "before", "profiled": False}
    ours, theirs = os.pipe()
    os.write(theirs, b"".join(b"m%s\n" % json.dumps(one).encode() for one in messages))
    os.write(theirs, b"s%s\n" % json.dumps(step).encode())
    os.close(theirs)
    helper.read_to_the_end(ours)
    os.close(ours)
    helper.finish()
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["ranks"]["0"]["energy_unknown"] == {"host": "no processor energy counters"}
    assert not (tmp_path / "run" / "rank00000.telemetry.jsonl").exists()
