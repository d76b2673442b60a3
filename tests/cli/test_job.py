"""`stepscope job` on run folders in which every second was planted."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.planted_job import at, plain, plant, plant_meter, plant_two_attempts

from stepscope.cli.main import main

NO_METER = "energy unknown: run: no energy counter was recorded; record with stepscope record"


def ledger(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, float], dict[str, Any]]:
    assert main(["job", str(run), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    parts = {part["part"]: part["s"] for part in document["parts"] if part["s"] > 1e-4}
    assert sum(part["s"] for part in document["parts"]) == pytest.approx(document["total_s"])
    assert sum(part["pct"] for part in document["parts"]) == pytest.approx(100.0)
    return parts, document


def test_parts_of_an_undisturbed_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [(5.0, {"data_loading": 0.5}), *plain(9)]
    steps[4] = (3.0, {"evaluation": 2.0})
    steps[6] = (1.75, {"checkpoint": 0.75})
    steps[8] = (1.25, {"data_loading": 0.25})
    plant(
        tmp_path / "run", start=2, launched=0, first=6, end=25, steps=[steps], after={"evaluation": 1.5}, launch_end=27
    )
    parts, document = ledger(tmp_path / "run", capsys)
    # launcher, imports, group, model, and the loader's start; then the rest of the job
    expected = {"startup": 6.5, "compile": 3.5, "productive": 10.0, "evaluation": 3.5}
    expected |= {"checkpoint_save": 0.75, "slowed": 0.25, "shutdown": 2.5}
    assert parts == pytest.approx(expected, abs=1e-5)
    detail = next(part["detail"] for part in document["parts"] if part["part"] == "startup")
    assert detail == pytest.approx({"launcher": 2.0, "imports": 1.0, "process_group": 0.5, "model_and_data": 3.0})
    assert document["goodput_pct"] == pytest.approx(100 * 10 / 27)
    assert [one["reason"] for one in document["attempts"]] == ["finished"]
    assert document["energy"] is None and document["warnings"] == [NO_METER]


def test_steps_after_the_last_save_are_lost_by_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path)
    for run in ("run", "run-2"):
        parts, document = ledger(tmp_path / run, capsys)
        expected = {
            "startup": 3.0,
            "productive": 12.0,
            "checkpoint_save": 0.5,  # rank 1 waits for it
            "lost_work": 3.4,  # three steps and a part of one
            "restart": 4.1,
            "checkpoint_load": 1.0,
            "shutdown": 1.0,
        }
        assert parts == pytest.approx(expected, abs=1e-5)
        assert [(one["steps"], one["steps_lost"], one["reason"]) for one in document["attempts"]] == [
            (9, 3, "rank 1 killed"),
            (6, 0, "finished"),
        ]
        assert document["warnings"] == [NO_METER]


def test_lost_work_is_unknown_where_neither_a_save_nor_a_load_was_seen(tmp_path, capsys):
    plant_two_attempts(tmp_path, saved=False, loaded=False)
    parts, document = ledger(tmp_path / "run", capsys)
    assert parts["unknown"] == pytest.approx(9.5)
    assert parts["productive"] == pytest.approx(6.0)
    assert document["attempts"][0]["steps_lost"] is None
    assert "unknown" in document["warnings"][0] and "run-2" in document["warnings"][0]


def test_a_restart_without_a_checkpoint_loses_everything_before(tmp_path, capsys):
    plant_two_attempts(tmp_path, loaded=False)
    parts, document = ledger(tmp_path / "run", capsys)
    assert document["attempts"][0]["steps_lost"] == 9
    assert parts["productive"] == pytest.approx(6.0)
    assert "read no checkpoint" in document["warnings"][0]


def test_no_step_for_long_before_the_end_is_a_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path, over=72.5)
    parts, _ = ledger(tmp_path / "run", capsys)
    assert parts["hang"] == pytest.approx(60.0)
    assert parts["lost_work"] == pytest.approx(3.0)


def test_a_later_launch_that_reads_the_checkpoint_is_the_same_job(tmp_path, capsys):
    plant_two_attempts(tmp_path, launch_id="two", restart=0, launched=13.5)
    parts, document = ledger(tmp_path / "run", capsys)
    assert len(document["attempts"]) == 2
    assert document["total_s"] == pytest.approx(13.4 + 25.0 - 13.5)
    assert parts["startup"] == pytest.approx(3.0 + 3.5)
    assert parts["lost_work"] == pytest.approx(3.4, abs=0.3)
    assert "between launches" in document["warnings"][0]


def test_another_launch_in_the_same_place_is_another_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path, launch_id="two", restart=0, launched=13.5, loaded=False)
    for run in ("run", "run-2"):
        assert [one["run"] for one in ledger(tmp_path / run, capsys)[1]["attempts"]] == [run]


def test_a_long_step_of_one_rank_slows_all_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [plain(12), plain(12)]
    steps[0][7] = (3.0, {"backward_pass": 2.5})
    steps[1][7] = (3.0, {"forward_pass": 2.5})
    steps[0] = [(dur, {"backward_pass": 0.5, **regions}) for dur, regions in steps[0]]
    steps[1] = [(dur, {"backward_pass": 0.5, **regions}) for dur, regions in steps[1]]
    plant(tmp_path / "run", start=0, first=2, end=16, steps=steps)
    parts, document = ledger(tmp_path / "run", capsys)
    assert parts == pytest.approx({"startup": 2.0, "productive": 12.0, "slowed": 2.0}, abs=1e-5)
    assert next(p["detail"] for p in document["parts"] if p["part"] == "slowed")["straggler"] == pytest.approx(2.0)


def test_what_fewer_saves_and_evaluations_give_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [(1.6, {"checkpoint": 0.5, "evaluation": 0.1}) if n % 10 == 9 else (1.0, {}) for n in range(100)]
    plant(tmp_path / "run", start=0, first=2, end=108, steps=[steps])
    _, document = ledger(tmp_path / "run", capsys)
    saves = next(one for one in document["savings"] if one["part"] == "checkpoint_save")
    assert saves["change"] == "saving every 50 instead of every 10 steps"
    assert saves["s"] == pytest.approx(0.8 * 5.0)


def test_saving_more_often_saves_no_more_than_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path)
    _, document = ledger(tmp_path / "run", capsys)
    saves = next(one for one in document["savings"] if one["part"] == "checkpoint_save")
    assert saves["change"] == "saving every 5 instead of every 15 steps (1 failure)"  # sqrt(2 x 0.5 s x 25 s)
    assert saves["s"] == pytest.approx(3.4 * 2 / 3 - 2 * 0.5)


def test_a_page_and_a_column_of_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path)
    page = tmp_path / "job.html"
    assert main(["job", str(tmp_path / "run"), "--html", str(page)]) == 0
    assert "Goodput: 48.0 %" in page.read_text()
    capsys.readouterr()
    assert main(["history", str(tmp_path), "--no-cache", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [row["goodput_pct"] for row in rows] == pytest.approx([48.0, 48.0])


def test_a_folder_without_step_logs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", str(tmp_path)]) == 2
    assert "no step log" in capsys.readouterr().err


def plant_metered(where: Path, devices: tuple[str, str], **second: Any) -> None:
    """Two attempts on two ranks: 500 W in steps, 100 W in the restart from 12.9 to 18 s; read in steps only."""
    plant_two_attempts(where, **second)
    for run, read in (("run", (3.0, 12.9)), ("run-2", (18.0, 25.0))):
        for rank, device in enumerate(devices):
            power = [(12.9, 500.0), (18.0, 100.0), (24.0, 500.0), (99.0, 50.0)]
            plant_meter(where / run, rank, device=device, power=power, read=read)


@pytest.mark.parametrize("devices", [("GPU-a", "GPU-b"), ("GPU-a", "GPU-a")])
def test_joules_of_the_job_by_part(tmp_path, capsys, devices):
    plant_metered(tmp_path, devices)
    energy = ledger(tmp_path / "run", capsys)[1]["energy"]
    count = len(set(devices))  # a shared device counts once
    expected = {
        "productive": 500 * 12.0,
        "checkpoint_save": 500 * 0.5,
        "lost_work": 500 * 3.4,
        "restart": 100 * 4.1,  # the counter goes on between attempts
        "checkpoint_load": 100 * 1.0,
        "shutdown": 50 * 1.0,
    }
    found = {one["part"]: one["j"] for one in energy["parts"]}
    assert found == pytest.approx({part: count * joules for part, joules in expected.items()}, rel=1e-3)
    assert energy["total_j"] == pytest.approx(sum(found.values()))
    assert energy["j_per_step"] == pytest.approx(energy["total_j"] / 12)
    assert (energy["source"], energy["j_per_token"]) == ("nvml", None)
    assert energy["measured_pct"] == pytest.approx(100 * 22 / 25)  # start-up comes before the first reading
    page = tmp_path / "job.html"
    assert main(["job", str(tmp_path / "run"), "--html", str(page)]) == 0
    assert f"Energy: {'17.0 kJ' if count == 2 else '8,510 J'}" in page.read_text()


def test_energy_between_launches_is_not_the_job_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_metered(tmp_path, ("GPU-a", "GPU-b"), launch_id="two", restart=0, launched=13.5)
    energy = ledger(tmp_path / "run", capsys)[1]["energy"]
    assert energy["total_j"] == pytest.approx(2 * (500 * (9.9 + 6.0) + 50 * 1.0), rel=1e-3)


def test_a_rank_without_readings_leaves_the_energy_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_metered(tmp_path, ("GPU-a", "GPU-b"))
    (tmp_path / "run-2" / "rank00001.telemetry.jsonl").unlink()
    document = ledger(tmp_path / "run", capsys)[1]
    assert document["energy"] is None
    assert document["warnings"] == ["energy unknown: run-2: rank 1: no readings of its device's counter"]


def test_a_counter_that_starts_again_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_metered(tmp_path, ("GPU-a", "GPU-b"))
    for rank in range(2):
        power = [(13.0, 0.0), (18.0, 100.0), (24.0, 500.0), (99.0, 50.0)]
        plant_meter(tmp_path / "run-2", rank, device=f"GPU-{'ab'[rank]}", power=power, read=(18.0, 25.0), begin=0.0)
    energy = ledger(tmp_path / "run", capsys)[1]["energy"]
    assert energy["total_j"] == pytest.approx(2 * (500 * 15.9 + 100 * 5.0 + 50), rel=1e-3)


def test_another_world_size_has_other_usual_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(
        tmp_path / "run", start=0, first=3, end=23, steps=[plain(20)] * 4, killed=(0, 1, 2, 3),
        saves=((22.9, 23, "/c"),),
    )  # fmt: skip
    plant(
        tmp_path / "run-2", start=24, first=28, end=52, launched=0, restart=1, loads=((26, 27, "/c"),),
        steps=[plain(12, 2.0)] * 2,
    )  # fmt: skip
    parts, _ = ledger(tmp_path / "run", capsys)
    assert parts["productive"] == pytest.approx(20 + 24) and "slowed" not in parts


def test_an_attempt_whose_host_went_down_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant_two_attempts(tmp_path, launch_id="two", restart=0, launched=13.5)
    for rank in range(2):
        (tmp_path / "run" / f"rank{rank:05d}.facts.jsonl").write_text(
            json.dumps({"checkpoints": [["save", at(9.0), at(9.5), "/ckpt/last.pt"]] if rank == 0 else []})
        )
    parts, document = ledger(tmp_path / "run", capsys)
    assert [one["reason"] for one in document["attempts"]] == ["stopped, its end was not recorded", "finished"]
    assert document["attempts"][0]["steps_lost"] == 3 and parts["lost_work"] == pytest.approx(3.0)


def test_a_resumed_run_repeats_steps_of_one_that_ended_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(tmp_path / "run", start=0, first=3, end=13, steps=[plain(10)], saves=((8.9, 9, "/c"),), launch_end=13)
    plant(tmp_path / "run-2", start=20, first=24, end=34, steps=[plain(10)], loads=((22, 23, "/c"),), launch_id="two")
    parts, document = ledger(tmp_path / "run", capsys)
    assert [one["steps_lost"] for one in document["attempts"]] == [4, 0]
    assert parts["lost_work"] == pytest.approx(4.0) and parts["productive"] == pytest.approx(16.0)


def test_saves_of_fewer_ranks_after_a_restart_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(tmp_path / "run", start=0, first=3, end=13, steps=[plain(10)] * 4, killed=(0, 1, 2, 3), save_ranks=(0, 3),
          saves=((12.9, 13, "/c"),))  # fmt: skip
    plant(tmp_path / "run-2", start=14, first=18, end=28, launched=0, restart=1, loads=((15, 16, "/c"),), killed=(0, 1),
          steps=[plain(10)] * 2, saves=((27.9, 28, "/c"),))  # fmt: skip
    plant(tmp_path / "run-3", start=29, first=33, end=43, launched=0, restart=2, loads=((30, 31, "/c"),),
          steps=[plain(10)] * 2)  # fmt: skip
    assert [one["steps_lost"] for one in ledger(tmp_path / "run", capsys)[1]["attempts"]] == [0, 0, 0]


def test_a_folder_without_a_step_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(tmp_path / "run", start=0, first=3, end=5, steps=[[]])
    assert main(["job", str(tmp_path / "run")]) == 2
    assert "with a step in it" in capsys.readouterr().err
