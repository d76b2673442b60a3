"""NCCL's log of a rank and the state of its device."""

import json
import os
import time

from stepscope.record.nccl_log import NcclLog, log_of_process
from stepscope.record.samplers import Nvml, Telemetry


def test_nccl_writes_one_file_per_process_which_becomes_the_ranks_log(tmp_path):
    environ: dict[str, str] = {}
    log = NcclLog(environ=environ)
    assert environ["NCCL_DEBUG"] == "INFO"
    assert "COLL" in environ["NCCL_DEBUG_SUBSYS"].split(",")
    written = log_of_process(environ["NCCL_DEBUG_FILE"], pid=os.getpid())
    written.write_text("host:1:1 [0] NCCL INFO Channel 00/02 : 0 1\n")
    log.after_window(tmp_path, 3)
    assert (tmp_path / "rank00003.nccl.log").read_text().endswith(": 0 1\n")
    with written.open("a") as f:
        f.write("more\n")
    log.on_close(tmp_path, 3)
    assert (tmp_path / "rank00003.nccl.log").read_text().endswith("more\n")
    assert not written.parent.exists()


def test_what_the_user_set_is_kept_and_said(tmp_path, capsys):
    theirs = tmp_path / f"mine.{os.getpid()}.txt"
    theirs.write_text("NCCL WARN\n")
    environ = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": str(tmp_path / "mine.%p.txt")}
    log = NcclLog(environ=environ)
    assert environ["NCCL_DEBUG"] == "WARN"
    run = tmp_path / "run"
    run.mkdir()
    log.on_close(run, 0)
    assert (run / "rank00000.nccl.log").read_text() == "NCCL WARN\n"
    assert theirs.exists()
    assert "NCCL_DEBUG=WARN is already set" in capsys.readouterr().err


class FakeLibrary:
    """libnvidia-ml with one device, called as ctypes would call it."""

    def __init__(self, *, init=0, without=()):
        self.init = init
        self.without = without
        self.asked_for = []
        self.shut_down = False

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "without"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

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

    def nvmlDeviceGetUtilizationRates(self, handle, into):
        into._obj.gpu, into._obj.memory = 97, 40
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, into):
        into._obj.used = 1 << 30
        return 0

    def nvmlDeviceGetClockInfo(self, handle, which, into):
        into._obj.value = {1: 1755, 2: 3201}[which.value]
        return 0

    def nvmlDeviceGetMaxClockInfo(self, handle, which, into):
        into._obj.value = {1: 1980, 2: 3201}[which.value]
        return 0

    def nvmlDeviceGetPowerUsage(self, handle, into):
        into._obj.value = 640_200
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, handle, into):
        into._obj.value = 700_000
        return 0

    def nvmlDeviceGetTemperature(self, handle, which, into):
        return 3  # not supported

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle, into):
        into._obj.value = 0x4 | 0x20
        return 0


def test_state_is_read_in_the_units_of_its_names():
    nvml = Nvml(FakeLibrary())
    state = nvml.state(nvml.device(uuid=None, index=0))
    assert state["utilization_pct"] == 97
    assert state["sm_clock_mhz"] == 1755
    assert state["power_w"] == 640.2
    assert state["throttle_reasons"] == ["power_cap", "thermal_software"]
    assert state["memory_used_bytes"] == 1 << 30


def test_samples_are_taken_off_the_training_thread_and_faster_in_the_window(tmp_path):
    library = FakeLibrary()
    telemetry = Telemetry(nvml=lambda: Nvml(library), period_s=60, window_period_s=0.01, cuda_in_use=lambda: True)
    telemetry.on_step_end(4)
    wait_until(lambda: len(telemetry._states) == 1)
    telemetry.on_window_start()
    wait_until(lambda: len(telemetry._states) >= 5)
    telemetry.on_window_end()
    telemetry.on_close(tmp_path, 0)
    rows = [json.loads(line) for line in (tmp_path / "rank00000.telemetry.jsonl").read_text().splitlines()]
    assert rows[0]["kind"] == "device"
    assert rows[0]["max_sm_clock_mhz"] == 1980
    assert rows[0]["power_limit_w"] == 700
    assert {row["kind"] for row in rows[1:]} == {"state"}
    assert rows[1]["step"] == 5
    assert [row["time_ns"] for row in rows[1:]] == sorted(row["time_ns"] for row in rows[1:])
    assert library.shut_down


def wait_until(true, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
