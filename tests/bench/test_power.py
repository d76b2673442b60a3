"""The sweep over clocks and power limits: planted watts come back, settings are reset, refusals have a reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.bench.power import power_sweep
from stepscope.cli.main import main
from stepscope.errors import UsageError


class Device:
    """A device whose power is proportional to its clock, limited in watts."""

    def __init__(self, refused: tuple[str, ...] = ()) -> None:
        self.refused = refused
        self.clock_mhz, self.limit_w = 2000.0, 700.0
        self.spent_j = 0.0
        self.calls: list[str] = []

    def limits(self) -> dict[str, Any]:
        return {"max_sm_clock_mhz": 2000, "power_limit_w": 700.0}

    def energy_j(self) -> float:
        return self.spent_j

    def call(self, function: str, *values: Any) -> None:
        if function in self.refused:
            raise OSError(f"{function}: no permission")
        self.calls.append(function)
        if function == "nvmlDeviceSetGpuLockedClocks":
            self.clock_mhz = values[0].value
        elif function == "nvmlDeviceResetGpuLockedClocks":
            self.clock_mhz = 2000.0
        else:
            self.limit_w = values[0].value / 1000
            if self.limit_w < 300:
                raise OSError(f"{function}: invalid argument")

    def compute(self, seconds: float) -> int:
        self.spent_j += min(self.clock_mhz / 4, self.limit_w)  # as if for a second
        return int(self.clock_mhz)


def sweep(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    clock = iter(range(10_000))
    monkeypatch.setattr("stepscope.bench.power.time.perf_counter", lambda: float(next(clock)))
    return power_sweep(device, {"compute": device.compute}, seconds=1.0)


def test_watts_and_speed_by_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    points = sweep(device, monkeypatch)
    clocks = {p["value"]: p["compute"] for p in points if p["setting"] == "clock_mhz"}
    assert clocks[2000] == {"watts": 500, "per_s": 2000} and clocks[1400] == {"watts": 350, "per_s": 1400}
    limits = [p["value"] for p in points if p["setting"] == "power_limit_w"]
    assert limits == pytest.approx([700, 595, 490, 385])  # below that the device refuses
    assert (device.clock_mhz, device.limit_w) == (2000, 700)


def test_the_sweep_is_a_calibration_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["calibrate", "--power", str(tmp_path)]
    monkeypatch.setattr("stepscope.bench.power.torch.cuda.is_available", lambda: False)
    assert main(command) == 2 and "needs an NVIDIA device" in capsys.readouterr().err
    assert main([*command, "--backend", "gloo"]) == 2 and "exactly one of" in capsys.readouterr().err
    monkeypatch.setattr("stepscope.bench.power.power_model", lambda: {"device": "planted"})
    assert main(command) == 0 and f"whatif {tmp_path}" in capsys.readouterr().out
    assert json.loads((tmp_path / "power_model.jsonl").read_text()) == {"device": "planted"}
    assert main(command) == 2 and "--force" in capsys.readouterr().err


def test_without_the_right_to_set_anything_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"LockedClocks: no permission.*PowerManagementLimit: no permission.*as root"):
        sweep(Device(("nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetPowerManagementLimit")), monkeypatch)


def test_a_load_that_fails_leaves_no_limit_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()

    def fails(seconds: float) -> int:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        power_sweep(device, {"compute": fails}, seconds=1.0)
    assert device.clock_mhz == 2000 and device.calls[-1] == "nvmlDeviceResetGpuLockedClocks"
