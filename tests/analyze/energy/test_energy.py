"""Planted power comes back as joules: of steps, parts, waiting, tokens and the whole job."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.energy.planted import EPOCH_NS, TOKENS, WATTS, Plant, planted_run, write_steps

from stepscope.analyze.energy import energy_of_spans
from stepscope.cli.main import main
from stepscope.run.side_files import Telemetry, side_files


def energy(folder: Path, plant: Plant, *, light: bool = False) -> dict[str, Any]:
    planted_run(folder / "run", plant, light=light)
    return energy_of_report(folder)


def energy_of_report(folder: Path) -> dict[str, Any]:
    assert main(["report", str(folder / "run"), "--json", str(folder / "report.json")]) == 0
    return json.loads((folder / "report.json").read_text())["energy"]


def by_part(parts: list[dict[str, Any]]) -> dict[str, float]:
    return {one["part"]: one["j"] for one in parts}


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        Plant(),
        Plant(late_ms=80),
        Plant(late_ms=80, update_ms=100),
        Plant(late_ms=80, scale=10, steps=60),
        Plant(late_ms=80, scale=0.2, steps=1200, lag_ms=3),
    ],
)
def test_joules_of_each_part_are_those_planted_and_sum_to_the_counter(tmp_path: Path, plant: Plant) -> None:
    found = energy(tmp_path, plant)
    assert found["source"] == "nvml" and found["reason"] is None
    for number, device in enumerate(found["devices"]):
        planted = plant.joules(number)
        assert device["ranks"] == [number]
        assert device["j_per_step"] == pytest.approx(sum(planted.values()), rel=0.005)
        assert sum(by_part(device["parts"]).values()) == pytest.approx(device["j_per_step"], rel=1e-6)
        for part, joules in planted.items():
            assert by_part(device["parts"])[part] == pytest.approx(joules, abs=0.02 * sum(planted.values())), part
    assert found["j_per_step"] == pytest.approx(sum(d["j_per_step"] for d in found["devices"]))
    assert found["j_per_token"] == pytest.approx(found["j_per_step"] / TOKENS)
    assert sum(one["pct"] for one in found["parts"]) == pytest.approx(100)
    whole_j = plant.steps * sum(sum(plant.joules(n).values()) for n in range(2))
    assert found["total_j"] == pytest.approx(whole_j, rel=0.01)


@pytest.mark.slow
def test_a_late_rank_costs_what_the_run_without_it_saves(tmp_path: Path) -> None:
    late = energy(tmp_path / "late", Plant(late_ms=80))
    even = energy(tmp_path / "even", Plant())
    (one,) = late["late_ranks"]
    assert one["rank"] == 1 and even["late_ranks"] == []
    assert one["waste_j_per_step"] == pytest.approx(late["j_per_step"] - even["j_per_step"], rel=0.02)
    assert one["waiting_j_per_step"] == pytest.approx(0.080 * WATTS["wait"], rel=0.02)
    assert late["wait_j_per_step"] == pytest.approx(0.080 * WATTS["wait"], rel=0.02)


def test_ranks_that_share_a_device_have_one_energy(tmp_path: Path) -> None:
    plant = Plant(late_ms=150, shared=True)
    found = energy(tmp_path, plant)
    (device,) = found["devices"]
    assert device["ranks"] == [0, 1]
    assert found["j_per_step"] == device["j_per_step"] == pytest.approx(sum(plant.joules(0).values()), rel=0.005)
    assert any("cannot be divided among them" in note for note in found["notes"])
    (late,) = found["late_ranks"]
    assert late["waste_j_per_step"] == pytest.approx(plant.joules(0)["wait"], rel=0.05)


def test_readings_that_cannot_tell_parts_apart_leave_the_mean_and_a_wide_range(tmp_path: Path) -> None:
    found = energy(tmp_path, Plant(late_ms=80, scale=0.05, steps=800, fresh=False, update_ms=100))
    assert any("power of" in note and "not resolved" in note for note in found["notes"])
    device = found["devices"][0]
    wait = next(one for one in device["parts"] if one["part"] == "wait")
    assert wait["high_j"] - wait["low_j"] > 0.5 * wait["j"]
    assert sum(by_part(device["parts"]).values()) == pytest.approx(device["j_per_step"])


def test_a_device_without_a_counter_has_null_and_the_reason(tmp_path: Path) -> None:
    found = energy(tmp_path, Plant(counter=False))
    assert found["total_j"] is found["j_per_step"] is found["j_per_token"] is None
    assert found["parts"] == [] and found["devices"] == []
    assert found["reason"] == "rank 0-1: nvmlDeviceGetTotalEnergyConsumption: not supported by this device"


def test_a_host_that_ran_ahead_of_its_device_has_no_joules_per_step(tmp_path: Path) -> None:
    planted_run(tmp_path / "run", Plant())
    for rank in range(2):
        write_steps(tmp_path / "run", Plant(scale=0.3), rank)
    found = energy_of_report(tmp_path)
    assert found["j_per_step"] is None and "the host ran ahead of the device" in found["reason"]


def test_light_mode_has_joules_per_step_and_token_but_no_split(tmp_path: Path) -> None:
    plant = Plant(late_ms=80)
    found = energy(tmp_path, plant, light=True)
    assert found["j_per_step"] == pytest.approx(sum(sum(plant.joules(n).values()) for n in range(2)), rel=0.005)
    assert found["j_per_token"] == pytest.approx(found["j_per_step"] / TOKENS)
    assert found["parts"] == [] and any("needs a trace" in note for note in found["notes"])


def test_spans_of_the_job_have_their_joules(tmp_path: Path) -> None:
    plant = Plant()
    planted_run(tmp_path, plant, light=True)
    half_ns = EPOCH_NS + int(plant.steps / 2 * plant.step_ms * 1e6)
    end_ns = EPOCH_NS + int(plant.steps * plant.step_ms * 1e6)
    spans = {
        "first": (EPOCH_NS, half_ns),
        "second": (half_ns, end_ns),
        "before": (EPOCH_NS - 10**12, EPOCH_NS - 10**10),
    }
    found, source = energy_of_spans([[(one, spans) for one in side_files(tmp_path).telemetry]])
    half_j = plant.steps / 2 * sum(sum(plant.joules(n).values()) for n in range(2))
    half = 2 * (half_ns - EPOCH_NS)
    assert source == "nvml"
    assert found["first"].tolist() == pytest.approx([half_j, half, half], rel=0.01)
    assert found["second"].tolist() == pytest.approx([half_j, half, half], rel=0.01)
    assert found["before"].tolist() == pytest.approx([0, 0, 2 * 990e9])


def test_a_clock_that_is_set_back_adds_no_joules() -> None:
    true_s = np.arange(0, 20.05, 0.1)
    shown_ns = 1e9 * np.where(true_s < 10, true_s, true_s - 1)
    order = np.argsort(shown_ns, kind="stable")  # as the reader sorts them
    rows = {"time_ns": shown_ns, "energy_j": 5e6 + 100 * true_s, "fresh": 0 * true_s, "power_w": np.nan * true_s}
    energy = {name: column[order] for name, column in rows.items()}
    one = Telemetry(0, device={}, columns={}, reasons=(), counters={"device": "nvml"}, energy=energy)
    found, _ = energy_of_spans([[(one, {"all": (0.0, 19e9)})]])
    assert found["all"][0] == pytest.approx(2000)


def host_run(folder: Path, *, watts: float) -> None:
    """A run on a host with a processor counter and no device."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"schema": 1, "world_size": 1, "samples_per_step": 8}))
    steps = [
        {"step": n, "start_ns": EPOCH_NS + n * 10**8, "end_ns": EPOCH_NS + (n + 1) * 10**8, "dur_ns": 10**8,
         "profiled": False, "phase": "after"}
        for n in range(100)
    ]  # fmt: skip
    readings = [
        {"kind": "energy", "time_ns": EPOCH_NS + int(t * 1e9), "host_energy_j": 77.0 + watts * t}
        for t in np.arange(0, 10.1, 0.1)
    ]
    lines = {
        "steps": [{"schema": 1, "rank": 0, "world_size": 1}, *steps],
        "telemetry": [{"kind": "counters", "host": "rapl", "host_name": "node"}, *readings],
    }
    for name, rows in lines.items():
        (folder / f"rank00000.{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_a_job_on_processors_has_the_energy_of_its_host(tmp_path: Path) -> None:
    host_run(tmp_path / "run", watts=150.0)
    found = energy_of_report(tmp_path)
    assert (found["source"], found["reason"], found["devices"]) == ("rapl", None, [])
    assert found["j_per_step"] == pytest.approx(15.0) and found["total_j"] == pytest.approx(1500.0)
    assert found["j_per_sample"] == pytest.approx(15.0 / 8) and found["j_per_token"] is None
